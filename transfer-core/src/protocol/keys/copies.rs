//! Copies of versions that lie in registered memory, which no other process can read. The readers of a tenant share them.

use super::Keys;
use crate::protocol::ids::{BlobId, CopyId};
use crate::protocol::tenant::Tenant;
use crate::tensor::Excerpt;
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// The most copies of one version that are kept: parts of it may be asked for in many ways. The oldest is given up.
const MAX_COPIES: usize = 256;

/// A copy that readers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedCopy {
    /// It is being made.
    Copying(CopyId),
    /// It is made, of the part that is asked for alone or of all of the version.
    Made { copy: BlobId, is_part: bool },
}

struct CopyOfReader {
    reader: Tenant,
    /// The part that is copied. `None`: all of it.
    excerpt: Option<Excerpt>,
    copy: SharedCopy,
    /// Its place in the order of those that are made.
    place: u64,
}

/// The copies of each version, by tenants that read it.
///
/// Each copy that is made has a reference from here until its version ends, or others want its room. It holds no reference to the
/// version.
#[derive(Default)]
pub(super) struct SharedCopies {
    of: HashMap<BlobId, Vec<CopyOfReader>>,
    /// The versions of those that are made; the oldest of each tenant first.
    order: BTreeMap<(Tenant, u64), BlobId>,
    next: u64,
}

impl Keys {
    /// Returns the copy of this part of a version for the workers of a tenant. A copy of all of the version has each part of it.
    pub(crate) fn shared_copy(&self, of: BlobId, reader: Tenant, excerpt: Option<&Excerpt>) -> Option<SharedCopy> {
        let mut its = self.copies.of.get(&of)?.iter().filter(|shared| shared.reader == reader);
        let has_it = |shared: &&CopyOfReader| {
            let is_whole = shared.excerpt.is_none() && matches!(shared.copy, SharedCopy::Made { .. });
            is_whole || shared.excerpt.as_ref() == excerpt
        };
        its.find(has_it).map(|shared| shared.copy)
    }

    /// Notes that a copy is being made which the workers of a tenant share.
    pub(crate) fn copy_begins(&mut self, of: BlobId, reader: Tenant, excerpt: Option<Excerpt>, id: CopyId) {
        let shared = CopyOfReader { reader, excerpt, copy: SharedCopy::Copying(id), place: 0 };
        self.copies.of.entry(of).or_default().push(shared);
    }

    /// Whether this copy of a version is shared.
    pub(crate) fn shares_copy(&self, of: BlobId, id: CopyId) -> bool {
        let is_it = |shared: &CopyOfReader| shared.copy == SharedCopy::Copying(id);
        self.copies.of.get(&of).is_some_and(|its| its.iter().any(is_it))
    }

    /// Forgets a copy that is not finished.
    pub(crate) fn copy_dropped(&mut self, of: BlobId, id: CopyId) {
        self.take_copy(of, |shared| shared.copy == SharedCopy::Copying(id));
    }

    /// Keeps a copy that is made, with a reference of its own. Returns a copy that is given up for it, which the caller releases.
    pub(crate) fn copy_made(&mut self, of: BlobId, id: CopyId, copy: BlobId) -> Option<BlobId> {
        let its = self.copies.of.get_mut(&of)?;
        let shared = its.iter_mut().find(|shared| shared.copy == SharedCopy::Copying(id))?;
        self.copies.next += 1;
        shared.place = self.copies.next;
        shared.copy = SharedCopy::Made { copy, is_part: shared.excerpt.is_some() };
        self.copies.order.insert((shared.reader, shared.place), of);
        let oldest = its.iter().map(|shared| shared.place).filter(|place| *place > 0).min();
        let oldest = oldest.filter(|_| its.len() > MAX_COPIES);
        self.hold(copy);
        self.take_copy(of, |shared| Some(shared.place) == oldest)
    }

    /// Takes a copy of a version that has ended. The caller releases it.
    pub(crate) fn take_copy_of(&mut self, of: BlobId) -> Option<BlobId> {
        self.take_copy(of, |shared| shared.place > 0)
    }

    /// Takes the oldest copy for the workers of a tenant, whose room others want. The caller releases it.
    pub(crate) fn take_oldest_copy(&mut self, reader: Tenant) -> Option<BlobId> {
        let ((_, oldest), of) = self.copies.order.range((reader, 0)..=(reader, u64::MAX)).next()?;
        let (oldest, of) = (*oldest, *of);
        self.take_copy(of, |shared| shared.place == oldest)
    }

    fn take_copy(&mut self, of: BlobId, is_it: impl Fn(&CopyOfReader) -> bool) -> Option<BlobId> {
        let its = self.copies.of.get_mut(&of)?;
        let CopyOfReader { reader, copy, place, .. } = its.swap_remove(its.iter().position(is_it)?);
        if its.is_empty() {
            self.copies.of.remove(&of);
        }
        self.copies.order.remove(&(reader, place));
        match copy {
            SharedCopy::Made { copy, .. } => Some(copy),
            SharedCopy::Copying(_) => None,
        }
    }

    /// Checks that there is no copy without its version, and none that is lost; for tests.
    #[cfg(test)]
    pub(super) fn check_copies(&self) -> Result<(), String> {
        for (of, its) in &self.copies.of {
            let made = its.iter().filter_map(|shared| match shared.copy {
                SharedCopy::Made { copy, .. } => Some(copy),
                SharedCopy::Copying(_) => None,
            });
            if self.blobs.get(*of).is_none() || made.clone().any(|copy| self.blobs.get(copy).is_none()) {
                return Err(format!("blob {of:?}, or a copy of it, is gone: {:?}", made.collect::<Vec<_>>()));
            }
        }
        let made = self.copies.of.values().flatten().filter(|shared| shared.place > 0).count();
        match made == self.copies.order.len() {
            true => Ok(()),
            false => Err(format!("{made} copies are shared, and {} are in order", self.copies.order.len())),
        }
    }
}
