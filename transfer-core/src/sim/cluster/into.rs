//! Fetches into the memory of workers, which is theirs again when the fetch has ended.

use super::content::scribble;
use super::worker::What;
use super::{Cluster, Happening};
use crate::alloc::Allocation;
use crate::memory::LocalSlice;
use crate::op::{Command, Destination, Fetch, FetchInto, MAX_LANDING_RANGES, OpId, Otherwise, Report};
use crate::sim::GuardId;
use crate::tensor::{Excerpt, Key, Select, Slice, TensorMeta, Version};
use crate::wire::ranges::ArenaRange;
use rand::Rng;
use std::time::Duration;

/// What lies between two ranges at least.
const GAP_BYTES: u64 = 8;

/// What a worker fetches into its own memory.
pub(super) struct Into {
    pub(super) key: Key,
    pub(super) select: Select,
    pub(super) slice: Option<Slice>,
    meta: TensorMeta,
    range: Allocation,
    /// Where the version lands in it.
    parts: Vec<ArenaRange>,
}

/// Memory that has got its bytes, or may be half new. It is the worker's, and no peer may write there.
pub(super) struct Settled {
    guard: GuardId,
    range: Allocation,
    bytes: Vec<u8>,
}

impl Settled {
    pub(super) fn guard(&self) -> GuardId {
        self.guard
    }
}

/// What the fetch has made of the memory.
#[derive(PartialEq, Eq)]
pub(super) enum Memory {
    Untouched,
    New,
    Torn,
}

impl Cluster {
    /// Fetches a key into memory that fits one of its versions.
    pub(super) fn fetch_into(&mut self, worker: usize) {
        if self.pushed.is_empty() {
            return;
        }
        let push = &self.pushed[self.rng.random_range(0..self.pushed.len())];
        let (key, mut meta, version) = (push.key.clone(), push.meta.clone(), push.version);
        let slice = self.chance(30).then(|| self.slice());
        if let Some(found) = slice.as_ref().and_then(|slice| slice.of(&meta).ok()) {
            meta = found.meta().clone();
        }
        let select = match version {
            Some(version) if !self.play.calm && self.rng.random() => Select::AtLeast(version),
            _ => Select::Latest,
        };
        let cuts = self.cuts(meta.len_bytes());
        let Some(arena) = self.workers[worker].arena.as_mut() else { return };
        let gaps = GAP_BYTES * (cuts.len() as u64 - 1);
        let Ok(range) = arena.alloc.allocate((meta.len_bytes() + gaps).max(1)) else { return };
        let offset = range.offset();
        scribble(&self.world, arena.memory, offset, range.len());
        let ranges = self.scatter(offset, &cuts);
        let timeout = self.timeout();
        let otherwise = if self.chance(30) { Otherwise::LandBeside } else { Otherwise::Fail };
        let to = Destination { ranges: ranges.clone(), meta: meta.clone(), otherwise };
        let into = Into { key: key.clone(), select, slice: slice.clone(), meta, range, parts: ranges };
        let op = self.ask(worker, What::Into(Box::new(into)), timeout);
        let excerpt = slice.map(|slice| Box::new(Excerpt::slice(slice).unwrap()));
        let fetch = Fetch { key, select, timeout, require: None, trace: None, watches: false, excerpt, base: None };
        self.command(worker, op, Command::FetchInto(FetchInto { fetch, to }));
    }

    /// Cuts a version into the lengths of the ranges in which it lands.
    fn cuts(&mut self, len: u64) -> Vec<u64> {
        let most = [1, 3, MAX_LANDING_RANGES as u64][self.rng.random_range(0..3)].min(len.max(1));
        let parts = self.rng.random_range(1..=most);
        let mut at: Vec<u64> = (1..parts).map(|_| self.rng.random_range(1..len)).collect();
        at.sort_unstable();
        at.dedup();
        at.push(len);
        let ends = at.clone();
        std::iter::once(0).chain(at).zip(ends).map(|(start, end)| end - start).collect()
    }

    /// Places ranges of these lengths at random, with gaps between them.
    fn scatter(&mut self, offset: u64, lens: &[u64]) -> Vec<ArenaRange> {
        let mut order: Vec<usize> = (0..lens.len()).collect();
        (1..order.len()).for_each(|n| order.swap(n, self.rng.random_range(0..=n)));
        let (mut ranges, mut at) = (vec![ArenaRange { offset, len: 0 }; lens.len()], offset);
        for n in order {
            ranges[n] = ArenaRange { offset: at, len: lens[n] };
            at += lens[n] + GAP_BYTES;
        }
        ranges
    }

    /// Checks that nothing has landed between the ranges of a fetch.
    fn check_gaps(&self, worker: usize, into: &Into) -> Result<(), String> {
        let Some(arena) = self.workers[worker].arena.as_ref() else { return Ok(()) };
        let (offset, len) = (into.range.offset(), into.range.len());
        let mut bytes = self.world.read(arena.memory, offset, len);
        for part in &into.parts {
            let at = usize::try_from(part.offset - offset).unwrap();
            bytes[at..][..usize::try_from(part.len).unwrap()].fill(0xee);
        }
        match bytes.iter().all(|byte| *byte == 0xee) {
            true => Ok(()),
            false => {
                Err(format!("{len} bytes at {offset} of {} have changed between ranges", self.workers[worker].name))
            }
        }
    }

    /// Checks a version that has landed in the memory of a worker.
    pub(super) fn landed(&mut self, worker: usize, op: OpId, version: Version, report: &Report) -> Result<(), String> {
        let What::Into(into) = self.ended(worker, op)? else {
            return Err(format!("{op:?} has landed, but was no fetch into memory"));
        };
        if !into.select.takes(version) {
            return Err(format!("{op:?} asked for {}, got {version}", into.select));
        }
        let (node, domain) = (self.workers[worker].node, self.workers[worker].domain);
        let segment = self.workers[worker].arena.as_ref().unwrap().segment;
        let slices: Vec<LocalSlice> = into.parts.iter().map(|part| part.within(segment)).collect();
        match &into.slice {
            Some(part) => self.identify_slice((node, domain), &into.key, version, (part, &into.meta), &slices)?,
            None => {
                let bytes = self.bytes_in(node, &slices)?;
                self.identify_bytes(domain, &into.key, version, &into.meta, &bytes)?;
            }
        }
        if report.bytes != into.meta.len_bytes() {
            return Err(format!("{op:?} counts {} bytes of {}", report.bytes, into.meta));
        }
        self.tally.landed += 1;
        self.tally.scattered += u64::from(slices.len() > 1);
        self.settle(worker, *into, &Memory::New)
    }

    /// Handles the end of a fetch into memory: that is the worker's again.
    pub(super) fn settle(&mut self, worker: usize, into: Into, is: &Memory) -> Result<(), String> {
        let Some(arena) = self.workers[worker].arena.as_ref() else { return Ok(()) };
        let (memory, offset, len) = (arena.memory, into.range.offset(), into.range.len());
        let bytes = self.world.read(memory, offset, len);
        if *is == Memory::Untouched && bytes.iter().any(|b| *b != 0xee) {
            return Err(format!("the memory at {offset} is said to be untouched, and has {bytes:x?}"));
        }
        self.check_gaps(worker, &into)?;
        self.tally.torn += u64::from(*is == Memory::Torn);
        let settled = Settled { guard: self.world.guard(memory, offset, len), range: into.range, bytes };
        self.next_number += 1;
        let number = self.next_number;
        self.workers[worker].settled.insert(number, settled);
        let at = self.soon() + self.delay * [1, 3, 100][self.rng.random_range(0..3)];
        self.later(at, Happening::Reuse(worker, number));
        Ok(())
    }

    /// Frees memory into which a worker has fetched.
    pub(super) fn reuse(&mut self, worker: usize, number: u64) -> Result<(), String> {
        let Some(settled) = self.workers[worker].settled.remove(&number) else { return Ok(()) };
        self.world.unguard(settled.guard);
        let arena = self.workers[worker].arena.as_mut().unwrap();
        let (offset, len) = (settled.range.offset(), settled.range.len());
        if self.world.read(arena.memory, offset, len) != settled.bytes {
            return Err(format!("the memory at {offset} of {} changed after its fetch", self.workers[worker].name));
        }
        scribble(&self.world, arena.memory, offset, len);
        arena.alloc.free(settled.range).map_err(|e| e.to_string())
    }

    /// How much later than its deadline a fetch into memory may end: its peer is given a second, and then its link ends.
    pub(super) fn grace_of(what: &What) -> Duration {
        if matches!(what, What::Into(_)) { Duration::from_millis(1100) } else { Duration::ZERO }
    }
}
