//! Which bases the deltas of a version have, and how fast versions leave of which deltas may follow.

use super::{Blob, Keys, Picked};
use crate::memory::LocalSlice;
use crate::op::{Content, DeltaOf, Deltas};
use crate::plan::GatherList;
use crate::protocol::ids::{BlobId, RecordId};
use crate::protocol::rules::{Broken, Rules};
use crate::tensor::{Key, Select};
use smallvec::SmallVec;
use std::num::NonZeroU64;
use std::time::Duration;

/// What is sent in less time says little about its link.
const MEASURED_TIME: Duration = Duration::from_millis(1);

/// What a version has whose push said that deltas may follow, or has one itself.
pub(super) struct VersionDeltas {
    /// What the push has said.
    said: Deltas,
    content: Option<Content>,
    /// The bases of its last deltas, once they are proved: the last one is its own.
    bases: SmallVec<[ProvedBase; 1]>,
    link_rate: LinkRate,
}

/// The base of a delta, as a node may name it that has it: by its publication, or by its content.
#[derive(Clone, Copy)]
struct ProvedBase {
    identity: NonZeroU64,
    content: Option<Content>,
}

impl ProvedBase {
    fn is(self, held: NonZeroU64) -> bool {
        self.identity == held || self.content.is_some_and(|content| content.number() == held)
    }
}

/// The lowest rate at which a version has left its node, and that of the versions before, in bytes per second. 0: it is not known.
#[derive(Default, Clone, Copy)]
struct LinkRate {
    before: u64,
    own: u64,
}

impl Blob {
    /// Sets its place among the deltas of its key, and its content.
    pub(crate) fn with_deltas(mut self, said: Deltas, content: Option<Content>) -> Blob {
        if said != Deltas::None {
            let (bases, link_rate) = Default::default();
            self.set_deltas(VersionDeltas { said, content, bases, link_rate });
        }
        self
    }

    /// Whether deltas of it may follow.
    pub(crate) fn deltas_follow(&self) -> bool {
        self.version_deltas().is_some()
    }

    /// Returns where its last deltas lie, so many of them.
    pub(crate) fn deltas(&self, count: u8) -> GatherList {
        let Some(Deltas::Of(of)) = self.version_deltas().map(|deltas| &deltas.said) else { return GatherList::new() };
        let skipped = (of.earlier.len() + 1).saturating_sub(count.into());
        let segment = self.slice().segment;
        of.ranges().skip(skipped).map(|(offset, len)| LocalSlice { segment, offset, len }).collect()
    }

    /// Returns how many of its last deltas make it of the version with this identity or content, if that is proved.
    pub(crate) fn deltas_since(&self, held: NonZeroU64) -> Option<u8> {
        let bases = &self.version_deltas()?.bases;
        // The same content may have been published twice.
        let at = bases.iter().rposition(|base| base.is(held))?;
        u8::try_from(bases.len() - at).ok()
    }
}

impl Keys {
    /// Proves the base of a version that is about to be published: its delta is one of what is published here under that number,
    /// under its key or another one of its [series](crate::tensor::Key::series), and lies in the memory that the push has named. The
    /// delta of any other version is not sent, and none of a version that some who may read this one may not read: a delta tells much of
    /// both.
    pub(crate) fn prove_base(&mut self, record: RecordId, blob: BlobId, rules: Rules) {
        let Some(b) = self.blobs.get(blob) else { return };
        let Some(Deltas::Of(of)) = b.version_deltas().map(|deltas| &deltas.said) else { return };
        let DeltaOf { base, base_offset, ref earlier, .. } = *of;
        let is_it = |found: &BlobId| {
            self.blobs.get(*found).is_some_and(|old| {
                let (old_at, at) = (old.slice(), b.slice());
                let lies_there = (old_at.segment, old_at.offset) == (at.segment, base_offset) && old.source.is_arena();
                old.meta == b.meta && (lies_there || rules.breaks(Broken::ProvesBasesByNumber))
            })
        };
        let series = self.records.get(record).and_then(|record| record.key.series());
        let others = series.iter().flat_map(Key::of_series).filter_map(|key| self.find(&key));
        let found =
            std::iter::once(record).chain(others).find_map(|record| match self.pick(record, Select::Exactly(base)) {
                Picked::Blob(found) => Some(found).filter(is_it),
                _ => None,
            });
        let found = found.filter(|found| self.may_all_read(blob, *found));
        let identity = found.and_then(|found| self.identity_of(found));
        // The deltas before it are those of the base, from where both name the same on.
        let before = found.and_then(|found| self.blobs.get(found)?.version_deltas());
        let mut bases = SmallVec::new();
        if let (Some(identity), Some(before)) = (identity, before) {
            if let Deltas::Of(of) = &before.said {
                let is_same = |(old, named): &(_, &_)| old == *named || rules.breaks(Broken::BelievesChains);
                let same = of.ranges().rev().zip(earlier.iter().rev()).take_while(is_same).count();
                bases.extend_from_slice(&before.bases[before.bases.len().saturating_sub(same)..]);
            }
            bases.push(ProvedBase { identity, content: before.content });
        }
        if let Some(deltas) = self.blobs.get_mut(blob).and_then(Blob::version_deltas_mut) {
            deltas.bases = bases;
        }
    }

    /// Notes that a version has left this node in this time, all of it or its deltas.
    pub(crate) fn has_left(&mut self, id: BlobId, bytes: u64, took: Duration) {
        if took < MEASURED_TIME {
            return;
        }
        if let Some(deltas) = self.blobs.get_mut(id).and_then(Blob::version_deltas_mut) {
            let rate = (u128::from(bytes) * 1_000_000_000 / took.as_nanos()).min(u64::MAX.into()) as u64;
            let own = &mut deltas.link_rate.own;
            *own = if *own == 0 { rate } else { rate.min(*own) };
        }
    }

    /// Takes over to a version that is about to be published at which rate the versions before it left. Returns it, in bytes per second; 0: it is not
    /// known.
    pub(crate) fn take_link_rate(&mut self, record: RecordId, id: BlobId) -> u64 {
        let newest = self.records.get(record).and_then(|record| self.blobs.get(record.current?));
        let LinkRate { before, own } =
            newest.and_then(Blob::version_deltas).map(|deltas| deltas.link_rate).unwrap_or_default();
        let before = if own > 0 { own } else { before };
        match self.blobs.get_mut(id).and_then(Blob::version_deltas_mut) {
            Some(deltas) => deltas.link_rate = LinkRate { before, own: 0 },
            None => return 0,
        }
        before
    }
}
