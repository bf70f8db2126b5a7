//! The baselines: the same messages and bytes over the same kernel, without this project.

use super::answer::{Answer, Failed, times};
use super::bell::{Bell, BellListener, readable};
use super::pace::Pace;
use super::{copy, word};
use crate::clock::now_ns;
use rustix::event::epoll;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread;

/// A task for a process of a baseline.
#[derive(Debug, Serialize, Deserialize)]
pub enum BareTask {
    /// Sends one-byte messages to the listener at a path. Answers with the moments just before.
    Send {
        /// The target.
        to: PathBuf,
        /// The number.
        count: u64,
        /// The pace.
        pace: Pace,
    },
    /// Receives one-byte messages from the listener at a path. Answers with the moments just after.
    Receive {
        /// The source.
        from: PathBuf,
        /// The number.
        count: u64,
        /// The path at which each arrival is reported.
        turns: Option<PathBuf>,
    },
    /// Stores one number after the other in a word of memory that another process has mapped. Answers with the moments
    /// just before.
    Store {
        /// The path at which the memory is passed on; listens there.
        at: PathBuf,
        /// The number.
        count: u64,
        /// The pace.
        pace: Pace,
        /// Whether the other side polls the word: it needs no `FUTEX_WAKE`.
        polling: bool,
    },
    /// Waits for each number in that word. Answers with the moments just after.
    Await {
        /// The path from which the memory comes.
        at: PathBuf,
        /// The number.
        count: u64,
        /// The path at which each arrival is reported.
        turns: Option<PathBuf>,
        /// Whether to poll the word; else it sleeps in `FUTEX_WAIT`.
        polling: bool,
    },
    /// Passes on each message from one path to another; listens at both.
    Relay {
        /// The source.
        from: PathBuf,
        /// The target.
        to: PathBuf,
        /// The number.
        count: u64,
    },
    /// Listens on a free TCP port of loopback, and answers with it.
    Listen,
    /// For each message from a path, sends `bytes` over TCP.
    RelayOut {
        /// The source; listens there.
        from: PathBuf,
        /// The target.
        port: u16,
        /// The number of bytes of one message.
        bytes: usize,
        /// The number of messages.
        count: u64,
    },
    /// Sends one message to a path for each `bytes` that arrive over TCP.
    RelayIn {
        /// The target; listens there.
        to: PathBuf,
        /// The number of bytes of one message.
        bytes: usize,
        /// The number of messages.
        count: u64,
    },
    /// Sends a message over TCP and waits for one, repeatedly, or the other way round. Answers with the moment before each round, and
    /// that after the last.
    PingPong {
        /// The port of the other process. `None`: this process has been told to listen, and sends second.
        port: Option<u16>,
        /// The number of bytes of one message.
        bytes: usize,
        /// The number of rounds.
        count: u64,
        /// Whether it polls, in place of sleeping.
        polling: bool,
    },
    /// Sends a buffer repeatedly over several TCP streams, each of which carries its share. Answers with the moment
    /// before the first byte.
    StreamOut {
        /// The target.
        port: u16,
        /// The number of streams.
        streams: usize,
        /// The buffer's length in bytes.
        len: usize,
        /// The number of times.
        count: u64,
    },
    /// Receives a buffer repeatedly over several TCP streams. Answers with the moment after the last byte.
    StreamIn {
        /// The number of streams.
        streams: usize,
        /// The buffer's length in bytes.
        len: usize,
        /// The number of times.
        count: u64,
    },
    /// Copies buffers of this process to other buffers of it. Answers with the duration of each round.
    Copy {
        /// The length of each buffer in bytes.
        len: usize,
        /// The number of buffers of a round.
        buffers: usize,
        /// The number of rounds.
        rounds: u64,
        /// The number of threads.
        threads: usize,
    },
}

/// A process of a baseline.
#[derive(Debug, Default)]
pub(super) struct Bare {
    listener: Option<TcpListener>,
}

impl Bare {
    pub(super) fn perform(&mut self, task: BareTask) -> Result<Answer, Failed> {
        match task {
            BareTask::Send { to, count, pace } => {
                let bell = Bell::connect(&to)?;
                let mut ticker = pace.start()?;
                let send = |_| {
                    ticker.wait()?;
                    let at = now_ns();
                    bell.ring()?;
                    Ok(at)
                };
                times((0..count).map(send))
            }
            BareTask::Receive { from, count, turns } => {
                let bell = Bell::connect(&from)?;
                let turns = turns.map(|path| Bell::connect(&path)).transpose()?;
                let receive = |_| {
                    bell.wait()?;
                    let at = now_ns();
                    if let Some(turns) = &turns {
                        // After the last message, the sender may be gone.
                        let _ = turns.ring();
                    }
                    Ok(at)
                };
                times((0..count).map(receive))
            }
            BareTask::Store { at, count, pace, polling } => word::store(&at, count, &pace, polling),
            BareTask::Await { at, count, turns, polling } => word::wait(&at, count, turns, polling),
            BareTask::Relay { from, to, count } => relay(&from, &to, count),
            BareTask::Listen => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let port = listener.local_addr()?.port();
                self.listener = Some(listener);
                Ok(Answer::Port(port))
            }
            BareTask::RelayOut { from, port, bytes, count } => {
                let mut tcp = connect(port)?;
                let bell = BellListener::bind(&from)?.accept()?;
                let message = vec![1u8; bytes];
                for _ in 0..count {
                    bell.wait()?;
                    tcp.write_all(&message)?;
                }
                Ok(Answer::Done)
            }
            BareTask::RelayIn { to, bytes, count } => {
                // The other end may connect at any time; connections wait in the queue.
                let to = BellListener::bind(&to)?;
                let mut tcp = self.accept()?;
                let bell = to.accept()?;
                let mut message = vec![0u8; bytes];
                for _ in 0..count {
                    readable(tcp.as_fd())?;
                    tcp.read_exact(&mut message)?;
                    bell.ring()?;
                }
                Ok(Answer::Done)
            }
            BareTask::PingPong { port, bytes, count, polling } => {
                let mut tcp = port.map_or_else(|| self.accept(), connect)?;
                tcp.set_nonblocking(polling)?;
                let mut message = vec![1u8; bytes];
                let round = |_| {
                    let at = now_ns();
                    if port.is_some() {
                        tcp.write_all(&message)?;
                    }
                    receive(&mut tcp, &mut message)?;
                    if port.is_none() {
                        tcp.write_all(&message)?;
                    }
                    Ok(at)
                };
                let mut ns = (0..count).map(round).collect::<Result<Vec<_>, Failed>>()?;
                ns.push(now_ns());
                Ok(Answer::Times { ns, copied: 0 })
            }
            BareTask::StreamOut { port, streams, len, count } => stream_out(port, streams, len, count),
            BareTask::Copy { len, buffers, rounds, threads } => copy::bare(len, buffers, rounds, threads),
            BareTask::StreamIn { streams, len, count } => self.stream_in(streams, len, count),
        }
    }

    fn accept(&self) -> io::Result<TcpStream> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        readable(listener.as_fd())?;
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn stream_in(&mut self, streams: usize, len: usize, count: u64) -> Result<Answer, Failed> {
        let mut buffer = vec![1u8; len];
        let sockets = (0..streams).map(|_| self.accept()).collect::<io::Result<Vec<_>>>()?;
        let shares = sockets.into_iter().zip(buffer.chunks_mut(len.div_ceil(streams)));
        thread::scope(|scope| {
            let readers: Vec<_> = shares
                .map(|(mut socket, share)| scope.spawn(move || (0..count).try_for_each(|_| socket.read_exact(share))))
                .collect();
            joined(readers)
        })?;
        Ok(Answer::Times { ns: vec![now_ns()], copied: 0 })
    }
}

fn stream_out(port: u16, streams: usize, len: usize, count: u64) -> Result<Answer, Failed> {
    let buffer = vec![1u8; len];
    let sockets = (0..streams).map(|_| connect(port)).collect::<io::Result<Vec<_>>>()?;
    let shares = sockets.into_iter().zip(buffer.chunks(len.div_ceil(streams)));
    let started = now_ns();
    thread::scope(|scope| {
        let writers: Vec<_> = shares
            .map(|(mut socket, share)| scope.spawn(move || (0..count).try_for_each(|_| socket.write_all(share))))
            .collect();
        joined(writers)
    })?;
    Ok(Answer::Times { ns: vec![started], copied: 0 })
}

fn joined(threads: Vec<thread::ScopedJoinHandle<'_, io::Result<()>>>) -> io::Result<()> {
    threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Receives a whole message. Polls the socket if it does not block.
fn receive(tcp: &mut TcpStream, message: &mut [u8]) -> io::Result<()> {
    let mut left = message;
    while !left.is_empty() {
        match tcp.read(left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => left = &mut left[len..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Sleeps in epoll over both ends, as a sidecar does.
fn relay(from: &std::path::Path, to: &std::path::Path, count: u64) -> Result<Answer, Failed> {
    let (from, to) = (BellListener::bind(from)?, BellListener::bind(to)?);
    let (from, to) = (from.accept()?, to.accept()?);
    let sleeper = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&sleeper, &from, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let mut passed = 0;
    while passed < count {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 8];
        epoll::wait(&sleeper, &mut events, None)?;
        while passed < count && from.take()? {
            to.ring()?;
            passed += 1;
        }
    }
    Ok(Answer::Done)
}
