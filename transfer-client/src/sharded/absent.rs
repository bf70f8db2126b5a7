//! Ranks that a fetch does not find.

use super::layouts::fetch_record;
use super::records::RECORD;
use crate::error::Error;
use crate::request::flow::Io;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use transfer_core::op::FailureCode;
use transfer_core::tensor::Key;

/// The time after which a fetch looks whether the rank that it has asked is there, and the time of that look.
const LOOK: Duration = Duration::from_millis(250);

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Absent {
    /// Those that are not asked again, and why.
    pub(super) gone: BTreeMap<u32, Error>,
    /// Those whose shards nobody publishes now. Whoever has the same boxes is asked for them. Without a replica they are asked once
    /// more and have more time, since a directory that starts anew does not know all keys at once.
    pub(super) silent: BTreeSet<u32>,
}

impl Absent {
    /// Notes that a rank was not found.
    pub(super) fn add(&mut self, rank: u32, error: Error) {
        let is_silent = error.failure_code() == Some(FailureCode::UnknownKey);
        if !is_silent || !self.silent.insert(rank) {
            self.gone.insert(rank, error);
        }
    }
}

/// Ends with an error if nobody publishes the shards of a rank. Does not end otherwise.
pub(super) async fn is_silent(io: &Io, shards: Key, version: u64) -> Error {
    io.sleep_until(Instant::now() + LOOK).await;
    match fetch_record(io, shards, version, RECORD, LOOK).await {
        Err(e) if e.failure_code() == Some(FailureCode::UnknownKey) => e,
        _ => std::future::pending().await,
    }
}
