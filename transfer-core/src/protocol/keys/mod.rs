//! Keys and their published versions: who may publish a key, its waiters, and the versions that workers can look up.
//!
//! # Layout
//! - `blob`: a version: a range of memory that is counted by references.
//! - `record`: a key, and the table of all keys. `owner`: the owner of a key, and claims in the directory.
//! - `versions`: which version answers a fetch, and when each version ends. `older`: the versions that stay beside the
//!   newest one.
//! - `waiters`: the waiters for a key's versions.
//! - `copies`: the copies that readers share of what they cannot read where it lies.
//! - `deltas`: which bases the deltas of a version have, and how fast versions leave.
//! - `spreads`: the nodes that get a version from here, those that were sent to them, and the digests of its chunks.
//! - `board`: the versions that workers look up without asking the sidecar. `notices`: the versions that workers
//!   announce to each other.
//! - `ended`: streams that have ended with their owner.
//! - `counted`: how many keys and versions each worker and tenant has. `places`: a set of keys.

mod blob;
mod board;
mod copies;
mod counted;
mod deltas;
mod ended;
mod notices;
mod older;
mod owner;
mod places;
mod record;
mod spreads;
#[cfg(test)]
mod tests;
mod versions;
mod waiters;

pub(super) use blob::{Blob, Parts, Released, Source};
pub(super) use copies::SharedCopy;
pub(super) use ended::EndedStream;
pub(super) use older::Older;
pub(super) use owner::{Claimant, Claiming, Landed, Outlived, Owner};
pub(super) use record::Record;
pub(super) use spreads::{DigestsDue, Fan};
pub(super) use versions::Picked;
pub(super) use waiters::{Concerned, Waiter};

use super::config::NodeConfig;
use super::ids::{BlobId, SessionId, of};
use super::rules::Rules;
use super::slab::Slab;
use super::tenant::Tenant;
use crate::tensor::{Key, Name};
use board::Boards;
use copies::SharedCopies;
use counted::Counted;
use ended::EndedStreams;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use places::Places;
use spreads::Spread;

/// The most locations of keys that are kept. A full table is cleared, and the directory is asked again.
const MAX_LOCATIONS: usize = 1 << 20;

/// The keys of a node, as a state machine.
///
/// It knows workers, links and operations only by their ids. Its caller
/// - passes in **events**: a version comes or goes ([`insert`](Keys::insert), [`publish`](Keys::publish),
///   [`take_version`](Keys::take_version), [`fetch_begins`](Keys::fetch_begins), [`fetch_ends`](Keys::fetch_ends)), a
///   key changes hands ([`claim`](Keys::claim), [`answer_claim`](Keys::answer_claim), [`give`](Keys::give),
///   [`let_go`](Keys::let_go)), a waiter comes or goes ([`wait`](Keys::wait), [`forget_waiter`](Keys::forget_waiter)),
///   a board has carried out a request ([`withdrawn`](Keys::withdrawn), [`not_shown`](Keys::not_shown)), a session
///   begins or ends;
/// - carries out the **results**: requests to the directory and changes of boards go into the queue of actions that is
///   passed with the event; versions that end are returned, and the caller [releases](Keys::release) each of them,
///   because this machine does not decide where their memory goes;
/// - asks for the next waiter ([`first_exactly`](Keys::first_exactly), [`first_rising`](Keys::first_rising)) and serves
///   it.
///
/// **Getters** return [`Record`]s and [`Blob`]s to read. Only the methods of this type change them.
#[derive(Default)]
pub(super) struct Keys {
    /// The places of the records.
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    records: Slab<Record, of::Record>,
    blobs: Slab<Blob, of::Blob>,
    /// The other tenants that may read a version, for each version that is shared.
    readers: HashMap<BlobId, Box<[Tenant]>>,
    /// The nodes to which a version goes, for each version that is long enough to spread.
    spreads: HashMap<BlobId, Spread>,
    /// The keys that the end of a session affects.
    keys_of: HashMap<SessionId, Places>,
    /// How many records have a newest version that is still published.
    published_count: u64,
    copies: SharedCopies,
    counted: Counted,
    boards: Boards,
    ended_streams: EndedStreams,
    /// Where the keys of other nodes are, according to the directory: the node, and the number of the directory's
    /// entry.
    locations: HashMap<Key, (Name, u64)>,
    rules: Rules,
}

impl Keys {
    pub(super) fn new(config: &NodeConfig) -> Keys {
        Keys { rules: config.rules, ..Keys::default() }
    }

    /// Returns all keys, including those that have waiters and no owner.
    pub(super) fn records(&self) -> &Slab<Record, of::Record> {
        &self.records
    }

    /// Returns all versions that have references.
    pub(super) fn blobs(&self) -> &Slab<Blob, of::Blob> {
        &self.blobs
    }

    /// Returns how many keys have a newest version that is still published.
    pub(super) fn published_count(&self) -> u64 {
        self.published_count
    }

    /// Returns the node that owns a key elsewhere, if its location is known.
    pub(super) fn location(&self, key: &Key) -> Option<&Name> {
        self.locations.get(key).map(|(node, _)| node)
    }

    /// Stores the location of a key that the directory has reported.
    pub(super) fn remember_location(&mut self, key: &Key, node: &Name, sequence: u64) {
        if self.locations.len() >= MAX_LOCATIONS {
            self.locations.clear();
        }
        self.ended_streams.forget(key);
        self.locations.insert(key.clone(), (node.clone(), sequence));
    }

    /// Removes a location that has proved wrong. Returns the number of its entry, or 0 if there was none.
    pub(super) fn forget_location(&mut self, key: &Key) -> u64 {
        self.locations.remove(key).map_or(0, |(_, sequence)| sequence)
    }

    /// Removes all locations, because the directory is a new one.
    pub(super) fn forget_locations(&mut self) {
        self.locations.clear();
    }

    /// Checks the invariants that hold whenever no action is pending; for tests.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(blob) = self.blobs.ids(|b| b.holders() == 0).first() {
            return Err(format!("blob {blob:?} has no references"));
        }
        self.check_waiters()?;
        self.check_owners()?;
        self.check_counted()?;
        self.check_copies()?;
        self.check_boards()
    }
}
