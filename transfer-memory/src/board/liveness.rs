//! The liveness of a board's sidecar. A reader of the board sees it without a call.
//!
//! A killed process cannot say that it has ended, and its board would go on showing old versions. So the sidecar's
//! data-plane thread holds a *robust* mutex at the beginning of the board. When that thread ends, for whatever reason,
//! the kernel marks the word of the mutex. It does so before it closes the sockets of the process: a worker that has
//! seen its socket close finds the mark too. Readers never lock the mutex. They read its first 32 bits, which hold the
//! thread id of a living owner. A reader that sleeps until something changes waits for this word as well: the kernel
//! wakes one such reader, which wakes the others.

use super::HEADER_BYTES;
use crate::segment::{MapError, Mapping};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel sets this bit when the owner has ended (linux/futex.h).
const OWNER_DIED: u32 = 0x4000_0000;

/// A reader waits for the owner's end, and the kernel has to wake one (linux/futex.h).
const WAITERS: u32 = 0x8000_0000;

/// The bits of the owner's thread id (linux/futex.h).
const TID_MASK: u32 = 0x3fff_ffff;

const _: () = assert!(size_of::<libc::pthread_mutex_t>() as u64 <= HEADER_BYTES);

/// Whether the first word of a board says that its sidecar's thread runs.
pub(super) fn is_alive(word: u64) -> bool {
    let word = (word & u64::from(u32::MAX)) as u32;
    word & TID_MASK != 0 && word & OWNER_DIED == 0
}

/// The reason why the liveness of a sidecar cannot be shown on its board.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LivenessError {
    /// The memory of the board is not mapped, or cannot be written.
    #[error("the liveness of the board's sidecar: {0}")]
    Map(#[from] MapError),
    /// A system call failed.
    #[error("the liveness of the board's sidecar: {step} failed: {why}")]
    System {
        /// The call.
        step: &'static str,
        /// The system's error.
        why: std::io::Error,
    },
    /// This C library lays out a robust mutex in another way than the kernel's futexes.
    #[error(
        "the liveness of the board's sidecar: this C library keeps the owner of a mutex elsewhere than in its first word"
    )]
    OtherLayout,
}

/// Shows that the thread that made it runs, until the thread ends or this is dropped.
#[derive(Debug)]
pub struct Liveness {
    mutex: *mut libc::pthread_mutex_t,
    /// Keeps the memory mapped: the kernel looks at it when the thread ends.
    _mapping: Arc<Mapping>,
}

impl Liveness {
    /// Shows at the beginning of this board that the calling thread lives. Call it once for each board.
    ///
    /// # Errors
    /// [`LivenessError`].
    pub fn begin(mapping: &Arc<Mapping>) -> Result<Liveness, LivenessError> {
        let mutex = mapping.writable_at(0, HEADER_BYTES)?.cast::<libc::pthread_mutex_t>();
        let failed = |step| {
            move |code: i32| match code {
                0 => Ok(()),
                code => Err(LivenessError::System { step, why: std::io::Error::from_raw_os_error(code) }),
            }
        };
        // SAFETY: an attribute is set up before it is used, and destroyed after that. The mutex lies at the beginning
        // of a mapping that can be written, aligned to a page, in a part of the board that nothing else uses. The
        // caller promises that no mutex was made there before. `Liveness` is neither Send nor Sync, so the thread that
        // locks the mutex here is the one that unlocks it.
        unsafe {
            let mut attribute = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
            failed("pthread_mutexattr_init")(libc::pthread_mutexattr_init(attribute.as_mut_ptr()))?;
            let shared = libc::pthread_mutexattr_setpshared(attribute.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
            let robust = libc::pthread_mutexattr_setrobust(attribute.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            let made = libc::pthread_mutex_init(mutex, attribute.as_ptr());
            libc::pthread_mutexattr_destroy(attribute.as_mut_ptr());
            failed("pthread_mutexattr_setpshared")(shared)?;
            failed("pthread_mutexattr_setrobust")(robust)?;
            failed("pthread_mutex_init")(made)?;
            failed("pthread_mutex_lock")(libc::pthread_mutex_lock(mutex))?;
        }
        let life = Liveness { mutex, _mapping: mapping.clone() };
        // SAFETY: the mutex's first word, valid while the mapping lives and aligned; the C library and the kernel
        // access it atomically.
        let word = unsafe { AtomicU32::from_ptr(mutex.cast()) };
        // Sets the waiters bit for the readers, which map the board read-only and cannot set it.
        let word = word.fetch_or(WAITERS, Ordering::Relaxed);
        match rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs() == word & TID_MASK {
            true => Ok(life),
            false => Err(LivenessError::OtherLayout),
        }
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        // SAFETY: this thread has locked the mutex, because this value is neither sent to another thread nor shared.
        // No thread waits to lock it. A reader that sleeps on its word is woken by this, as by the thread's end.
        unsafe { libc::pthread_mutex_unlock(self.mutex) };
    }
}
