//! Round trips to peers, for an operator.

use super::handle::Answer;
use hashbrown::HashMap;
use std::time::{Duration, Instant};
use transfer_core::fabric::LinkId;
use transfer_core::protocol::{Node, NotPinged};

/// The reason why a round trip did not end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PingError {
    /// The PING was not sent.
    #[error(transparent)]
    NotSent(#[from] NotPinged),
    /// The link was lost before the PONG came.
    #[error("the link was lost: {why}")]
    Lost {
        /// The reason.
        why: String,
    },
}

/// The pings that are not answered yet, each with the time at which it was sent.
#[derive(Default)]
pub(super) struct Pings {
    open: HashMap<u64, (Instant, Answer<Result<Duration, PingError>>)>,
    next: u64,
}

impl Pings {
    /// Sends a PING.
    pub(super) fn begin(&mut self, node: &mut Node, link: LinkId, answer: Answer<Result<Duration, PingError>>) {
        self.next += 1;
        match node.ping(link, self.next) {
            Ok(()) => drop(self.open.insert(self.next, (Instant::now(), answer))),
            Err(why) => answer(Err(why.into())),
        }
    }

    /// Ends the ping that was answered, or lost with its link.
    pub(super) fn end(&mut self, token: u64, lost: Option<String>) {
        if let Some((sent, answer)) = self.open.remove(&token) {
            answer(match lost {
                None => Ok(sent.elapsed()),
                Some(why) => Err(PingError::Lost { why }),
            });
        }
    }
}
