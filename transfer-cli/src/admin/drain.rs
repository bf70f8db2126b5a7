//! `transferctl drain`.

use super::Target;
use crate::error::Error;
use serde_json::json;
use std::time::Duration;
use transfer_proto::v1::{DrainProgress, DrainRequest, DrainStep};
use transfer_terminal::units::{counted, nanos, short};

/// The options of `transferctl drain`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The time after which the sidecar leaves with unfinished work
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive)]
    pub deadline: Duration,
    /// Do not wait for the end
    #[arg(long)]
    pub no_wait: bool,
    /// The sidecar.
    #[command(flatten)]
    pub target: Target,
    /// One JSON object per line: times in nanoseconds
    #[arg(long)]
    pub json: bool,
}

fn positive(text: &str) -> Result<Duration, String> {
    match transfer_terminal::units::duration(text) {
        Ok(Duration::ZERO) => Err("0 is no deadline; 1ms is a short one".to_owned()),
        Ok(time) => Ok(time),
        Err(e) => Err(e.to_string()),
    }
}

/// Begins a drain, and prints the progress until the sidecar leaves.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`]; [`Error::Overdue`] if it leaves with unfinished work.
pub async fn run(options: &Options) -> Result<(), Error> {
    let deadline_ns = nanos(options.deadline);
    let mut admin = options.target.connect_for_long().await?;
    let progress = admin.drain(DrainRequest { deadline_ns }).await.map_err(|e| options.target.answered(e))?;
    let mut progress = progress.into_inner();
    let mut said = None;
    while let Some(now) = progress.message().await.map_err(|e| options.target.answered(e))? {
        if options.json {
            transfer_terminal::outln!("{}", json!(now));
        } else {
            let text = as_text(&now);
            // The remaining time changes even if nothing else does.
            let what = (now.step, now.operations, now.requests, now.outgoing, now.landing);
            if said.replace(what) != Some(what) {
                transfer_terminal::outln!("{text}");
            }
        }
        match now.step() {
            DrainStep::Overdue => return Err(Error::Overdue { left: left(&now) }),
            DrainStep::Finished => return Ok(()),
            _ if options.no_wait => return Ok(()),
            _ => {}
        }
    }
    Err(Error::StreamEnded { address: options.target.admin.clone(), what: "the progress of the drain" })
}

fn left(progress: &DrainProgress) -> String {
    let parts = [
        (progress.operations, ["operation of its workers", "operations of its workers"]),
        (progress.requests, ["request of peers", "requests of peers"]),
        (progress.outgoing, ["write to peers", "writes to peers"]),
        (progress.landing, ["key that peers may be writing", "keys that peers may be writing"]),
    ];
    let parts = parts.into_iter().filter(|(n, _)| *n > 0);
    let parts: Vec<_> = parts.map(|(n, [one, several])| counted(n, one, several)).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

/// `finishing: 3 operations of its workers; leaves in 28.5 s at the latest`
pub(super) fn as_text(progress: &DrainProgress) -> String {
    match progress.step() {
        DrainStep::Finished => "finished: it leaves now".to_owned(),
        DrainStep::Overdue => format!("overdue: it leaves now, with {}", left(progress)),
        _ => {
            let at = short(Duration::from_nanos(progress.left_ns));
            format!("finishing: {}; leaves in {at} at the latest", left(progress))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_described() {
        let mut progress = DrainProgress { operations: 3, left_ns: 28_500_000_000, ..DrainProgress::default() };
        progress.set_step(DrainStep::Finishing);
        assert_eq!(as_text(&progress), "finishing: 3 operations of its workers; leaves in 28.5 s at the latest");
        progress.set_step(DrainStep::Overdue);
        assert!(as_text(&progress).contains("with 3 operations"));
        assert_eq!(json!(progress)["step"], "overdue");
        assert!(positive("0s").is_err() && positive("5s").is_ok());
    }
}
