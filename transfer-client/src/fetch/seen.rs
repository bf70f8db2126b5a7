//! What a subscriber has returned.

use parking_lot::Mutex;
use std::sync::Arc;
use transfer_core::tensor::Version;

/// The versions of a key began again: its owner goes on from an earlier one, as a trainer does from a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochBegan {
    /// The version that was returned last before.
    pub last: u64,
    /// The first one that was returned since: a lower one.
    pub first: u64,
}

/// What a subscriber has returned.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Seen {
    /// The version after which the next one comes.
    pub(crate) last: Option<u64>,
    /// Whether that one was returned, and not only named by the caller: then a lower one is of another epoch.
    pub(crate) returned: bool,
    pub(crate) began: Option<EpochBegan>,
}

/// A fetch of a subscriber, which had returned this when the fetch began.
#[derive(Debug)]
pub(crate) struct Since {
    pub(crate) before: Seen,
    pub(crate) seen: Arc<Mutex<Seen>>,
}

impl Since {
    /// Records that this version was returned.
    pub(crate) fn saw(&self, Version(version): Version) {
        let mut seen = self.seen.lock();
        match self.before.last {
            // Where fetches overlap, another one may have noticed it.
            Some(last) if self.before.returned && version < last && seen.last == self.before.last => {
                (seen.last, seen.began) = (Some(version), Some(EpochBegan { last, first: version }));
            }
            _ => seen.last = seen.last.max(Some(version)),
        }
        seen.returned = true;
    }
}
