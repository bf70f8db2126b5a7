//! The TCP connection on which the two ends agree.

use super::error::PerfError;
use super::message::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long the other end may take for its next message, outside a measurement.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to the other end.
#[derive(Debug)]
pub(super) struct Control {
    stream: TcpStream,
    peer: SocketAddr,
    /// What has come and is no complete message yet.
    pending: Vec<u8>,
    patience: Duration,
}

impl Control {
    /// Connects to a server.
    pub(super) fn connect(host: &str, port: u16) -> Result<Control, PerfError> {
        let unreachable = |source| PerfError::Unreachable { host: host.to_owned(), port, source };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (host, port).to_socket_addrs().map_err(unreachable)? {
            match TcpStream::connect_timeout(&address, MESSAGE_TIMEOUT) {
                Ok(stream) => return Control::new(stream).map_err(unreachable),
                Err(error) => last = error,
            }
        }
        Err(unreachable(last))
    }

    /// Uses a connection.
    pub(super) fn new(stream: TcpStream) -> io::Result<Control> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // A machine that is gone ends a long measurement too: after 10 s without a word it is asked, three times.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        let peer = stream.peer_addr()?;
        Ok(Control { stream, peer, pending: Vec::new(), patience: MESSAGE_TIMEOUT })
    }

    /// The other end.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Says something.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), PerfError> {
        let bytes = message.to_bytes().map_err(|source| PerfError::Message { peer: self.peer, source })?;
        let until = Instant::now() + self.patience;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.sleep(PollFlags::OUT, until, self.patience, "it took no message")?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.broken(source)),
            }
        }
        Ok(())
    }

    /// Says why this end stops, to an other end that may be gone.
    pub(super) fn refuse(&mut self, why: &PerfError) {
        let _ = self.send(&Message::refusal(&why.to_string()));
    }

    /// Returns the next message if it is here. Ends with the other end's reason if it stops.
    pub(super) fn recv_or_end(&mut self, waiting: &'static str) -> Result<Option<Message>, PerfError> {
        loop {
            match Message::read(&self.pending) {
                Ok(Some((message, len))) => {
                    self.pending.drain(..len);
                    return match message {
                        Message::Refused { why } => Err(PerfError::Refused { peer: self.peer, why }),
                        message => Ok(Some(message)),
                    };
                }
                Ok(None) => {}
                Err(source) => return Err(PerfError::Message { peer: self.peer, source }),
            }
            let mut some = [0; 4096];
            match self.stream.read(&mut some) {
                Ok(0) => return Err(PerfError::Gone { peer: self.peer, waiting }),
                Ok(count) => self.pending.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.broken(source)),
            }
        }
    }

    /// Waits for the next message.
    pub(super) fn recv(&mut self, waiting: &'static str) -> Result<Message, PerfError> {
        self.recv_within(Some(self.patience), waiting)
    }

    /// Waits for the next message so long, or, without a limit, as long as the other end is there.
    pub(super) fn recv_within(&mut self, limit: Option<Duration>, waiting: &'static str) -> Result<Message, PerfError> {
        let until = limit.map(|limit| Instant::now() + limit);
        loop {
            if let Some(message) = self.recv_or_end(waiting)? {
                return Ok(message);
            }
            match (until, limit) {
                (Some(until), Some(limit)) => self.sleep(PollFlags::IN, until, limit, waiting)?,
                _ => {
                    let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
                    poll(&mut fds, None).map(drop).or_else(interrupted)?;
                }
            }
        }
    }

    /// The error for a message that does not come next.
    pub(super) fn unexpected(&self, message: &Message, wanted: &'static str) -> PerfError {
        PerfError::Message { peer: self.peer, source: message.instead_of(wanted) }
    }

    fn sleep(&self, flags: PollFlags, until: Instant, limit: Duration, waiting: &'static str) -> Result<(), PerfError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(PerfError::Silent { peer: self.peer, limit, waiting });
        }
        poll(&mut [PollFd::new(&self.stream, flags)], Some(&timespec(left))).map(drop).or_else(interrupted)
    }

    fn broken(&self, source: io::Error) -> PerfError {
        PerfError::Broken { peer: self.peer, source }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A time-out for `poll`, of a millisecond at least: zero would not wait.
pub(super) fn timespec(time: Duration) -> Timespec {
    let time = time.max(Duration::from_millis(1));
    Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

/// A signal that was handled is no reason to stop.
pub(super) fn interrupted(error: rustix::io::Errno) -> Result<(), PerfError> {
    match error {
        rustix::io::Errno::INTR => Ok(()),
        error => Err(PerfError::System { what: "wait for a descriptor", source: error.into() }),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::message::MessageError;
    use super::*;
    use std::net::TcpListener;

    /// Two ends of a connection; the first one has little patience.
    pub(crate) fn ends() -> (Control, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut control = Control::new(listener.accept().unwrap().0).unwrap();
        control.patience = Duration::from_millis(50);
        (control, other)
    }

    #[test]
    fn messages_in_pieces_and_together_are_heard_one_by_one() {
        let (mut control, mut other) = ends();
        let bytes = [Message::Go, Message::End, Message::refusal("no room")]
            .map(|message| message.to_bytes().unwrap())
            .concat();
        let (first, rest) = bytes.split_at(5);
        other.write_all(first).unwrap();
        assert_eq!(control.recv_or_end("").unwrap(), None);
        other.write_all(rest).unwrap();
        control.patience = MESSAGE_TIMEOUT;
        assert_eq!((control.recv("").unwrap(), control.recv("").unwrap()), (Message::Go, Message::End));
        let refused = control.recv("").unwrap_err().to_string();
        assert!(refused.ends_with("says: no room"), "{refused}");
    }

    // Promise: perf-strangers
    #[test]
    fn silence_nonsense_and_the_end_are_errors_that_name_the_peer() {
        let (mut control, mut other) = ends();
        let peer = other.local_addr().unwrap();
        let error = control.recv("the server was to answer").unwrap_err();
        assert!(matches!(error, PerfError::Silent { waiting: "the server was to answer", .. }), "{error}");
        assert!(error.to_string().contains(&peer.to_string()), "{error}");
        other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        control.patience = MESSAGE_TIMEOUT;
        let error = control.recv("").unwrap_err();
        assert!(matches!(error, PerfError::Message { source: MessageError::Mark, .. }), "{error}");

        let (mut control, other) = ends();
        drop(other);
        assert!(matches!(control.recv_within(None, "").unwrap_err(), PerfError::Gone { .. }));
    }

    #[test]
    fn peer_that_reads_nothing_does_not_hold_up_a_refusal() {
        let (mut control, _other) = ends();
        let long = Message::refusal(&"x".repeat(1000));
        let error = (0..100_000).find_map(|_| control.send(&long).err()).unwrap();
        assert!(matches!(error, PerfError::Silent { .. }), "{error}");
    }
}
