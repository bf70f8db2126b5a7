//! Deltas that are applied, a piece of each at a time: a block is copied out, changed in the cache of the core, and copied to the
//! target.

use super::memory::Memory;
use std::collections::VecDeque;
use transfer_core::delta::{Applying, BLOCK_BYTES, Head, NotApplied, Part};
use transfer_core::memory::LocalSlice;
use transfer_core::plan::GatherList;

/// The most blocks that are made before other work has its turn: 1 MiB.
const BLOCKS_PER_ROUND: usize = (1 << 20) / BLOCK_BYTES;

/// The pending deltas. They take turns.
#[derive(Default)]
pub(super) struct Deltas {
    pending: VecDeque<Delta>,
    /// A block, and its part of a delta.
    block: Vec<u8>,
    part: Vec<u8>,
}

pub(super) struct Delta {
    pub(super) base: GatherList,
    pub(super) delta: LocalSlice,
    pub(super) to: LocalSlice,
    /// The length of the version.
    pub(super) len: u64,
    pub(super) tag: u64,
    /// How far it is applied, once it has begun.
    pub(super) applying: Option<Applying>,
}

/// Copies out of a list of ranges, from this place of all of them on. Returns whether it has so many bytes.
fn copy_out(memory: &Memory, from: &[LocalSlice], mut at: u64, mut to: &mut [u8]) -> bool {
    for range in from {
        let Some(len) = range.len.checked_sub(at).filter(|len| *len > 0) else {
            at -= range.len;
            continue;
        };
        let (part, rest) = to.split_at_mut((to.len() as u64).min(len) as usize);
        let Some(segment) = memory.get(range.segment) else { return false };
        if segment.mapping().copy_out(range.offset + at, part).is_err() {
            return false;
        }
        (at, to) = (0, rest);
        if to.is_empty() {
            return true;
        }
    }
    to.is_empty()
}

impl Deltas {
    pub(super) fn add(&mut self, delta: Delta) {
        self.pending.push_back(delta);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Makes some blocks of one version. Returns the tag of one that is done, and whether it is right.
    pub(super) fn step(&mut self, memory: &Memory) -> Option<(u64, Result<(), NotApplied>)> {
        let mut delta = self.pending.pop_front()?;
        self.block.resize(BLOCK_BYTES, 0);
        self.part.resize(BLOCK_BYTES, 0);
        match delta.piece(memory, &mut self.block, &mut self.part) {
            Ok(true) => Some((delta.tag, Ok(()))),
            Ok(false) => {
                self.pending.push_back(delta);
                None
            }
            Err(why) => Some((delta.tag, Err(why))),
        }
    }
}

impl Delta {
    /// Makes some blocks. Returns whether all are made.
    fn piece(&mut self, memory: &Memory, block: &mut [u8], part: &mut [u8]) -> Result<bool, NotApplied> {
        let mut applying = match self.applying.take() {
            Some(applying) => applying,
            None => self.begin(memory)?,
        };
        for _ in 0..BLOCKS_PER_ROUND {
            let Some(next) = applying.next_part() else {
                self.zeros(memory);
                return applying.finish().map(|()| true);
            };
            self.make(memory, &mut applying, &next, &mut block[..next.len], &mut part[..next.part_len])?;
        }
        self.applying = Some(applying);
        Ok(false)
    }

    /// Reads what stands in front of the parts. It is copied out before it is checked, and its length follows from that of the
    /// version, which is here.
    fn begin(&self, memory: &Memory) -> Result<Applying, NotApplied> {
        let mut head = [0; Head::BYTES];
        let delta = [self.delta];
        // Bytes that are not there stay zeros, which are no delta.
        copy_out(memory, &delta, 0, &mut head);
        let head = Head::read(&head, self.len)?;
        let mut index = vec![0; head.index_bytes() as usize];
        copy_out(memory, &delta, Head::BYTES as u64, &mut index);
        Applying::begin(head, &index, self.delta.len)
    }

    fn make(
        &self,
        memory: &Memory,
        applying: &mut Applying,
        next: &Part,
        block: &mut [u8],
        part: &mut [u8],
    ) -> Result<(), NotApplied> {
        let is_there = !next.needs_base || copy_out(memory, &self.base, next.at, block);
        let is_there = is_there && copy_out(memory, &[self.delta], next.from, part);
        applying.make(next, block, part)?;
        let to = self.to.sub(next.at, block.len() as u64);
        let target = to.and_then(|to| Some((to, memory.get(to.segment)?)));
        let is_written = target.is_some_and(|(to, segment)| segment.mapping().copy_in(to.offset, block).is_ok());
        // The state machine names segments that exist, and ranges that lie within them.
        debug_assert!(is_there && is_written, "{next:?} of {}, {}, {:?}", self.delta, self.to, self.base);
        if is_there && is_written { Ok(()) } else { Err(NotApplied::OtherBytes) }
    }

    /// What the room behind the version held before reaches nobody.
    fn zeros(&self, memory: &Memory) {
        let behind = self.to.sub(self.len, self.to.len.saturating_sub(self.len)).filter(|behind| behind.len > 0);
        if let Some((behind, segment)) = behind.and_then(|behind| Some((behind, memory.get(behind.segment)?))) {
            let zeroed = segment.mapping().zero(behind.offset, behind.len);
            debug_assert!(zeroed.is_ok(), "{behind}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::listing::SegmentRole;
    use smallvec::smallvec;
    use std::sync::Arc;
    use transfer_core::delta::encode;
    use transfer_core::memory::SegmentId;
    use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

    const LEN: usize = 3 << 20 | 1000;

    /// A segment with a base in two ranges at the front and at 8 MiB, a delta at 16 MiB, and room at 24 MiB.
    fn delta(damage: impl Fn(&mut Vec<u8>)) -> (Memory, Delta, Vec<u8>) {
        let base: Vec<u8> = (0..LEN).map(|n| (n * 7 + n / 251) as u8).collect();
        let mut new = base.clone();
        (0..LEN).step_by(100).for_each(|at| new[at] ^= 0xa5);
        let read = |from: &[u8], at: u64, to: &mut [u8]| to.copy_from_slice(&from[at as usize..][..to.len()]);
        let made = encode(LEN as u64, |at, to| read(&base, at, to), |at, to| read(&new, at, to), u64::MAX);
        let mut bytes = made.unwrap().bytes;
        damage(&mut bytes);
        let options = SegmentOptions { len: 32 << 20, pages: Pages::Base, lock: Lock::No };
        let segment = Segment::create("deltas-test", &options, &PinnedBudget::new(1 << 30)).unwrap();
        let id = SegmentId(1);
        let part = |offset: u64, len: usize| LocalSlice { segment: id, offset, len: len as u64 };
        let (first, rest) = base.split_at(70_001);
        for (offset, bytes) in [(0, first), (8 << 20, rest), (16 << 20, &bytes), (24 << 20, &[0xee; LEN + 24][..])] {
            segment.mapping().copy_in(offset, bytes).unwrap();
        }
        let mut memory = Memory::default();
        memory.insert(id, Arc::new(segment), SegmentRole::Headers);
        let delta = Delta {
            base: smallvec![part(0, first.len()), part(8 << 20, rest.len())],
            delta: part(16 << 20, bytes.len()),
            to: part(24 << 20, LEN + 24),
            len: LEN as u64,
            tag: 7,
            applying: None,
        };
        (memory, delta, new)
    }

    fn applied(memory: &Memory, delta: Delta) -> (usize, u64, Result<(), NotApplied>) {
        let mut deltas = Deltas::default();
        deltas.add(delta);
        let mut turns = 1;
        loop {
            match deltas.step(memory) {
                Some((tag, result)) => return (turns, tag, result),
                None => turns += 1,
            }
        }
    }

    // Promise: deltas, seen to fail
    #[test]
    fn delta_makes_its_version_in_turns_and_zeros_behind_it() {
        let (memory, delta, new) = delta(|_| {});
        let to = delta.to;
        assert_eq!(applied(&memory, delta), (4, 7, Ok(())));
        let mut made = vec![1; to.len as usize];
        memory.get(to.segment).unwrap().mapping().copy_out(to.offset, &mut made).unwrap();
        assert!(made[..LEN] == new && made[LEN..] == [0; 24]);
    }

    // Promise: deltas, seen to fail
    #[test]
    fn damaged_delta_is_refused() {
        let (memory, delta_of, _) = delta(|delta| *delta.last_mut().unwrap() ^= 1);
        assert_eq!(applied(&memory, delta_of).2, Err(NotApplied::OtherBytes));
        for damage in [|delta: &mut Vec<u8>| delta[32] ^= 1, |delta: &mut Vec<u8>| delta.truncate(40)] {
            let (memory, delta, _) = delta(damage);
            assert!(matches!(applied(&memory, delta).2, Err(NotApplied::Malformed(_))));
        }
    }
}
