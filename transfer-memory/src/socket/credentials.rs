//! The identity of the peer, as the kernel reports it.
//!
//! `getsockopt` is called directly here: rustix's `UCred` holds a `Pid`, which cannot be 0, but the kernel reports 0
//! for a peer in another pid namespace; and rustix has no `SO_PEERPIDFD`.

use crate::Errno;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::mem::size_of;

/// The peer, as the kernel recorded it when the peer connected (or, seen from the client, started to listen).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
    /// The process id as seen from here. `None` where the peer lives in a pid namespace that cannot be seen from here.
    pub pid: Option<i32>,
}

/// Reads one option of fixed size.
fn option<T: bytemuck::Pod>(socket: BorrowedFd<'_>, name: libc::c_int) -> rustix::io::Result<T> {
    let mut value = T::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is plain data of `len` writable bytes, and the kernel writes no more than `len`; every bit
    // pattern is valid for a Pod type.
    let rc =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    match rc {
        0 if len as usize == size_of::<T>() => Ok(value),
        0 => Err(Errno::INVAL),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

pub(super) fn credentials(socket: BorrowedFd<'_>) -> rustix::io::Result<Credentials> {
    // struct ucred of linux/socket.h: pid, uid, gid, each of 32 bits.
    let [pid, uid, gid] = option::<[u32; 3]>(socket, libc::SO_PEERCRED)?;
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    Ok(Credentials { uid, gid, pid })
}

/// A descriptor of the peer's process, which becomes readable when that process ends.
pub(super) fn pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    match option::<libc::c_int>(socket, libc::SO_PEERPIDFD) {
        // SAFETY: the kernel has just made this descriptor for this call (Linux 6.5), so nothing else owns it. It sets
        // close-on-exec.
        Ok(fd) if fd >= 0 => Some(unsafe { OwnedFd::from_raw_fd(fd) }),
        // An older kernel: by number. Between the two calls, the peer may have died and its number been given to
        // another process. But it connected a moment ago, and a wrong pidfd only delays the news of its death until
        // its socket closes.
        Err(Errno::NOPROTOOPT) => {
            let pid = Pid::from_raw(credentials(socket).ok()?.pid?)?;
            pidfd_open(pid, PidfdFlags::empty()).ok()
        }
        _ => None,
    }
}
