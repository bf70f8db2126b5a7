//! A worker without a client: its rings and its socket, to write anything into.

use std::path::Path;
use std::time::Duration;
use transfer_core::op::{Command, Fetch, OpId};
use transfer_core::tensor::{Key, Name, Select};
use transfer_core::wire::Writer;
use transfer_core::wire::session::write_command;
use transfer_memory::ring::MAX_RECORD_BYTES;
use transfer_memory::session::{SessionError, WorkerEnd, WorkerOptions};

/// How long a fetch waits that nobody means to take.
const LONG: Duration = Duration::from_secs(600);

/// How long a handshake may take: the sidecar makes a user's workers wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Bare {
    pub(super) end: WorkerEnd,
    record: Vec<u8>,
}

impl Bare {
    pub(super) fn connect(socket: &Path, name: &str, arena_bytes: u64) -> Result<Bare, SessionError> {
        let name = Name::new(name).expect("a name");
        let options = WorkerOptions { name, arena_bytes, timeout: PATIENCE };
        Ok(Bare { end: WorkerEnd::connect(socket, &options)?, record: Vec::new() })
    }

    /// Puts a fetch into the ring. Whether it fits.
    pub(super) fn fetch(&mut self, op: u64, key: &str) -> bool {
        let mut record = Writer::reusing(std::mem::take(&mut self.record));
        let fetch = Fetch {
            key: Key::new(key).expect("a key"),
            select: Select::Latest,
            timeout: LONG,
            require: None,
            trace: None,
            watches: false,
        };
        write_command(&mut record, OpId(op), &Command::Fetch(fetch));
        self.record = record.into_vec();
        // A sidecar that has left leaves its ring as it was: it is full at some time.
        self.end.submission.try_push(&self.record).unwrap_or(false)
    }

    /// Shows the sidecar what is in the ring.
    pub(super) fn publish(&mut self) {
        self.end.submission.publish();
        if self.end.submission.should_wake() {
            // It may have thrown this worker out.
            let _ = self.end.socket.ring();
        }
    }

    /// Takes replies out, as far as there are any.
    pub(super) fn drain(&mut self) -> u64 {
        let mut buffer = [0; MAX_RECORD_BYTES];
        let mut replies = 0;
        while self.end.completion.try_pop(&mut buffer).is_ok_and(|record| record.is_some()) {
            replies += 1;
        }
        if self.end.completion.should_wake() {
            let _ = self.end.socket.ring();
        }
        replies
    }

    /// Whether the sidecar has thrown this worker out.
    pub(super) fn is_out(&self) -> bool {
        !self.end.socket.is_open()
    }
}
