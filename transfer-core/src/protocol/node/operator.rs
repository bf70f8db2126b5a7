//! What an operator ends, whoever owns it.

use super::Node;
use crate::fabric::LinkId;
use crate::protocol::ids::FlowAt;
use crate::protocol::keys::Owner;
use crate::protocol::landing::InState;
use crate::protocol::snapshot::Page;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use crate::time::Time;

/// A key that an operator has deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// Whose it was.
    pub owner: Name,
    /// How many versions were published.
    pub versions: u32,
    /// Their length in bytes, all together.
    pub bytes: u64,
    /// Those that are still being read, without those that are found on a board only; their memory comes back with their last readers.
    pub still_read: u32,
}

/// Why a key was not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotDeleted {
    /// Nobody publishes it here.
    #[error("key {0:?} is not published at this sidecar")]
    Unknown(Key),
    /// The directory is just being asked whose it is.
    #[error("the directory is being asked who owns key {0:?}: try again when it has answered")]
    Claiming(Key),
    /// A counter or a barrier.
    #[error("a counter or barrier lives as long as its sidecar and cannot be deleted")]
    Reserved,
}

impl Node {
    /// Ends a key as its owner could. The owner hears `returned` for each version that nobody reads any more, as always; its next
    /// push of the key begins it anew. One that pushes it here from another node hears that its slots are called back, and
    /// may begin anew as well. `only` says of which tenant alone the operator may.
    ///
    /// # Errors
    /// [`NotDeleted`].
    pub fn delete_key(&mut self, now: Time, key: &Key, only: Option<Tenant>) -> Result<Deleted, NotDeleted> {
        self.latest = now;
        if key.reserved_for().is_some() {
            return Err(NotDeleted::Reserved);
        }
        let unknown = || NotDeleted::Unknown(key.clone());
        let id = self.keys.find(key).ok_or_else(unknown)?;
        let record = self.keys.record(id).ok_or_else(unknown)?;
        let whose = self.owner_tenant(record.owner());
        if only.is_some_and(|only| whose != Some(only)) {
            // What is another tenant's is not there for this one.
            return Err(unknown());
        }
        if let Owner::Claiming(_) = record.owner() {
            return Err(NotDeleted::Claiming(key.clone()));
        }
        let owner = self.owner_name(record.owner()).cloned().ok_or_else(unknown)?;
        let versions = record.versions();
        let still_read = versions.clone().filter(|id| self.keys.readers_of(record, *id) > 0).count();
        let blobs: Vec<_> = versions.filter_map(|id| self.keys.blob(id)).collect();
        let deleted = Deleted {
            owner,
            versions: record.count(),
            bytes: blobs.iter().map(|b| b.meta.len_bytes()).sum(),
            still_read: u32::try_from(still_read).unwrap_or(u32::MAX),
        };
        self.end_key(now, id);
        Ok(deleted)
    }

    /// Calls back the landing slots of one user, or of all, into which nobody writes: their senders ask again when they need some.
    /// Goes through a bounded number of flows; the page's entries are the lengths in bytes of what was called back, one for each flow.
    pub fn evict(&mut self, domain: Option<Tenant>, from: u64) -> Page<u64> {
        let (mut entries, mut steps) = (Vec::new(), 0);
        let (first, begin) = (from >> 32, usize::try_from(from & u64::from(u32::MAX)).unwrap_or(usize::MAX));
        let mut found: Vec<FlowAt> = Vec::new();
        let mut next = None;
        'links: for (link, flows) in self.landing.flows(LinkId(u32::try_from(first).unwrap_or(u32::MAX))) {
            steps += 1;
            let begin = if u64::from(link.0) == first { begin } else { 0 };
            for (place, flow) in flows.places(begin) {
                if steps >= Page::<u64>::MOST_STEPS {
                    next = Some(u64::from(link.0) << 32 | place as u64);
                    break 'links;
                }
                steps += 1;
                let Some((id, flow)) = flow else { continue };
                if flow.state == InState::Ready && domain.is_none_or(|d| d == flow.domain) {
                    found.push((link, id));
                    entries.push(flow.capacity);
                }
            }
        }
        for flow in found {
            self.recall_room(flow);
        }
        Page { entries, next }
    }
}
