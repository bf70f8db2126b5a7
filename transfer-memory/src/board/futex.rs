//! Sleeping until one of several words changes, and waking the sleepers:
//! [futex(2)](https://man7.org/linux/man-pages/man2/futex.2.html) and `futex_waitv` (Linux 5.16).

use crate::sync::AtomicU64;
use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::thread::futex::{self, Flags, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::{Timespec, clock_gettime};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// Whether this system has `futex_waitv`.
pub(super) fn is_there() -> bool {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    // Probe: zero waiters return EINVAL where the call exists.
    *IS_THERE.get_or_init(|| futex::waitv(&[], WaitvFlags::empty(), None, ClockId::Monotonic) == Err(Errno::INVAL))
}

/// The lower half of a word: the 32 bits that the kernel compares. A sleeper misses a change of a sequence only if
/// exactly 2^32 of its values, or a multiple, pass while it sleeps.
fn half(word: &AtomicU64) -> *mut u32 {
    word.as_ptr().cast::<u32>().wrapping_add(usize::from(cfg!(target_endian = "big")))
}

/// Wakes every thread, in any process, that sleeps until the first of these words changes.
pub(super) fn wake_all(words: &[AtomicU64]) {
    if let Some(word) = words.first() {
        // SAFETY: the pointer is into that word, which lives as long as `words`, and is aligned. Nothing is loaded or
        // stored through it, because the memory may be mapped read-only: the kernel takes only its address.
        let half = unsafe { AtomicU32::from_ptr(half(word)) };
        // It succeeds for every mapped address.
        let _ = futex::wake(half, Flags::empty(), i32::MAX as u32);
    }
}

/// The most words that a thread can wait for here.
const MAX_WORDS: usize = 8;

/// Sleeps until one of `words`, which others write, differs from the value that was read, until the word of this
/// process is not 0, or until `until`. Returns whether `until` came first. Spurious wake-ups are possible.
pub(super) fn wait(words: &[(&AtomicU64, u64)], own: &AtomicU32, until: Instant) -> bool {
    let mut waits = [Wait::new(); MAX_WORDS];
    let count = words.len().min(MAX_WORDS - 1);
    for (wait, (word, value)) in waits.iter_mut().zip(&words[..count]) {
        wait.val = value & u64::from(u32::MAX);
        wait.uaddr = WaitPtr::new(half(word).cast());
        wait.flags = WaitFlags::SIZE_U32;
    }
    waits[count].uaddr = WaitPtr::new(own.as_ptr().cast());
    waits[count].flags = WaitFlags::SIZE_U32 | WaitFlags::PRIVATE;
    let until = after(until.saturating_duration_since(Instant::now()));
    let ended = futex::waitv(&waits[..=count], WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic);
    matches!(ended, Err(Errno::TIMEDOUT))
}

/// The moment `left` from now, on the clock that the kernel waits by. `None` where it is too far off to express.
fn after(left: Duration) -> Option<Timespec> {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::new(u64::try_from(now.tv_sec).ok()?, u32::try_from(now.tv_nsec).ok()?);
    let at = now.checked_add(left)?;
    Some(Timespec { tv_sec: i64::try_from(at.as_secs()).ok()?, tv_nsec: i64::from(at.subsec_nanos()) })
}

/// Wakes the threads of this process that sleep on that word.
pub(super) fn wake_own(own: &AtomicU32) {
    let _ = futex::wake(own, Flags::PRIVATE, i32::MAX as u32);
}
