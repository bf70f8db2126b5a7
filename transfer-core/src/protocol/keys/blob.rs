//! A version: a range of memory that is counted by references, and where its memory goes.

use super::Keys;
use crate::alloc::Allocation;
use crate::fabric::LinkId;
use crate::memory::LocalSlice;
use crate::op::OpId;
use crate::plan::GatherList;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, OperationId, SlotId};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Retention, TensorMeta, Until, Version};
use crate::trace::TraceContext;

/// A range that somebody can reach. It ends with its last reference.
pub(crate) struct Blob {
    pub(crate) slice: LocalSlice,
    /// The body, where it lies in several ranges: `slice` is then the metadata and the table of these.
    pub(crate) ranges: Option<Box<[LocalSlice]>>,
    pub(crate) meta: TensorMeta,
    pub(crate) version: Version,
    /// Being published counts one; so does each lease, each transfer that reads it, each ticket of a board, and an operation that is about to publish it.
    refs: u32,
    pub(crate) domain: Tenant,
    pub(crate) source: Source,
    /// How long it stays published.
    pub(crate) retention: Retention,
    /// How often it may still be fetched. Counted where its retention says so.
    pub(super) fetches_left: u32,
    /// Fetches that were counted and have not ended: a peer is getting it.
    pub(super) under_way: u32,
    /// Some other tenants may read it.
    is_shared: bool,
    /// It was published before the epoch of the newest version began.
    pub(super) before_epoch: bool,
    /// Its worker waits until nobody else can reach it.
    awaited: Option<OperationId>,
    /// What pushed it, where that said so.
    pub(crate) trace: Option<TraceContext>,
}

/// Where a blob's memory goes when nobody can reach it any more.
pub(crate) enum Source {
    /// Back to the worker whose arena it lies in. `None`: the worker has it back already.
    Arena(Option<Lent>),
    /// Back to the pool of its domain.
    Pool(Box<Allocation>),
    /// To the sender that fills this landing slot.
    Slot(LinkId, SlotId),
    /// To the peer whose memory it is, which calls it so.
    Reference { link: LinkId, lease: u32 },
}

/// Who lent a range, and by which of its pushes.
#[derive(Clone, Copy)]
pub(crate) struct Lent {
    pub(crate) session: SessionId,
    pub(crate) pushed: OpId,
}

/// What the end of a reference leads to.
pub(crate) enum Unheld {
    /// Others hold it.
    Held,
    /// Nobody but this operation, which takes it back, holds it.
    Sole(OperationId),
    /// It has ended: its memory goes to its [`Source`].
    Ended(Box<Blob>),
}

impl Blob {
    /// One that is not published yet, with one reference.
    pub(crate) fn new(slice: LocalSlice, meta: TensorMeta, domain: Tenant, source: Source) -> Blob {
        let (version, retention) = (Version(0), Retention::default());
        Blob {
            slice,
            ranges: None,
            meta,
            version,
            refs: 1,
            domain,
            source,
            retention,
            fetches_left: u32::MAX,
            under_way: 0,
            is_shared: false,
            before_epoch: false,
            awaited: None,
            trace: None,
        }
    }

    /// The same, to be published for so long.
    pub(crate) fn retained(mut self, retention: Retention) -> Blob {
        if let Until::Fetched(n) = retention.until {
            self.fetches_left = n.get();
        }
        self.retention = retention;
        self
    }

    /// The same, of a version that came from elsewhere, and what pushed it.
    pub(crate) fn at(mut self, version: Version, trace: Option<TraceContext>) -> Blob {
        (self.version, self.trace) = (version, trace);
        self
    }

    /// How many ranges its body is made of; 0 where it lies in one piece behind the metadata.
    pub(crate) fn range_count(&self) -> u32 {
        self.ranges.as_ref().map_or(0, |ranges| u32::try_from(ranges.len()).unwrap_or(u32::MAX))
    }

    /// How many references it has.
    pub(crate) fn holders(&self) -> u32 {
        self.refs
    }

    /// Whether its fetches are counted.
    pub(crate) fn counts_fetches(&self) -> bool {
        matches!(self.retention.until, Until::Fetched(_))
    }

    /// What a transfer of it gathers behind its header.
    pub(crate) fn body(&self) -> GatherList {
        let (first, rest) = match &self.ranges {
            Some(ranges) => (self.meta.body_offset(), &ranges[..]),
            None => (self.meta.len_bytes(), &[][..]),
        };
        let first = LocalSlice { len: first, ..self.slice };
        std::iter::once(first).chain(rest.iter().copied()).filter(|slice| slice.len > 0).collect()
    }
}

impl Keys {
    /// A version.
    pub(crate) fn blob(&self, id: BlobId) -> Option<&Blob> {
        self.blobs.get(id)
    }

    /// A range that somebody can reach from here on. Its one reference is the caller's.
    pub(crate) fn insert(&mut self, blob: Blob) -> BlobId {
        if matches!(blob.source, Source::Arena(_)) {
            self.counted.version_came(blob.domain);
        }
        self.blobs.insert(blob)
    }

    /// Workers of these tenants may read it, too.
    pub(crate) fn share(&mut self, id: BlobId, readers: Vec<Tenant>) {
        if let Some(b) = self.blobs.get_mut(id).filter(|_| !readers.is_empty()) {
            b.is_shared = true;
            self.readers.insert(id, readers.into());
        }
    }

    /// Whether its push said that workers of this tenant may read it.
    pub(crate) fn is_shared_with(&self, id: BlobId, reader: Tenant) -> bool {
        self.readers.get(&id).is_some_and(|readers| readers.contains(&reader))
    }

    /// One more reference. Returns what is held.
    pub(crate) fn hold(&mut self, id: BlobId) -> Option<&Blob> {
        let b = self.blobs.get_mut(id)?;
        b.refs += 1;
        Some(b)
    }

    /// Takes one reference away.
    pub(crate) fn unhold(&mut self, id: BlobId) -> Unheld {
        let Some(b) = self.blobs.get_mut(id) else { return Unheld::Held };
        b.refs = b.refs.saturating_sub(1);
        match (b.refs, b.awaited) {
            (1, Some(op)) => Unheld::Sole(op),
            (0, _) => self.remove(id).map_or(Unheld::Held, |b| Unheld::Ended(Box::new(b))),
            _ => Unheld::Held,
        }
    }

    /// Ends a version whoever holds it.
    pub(crate) fn remove(&mut self, id: BlobId) -> Option<Blob> {
        let blob = self.blobs.remove(id)?;
        if blob.is_shared {
            self.readers.remove(&id);
        }
        if matches!(blob.source, Source::Arena(_)) {
            self.counted.version_went(blob.domain);
        }
        Some(blob)
    }

    /// An operation waits until nobody else holds it, or does so no more. Whether that is so already.
    pub(crate) fn set_awaited(&mut self, id: BlobId, by: Option<OperationId>) -> bool {
        let Some(b) = self.blobs.get_mut(id) else { return false };
        b.awaited = by;
        b.refs == 1
    }

    /// Its memory goes elsewhere than was said.
    pub(crate) fn set_source(&mut self, id: BlobId, source: Source) {
        if let Some(b) = self.blobs.get_mut(id) {
            b.source = source;
        }
    }

    /// A version is sent elsewhere under this number, which holds it.
    pub(crate) fn hold_as(&mut self, id: BlobId, version: Version) -> Option<&Blob> {
        self.blobs.get_mut(id)?.version = version;
        self.hold(id)
    }

    /// The push of a version is refused. Whether others hold it; else the refusal itself gives the range back.
    pub(crate) fn refuse_push(&mut self, id: BlobId) -> bool {
        let Some(b) = self.blobs.get_mut(id) else { return false };
        let kept = b.refs > 1;
        if !kept {
            b.source = Source::Arena(None);
        }
        kept
    }
}
