//! `transferctl events`.

use super::Target;
use crate::error::Error;
use serde_json::{Value, json};
use transfer_core::text::printable;
use transfer_proto::v1::event::What;
use transfer_proto::v1::{Event, EventsRequest};

/// The options of `transferctl events`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Begin after the event of this number, as far as the sidecar has kept them; 0 shows all kept events. Default:
    /// only new events
    #[arg(long, value_name = "N")]
    pub after: Option<u64>,
    /// Stop after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// The sidecar.
    #[command(flatten)]
    pub target: Target,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Prints events as they come, until interrupted or the sidecar ends.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`].
pub async fn run(options: &Options) -> Result<(), Error> {
    let mut admin = options.target.connect_for_long().await?;
    let events = admin.events(EventsRequest { after: options.after }).await;
    let mut events = events.map_err(|e| options.target.answered(e))?.into_inner();
    let mut left = options.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(event) = events.message().await.map_err(|e| options.target.answered(e))? else {
            return Err(Error::StreamEnded { address: options.target.admin.clone(), what: "the events" });
        };
        match options.json {
            true => transfer_terminal::outln!("{}", as_json(&event)),
            false => transfer_terminal::outln!(
                "{}  {:>6}  {:<18} {}",
                clock(event.unix_ns),
                event.sequence,
                kind(&event),
                printable(event.text.clone())
            ),
        }
        left -= 1;
    }
    Ok(())
}

/// The time of day in UTC, to the millisecond.
fn clock(unix_ns: u64) -> String {
    let ms = unix_ns / 1_000_000;
    let (s, ms) = (ms / 1000 % 86_400, ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}Z", s / 3600, s / 60 % 60, s % 60)
}

fn kind(event: &Event) -> &'static str {
    match &event.what {
        Some(What::Missed(_)) => "missed",
        Some(What::SessionOpened(_)) => "session opened",
        Some(What::SessionClosed(_)) => "session closed",
        Some(What::LinkUp(_)) => "link up",
        Some(What::LinkDown(_)) => "link down",
        Some(What::RailDown(_)) => "rail down",
        Some(What::KeyTakenOver(_)) => "key taken over",
        Some(What::PoolFull(_)) => "pool full",
        Some(What::PoolFree(_)) => "pool free",
        Some(What::DeltaRefused(_)) => "delta refused",
        Some(What::RelayRefused(_)) => "relay refused",
        Some(What::Failed(_)) => "failed",
        Some(What::Drain(_)) => "drain",
        Some(What::DirectoryAttached(_)) => "directory attached",
        Some(What::DirectoryLost(_)) => "directory lost",
        Some(What::Changed(_)) => "changed",
        None => "other",
    }
}

fn as_json(event: &Event) -> Value {
    let mut object = json!(event);
    object["event"] = kind(event).into();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_shows_the_time_of_day_in_utc() {
        assert_eq!(clock(1_000_000_000_123_456_789), "01:46:40.123Z");
        assert_eq!(clock(0), "00:00:00.000Z");
    }
}
