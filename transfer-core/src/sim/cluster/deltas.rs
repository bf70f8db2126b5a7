//! Deltas that workers lend with their pushes, with those before them, and deltas that are applied. That takes its time, in which their
//! fetches, workers and links may end.

use super::content::bytes_of;
use super::{Cluster, Happening};
use crate::alloc::Allocation;
use crate::delta::{Chain, encode_bytes, head_bytes};
use crate::memory::LocalSlice;
use crate::op::{DeltaOf, Deltas, Push};
use crate::plan::GatherList;
use crate::protocol::HostDone;
use crate::tensor::{Key, Select};
use rand::Rng;
use std::collections::BTreeMap;

/// A delta that is being applied, or several in one range.
#[derive(Debug)]
pub(super) struct Apply {
    pub(super) base: GatherList,
    pub(super) delta: LocalSlice,
    pub(super) to: LocalSlice,
    pub(super) len: u64,
    pub(super) tag: u64,
}

/// The deltas in a worker's arena. One is lent with its own push, and may be with later ones.
#[derive(Default)]
pub(super) struct ArenaDeltas {
    /// Where those of each push lie, and their lengths, the oldest first, by the offset of the push.
    of: BTreeMap<u64, Vec<(u64, u64)>>,
    /// The memory of each, and how many pushes have lent it, by its offset.
    memory: BTreeMap<u64, (Allocation, usize)>,
}

impl ArenaDeltas {
    fn lend(&mut self, push: u64, new: Allocation, of: Vec<(u64, u64)>) {
        self.memory.insert(new.offset(), (new, 0));
        for (offset, _) in &of {
            self.memory.get_mut(offset).unwrap().1 += 1;
        }
        self.of.insert(push, of);
    }

    /// Ends those of a push that has come back. Returns the memory that no other push has lent.
    pub(super) fn come_back(&mut self, push: u64) -> Vec<Allocation> {
        let mut free = Vec::new();
        for (offset, _) in self.of.remove(&push).unwrap_or_default() {
            let (_, count) = self.memory.get_mut(&offset).unwrap();
            *count -= 1;
            if *count == 0 {
                free.extend(self.memory.remove(&offset).map(|(memory, _)| memory));
            }
        }
        free
    }
}

impl Cluster {
    /// Chooses the base of a push: one of the worker's pushes of the key whose memory it has not got back, even if it is not published
    /// any more. Returns its offset and its number.
    pub(super) fn base(&mut self, worker: usize, key: &Key) -> Option<(u64, usize)> {
        let arena = self.workers[worker].arena.as_ref()?;
        let lent = arena.lent.keys().map(|offset| (*offset, arena.numbers[offset]));
        let is_base = |(_, number): &(u64, usize)| {
            let push = &self.pushed[*number];
            push.key == *key && push.version.is_some()
        };
        let bases: Vec<_> = lent.filter(is_base).collect();
        // Mostly the newest, as a worker does that is right.
        let newest = bases.iter().copied().max_by_key(|(_, number)| *number)?;
        let wanted = self.chance(90);
        let is_newest = self.chance(80);
        wanted.then(|| if is_newest { newest } else { bases[self.rng.random_range(0..bases.len())] })
    }

    /// Makes the delta of a push, if it has a base and there is room.
    pub(super) fn deltas(&mut self, worker: usize, base: Option<(u64, usize)>, push: &Push) -> Deltas {
        let Some((base_offset, base)) = base else { return Deltas::Follow };
        let len = push.meta.len_bytes();
        let (old, new) = (bytes_of(base, len), bytes_of(self.pushed.len() - 1, len));
        let delta = encode_bytes(&old, &new, u64::MAX).unwrap().bytes;
        let keep_chain = [0, 1, 2, 8][self.rng.random_range(0..4)];
        let is_wrong = self.chance(20);
        let which = self.rng.random_range(0..1000);
        let Some(arena) = self.workers[worker].arena.as_mut() else { return Deltas::Follow };
        // A worker that is wrong names the deltas of any of its pushes.
        let named = match is_wrong {
            true => arena.deltas.of.values().nth(which % arena.deltas.of.len().max(1)),
            false => arena.deltas.of.get(&base_offset),
        };
        let mut of: Vec<_> = named.into_iter().flatten().rev().take(keep_chain).copied().collect();
        let Ok(memory) = arena.alloc.allocate(delta.len() as u64) else { return Deltas::Follow };
        let offset = memory.offset();
        assert!(self.world.write(arena.memory, offset, &delta));
        of.insert(0, (offset, delta.len() as u64));
        // The sidecar refuses more.
        let is_allowed =
            |of: &[(u64, u64)]| of.iter().map(|(_, len)| len).sum::<u64>() <= len + of.len() as u64 * head_bytes(len);
        while !is_allowed(&of) {
            of.pop();
        }
        of.reverse();
        let earlier = of[..of.len() - 1].into();
        arena.deltas.lend(push.offset, memory, of);
        let base = self.pushed[base].version.unwrap();
        Deltas::Of(DeltaOf { base, base_offset, offset, len: delta.len() as u64, earlier })
    }

    /// Pushes and fetches versions of one key, so that nodes have some of them and miss others.
    pub(super) fn act_on_versions(&mut self, worker: usize) -> Result<(), String> {
        let key = self.keys[0].clone();
        match worker {
            0 => self.push_this(worker, key, None, None),
            _ => {
                if self.play.bases && self.chance(70) {
                    self.lend_base(worker, &key);
                }
                self.fetch_this(worker, key, Select::Latest)?;
            }
        }
        Ok(())
    }

    /// Applies a delta later.
    pub(super) fn apply_later(&mut self, node: usize, apply: Apply) {
        let at = self.soon();
        self.later(at, Happening::Apply(node, apply));
    }

    pub(super) fn apply(&mut self, node: usize, Apply { base, delta, to, len, tag }: Apply) -> Result<(), String> {
        let read = |at, to: &mut [u8]| {
            let part = LocalSlice { offset: delta.offset + at, len: to.len() as u64, ..delta };
            to.copy_from_slice(&self.bytes_in(node, &[part]).unwrap());
            Ok(())
        };
        let is_chain = Chain::read(len, delta.len, read).is_ok_and(|chain| chain.count() > 1);
        let made = self.nodes[node].memory.apply(&base, delta, to);
        self.tally.deltas += 1;
        self.tally.chains += u64::from(is_chain);
        let is_lent = |slice: &LocalSlice| {
            self.workers
                .iter()
                .any(|w| w.node == node && w.arena.as_ref().is_some_and(|arena| arena.segment == slice.segment))
        };
        if self.play.bases && base.iter().any(is_lent) {
            *if made.is_ok() { &mut self.tally.lent_bases } else { &mut self.tally.wrong_bases } += 1;
        } else if let (Err(why), 0, false) = (&made, self.play.late_packets + self.play.lies, self.play.bases) {
            return Err(format!("node {node} has a base and an honest delta: {why}"));
        }
        let now = self.clock(node);
        self.nodes[node].driver.node.host_done(now, tag, HostDone::Applied(made));
        Ok(())
    }
}
