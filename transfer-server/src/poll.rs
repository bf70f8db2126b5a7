//! The poll strategy of the data plane: its messages, and the current one.

use crate::config::Poll;
use crate::engine::{EngineClient, EngineCommand, EngineGone};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use transfer_fabric::engine::PollStrategy;
use transfer_proto::v1;

/// The longest polling time. A longer one would amount to `busy`.
const MAX_POLL_TIME: Duration = Duration::from_secs(1);

/// Returns the strategy of the configuration.
pub(crate) fn configured(poll: Poll) -> PollStrategy {
    match poll {
        Poll::Adaptive => PollStrategy::default(),
        Poll::Event => PollStrategy::Event,
        Poll::Busy => PollStrategy::Busy,
    }
}

/// The engine's current strategy. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct PollControl(Arc<Mutex<PollStrategy>>);

impl PollControl {
    /// Makes the control of an engine that was started with this strategy.
    pub(crate) fn new(strategy: PollStrategy) -> PollControl {
        PollControl(Arc::new(Mutex::new(strategy)))
    }

    pub(crate) fn present(&self) -> PollStrategy {
        *self.0.lock()
    }

    /// Sets the strategy; returns the previous one.
    pub(crate) fn set(&self, engine: &EngineClient, strategy: PollStrategy) -> Result<PollStrategy, EngineGone> {
        // The lock is held while the command is sent, so that concurrent callers agree on the last strategy.
        let mut present = self.0.lock();
        engine.send(EngineCommand::SetPoll(strategy))?;
        Ok(std::mem::replace(&mut *present, strategy))
    }
}

/// Describes a strategy, for example `adaptive, 20 µs`.
pub(crate) fn in_words(strategy: PollStrategy) -> String {
    match strategy {
        PollStrategy::Busy => "busy".to_owned(),
        PollStrategy::Event => "event".to_owned(),
        PollStrategy::Adaptive(poll_for) => format!("adaptive, {} µs", poll_for.as_micros()),
        other => format!("{other:?}"),
    }
}

pub(crate) fn to_message(strategy: PollStrategy) -> v1::Poll {
    let (strategy, poll_for) = match strategy {
        PollStrategy::Busy => (v1::PollStrategy::Busy, Duration::ZERO),
        PollStrategy::Event => (v1::PollStrategy::Event, Duration::ZERO),
        PollStrategy::Adaptive(poll_for) => (v1::PollStrategy::Adaptive, poll_for),
        _ => (v1::PollStrategy::Unspecified, Duration::ZERO),
    };
    v1::Poll { strategy: strategy.into(), poll_for_ns: u64::try_from(poll_for.as_nanos()).unwrap_or(u64::MAX) }
}

/// Converts a strategy from its message.
///
/// # Errors
/// A text that names the invalid value.
pub(crate) fn from_message(poll: &v1::Poll) -> Result<PollStrategy, String> {
    let poll_for = Duration::from_nanos(poll.poll_for_ns);
    let strategy = v1::PollStrategy::try_from(poll.strategy);
    match strategy {
        Ok(v1::PollStrategy::Adaptive) if poll_for.is_zero() => Ok(PollStrategy::default()),
        Ok(v1::PollStrategy::Adaptive) if poll_for > MAX_POLL_TIME => {
            Err(format!("polling for {poll_for:?} before sleeping: at most {MAX_POLL_TIME:?}, or the strategy busy"))
        }
        Ok(v1::PollStrategy::Adaptive) => Ok(PollStrategy::Adaptive(poll_for)),
        Ok(v1::PollStrategy::Event | v1::PollStrategy::Busy) if !poll_for.is_zero() => {
            Err(format!("poll_for_ns is {}, which only the strategy adaptive has", poll.poll_for_ns))
        }
        Ok(v1::PollStrategy::Event) => Ok(PollStrategy::Event),
        Ok(v1::PollStrategy::Busy) => Ok(PollStrategy::Busy),
        Ok(v1::PollStrategy::Unspecified) | Err(_) => {
            Err(format!("strategy {} is none: adaptive, event and busy are 1 to 3", poll.strategy))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_read_back_and_invalid_ones_are_named() {
        let twenty = PollStrategy::Adaptive(Duration::from_micros(20));
        for strategy in [PollStrategy::Busy, PollStrategy::Event, twenty] {
            assert_eq!(from_message(&to_message(strategy)), Ok(strategy));
        }
        assert_eq!((in_words(twenty), in_words(PollStrategy::Busy)), ("adaptive, 20 µs".into(), "busy".into()));
        let told = |strategy, poll_for_ns| from_message(&v1::Poll { strategy, poll_for_ns });
        assert_eq!(told(1, 0), Ok(PollStrategy::default()));
        for (strategy, poll_for_ns, word) in
            [(0, 0, "1 to 3"), (9, 0, "9"), (2, 5, "poll_for_ns"), (1, 2_000_000_000, "2s")]
        {
            let why = told(strategy, poll_for_ns).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }
}
