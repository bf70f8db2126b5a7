//! A version: a range of memory that is counted by references, and where its memory goes.

use super::Keys;
use super::deltas::VersionDeltas;
use crate::alloc::Allocation;
use crate::fabric::LinkId;
use crate::memory::{LocalSlice, SegmentId};
use crate::op::OpId;
use crate::plan::GatherList;
use crate::protocol::ids::{BlobId, OperationId, SlotId};
use crate::protocol::spill::SpillId;
use crate::protocol::tenant::Tenant;
use crate::tensor::{BodyRange, Cut, Excerpt, Life, Packing, Retention, Spill, TensorMeta, Until, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use std::num::NonZeroU32;

/// A tenth of a second, in nanoseconds.
const TENTH_NS: u64 = 100_000_000;

/// A range that readers can reach. It ends with its last reference.
///
/// There may be millions, so the parts of its slice are fields of their own, which fill gaps between the others. No
/// byte is spare: a test says so when it becomes longer than planned.
pub(crate) struct Blob {
    segment: SegmentId,
    offset: u64,
    len: u64,
    pub(crate) meta: TensorMeta,
    pub(crate) version: Version,
    /// The number of references: one for the publication, and one for each lease, each transfer that reads it, each
    /// ticket of a board, and an operation that is about to publish it.
    refs: u32,
    pub(crate) domain: Tenant,
    pub(crate) source: Source,
    life: Life,
    spill: Spill,
    /// It stays until its key is deleted.
    until_deleted: bool,
    /// It was published before the epoch of the newest version began.
    pub(super) before_epoch: bool,
    /// When it was published here, in tenths of a second of the node's time: four bytes were spare, and this lasts for 13
    /// years. 0 if it was not.
    published_at: u32,
    /// What few versions have. There may be millions of versions.
    rare: Option<Box<Rare>>,
}

#[derive(Default)]
struct Rare {
    /// The ranges of the body, if there are several. Its slice is then the metadata and the table of these ranges.
    ranges: Option<Box<[LocalSlice]>>,
    /// Its fetches, if they are counted.
    counted: Option<CountedFetches>,
    /// The operation of its worker that waits until there are no other references.
    awaited: Option<OperationId>,
    /// The trace context of its push, if the push had one.
    trace: Option<TraceContext>,
    /// Its deltas, if it or later versions have some.
    deltas: Option<VersionDeltas>,
    /// Whether it lies in memory that its worker has registered, all of it or a part.
    is_registered: bool,
}

/// The fetches of a version that stays until it was fetched so often.
#[derive(Clone)]
pub(super) struct CountedFetches {
    all: NonZeroU32,
    /// How many more may begin.
    pub(super) left: u32,
    /// How many have begun and not ended.
    pub(super) under_way: u32,
}

/// Where a blob's memory goes when its last reference ends.
pub(crate) enum Source {
    /// Back to the worker whose arena it lies in, which has lent it by this push.
    Arena(OpId),
    /// Nowhere: the worker whose arena it lies in already has it back.
    Returned,
    /// Back to the pool of its tenant.
    Pool(Box<Allocation>),
    /// Back to the sender that writes into this landing slot.
    Slot(LinkId, SlotId),
    /// Nowhere: it lies on disk, and its space there is freed. Its slice is in [`SegmentId::DISK`], and names places in
    /// the version.
    Disk(SpillId),
    /// Back to the peer whose memory it is. `lease` is the peer's number for it, `ranges` as in [`Blob::range_count`].
    Reference { link: LinkId, lease: u32, ranges: u32 },
    /// To the versions of which it has these ranges. It holds them, has no memory of its own, and its slice is that of the
    /// first one.
    Gathered(Box<Parts>),
}

/// Ranges of versions.
pub(crate) struct Parts(pub(crate) Box<[(BlobId, BodyRange)]>);

/// The result of ending a reference.
pub(crate) enum Released {
    /// There are other references.
    Held,
    /// Only this operation, which takes the version back, still holds it.
    Sole(OperationId),
    /// The version has ended: its memory goes to its [`Source`].
    Ended(Blob),
}

impl Source {
    pub(super) fn is_arena(&self) -> bool {
        matches!(self, Source::Arena(_) | Source::Returned)
    }
}

impl Blob {
    /// The most bytes of one: its part of the goal for a published tensor.
    #[cfg(test)]
    pub(super) const MAX_BYTES: usize = 104;

    /// Creates a blob that is not published yet and has one reference.
    pub(crate) fn new(slice: LocalSlice, meta: TensorMeta, domain: Tenant, source: Source) -> Blob {
        let Retention { until: _, life, spill } = Retention::default();
        let LocalSlice { segment, offset, len } = slice;
        Blob {
            segment,
            offset,
            len,
            meta,
            version: Version(0),
            refs: 1,
            domain,
            source,
            life,
            spill,
            until_deleted: false,
            before_epoch: false,
            published_at: 0,
            rare: None,
        }
    }

    /// Returns the memory in which it lies: the metadata, and the body or the table of its ranges.
    pub(crate) fn slice(&self) -> LocalSlice {
        LocalSlice { segment: self.segment, offset: self.offset, len: self.len }
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Sets how long the blob stays published.
    pub(crate) fn retained(mut self, retention: Retention) -> Blob {
        let Retention { until, life, spill } = retention;
        (self.life, self.spill, self.until_deleted) = (life, spill, until == Until::Deleted);
        if let Until::Fetched(all) = until {
            self.rare().counted = Some(CountedFetches { all, left: all.get(), under_way: 0 });
        }
        self
    }

    /// Sets the ranges of the body.
    pub(crate) fn made_of(mut self, ranges: Box<[LocalSlice]>) -> Blob {
        self.rare().ranges = Some(ranges);
        self
    }

    /// Notes that it lies in memory that its worker has registered, which no other process can map.
    pub(crate) fn registered(mut self, is_registered: bool) -> Blob {
        if is_registered {
            self.rare().is_registered = true;
        }
        self
    }

    /// Returns the ranges in which it lies, if some of them are memory that its worker has registered.
    pub(crate) fn registered_slices(&self) -> impl Iterator<Item = LocalSlice> {
        self.slices().filter(|_| self.is_registered())
    }

    /// Whether it lies in memory that its worker has registered.
    pub(crate) fn is_registered(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.is_registered)
    }

    /// Sets the trace context of its push, if it has one.
    pub(crate) fn traced(mut self, trace: Option<TraceContext>) -> Blob {
        if trace.is_some() {
            self.rare().trace = trace;
        }
        self
    }

    /// Sets its deltas.
    pub(super) fn set_deltas(&mut self, deltas: VersionDeltas) {
        self.rare().deltas = Some(deltas);
    }

    /// Returns its deltas, if it or later versions have some.
    pub(super) fn version_deltas(&self) -> Option<&VersionDeltas> {
        self.rare.as_ref()?.deltas.as_ref()
    }

    /// Returns its deltas, mutably.
    pub(super) fn version_deltas_mut(&mut self) -> Option<&mut VersionDeltas> {
        self.rare.as_mut()?.deltas.as_mut()
    }

    /// Sets the version of a blob that came from another node, and the trace context of its push.
    pub(crate) fn at(mut self, version: Version, trace: Option<TraceContext>) -> Blob {
        self.version = version;
        self.traced(trace)
    }

    /// Returns the same version in other memory, in one piece, with one reference.
    pub(crate) fn moved_to(&self, slice: LocalSlice, source: Source) -> Blob {
        // A new field has to be named here.
        let Blob {
            segment: _,
            offset: _,
            len: _,
            meta,
            version,
            refs: _,
            domain,
            source: _,
            life,
            spill,
            until_deleted,
            before_epoch,
            published_at,
            rare,
        } = self;
        let rare =
            rare.as_deref().and_then(|Rare { ranges: _, counted, awaited: _, trace, deltas: _, is_registered: _ }| {
                let moved = Rare { counted: counted.clone(), trace: *trace, ..Rare::default() };
                (moved.counted.is_some() || moved.trace.is_some()).then(|| Box::new(moved))
            });
        let LocalSlice { segment, offset, len } = slice;
        Blob {
            segment,
            offset,
            len,
            meta: meta.clone(),
            version: *version,
            refs: 1,
            domain: *domain,
            source,
            life: *life,
            spill: *spill,
            until_deleted: *until_deleted,
            before_epoch: *before_epoch,
            published_at: *published_at,
            rare,
        }
    }

    /// Sets its version and the time at which it is published.
    pub(super) fn publish(&mut self, now: Time, version: Version) {
        self.version = version;
        self.published_at = u32::try_from(now.0 / TENTH_NS).unwrap_or(u32::MAX);
    }

    /// Returns when it was published here, rounded down to a tenth of a second.
    pub(crate) fn published_at(&self) -> Time {
        Time(u64::from(self.published_at) * TENTH_NS)
    }

    /// Returns how long it stays published.
    pub(crate) fn retention(&self) -> Retention {
        let until = match self.rare.as_ref().and_then(|rare| rare.counted.as_ref()) {
            Some(counted) => Until::Fetched(counted.all),
            None if self.until_deleted => Until::Deleted,
            None => Until::Replaced,
        };
        Retention { until, life: self.life, spill: self.spill }
    }

    /// Returns the trace context of its push, if the push had one.
    pub(crate) fn trace(&self) -> Option<TraceContext> {
        self.rare.as_ref()?.trace
    }

    pub(super) fn set_trace(&mut self, trace: Option<TraceContext>) {
        self.rare().trace = trace;
    }

    /// Returns the ranges of the body, if there are several.
    fn ranges(&self) -> Option<&[LocalSlice]> {
        self.rare.as_ref()?.ranges.as_deref()
    }

    /// Whether the body lies in one piece.
    pub(super) fn is_in_one_piece(&self) -> bool {
        self.ranges().is_none()
    }

    /// Returns the number of ranges of the body; 0 if the body lies in one piece behind the metadata.
    pub(crate) fn range_count(&self) -> u32 {
        match &self.source {
            Source::Reference { ranges, .. } => *ranges,
            _ => self.ranges().map_or(0, |ranges| u32::try_from(ranges.len()).unwrap_or(u32::MAX)),
        }
    }

    /// Returns its number on disk, if it lies there.
    pub(crate) fn on_disk(&self) -> Option<SpillId> {
        match self.source {
            Source::Disk(id) => Some(id),
            _ => None,
        }
    }

    /// Returns the number of references.
    pub(crate) fn holders(&self) -> u32 {
        self.refs
    }

    /// Whether its fetches are counted.
    pub(crate) fn counts_fetches(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.counted.is_some())
    }

    /// Whether it may be fetched once more.
    pub(super) fn has_fetches_left(&self) -> bool {
        self.rare.as_ref().and_then(|rare| rare.counted.as_ref()).is_none_or(|counted| counted.left > 0)
    }

    /// Returns its fetches, if they are counted.
    pub(super) fn counted_mut(&mut self) -> Option<&mut CountedFetches> {
        self.rare.as_mut()?.counted.as_mut()
    }

    /// Returns the description of the whole version, or of this part of it.
    pub(crate) fn meta_of(&self, excerpt: Option<&Excerpt>) -> TensorMeta {
        self.cut_by(excerpt).map_or_else(|| self.meta.clone(), |cut| cut.meta)
    }

    /// Returns this part of the version. The caller has checked that it fits. `None`: all of it.
    pub(crate) fn cut_by(&self, excerpt: Option<&Excerpt>) -> Option<Cut> {
        excerpt?.of(&self.meta).ok()
    }

    /// Returns how the whole version, or this part of it, is packed into one range.
    pub(crate) fn packing_of(&self, excerpt: Option<&Excerpt>) -> Packing {
        self.cut_by(excerpt).map_or_else(|| Packing::all(self.meta.len_bytes()), |cut| cut.packing)
    }

    /// Returns the length of the whole version, or of this part of it, in bytes.
    pub(crate) fn len_of(&self, excerpt: Option<&Excerpt>) -> u64 {
        match excerpt {
            None => self.meta.len_bytes(),
            Some(_) => self.meta_of(excerpt).len_bytes(),
        }
    }

    /// Returns the gather list of the whole version, or of this part of it.
    fn body_of(&self, excerpt: Option<&Excerpt>) -> GatherList {
        if excerpt.is_none() {
            return self.body();
        }
        // Empty if the part were not in the version, and nothing that was not described is sent.
        self.cut_by(excerpt).and_then(|cut| cut.gather(self.slices())).unwrap_or_default()
    }

    /// Returns the ranges of memory in which a range of the body lies.
    pub(crate) fn cut(&self, range: BodyRange) -> impl Iterator<Item = LocalSlice> {
        self.chunk(BodyRange { offset: self.meta.body_offset() + range.offset, ..range })
    }

    /// Returns the ranges of memory in which a range lies of all that is sent of it: of the metadata and the body.
    pub(crate) fn chunk(&self, range: BodyRange) -> impl Iterator<Item = LocalSlice> {
        let (mut start, mut rest) = (range.offset, range.len);
        let parts = self.slices().map_while(move |slice| {
            let part = match rest {
                0 => return None,
                rest => slice.sub(start, rest.min(slice.len.saturating_sub(start))),
            };
            start = start.saturating_sub(slice.len);
            rest -= part.map_or(0, |part| part.len);
            Some(part.filter(|part| part.len > 0))
        });
        parts.flatten()
    }

    /// Returns the gather list that a transfer sends behind its header.
    pub(crate) fn body(&self) -> GatherList {
        self.slices().filter(|slice| slice.len > 0).collect()
    }

    /// Returns the ranges of memory in which it lies: the metadata and the ranges of the body, or all in one piece.
    fn slices(&self) -> impl Iterator<Item = LocalSlice> {
        let (first, rest) = match self.ranges() {
            Some(ranges) => (self.meta.body_offset(), ranges),
            None => (self.meta.len_bytes(), &[][..]),
        };
        let first = LocalSlice { len: first, ..self.slice() };
        std::iter::once(first).chain(rest.iter().copied())
    }
}

impl Keys {
    /// Returns a version.
    pub(crate) fn blob(&self, id: BlobId) -> Option<&Blob> {
        self.blobs.get(id)
    }

    /// Returns the gather list of a whole version, or of this part of it.
    pub(crate) fn body_of(&self, id: BlobId, excerpt: Option<&Excerpt>) -> GatherList {
        let Some(b) = self.blobs.get(id) else { return GatherList::new() };
        let Source::Gathered(parts) = &b.source else { return b.body_of(excerpt) };
        let blobs = parts.0.iter().filter_map(|(part, range)| Some((self.blobs.get(*part)?, *range)));
        blobs.flat_map(|(b, range)| b.cut(range)).collect()
    }

    /// Adds a range that readers can reach from now on. The caller holds its one reference.
    pub(crate) fn insert(&mut self, blob: Blob) -> BlobId {
        if blob.source.is_arena() {
            self.counted.version_came(blob.domain);
        }
        self.blobs.insert(blob)
    }

    /// Allows workers of these tenants to read the version, too.
    pub(crate) fn share(&mut self, id: BlobId, readers: Vec<Tenant>) {
        if !readers.is_empty() && self.blobs.get(id).is_some() {
            self.readers.insert(id, readers.into());
        }
    }

    /// Whether all who may read a version because of its push may read another one of its tenant, too.
    pub(super) fn may_all_read(&self, id: BlobId, other: BlobId) -> bool {
        let is_of_tenant = |id| self.blobs.get(id).map(|b| b.domain);
        let readers = self.readers.get(&id).into_iter().flat_map(|readers| readers.iter());
        is_of_tenant(id) == is_of_tenant(other) && readers.into_iter().all(|reader| self.is_shared_with(other, *reader))
    }

    /// Whether the version's push said that workers of this tenant may read it.
    pub(crate) fn is_shared_with(&self, id: BlobId, reader: Tenant) -> bool {
        self.readers.get(&id).is_some_and(|readers| readers.contains(&reader))
    }

    /// Adds a reference. Returns the blob.
    pub(crate) fn hold(&mut self, id: BlobId) -> Option<&Blob> {
        let b = self.blobs.get_mut(id)?;
        b.refs += 1;
        Some(b)
    }

    /// Ends one reference.
    pub(crate) fn release(&mut self, id: BlobId) -> Released {
        let Some(b) = self.blobs.get_mut(id) else { return Released::Held };
        b.refs = b.refs.saturating_sub(1);
        match (b.refs, b.rare.as_ref().and_then(|rare| rare.awaited)) {
            (1, Some(op)) => Released::Sole(op),
            (0, _) => self.remove(id).map_or(Released::Held, Released::Ended),
            _ => Released::Held,
        }
    }

    /// Ends a version even if there are references to it.
    pub(crate) fn remove(&mut self, id: BlobId) -> Option<Blob> {
        let blob = self.blobs.remove(id)?;
        self.readers.remove(&id);
        self.spreads.remove(&id);
        if blob.source.is_arena() {
            self.counted.version_went(blob.domain);
        }
        Some(blob)
    }

    /// Sets or clears the operation that waits until there are no other references. Returns whether only one reference
    /// is left now.
    pub(crate) fn set_awaited(&mut self, id: BlobId, by: Option<OperationId>) -> bool {
        let Some(b) = self.blobs.get_mut(id) else { return false };
        if by.is_some() || b.rare.is_some() {
            b.rare().awaited = by;
        }
        b.refs == 1
    }

    /// Changes where the memory goes when the version ends.
    pub(crate) fn set_source(&mut self, id: BlobId, source: Source) {
        if let Some(b) = self.blobs.get_mut(id) {
            b.source = source;
        }
    }

    /// Adds a reference for a write that sends the version to another node, under this number.
    pub(crate) fn hold_as(&mut self, id: BlobId, version: Version) -> Option<&Blob> {
        self.blobs.get_mut(id)?.version = version;
        self.hold(id)
    }

    /// Handles a refused push. Returns whether there are other references to the version. If there are none, the
    /// refusal itself returns the range to the worker.
    pub(crate) fn refuse_push(&mut self, id: BlobId) -> bool {
        let Some(b) = self.blobs.get_mut(id) else { return false };
        let kept = b.refs > 1;
        if !kept {
            b.source = Source::Returned;
        }
        kept
    }
}
