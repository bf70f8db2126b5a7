//! The limit of a peer's memory that is mapped here.
//!
//! Unmapping takes a while, and the copy pool does it, so memory that the peer has taken back counts until it is
//! unmapped. Otherwise a peer that passes segments and takes them back as fast as it can would have more memory
//! mapped, waiting for the copy pool, than it may.

use super::MAX_SEGMENTS;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The segments of one peer that are mapped here, or are not unmapped yet. The data plane adds to it, and the thread
/// that unmaps a segment subtracts.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    segments: AtomicUsize,
    bytes: AtomicU64,
}

/// One segment's share of the quota, until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    of: Arc<Mapped>,
    len: u64,
}

impl Mapped {
    /// Counts a segment of that length. Returns `None` if there is no room until other segments are gone.
    pub(super) fn share(self: &Arc<Self>, len: u64, most_bytes: u64) -> Option<Share> {
        let bytes = self.bytes.load(Ordering::Acquire).checked_add(len).filter(|bytes| *bytes <= most_bytes);
        if bytes.is_none() || self.segments.load(Ordering::Acquire) >= MAX_SEGMENTS {
            return None;
        }
        self.segments.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_add(len, Ordering::AcqRel);
        Some(Share { of: self.clone(), len })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.segments.fetch_sub(1, Ordering::AcqRel);
        self.of.bytes.fetch_sub(self.len, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_shares_count() {
        let mapped = Arc::new(Mapped::default());
        let share = |len| mapped.share(len, 100);
        let first = share(60).unwrap();
        assert!(share(41).is_none() && share(u64::MAX).is_none());
        let second = share(40).unwrap();
        assert!(share(1).is_none());
        drop(first);
        drop((share(60).unwrap(), second));
        let all: Vec<_> = (0..MAX_SEGMENTS).map(|_| share(0).unwrap()).collect();
        assert!(share(0).is_none());
        drop(all);
        assert!(share(100).is_some());
    }
}
