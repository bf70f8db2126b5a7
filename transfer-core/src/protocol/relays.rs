//! Versions that spread through their readers: what an owner has said by REDIRECT, and the requests of other nodes that wait until a
//! chunk of such a version has landed here.

use super::ids::{BlobId, PullId};
use super::passing::{Passing, Publication};
use super::tenant::Tenant;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::tensor::{Key, Name, TensorMeta, Version};
use crate::time::Time;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// How long a node that was not reached is left out.
const UNREACHABLE_FOR: Duration = Duration::from_secs(60);

/// The most nodes of which it is kept that they were not reached.
const MAX_UNREACHABLE: usize = 1 << 12;

/// The digest by which chunks are compared that do not come from the owner of their version: XXH3 with 128 bits, the highest byte first.
#[derive(Clone, Default)]
pub struct VersionDigest(Xxh3);

impl VersionDigest {
    /// Adds the next bytes of the chunk.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes so far.
    #[must_use]
    pub fn get(&self) -> [u8; 16] {
        self.0.digest128().to_be_bytes()
    }
}

/// The key of an owner, and the tenant whose workers read it: the link to the owner, the tenant, and the key.
pub(super) type Spreading = (LinkId, Tenant, Key);

/// What an owner has said by REDIRECT.
#[derive(Debug)]
pub(super) struct Redirect {
    /// The link to the owner, and the request that it has answered. That waits until the version is here.
    pub(super) owner: LinkId,
    pub(super) request: PullId,
    /// The owner's name and incarnation.
    pub(super) owner_name: Name,
    pub(super) incarnation: u64,
    pub(super) identity: NonZeroU64,
    pub(super) version: Version,
    /// The length of a chunk, in bytes.
    pub(super) chunk_bytes: u64,
    pub(super) meta: TensorMeta,
    /// The nodes that are to be asked, in order. The owner may be among them.
    pub(super) sources: Vec<Name>,
    /// The key, and the tenant whose workers read it.
    pub(super) key: Key,
    pub(super) reader: Tenant,
}

impl Redirect {
    /// Returns the publication that it says.
    pub(super) fn publication(&self) -> Publication {
        (self.owner_name.clone(), self.incarnation, self.reader, self.identity)
    }

    /// Returns the key of the owner.
    pub(super) fn spreading(&self) -> Spreading {
        (self.owner, self.reader, self.key.clone())
    }
}

/// Why a node does not send a version of another one.
pub(super) fn not_here(node: &Name, key: &Key) -> Failure {
    let text = format!("node {node:?} does not have this version of key {key:?}, which its owner has sent to it");
    Failure::new(FailureCode::VersionGone, text)
}

/// The bit in the tag of a copy which says that it is one of chunks, and that the tag is that of a proof.
pub(super) const MOVED: u64 = 1 << 63;

/// What is being compared with a digest, what a digest is being made of, or what is being copied.
pub(super) enum Proof {
    /// The next chunk of a version that is published here.
    Published(BlobId),
    /// A chunk, by its number, that has landed in this blob and has not come from the owner of its version.
    Came(BlobId, usize),
    /// What has landed in the first of these blobs is copied to the second one.
    Moved(BlobId, BlobId),
}

/// The requests of other nodes for versions that are on their way to this one, and the nodes that were not reached when versions were
/// searched for.
///
/// Nobody waits here for what is not coming: whether something is, its caller finds out.
#[derive(Default)]
pub(super) struct Relays {
    /// In the order of the places of their chunks.
    waiting: HashMap<Spreading, BTreeSet<(u64, LinkId, u32)>>,
    /// The versions of which nodes are in the middle.
    pub(super) passing: Passing,
    /// When each may be tried again.
    unreachable: HashMap<Name, Time>,
}

impl Relays {
    /// Lets the request of a peer wait until its chunk has come, which begins at this offset.
    pub(super) fn wait(&mut self, of: Spreading, offset: u64, (link, index): (LinkId, u32)) {
        self.waiting.entry(of).or_default().insert((offset, link, index));
    }

    /// Whether requests of peers wait for a version.
    pub(super) fn is_awaited(&self, of: &Spreading) -> bool {
        self.waiting.contains_key(of)
    }

    /// Forgets a request that has ended.
    pub(super) fn forget(&mut self, of: &Spreading, offset: u64, (link, index): (LinkId, u32)) {
        let Some(waiting) = self.waiting.get_mut(of) else { return };
        waiting.remove(&(offset, link, index));
        if waiting.is_empty() {
            self.waiting.remove(of);
        }
    }

    /// Takes the requests that wait for a version, or for the chunk that begins at this offset.
    pub(super) fn take(&mut self, of: &Spreading, offset: Option<u64>) -> Vec<(LinkId, u32)> {
        let Some(waiting) = self.waiting.get_mut(of) else { return Vec::new() };
        let taken = match offset {
            None => std::mem::take(waiting),
            Some(offset) => {
                let mut from = waiting.split_off(&(offset, LinkId(0), 0));
                let mut after =
                    offset.checked_add(1).map_or_else(BTreeSet::new, |next| from.split_off(&(next, LinkId(0), 0)));
                waiting.append(&mut after);
                from
            }
        };
        if waiting.is_empty() {
            self.waiting.remove(of);
        }
        taken.into_iter().map(|(_, link, index)| (link, index)).collect()
    }

    /// Notes that no link to a node came up.
    pub(super) fn not_reached(&mut self, now: Time, node: &Name) {
        self.unreachable.retain(|_, until| *until > now);
        if self.unreachable.len() < MAX_UNREACHABLE {
            self.unreachable.insert(node.clone(), now + UNREACHABLE_FOR);
        }
    }

    /// Notes that there is a link to a node.
    pub(super) fn reached(&mut self, node: &Name) {
        self.unreachable.remove(node);
    }

    /// Whether no link to a node came up when it was tried, and it is not to be tried again so far.
    pub(super) fn is_unreachable(&self, now: Time, node: &Name) -> bool {
        self.unreachable.get(node).is_some_and(|until| *until > now)
    }

    /// Returns how many requests wait; for tests.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.values().map(BTreeSet::len).sum()
    }
}
