//! What is published here: keys, their versions, who may publish them, who waits for them, and who may find them by looking.
//!
//! # Layout
//! - `blob`: a version: a range of memory that is counted by references.
//! - `record`: a key, and the table of all keys. `owner`: who may publish one, and claims in the directory.
//! - `versions`: which version answers a fetch, and when each one ends. `older`: those that stay beside the newest.
//! - `waiters`: who waits for a version.
//! - `board`: what workers may find by looking, without asking. `notices`: what they show each other.
//! - `counted`: how many keys and versions a worker and a tenant have.

mod blob;
mod board;
mod counted;
mod notices;
mod older;
mod owner;
mod record;
#[cfg(test)]
mod tests;
mod versions;
mod waiters;

pub(super) use blob::{Blob, Lent, Source, Unheld};
pub(super) use owner::{Claimant, Claiming, Landed, Outlived, Owner};
pub(super) use record::Record;
pub(super) use versions::Picked;
pub(super) use waiters::{Concerned, Waiter};

use super::ids::{BlobId, RecordId, SessionId, of};
use super::slab::Slab;
use super::tenant::Tenant;
use crate::tensor::{Key, Name};
use board::Boards;
use counted::Counted;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::collections::BTreeSet;

/// The most locations of keys that are remembered; then they are asked for again.
const MAX_LOCATIONS: usize = 1 << 20;

/// The keys of a node, as a state machine.
///
/// It knows workers, links and operations by their ids, and nothing else of them. Whoever holds it
/// - hands it **events**: a version comes or goes ([`insert`](Keys::insert), [`publish`](Keys::publish),
///   [`take_version`](Keys::take_version), [`fetch_begins`](Keys::fetch_begins), [`fetch_ends`](Keys::fetch_ends)), a key changes hands
///   ([`claim`](Keys::claim), [`answer_claim`](Keys::answer_claim), [`give`](Keys::give), [`let_go`](Keys::let_go)), somebody waits
///   ([`wait`](Keys::wait), [`forget_waiter`](Keys::forget_waiter)), a board has done what it was asked ([`withdrawn`](Keys::withdrawn),
///   [`not_shown`](Keys::not_shown)), a session begins or ends;
/// - does what **comes out**: questions to the directory and changes of boards go into the queue of actions that is handed in with the
///   event; versions that have ended are returned, each to be [unheld](Keys::unhold), for where their memory goes is not decided here;
/// - asks who is served next ([`first_exactly`](Keys::first_exactly), [`first_rising`](Keys::first_rising)) and serves them.
///
/// **Getters** hand out [`Record`]s and [`Blob`]s to read. Nothing but the methods here changes them.
#[derive(Default)]
pub(super) struct Keys {
    index: HashTable<RecordId>,
    hasher: DefaultHashBuilder,
    records: Slab<Record, of::Record>,
    blobs: Slab<Blob, of::Blob>,
    /// Which other tenants may read a version, of those that some may.
    readers: HashMap<BlobId, Box<[Tenant]>>,
    /// The keys that the end of a session concerns.
    keys_of: HashMap<SessionId, BTreeSet<RecordId>>,
    /// How many records have a published version.
    published_count: u64,
    counted: Counted,
    boards: Boards,
    /// Where other keys are, as the directory said: the node and the entry's number.
    locations: HashMap<Key, (Name, u64)>,
}

impl Keys {
    /// All keys, those that are only waited for too.
    pub(super) fn records(&self) -> &Slab<Record, of::Record> {
        &self.records
    }

    /// All versions that somebody can reach.
    pub(super) fn blobs(&self) -> &Slab<Blob, of::Blob> {
        &self.blobs
    }

    /// How many keys have a published version.
    pub(super) fn published_count(&self) -> u64 {
        self.published_count
    }

    /// The node that owns a key elsewhere, as far as it is remembered.
    pub(super) fn location(&self, key: &Key) -> Option<&Name> {
        self.locations.get(key).map(|(node, _)| node)
    }

    /// The directory said where a key is.
    pub(super) fn remember_location(&mut self, key: &Key, node: &Name, sequence: u64) {
        if self.locations.len() >= MAX_LOCATIONS {
            self.locations.clear();
        }
        self.locations.insert(key.clone(), (node.clone(), sequence));
    }

    /// A location has proved wrong. Returns the number of its entry, 0 where there was none.
    pub(super) fn forget_location(&mut self, key: &Key) -> u64 {
        self.locations.remove(key).map_or(0, |(_, sequence)| sequence)
    }

    /// The directory is another one.
    pub(super) fn forget_locations(&mut self) {
        self.locations.clear();
    }

    /// What has to hold whenever no action is left; for tests.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(blob) = self.blobs.ids(|b| b.holders() == 0).first() {
            return Err(format!("blob {blob:?} has no references"));
        }
        self.check_waiters()?;
        self.check_owners()?;
        self.check_counted()?;
        self.check_boards()
    }
}
