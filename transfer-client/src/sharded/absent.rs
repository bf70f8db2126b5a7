//! Ranks that a fetch does not find.

use super::layouts::fetch_record;
use super::records::RECORD;
use crate::error::Error;
use crate::request::flow::Io;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use transfer_core::op::FailureCode;
use transfer_core::tensor::Key;

/// The time after which a fetch asks whether the shards of a rank are published at all, and the time-out of that question.
const PUBLISHED_CHECK: Duration = Duration::from_millis(250);

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Absent {
    /// Those that are not asked again, and why.
    pub(super) gone: BTreeMap<u32, Error>,
    /// Ranks whose shards nobody publishes at the moment. Replicas are asked for their boxes. If a box has no replica, its rank is asked
    /// once more, for longer: a directory that has just started does not know all keys yet.
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
    io.sleep_until(Instant::now() + PUBLISHED_CHECK).await;
    match fetch_record(io, shards, version, RECORD, PUBLISHED_CHECK).await {
        Err(e) if e.failure_code() == Some(FailureCode::UnknownKey) => e,
        _ => std::future::pending().await,
    }
}
