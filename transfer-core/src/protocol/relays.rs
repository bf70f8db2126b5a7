//! Versions that spread through their readers: what an owner has said by REDIRECT, and the requests of other nodes that wait until
//! such a version has landed here.

use super::ids::{BlobId, PullId};
use super::tenant::Tenant;
use crate::fabric::LinkId;
use crate::tensor::{Key, Name, TensorMeta, Version};
use crate::wire::landing::Header;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// How long a node that was named by REDIRECT may take at least, before another one is asked.
const RELAY_TIMEOUT: Duration = Duration::from_secs(10);

/// The rate, in bytes per second, below which a link is given up for another one.
const SLOW_RATE: u64 = 50_000_000;

/// The digest by which versions are compared that do not come from their owner: XXH3 with 128 bits, the highest byte first.
#[derive(Clone, Default)]
pub struct VersionDigest(Xxh3);

impl VersionDigest {
    /// Adds the next bytes of the version.
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
    /// The owner: its link, its name, and its incarnation.
    pub(super) owner: LinkId,
    pub(super) owner_name: Name,
    pub(super) incarnation: u64,
    pub(super) identity: NonZeroU64,
    pub(super) version: Version,
    pub(super) digest: [u8; 16],
    pub(super) meta: TensorMeta,
    /// The nodes that are to be asked, in order.
    pub(super) sources: Vec<Name>,
}

/// What an owner has said. Two are the same if they name the same publication.
#[derive(Debug, Clone)]
pub(super) struct Redirected(pub(super) Arc<Redirect>);

impl PartialEq for Redirected {
    fn eq(&self, other: &Redirected) -> bool {
        (self.0.owner, self.0.identity) == (other.0.owner, other.0.identity)
    }
}

impl Eq for Redirected {}

impl Hash for Redirected {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.owner, self.0.identity).hash(state);
    }
}

/// Whom a request goes to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) enum Route {
    /// The owner, which may answer by REDIRECT.
    #[default]
    Open,
    /// The owner, which has to answer itself.
    Direct,
    /// A node that the owner has named.
    Relayed(Redirected),
}

impl Route {
    /// Returns what the owner has said, if a node that it has named is asked.
    pub(super) fn redirect(&self) -> Option<&Redirect> {
        match self {
            Route::Open | Route::Direct => None,
            Route::Relayed(redirected) => Some(&redirected.0),
        }
    }
}

impl Redirect {
    /// Whether a peer may describe the version like this.
    pub(super) fn is(&self, version: Version, meta: &TensorMeta) -> bool {
        (self.version, &self.meta) == (version, meta)
    }

    /// Returns how long one node may take, if its reader waits this long at most: half of that, so that there is time for others.
    pub(super) fn patience(&self, left: Duration) -> Duration {
        let enough = RELAY_TIMEOUT + Duration::from_secs(self.meta.len_bytes() / SLOW_RATE);
        (left / 2).min(enough)
    }
}

/// What is being compared with a digest, or what a digest is being made of.
pub(super) enum Proof {
    /// A version that is published here.
    Published(BlobId),
    /// A version that has come from a node that its owner has named.
    Came(LinkId, PullId, BlobId, Box<(Header, u64)>),
}

/// The requests of other nodes for versions that are on their way to this one.
///
/// Nobody waits here for what is not coming: whether something is, its caller finds out by [`is_sought`](Relays::is_sought) and
/// by the requests that are under way.
#[derive(Default)]
pub(super) struct Relays {
    waiting: HashMap<Spreading, BTreeSet<(LinkId, u32)>>,
    sought: HashMap<Spreading, Weak<Redirect>>,
}

impl Relays {
    /// Lets the request of a peer wait until the version has come.
    pub(super) fn wait(&mut self, of: Spreading, request: (LinkId, u32)) {
        self.waiting.entry(of).or_default().insert(request);
    }

    /// Whether requests of peers wait for a version.
    pub(super) fn is_awaited(&self, of: &Spreading) -> bool {
        self.waiting.contains_key(of)
    }

    /// Forgets a request that has ended.
    pub(super) fn forget(&mut self, of: &Spreading, request: (LinkId, u32)) {
        let Some(waiting) = self.waiting.get_mut(of) else { return };
        waiting.remove(&request);
        if waiting.is_empty() {
            self.waiting.remove(of);
        }
    }

    /// Takes the requests that wait for a version.
    pub(super) fn take(&mut self, of: &Spreading) -> BTreeSet<(LinkId, u32)> {
        self.waiting.remove(of).unwrap_or_default()
    }

    /// Notes that fetches of this node seek a version at other nodes than its owner.
    pub(super) fn seek(&mut self, of: Spreading, redirected: &Redirected) {
        if self.sought.len() >= 2 * self.sought.values().filter(|redirect| redirect.strong_count() > 0).count() + 16 {
            self.sought.retain(|_, redirect| redirect.strong_count() > 0);
        }
        self.sought.insert(of, Arc::downgrade(&redirected.0));
    }

    /// Whether fetches of this node seek a version at other nodes than its owner.
    pub(super) fn is_sought(&self, of: &Spreading) -> bool {
        self.sought.get(of).is_some_and(|redirect| redirect.strong_count() > 0)
    }

    /// Returns how many requests wait; for tests.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.values().map(BTreeSet::len).sum()
    }
}
