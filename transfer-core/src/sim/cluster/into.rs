//! Fetches into the memory of workers, which is theirs again when the fetch has ended.

use super::content::scribble;
use super::worker::What;
use super::{Cluster, Happening};
use crate::alloc::Allocation;
use crate::memory::LocalSlice;
use crate::op::{Command, Destination, Fetch, FetchInto, OpId, Report};
use crate::sim::GuardId;
use crate::tensor::{Excerpt, Key, Select, Slice, TensorMeta, Version};
use rand::Rng;
use std::time::Duration;

/// What a worker fetches into its own memory.
pub(super) struct Into {
    pub(super) key: Key,
    pub(super) select: Select,
    pub(super) slice: Option<Slice>,
    meta: TensorMeta,
    range: Allocation,
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
        let Some(arena) = self.workers[worker].arena.as_mut() else { return };
        let Ok(range) = arena.alloc.allocate(meta.len_bytes().max(1)) else { return };
        let offset = range.offset();
        scribble(&self.world, arena.memory, offset, range.len());
        let timeout = self.timeout();
        let to = Destination { offset, meta: meta.clone() };
        let into = Into { key: key.clone(), select, slice: slice.clone(), meta, range };
        let op = self.ask(worker, What::Into(Box::new(into)), timeout);
        let excerpt = slice.map(|slice| Box::new(Excerpt::slice(slice).unwrap()));
        let fetch = Fetch { key, select, timeout, require: None, trace: None, watches: false, excerpt };
        self.command(worker, op, Command::FetchInto(FetchInto { fetch, to }));
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
        let slice = LocalSlice { segment, offset: into.range.offset(), len: into.meta.len_bytes() };
        match &into.slice {
            Some(part) => self.identify_slice((node, domain), &into.key, version, (part, &into.meta), slice)?,
            None => drop(self.identify((node, domain), &into.key, version, &into.meta, slice)?),
        }
        if report.bytes != slice.len {
            return Err(format!("{op:?} counts {} bytes of {slice}", report.bytes));
        }
        self.tally.landed += 1;
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
