//! A word of memory that two processes map: the smallest hand-over between two processes.
//!
//! The waiter sleeps in `FUTEX_WAIT`, or polls the word.

use super::answer::{Answer, Failed, times};
use super::bell::{Bell, SOCKET_TIMEOUT};
use super::pace::Pace;
use crate::clock::now_ns;
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use transfer_memory::segment::{Access, Lock, Pages, PinnedBudget, Segment, SegmentOptions};
use transfer_memory::socket::{AddressError, Listener, Message, Socket};

/// The length of the mapping in bytes: the smallest page.
const LEN: u64 = 4096;
/// The message that carries the descriptor: a message of one byte would be a doorbell.
const LABEL: &[u8] = b"word";
/// The number of polls of the word per reading of the clock, which takes longer.
const POLLS_PER_CLOCK: u32 = 1024;

/// Counts up to `count` in a word that is shared with the process that connects to `at`. Wakes the other side, unless
/// it polls.
pub(super) fn store(at: &Path, count: u64, pace: &Pace, polling: bool) -> Result<Answer, Failed> {
    let segment = share(at)?;
    let word = segment.mapping().word_at(0)?;
    let mut ticker = pace.start()?;
    let store = |value| {
        ticker.wait()?;
        let at = now_ns();
        word.store(value, Ordering::Release);
        if !polling {
            futex::wake(word, futex::Flags::empty(), 1)?;
        }
        Ok(at)
    };
    times((1..=u32::try_from(count)?).map(store))
}

/// Waits for each number in the word of the listener at `at`.
pub(super) fn wait(at: &Path, count: u64, turns: Option<PathBuf>, polling: bool) -> Result<Answer, Failed> {
    let segment = join(at)?;
    let word = segment.mapping().word_at(0)?;
    let turns = turns.map(|path| Bell::connect(&path)).transpose()?;
    let wait = |value| {
        if polling {
            poll(word, value)?
        } else {
            sleep(word, value)?
        }
        let at = now_ns();
        if let Some(turns) = &turns {
            // After the last number, the sender may be gone.
            let _ = turns.ring();
        }
        Ok(at)
    };
    times((1..=u32::try_from(count)?).map(wait))
}

fn share(at: &Path) -> Result<Segment, Failed> {
    let options = SegmentOptions { len: LEN, pages: Pages::Base, lock: Lock::No };
    let segment = Segment::create("bench-word", &options, &PinnedBudget::new(u64::MAX))?;
    let until = Instant::now() + SOCKET_TIMEOUT;
    let socket = Listener::bind(at, Listener::DEFAULT_MODE)?.accept(until)?;
    socket.send(LABEL, &[segment.fd()], until)?;
    Ok(segment)
}

fn join(at: &Path) -> Result<Segment, Failed> {
    let until = Instant::now() + SOCKET_TIMEOUT;
    let socket = loop {
        match Socket::connect(at, until) {
            Err(AddressError::NobodyListens { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => break done?,
        }
    };
    let Message::Bytes { mut descriptors, .. } = socket.receive(1, until)? else {
        return Err("a doorbell came where a descriptor was expected".into());
    };
    let fd = descriptors.pop().ok_or("a message came without its descriptor")?;
    let len = u64::try_from(rustix::fs::fstat(&fd)?.st_size)?;
    Ok(Segment::adopt(fd, Access::ReadWrite, len)?)
}

fn sleep(word: &AtomicU32, value: u32) -> io::Result<()> {
    let timeout = Timespec::try_from(SOCKET_TIMEOUT).ok();
    loop {
        let found = word.load(Ordering::Acquire);
        if found == value {
            return Ok(());
        }
        // Not the private kind, which wakes only threads of the same process.
        match futex::wait(word, futex::Flags::empty(), found, timeout.as_ref()) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

fn poll(word: &AtomicU32, value: u32) -> io::Result<()> {
    let until = Instant::now() + SOCKET_TIMEOUT;
    while Instant::now() < until {
        for _ in 0..POLLS_PER_CLOCK {
            if word.load(Ordering::Acquire) == value {
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
