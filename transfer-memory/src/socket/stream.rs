//! A connected socket.

use super::address::address;
use super::credentials::{Credentials, credentials, pidfd};
use super::listener::seqpacket;
use super::{AddressError, MAX_MESSAGE_BYTES, SocketError};
use crate::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

/// The most descriptors that one message carries.
const MAX_DESCRIPTORS: usize = 4;

/// The one byte of a doorbell. Its value says nothing.
const DOORBELL: &[u8] = &[1];

thread_local! {
    /// The memory for the message that this thread receives. Most calls find none, or a doorbell: to fill it with zeros for each
    /// would be most of their work.
    static RECEIVED: RefCell<[u8; MAX_MESSAGE_BYTES]> = const { RefCell::new([0; MAX_MESSAGE_BYTES]) };
}

/// A received message.
#[derive(Debug)]
#[non_exhaustive]
pub enum Message {
    /// One byte: look at the ring.
    Doorbell,
    /// More than one byte.
    Bytes {
        /// The message.
        bytes: Vec<u8>,
        /// The descriptors that came with it, closed on exec.
        descriptors: Vec<OwnedFd>,
    },
}

/// A connected socket. All methods take `&self`; messages are sent and received whole.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

impl Socket {
    /// Takes a descriptor that is connected and non-blocking.
    pub(super) fn new(fd: OwnedFd) -> Socket {
        Socket { fd }
    }

    /// Connects to the listener at `path`. Waits until `deadline` if its queue is full, but not for a missing listener.
    ///
    /// # Errors
    /// [`AddressError::TooLong`], [`AddressError::NobodyListens`], [`AddressError::System`].
    pub fn connect(path: &Path, deadline: Instant) -> Result<Socket, AddressError> {
        let failed = |step| move |source| AddressError::System { step, path: path.to_owned(), source };
        let address = address(path)?;
        let fd = seqpacket().map_err(failed("create"))?;
        loop {
            match net::connect(&fd, &address) {
                Ok(()) => return Ok(Socket { fd }),
                Err(Errno::INTR) => {}
                // The kernel has no event for "the queue has room again" on a socket that is not connected.
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Err(source @ (Errno::NOENT | Errno::CONNREFUSED)) => {
                    return Err(AddressError::NobodyListens { path: path.to_owned(), source });
                }
                Err(source) => return Err(failed("connect to")(source)),
            }
        }
    }

    /// Two sockets connected to each other, for a worker inside the sidecar's process.
    ///
    /// # Errors
    /// [`SocketError::System`].
    pub fn pair() -> Result<(Socket, Socket), SocketError> {
        let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
        let pair = net::socketpair(net::AddressFamily::UNIX, net::SocketType::SEQPACKET, flags, None);
        let (a, b) = pair.map_err(|source| SocketError::System { step: "create a pair", source })?;
        Ok((Socket { fd: a }, Socket { fd: b }))
    }

    /// The identity of the peer.
    ///
    /// # Errors
    /// [`SocketError::System`].
    pub fn peer(&self) -> Result<Credentials, SocketError> {
        credentials(self.as_fd()).map_err(|source| SocketError::System { step: "read the peer's credentials", source })
    }

    /// A descriptor of the peer's process, readable once that process has ended. `None` if it is dead already, and
    /// before Linux 6.5 if it is in a pid namespace that is not visible from here.
    #[must_use]
    pub fn peer_pidfd(&self) -> Option<OwnedFd> {
        pidfd(self.as_fd())
    }

    /// Sends a message of 2 to [`MAX_MESSAGE_BYTES`] bytes with up to 4 descriptors. Waits until `deadline` for room,
    /// if the peer does not read; a `deadline` in the past does not wait at all.
    ///
    /// # Errors
    /// [`SocketError::TimedOut`], and then nothing was sent; [`SocketError::Closed`], [`SocketError::System`] (EINVAL
    /// and EMSGSIZE for too many descriptors or bytes).
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>], deadline: Instant) -> Result<(), SocketError> {
        let step = "send a message";
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(SocketError::System { step, source: Errno::INVAL });
        }
        if !(2..=MAX_MESSAGE_BYTES).contains(&bytes.len()) {
            return Err(SocketError::System { step, source: Errno::MSGSIZE });
        }
        let started = Instant::now();
        loop {
            match self.send_now(bytes, descriptors) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => poll_until(self.as_fd(), PollFlags::OUT, "receive", started, deadline)?,
                Err(source) => return Err(broken(step, source)),
            }
        }
    }

    fn send_now(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::INVAL);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
    }

    /// Rings the peer's doorbell. Never waits: if there is no room for one more byte, the peer has enough unread
    /// doorbells.
    ///
    /// # Errors
    /// [`SocketError::Closed`], [`SocketError::System`].
    pub fn ring(&self) -> Result<(), SocketError> {
        loop {
            match net::send(&self.fd, DOORBELL, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(source) => return Err(broken("ring a doorbell", source)),
            }
        }
    }

    /// Waits until `deadline` for the peer to shut its direction down. There may still be unread messages.
    ///
    /// # Errors
    /// [`SocketError::TimedOut`], [`SocketError::System`].
    pub fn wait_for_end(&self, deadline: Instant) -> Result<(), SocketError> {
        let started = Instant::now();
        loop {
            poll_until(self.as_fd(), PollFlags::RDHUP, "hang up", started, deadline)?;
            // A signal ends the wait without it.
            let mut hung_up = [PollFd::new(&self.fd, PollFlags::RDHUP)];
            if poll(&mut hung_up, Some(&Timespec::default())) == Ok(1) {
                return Ok(());
            }
        }
    }

    /// Receives the next message, with at most `descriptors` file descriptors. Waits for it until `deadline`; a
    /// `deadline` in the past does not wait at all.
    ///
    /// # Errors
    /// Any [`SocketError`].
    pub fn receive(&self, descriptors: usize, deadline: Instant) -> Result<Message, SocketError> {
        let started = Instant::now();
        loop {
            match self.try_receive(descriptors)? {
                Some(message) => return Ok(message),
                None => poll_until(self.as_fd(), PollFlags::IN, "send", started, deadline)?,
            }
        }
    }

    /// Receives the next message without waiting, with at most `descriptors` file descriptors. Returns `None` if there
    /// is none.
    ///
    /// # Errors
    /// Any [`SocketError`] but [`SocketError::TimedOut`].
    pub fn try_receive(&self, descriptors: usize) -> Result<Option<Message>, SocketError> {
        RECEIVED.with_borrow_mut(|buffer| self.try_receive_in(buffer, descriptors))
    }

    fn try_receive_in(&self, buffer: &mut [u8], descriptors: usize) -> Result<Option<Message>, SocketError> {
        let expected = descriptors.min(MAX_DESCRIPTORS);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut receive = || {
            rustix::io::retry_on_intr(|| net::recvmsg(&self.fd, &mut [IoSliceMut::new(buffer)], &mut control, flags))
        };
        // A peer that closes with unread messages resets the connection. The kernel reports that once, ahead of the
        // messages that the peer sent before; they, or the end, come with the next call.
        let received = match receive() {
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(None),
            Err(source) => return Err(broken("receive a message", source)),
        };
        // Taken out of the control buffer first, so that they are closed on every path.
        let mut found = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                found.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || found.len() > expected {
            return Err(SocketError::TooManyDescriptors { expected });
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(SocketError::MessageTooLong { max: MAX_MESSAGE_BYTES });
        }
        match received.bytes {
            // An empty message looks like the end, and is never sent.
            0 => Err(SocketError::Closed),
            1 => Ok(Some(Message::Doorbell)),
            len => Ok(Some(Message::Bytes { bytes: buffer[..len].to_vec(), descriptors: found })),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn broken(step: &'static str, source: Errno) -> SocketError {
    match source {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => SocketError::Closed,
        source => SocketError::System { step, source },
    }
}

/// Waits until `fd` is ready for `events`, or has failed, which the next call on it will report.
pub(super) fn poll_until(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    what: &'static str,
    started: Instant,
    deadline: Instant,
) -> Result<(), SocketError> {
    let timed_out = || SocketError::TimedOut { what, waited: started.elapsed() };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(timed_out());
    }
    // A wait too long for a timespec is unlimited.
    let timeout = Timespec::try_from(left).ok();
    match poll(&mut [PollFd::from_borrowed_fd(fd, events)], timeout.as_ref()) {
        Ok(0) => Err(timed_out()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(source) => Err(SocketError::System { step: "wait", source }),
    }
}
