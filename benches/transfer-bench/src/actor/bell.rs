//! One-byte messages over a SOCK_SEQPACKET socket, like the doorbells between a worker and its sidecar.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recv, send, socket_with,
};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time-out of every operation in this module.
pub(super) const SOCKET_TIMEOUT: Duration = Duration::from_secs(30);

/// One end of a connection.
#[derive(Debug)]
pub struct Bell(OwnedFd);

/// A socket that waits for the other end.
#[derive(Debug)]
pub struct BellListener(OwnedFd);

fn socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

impl BellListener {
    /// Listens at `path`, which must not exist.
    pub fn bind(path: &Path) -> io::Result<BellListener> {
        let fd = socket()?;
        bind(&fd, &SocketAddrUnix::new(path)?)?;
        listen(&fd, 1)?;
        Ok(BellListener(fd))
    }

    /// Waits for the other end.
    pub fn accept(&self) -> io::Result<Bell> {
        readable(self.0.as_fd())?;
        Ok(Bell(accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?))
    }
}

impl Bell {
    /// Connects to `path`, as soon as a process listens there.
    pub fn connect(path: &Path) -> io::Result<Bell> {
        let (fd, address) = (socket()?, SocketAddrUnix::new(path)?);
        let until = Instant::now() + SOCKET_TIMEOUT;
        loop {
            match connect(&fd, &address) {
                Ok(()) => return Ok(Bell(fd)),
                Err(Errno::NOENT | Errno::CONNREFUSED) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends one byte.
    pub fn ring(&self) -> io::Result<()> {
        send(&self.0, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Sleeps until a byte arrives, and takes it.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            readable(self.0.as_fd())?;
            if self.take()? {
                return Ok(());
            }
        }
    }

    /// Takes a byte, if one has arrived.
    pub fn take(&self) -> io::Result<bool> {
        let mut byte = [0u8; 1];
        match recv(&self.0, &mut byte, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until there is something to read.
pub fn readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let timeout = Timespec::try_from(SOCKET_TIMEOUT).ok();
    loop {
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
