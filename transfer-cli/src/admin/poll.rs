//! `transferctl poll`.

use super::Target;
use crate::error::Error;
use serde_json::json;
use transfer_proto::v1::{Poll, PollStrategy, SetPollRequest};

/// The poll strategies of a sidecar's data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Strategy {
    /// Polls for a moment while work arrives in short intervals, then sleeps.
    Adaptive,
    /// Sleeps as soon as there is nothing to do.
    Event,
    /// Never sleeps; takes a whole core.
    Busy,
}

/// The options of `transferctl poll`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The new strategy, until the sidecar ends. Without it, the command shows the current one
    pub strategy: Option<Strategy>,
    /// With adaptive: the time to poll before sleeping, in microseconds, at most a second. Default: 20
    #[arg(long, value_name = "N", requires = "strategy", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub for_us: Option<u64>,
    /// The sidecar.
    #[command(flatten)]
    pub target: Target,
    /// As JSON: times in nanoseconds
    #[arg(long)]
    pub json: bool,
}

/// Shows the strategy, or changes it.
///
/// # Errors
/// [`Error::PollFor`], [`Error::Unreachable`], [`Error::Admin`].
pub async fn run(options: &Options) -> Result<(), Error> {
    let wanted = options.strategy.map(|strategy| wanted(strategy, options.for_us)).transpose()?;
    let (before, now) = match wanted {
        None => (None, options.target.status().await?.poll),
        Some(poll) => {
            let mut admin = options.target.connect().await?;
            let answer = admin.set_poll(SetPollRequest { poll: Some(poll) }).await;
            let answer = answer.map_err(|e| options.target.answered(e))?.into_inner();
            (answer.before, answer.now)
        }
    };
    let now = now.unwrap_or_default();
    match (options.json, before) {
        (true, Some(before)) => transfer_terminal::outln!("{:#}", json!({ "before": before, "now": now })),
        (true, None) => transfer_terminal::outln!("{:#}", json!({ "now": now })),
        (false, Some(before)) => transfer_terminal::outln!("{} (before: {})", as_text(&now), as_text(&before)),
        (false, None) => transfer_terminal::outln!("{}", as_text(&now)),
    }
    Ok(())
}

fn wanted(strategy: Strategy, for_us: Option<u64>) -> Result<Poll, Error> {
    let number = match strategy {
        Strategy::Adaptive => PollStrategy::Adaptive,
        Strategy::Event => PollStrategy::Event,
        Strategy::Busy => PollStrategy::Busy,
    };
    match for_us {
        Some(for_us) if strategy != Strategy::Adaptive => Err(Error::PollFor { for_us }),
        _ => Ok(Poll { strategy: number.into(), poll_for_ns: for_us.unwrap_or(0) * 1000 }),
    }
}

/// `adaptive: polls for 20 µs while work comes fast, then sleeps`
pub(super) fn as_text(poll: &Poll) -> String {
    match poll.strategy() {
        PollStrategy::Adaptive => {
            let us = poll.poll_for_ns / 1000;
            format!("adaptive: polls for {us} µs while work comes fast, then sleeps")
        }
        PollStrategy::Event => "event: sleeps when there is nothing to do".to_owned(),
        PollStrategy::Busy => "busy: never sleeps".to_owned(),
        PollStrategy::Unspecified => "in a way that this transferctl does not know".to_owned(),
    }
}
