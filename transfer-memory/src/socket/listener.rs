//! The sidecar's end of the path.

use super::address::address;
use super::stream::poll_until;
use super::{AddressError, Socket, SocketError};
use crate::Errno;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, FileType, FlockOperation, Mode, OFlags};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that listens at a path. The path is removed on drop.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the path, so that only this listener's socket is removed on drop, and not a successor's.
    identity: (u64, u64),
}

impl Listener {
    /// The permissions that let the socket's user and group connect.
    pub const DEFAULT_MODE: u32 = 0o660;

    /// Listens at `path`. Only processes that may write a file of mode `mode` can connect. A socket file that a dead
    /// process has left is replaced.
    ///
    /// # Errors
    /// Any [`AddressError`] but [`AddressError::NobodyListens`].
    pub fn bind(path: &Path, mode: u32) -> Result<Listener, AddressError> {
        let failed = |step| move |source| AddressError::System { step, path: path.to_owned(), source };
        let address = address(path)?;
        // Without the lock, another process could begin to listen between the check of the file and its removal.
        let _alone = lock_directory_of(path)?;
        remove_stale(path)?;
        let fd = seqpacket().map_err(failed("create"))?;
        net::bind(&fd, &address).map_err(|source| match source {
            Errno::ADDRINUSE => AddressError::InUse { path: path.to_owned() },
            source => AddressError::System { step: "bind", path: path.to_owned(), source },
        })?;
        let stat = fs::lstat(path).map_err(failed("examine"))?;
        let listener = Listener { fd, path: path.to_owned(), identity: (stat.st_dev, stat.st_ino) };
        // Before `listen`, so that no process connects under the permissions of the umask.
        fs::chmod(path, Mode::from_raw_mode(mode)).map_err(failed("set the permissions of"))?;
        net::listen(&listener.fd, BACKLOG).map_err(failed("listen at"))?;
        Ok(listener)
    }

    /// Waits for the next connection until `deadline`.
    ///
    /// # Errors
    /// [`SocketError::TimedOut`]; [`SocketError::System`], for instance when there are no more descriptors.
    pub fn accept(&self, deadline: Instant) -> Result<Socket, SocketError> {
        let started = Instant::now();
        loop {
            match net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => return Ok(Socket::new(fd)),
                Err(Errno::AGAIN) => poll_until(self.fd.as_fd(), PollFlags::IN, "connect", started, deadline)?,
                // The peer was gone before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(source) => return Err(SocketError::System { step: "accept a connection", source }),
            }
        }
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If the lock cannot be had, the check of the file must do.
        let _alone = lock_directory_of(&self.path);
        let ours = fs::lstat(&self.path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity);
        if ours && let Err(e) = fs::unlink(&self.path) {
            tracing::warn!(path = ?self.path, "cannot remove the socket: {e}");
        }
    }
}

/// A socket of the kind used here; closed on exec and non-blocking, since all waiting is done in poll.
pub(super) fn seqpacket() -> rustix::io::Result<OwnedFd> {
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// How long to wait for the lock of a socket's directory, which other processes need for a few system calls.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps other sidecars from putting a socket into the directory of `path`, or taking one away, until this is dropped.
///
/// # Errors
/// [`AddressError::System`].
pub fn lock_directory_of(path: &Path) -> Result<OwnedFd, AddressError> {
    let failed = |source| AddressError::System { step: "lock the directory of", path: path.to_owned(), source };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = fs::open(directory, flags, Mode::empty()).map_err(failed)?;
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            // Another process may hold the lock forever, which must not block this one.
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            Err(source) => return Err(failed(source)),
        }
    }
}

/// Removes the socket file of a dead process. Succeeds if there is no file.
fn remove_stale(path: &Path) -> Result<(), AddressError> {
    let failed = |step| move |source| AddressError::System { step, path: path.to_owned(), source };
    match fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(source) => return Err(failed("examine")(source)),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            return Err(AddressError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    let probe = seqpacket().map_err(failed("create"))?;
    match net::connect(&probe, &address(path)?) {
        Err(Errno::CONNREFUSED) => match fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(source) => Err(failed("replace")(source)),
        },
        Err(Errno::NOENT) => Ok(()),
        // It is connected, or its queue is full, or it is a socket of another type: in all cases it is alive.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(AddressError::InUse { path: path.to_owned() }),
        Err(source) => Err(failed("probe")(source)),
    }
}
