//! Detects that this process is a forked child of the owner of some resource.
//!
//! A child has copies of its parent's memory, and shares what the parent shares with others. If it used these
//! resources, it would write into its parent's rings, clear its parent's hazard pointers and read its parent's socket.
//! Reading the process id costs a system call, and process ids are reused. So a resource that must stay with one
//! process keeps a page that the kernel wipes in a child (`MADV_WIPEONFORK`, Linux 4.14).

use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

/// The length of the page in bytes. One byte is used; the kernel rounds the length up to whole pages.
const LEN: usize = 4096;

/// A guard of the process that made it. It detects that it is used in a forked child.
#[derive(Debug)]
pub struct ForkGuard {
    page: NonNull<AtomicU8>,
}

// SAFETY: the page stays mapped until this is dropped, and is reached through an atomic only.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// Makes a guard for this process.
    ///
    /// # Errors
    /// The kernel's error, such as ENOMEM.
    pub fn new() -> Result<ForkGuard, crate::Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choosing disturbs no memory that Rust knows of.
        let page = unsafe { mm::mmap_anonymous(ptr::null_mut(), LEN, protection, MapFlags::PRIVATE) }?;
        // mmap never returns the null page unless asked to with MAP_FIXED.
        let guard = ForkGuard { page: NonNull::new(page.cast()).ok_or(crate::Errno::NOMEM)? };
        // SAFETY: the range is the mapping, whole; its bytes change in children only, which have their own.
        unsafe { mm::madvise(page, LEN, Advice::LinuxWipeOnFork) }?;
        guard.here().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    fn here(&self) -> &AtomicU8 {
        // SAFETY: the page is mapped, readable and writable, for as long as `self` lives, and any byte is a value.
        unsafe { self.page.as_ref() }
    }

    /// Whether this process is a forked child of the one that made this guard.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.here().load(Ordering::Relaxed) == 0
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; nothing refers to it any more.
        let _ = unsafe { mm::munmap(self.page.as_ptr().cast::<c_void>(), LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: forks, seen to fail
    #[test]
    fn a_child_is_known_and_its_own_guard_is_not_forked() {
        let guard = ForkGuard::new().unwrap();
        // SAFETY: the child makes system calls, reads its own memory, and ends without running any code of its parent.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            let good = guard.is_forked() && ForkGuard::new().is_ok_and(|own| !own.is_forked());
            // SAFETY: ends the process, and does nothing else.
            unsafe { libc::_exit(if good { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: the status is written to a place that is borrowed for the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert!(!guard.is_forked(), "the parent is none the worse");
    }
}
