//! Streams that have ended with their owner: a reader that follows one, and comes after its end, hears of it.

use super::{Keys, Owner, Record, Waiter};
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::RecordId;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name, Select, Version};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// How many ended streams are remembered. The one that ended first is forgotten first.
const MAX_ENDED_STREAMS: usize = 1024;

/// A stream that has ended: its owner is gone, or has deleted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndedStream {
    pub(crate) owner: Name,
    pub(crate) tenant: Tenant,
    /// The last version that was published.
    pub(crate) last: Version,
}

impl EndedStream {
    /// The failure of a fetch that follows it. Only its own tenant hears whose it was.
    pub(crate) fn failure(&self, reader: Tenant, key: &Key, select: Select) -> Failure {
        let EndedStream { owner, tenant, last } = self;
        let text = match *tenant == reader {
            true => format!(
                "{select} of key {key:?} does not come: worker {owner:?}, which wrote it, has ended, has deleted it or has lost it to \
                 another worker; {last} was the last that it published"
            ),
            false => format!("{select} of key {key:?} does not come: its writer has ended, or has given it up"),
        };
        Failure::new(FailureCode::VersionGone, text)
    }
}

#[derive(Default)]
pub(super) struct EndedStreams {
    by_key: HashMap<Key, EndedStream>,
    order: VecDeque<Key>,
}

impl EndedStreams {
    /// Forgets that the stream of a key has ended: it has an owner again, here or at another node.
    pub(super) fn forget(&mut self, key: &Key) {
        if !self.by_key.is_empty() && self.by_key.remove(key).is_some() {
            self.order.retain(|other| other != key);
        }
    }
}

impl Keys {
    /// Returns the last version of a key whose versions end by the number of their fetches: a stream.
    pub(crate) fn last_of_stream(&self, record: RecordId) -> Option<Version> {
        let last = self.records.get(record)?.next_version().checked_sub(1).map(Version)?;
        // Where the newest version has ended before its key, it was fetched as often as it could be.
        self.current(record).is_none_or(super::Blob::counts_fetches).then_some(last)
    }

    /// Remembers that a stream has ended. Returns the readers that wait for what follows, which no longer comes.
    pub(crate) fn stream_ended(&mut self, record: RecordId, ended: EndedStream) -> Vec<Waiter> {
        let Some(r) = self.records.get(record) else { return Vec::new() };
        let streams = &mut self.ended_streams;
        if streams.by_key.insert(r.key.clone(), ended).is_none() {
            streams.order.push_back(r.key.clone());
        }
        if streams.order.len() > MAX_ENDED_STREAMS
            && let Some(oldest) = streams.order.pop_front()
        {
            streams.by_key.remove(&oldest);
        }
        self.following(record)
    }

    /// Returns the waiters that follow a stream.
    pub(crate) fn following(&self, record: RecordId) -> Vec<Waiter> {
        let waiters = self.records.get(record).and_then(Record::waiters);
        waiters.map_or_else(Vec::new, super::waiters::Waiters::following)
    }

    /// Returns the stream that a fetch follows, if it has ended and nobody owns its key.
    pub(crate) fn ended_stream(&self, key: &Key, select: Select) -> Option<&EndedStream> {
        let unowned = |record: &Record| match &record.owner {
            Owner::Nobody | Owner::Outlived(_) => true,
            // The stream has ended while a takeover waits for the directory.
            Owner::Claiming(claiming) => matches!(claiming.before, None | Some(Owner::Outlived(_))),
            Owner::Session(_) | Owner::Landed(_) => false,
        };
        matches!(select, Select::Following(_))
            .then(|| self.ended_streams.by_key.get(key))
            .flatten()
            .filter(|_| self.find(key).and_then(|id| self.records.get(id)).is_none_or(unowned))
    }

    /// Forgets that a stream has ended: its key has an owner again.
    pub(super) fn stream_begins(&mut self, record: RecordId) {
        if let Some(r) = self.records.get(record) {
            self.ended_streams.forget(&r.key);
        }
    }
}
