//! Reader locks: file locks by which the kernel records which processes read a segment.
//!
//! A sidecar knows which workers read which segments. When it dies, that knowledge dies with it, while its workers
//! still read what they have fetched. So each process that maps a segment also *marks* it as read in the incarnation
//! of the sidecar that passed it. A mark is a shared lock of an open file on one byte of the memfd: the byte whose
//! number is the incarnation. The kernel drops the lock when the last descriptor of that open file is closed. A
//! process closes it when it drops its mapping, and at the latest when it dies. So the worker that writes the segment
//! can ask whether anyone still reads what was published in an earlier incarnation. No other process has to answer.
//!
//! Descriptors that were passed share their open file, and with it the lock. A sidecar therefore passes each reader an
//! open file of its own ([`reopen`]).

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use std::io;

/// The byte that stands for an incarnation. It may lie beyond the end of the file; locks work there too.
fn byte_of(incarnation: u64) -> libc::off_t {
    (incarnation & (i64::MAX as u64 >> 1)) as libc::off_t
}

fn lock_of(kind: libc::c_int, incarnation: u64) -> libc::flock {
    // SAFETY: a struct of integers, for which zeros are values; `l_pid` has to be 0 for locks of open files.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte_of(incarnation);
    lock.l_len = 1;
    lock
}

fn call(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> Result<(), crate::Errno> {
    rustix::io::retry_on_intr(|| {
        // SAFETY: the descriptor is open while it is borrowed, and both commands take a pointer to such a struct, which
        // is borrowed, too.
        match unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) } {
            -1 => Err(crate::Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(crate::Errno::IO)),
            _ => Ok(()),
        }
    })
}

/// Opens the same memfd again, for reading: a new open file description.
pub(crate) fn reopen(fd: BorrowedFd<'_>) -> Result<OwnedFd, crate::Errno> {
    open(format!("/proc/self/fd/{}", fd.as_raw_fd()), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Marks `fd`'s memfd as read in that incarnation, until the last descriptor of its open file is closed.
pub(super) fn mark(fd: BorrowedFd<'_>, incarnation: u64) -> Result<(), crate::Errno> {
    call(fd, libc::F_OFD_SETLK, &mut lock_of(libc::F_RDLCK, incarnation))
}

/// Whether another open file than `fd` marks this memfd as read in that incarnation.
///
/// # Errors
/// The kernel's error; whether the memfd is marked is then unknown.
pub fn is_marked(fd: impl AsFd, incarnation: u64) -> Result<bool, crate::Errno> {
    let mut lock = lock_of(libc::F_WRLCK, incarnation);
    call(fd.as_fd(), libc::F_OFD_GETLK, &mut lock)?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}
