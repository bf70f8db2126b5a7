//! What an operator ends, regardless of its owner.

use crate::protocol::keys::Owner;
use crate::protocol::node::Node;
use crate::protocol::node::flows::Ownership;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use crate::time::Time;

/// A key that an operator has deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// The worker that owned it.
    pub owner: Name,
    /// The number of its published versions.
    pub versions: u32,
    /// The total length of these versions in bytes.
    pub bytes: u64,
    /// The number of these versions that are still being read. A version that was only found on a board does not count.
    /// Their memory is returned when the last reader is done.
    pub still_read: u32,
}

/// Why a key was not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotDeleted {
    /// The key is not published here.
    #[error("key {0:?} is not published at this sidecar")]
    Unknown(Key),
    /// The directory is being asked for the owner of the key.
    #[error("the directory is being asked who owns key {0:?}: try again when it has answered")]
    Claiming(Key),
    /// The key belongs to a counter or a barrier.
    #[error("a counter or barrier lives as long as its sidecar and cannot be deleted")]
    Reserved,
}

impl Node {
    /// Ends a key as its owner could. The owner receives `returned` for each version that is no longer read, as always,
    /// and its next push begins the key anew. A worker that pushes the key here from another node is told that its
    /// slots are called back, and may begin anew as well. With `only`, the key must belong to this tenant.
    ///
    /// # Errors
    /// [`NotDeleted`].
    pub fn delete_key(&mut self, now: Time, key: &Key, only: Option<Tenant>) -> Result<Deleted, NotDeleted> {
        self.common.latest = now;
        ownership!(self).delete_key(now, key, only)
    }
}

impl Ownership<'_> {
    /// Ends a key as its owner could. The owner receives `returned` for each version that is no longer read, as always,
    /// and its next push begins the key anew. A worker that pushes the key here from another node is told that its
    /// slots are called back, and may begin anew as well. With `only`, the key must belong to this tenant.
    ///
    /// # Errors
    /// [`NotDeleted`].
    fn delete_key(&mut self, now: Time, key: &Key, only: Option<Tenant>) -> Result<Deleted, NotDeleted> {
        if key.reserved_for().is_some() {
            return Err(NotDeleted::Reserved);
        }
        let unknown = || NotDeleted::Unknown(key.clone());
        let id = self.keys.find(key).ok_or_else(unknown)?;
        let record = self.keys.record(id).ok_or_else(unknown)?;
        let whose = self.sessions.owner_tenant(record.owner());
        if only.is_some_and(|only| whose != Some(only)) {
            // A key of another tenant is reported as unknown.
            return Err(unknown());
        }
        if let Owner::Claiming(_) = record.owner() {
            return Err(NotDeleted::Claiming(key.clone()));
        }
        let owner = self.sessions.owner_name(record.owner()).cloned().ok_or_else(unknown)?;
        let versions = record.versions();
        let still_read = versions.clone().filter(|version| self.keys.readers_of(id, *version) > 0).count();
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
}
