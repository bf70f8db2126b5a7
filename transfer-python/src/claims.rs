//! Which memory of this process is registered: no two registrations have a byte in common.

use crate::state_into::{self, LIST_WAIT};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The length and the number of each claim, by its address.
static CLAIMS: Mutex<BTreeMap<usize, (usize, u64)>> = Mutex::new(BTreeMap::new());

/// The number of the last claim.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Memory that nobody else registers until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    address: usize,
    number: u64,
}

/// Ends the claim to memory that no sidecar has any more, although something of a closed client keeps it.
pub(crate) fn give_up(address: usize) {
    CLAIMS.lock().remove(&address);
}

impl Claim {
    /// Claims memory.
    ///
    /// # Errors
    /// The address, the length and the owner of other memory, if a part of it is the same.
    pub(crate) fn of(address: usize, bytes: usize) -> Result<Claim, (usize, usize, &'static str)> {
        let end = address.saturating_add(bytes);
        // A buffer is no array of the caller's, so none appears there later. It is dropped without the lock, for it may have the last
        // reference to a claim.
        let buffer = state_into::last_before(end);
        let mut claims = CLAIMS.lock();
        // Claims do not overlap, so the last one that begins before the end is the only one to be looked at.
        if let Some((start, (len, _))) = claims.range(..end).next_back()
            && start.saturating_add(*len) > address
        {
            return Err((*start, *len, "what is registered"));
        }
        if let Some((start, written)) = &buffer {
            let len = usize::try_from(written.meta().len_bytes()).unwrap_or(usize::MAX);
            if start.saturating_add(len) > address {
                return Err((*start, len, "a buffer of this package"));
            }
        }
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        claims.insert(address, (bytes, number));
        Ok(Claim { address, number })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Nobody holds it for long, but for a thread that was forked away.
        if let Some(mut claims) = CLAIMS.try_lock_for(LIST_WAIT)
            && claims.get(&self.address).is_some_and(|(_, number)| *number == self.number)
        {
            claims.remove(&self.address);
        }
    }
}
