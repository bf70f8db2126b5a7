//! A worker without a client, which can write anything into its rings and its socket.

use std::path::Path;
use std::time::Duration;
use transfer_core::op::{Command, Fetch, OpId};
use transfer_core::tensor::{Key, Name, Select};
use transfer_core::wire::Writer;
use transfer_core::wire::session::write_command;
use transfer_memory::ring::MAX_RECORD_BYTES;
use transfer_memory::session::{SessionError, WorkerEnd, WorkerOptions};

/// The timeout of fetches whose replies are never meant to be used.
const FETCH_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a handshake may take: the sidecar makes the workers of one user wait for each other.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Bare {
    pub(super) end: WorkerEnd,
    record: Vec<u8>,
}

impl Bare {
    pub(super) fn connect(socket: &Path, name: &str, arena_bytes: u64) -> Result<Bare, SessionError> {
        let name = Name::new(name).expect("a name");
        let options = WorkerOptions { name, arena_bytes, timeout: HANDSHAKE_TIMEOUT };
        Ok(Bare { end: WorkerEnd::connect(socket, &options)?, record: Vec::new() })
    }

    /// Puts a fetch into the submission ring. Returns whether it fits.
    pub(super) fn fetch(&mut self, op: u64, key: &str) -> bool {
        let mut record = Writer::reusing(std::mem::take(&mut self.record));
        let fetch = Fetch {
            key: Key::new(key).expect("a key"),
            select: Select::Latest,
            timeout: FETCH_TIMEOUT,
            require: None,
            trace: None,
            watches: false,
            excerpt: None,
            base: None,
        };
        write_command(&mut record, OpId(op), &Command::Fetch(fetch));
        self.record = record.into_vec();
        // A sidecar that has ended no longer drains the ring, which is full at some time.
        self.end.submission.try_push(&self.record).unwrap_or(false)
    }

    /// Publishes the records of the submission ring, and rings the doorbell if the sidecar sleeps.
    pub(super) fn publish(&mut self) {
        self.end.submission.publish();
        if self.end.submission.should_wake() {
            // The sidecar may have ended this session.
            let _ = self.end.socket.ring();
        }
    }

    /// Takes all replies out of the completion ring, and returns their number.
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

    /// Returns whether the sidecar has ended this session.
    pub(super) fn is_out(&self) -> bool {
        !self.end.socket.is_open()
    }
}
