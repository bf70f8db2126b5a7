//! The life of the sidecar that writes a board, to be seen by who reads it without asking anybody.
//!
//! A killed process cannot say that it is gone, and its board would go on showing what was the newest once. So its data-plane
//! thread holds a *robust* mutex at the board's beginning, for as long as it runs: when the thread ends, in whatever way, the kernel itself
//! marks the mutex's word, before the process's sockets are closed. So whoever knows by any way that the sidecar has ended finds it in
//! this word, too. Readers never lock it: they look at its first 32 bits, which are the owner's thread id while it lives. Those who sleep until
//! something changes wait for that word as well: the kernel wakes one of them, who wakes the others.

use super::HEADER_BYTES;
use crate::segment::{MapError, Mapping};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// From linux/futex.h: set by the kernel when the owner has ended.
const OWNER_DIED: u32 = 0x4000_0000;

/// From linux/futex.h: somebody waits for the owner's end, and the kernel is to wake one who does.
const WAITERS: u32 = 0x8000_0000;

/// From linux/futex.h.
const TID_MASK: u32 = 0x3fff_ffff;

const _: () = assert!(size_of::<libc::pthread_mutex_t>() as u64 <= HEADER_BYTES);

/// Whether the first word of a board says that its sidecar's thread runs.
pub(super) fn is_alive(word: u64) -> bool {
    let word = (word & u64::from(u32::MAX)) as u32;
    word & TID_MASK != 0 && word & OWNER_DIED == 0
}

/// A board's life cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LifeError {
    /// Its memory is not there, or cannot be written.
    #[error("the board's life: {0}")]
    Map(#[from] MapError),
    /// The system refused.
    #[error("the board's life: {step} failed: {why}")]
    System {
        /// What was tried.
        step: &'static str,
        /// The system's words.
        why: std::io::Error,
    },
    /// This C library's robust mutexes look otherwise than the kernel's futexes.
    #[error("the board's life: this C library keeps the owner of a mutex elsewhere than in its first word")]
    OtherLayout,
}

/// This thread lives. Ends with the thread, or when it is dropped.
#[derive(Debug)]
pub struct Life {
    mutex: *mut libc::pthread_mutex_t,
    /// Keeps the memory mapped, which the kernel will look at when the thread ends.
    _mapping: Arc<Mapping>,
}

impl Life {
    /// Shows at the beginning of this board that the calling thread lives. Nobody has done so there before.
    ///
    /// # Errors
    /// [`LifeError`].
    pub fn begin(mapping: &Arc<Mapping>) -> Result<Life, LifeError> {
        let mutex = mapping.writable_at(0, HEADER_BYTES)?.cast::<libc::pthread_mutex_t>();
        let failed = |step| {
            move |code: i32| match code {
                0 => Ok(()),
                code => Err(LifeError::System { step, why: std::io::Error::from_raw_os_error(code) }),
            }
        };
        // SAFETY: an attribute is set up before it is used, and destroyed after that. The mutex lies at the beginning of a mapping that
        // can be written, aligned to a page, in a part of the board that is nothing else's; nobody has made a mutex there before, says
        // the caller. `Life` is neither Send nor Sync, so the thread that locks it here is the one that unlocks it.
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
        let life = Life { mutex, _mapping: mapping.clone() };
        // SAFETY: the mutex's first word, valid while the mapping lives and aligned; the C library and the kernel access it atomically.
        let word = unsafe { AtomicU32::from_ptr(mutex.cast()) };
        // Those who wait are readers, who cannot say so here.
        let word = word.fetch_or(WAITERS, Ordering::Relaxed);
        match rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs() == word & TID_MASK {
            true => Ok(life),
            false => Err(LifeError::OtherLayout),
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // SAFETY: this thread has locked it: it is neither sent to another nor shared. Nobody waits to lock it; who sleeps on its word is
        // woken by this, as by the thread's end.
        unsafe { libc::pthread_mutex_unlock(self.mutex) };
    }
}
