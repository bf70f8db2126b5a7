//! The moments at which messages are sent: at an interval, or when the previous message has arrived.

use super::bell::{Bell, BellListener};
use crate::clock::{now_ns, sleep_until_ns};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// The conditions for sending the next message.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Pace {
    /// The least time after the previous one, in nanoseconds.
    pub interval_ns: u64,
    /// The path at which a process connects and reports each arrival. If set, a message is not sent before the previous
    /// one has arrived.
    pub turns: Option<PathBuf>,
}

impl Pace {
    /// Starts the clock.
    pub(super) fn start(&self) -> io::Result<Ticker> {
        let turns = self.turns.as_ref().map(|path| BellListener::bind(path)?.accept()).transpose()?;
        Ok(Ticker { next: now_ns(), interval: self.interval_ns, turns, first: true })
    }
}

/// The clock of a pace.
pub(super) struct Ticker {
    next: u64,
    interval: u64,
    turns: Option<Bell>,
    first: bool,
}

impl Ticker {
    /// Sleeps until the next message is due.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        // The clock comes first: at a slow pace the bell has rung by then, so this process sleeps only once.
        sleep_until_ns(self.next);
        if !std::mem::take(&mut self.first)
            && let Some(turns) = &self.turns
        {
            turns.wait()?;
        }
        self.next = now_ns() + self.interval;
        Ok(())
    }
}
