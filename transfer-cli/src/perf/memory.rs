//! The memory of one end: for each queue pair a source and a target.

use super::error::PerfError;
use super::terms::{Atomic, Kind, Run, Setup, Verb, WORD};
use std::sync::Arc;
use transfer_verbs::{Access, Buffer, Element, MemoryRegion, OutOfBounds, ProtectionDomain, ROUTING_HEADER_BYTES};

/// Parts begin at multiples of this, so that no two share a line of a processor's cache.
const ALIGN: u64 = 64;

/// The bytes of a queue pair: a source, and a target with room for a routing header in front.
pub(super) fn stride(max_size: u64) -> u64 {
    let part = max_size.next_multiple_of(ALIGN);
    part.saturating_mul(2).saturating_add(ALIGN)
}

/// The registered memory.
#[derive(Debug)]
pub(super) struct Memory {
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    stride: usize,
    max_size: usize,
    /// In front of what a datagram brings.
    header: usize,
}

impl Memory {
    /// Maps and registers it.
    pub(super) fn new(domain: &ProtectionDomain, setup: &Setup) -> Result<Memory, PerfError> {
        let len = usize::try_from(setup.memory()).unwrap_or(usize::MAX);
        let buffer = Buffer::new(len).map_err(|source| PerfError::Memory { len_bytes: setup.memory(), source })?;
        // A peer may do what the test does, and nothing else.
        let access = Access {
            local_write: true,
            window_bind: false,
            remote_write: setup.verb == Verb::Write,
            remote_read: setup.verb == Verb::Read,
            remote_atomic: setup.verb == Verb::Atomic,
        };
        let region = MemoryRegion::register(domain, buffer.clone(), access)?;
        let header = if setup.kind == Kind::UD { ROUTING_HEADER_BYTES } else { 0 };
        let stride = usize::try_from(stride(setup.max_size)).unwrap_or(usize::MAX);
        Ok(Memory { buffer, region, stride, max_size: usize::try_from(setup.max_size).unwrap_or(usize::MAX), header })
    }

    fn source_at(&self, pair: usize) -> usize {
        self.stride * pair
    }

    fn target_at(&self, pair: usize) -> usize {
        // 40 bytes of a header end where the aligned target begins.
        self.stride * pair + self.max_size.next_multiple_of(ALIGN as usize) + ALIGN as usize
    }

    /// The key for the peer.
    pub(super) fn key(&self) -> u32 {
        self.region.remote_key().to_wire()
    }

    /// The address that the peer names: the source of its READs, the target of all else.
    pub(super) fn address(&self, pair: usize, verb: Verb) -> u64 {
        let at = if verb == Verb::Read { self.source_at(pair) } else { self.target_at(pair) };
        self.region.address() + at as u64
    }

    /// The bytes that leave.
    pub(super) fn source(&self, pair: usize, size: usize) -> Result<Element, PerfError> {
        self.element(self.source_at(pair), size)
    }

    /// The place of what arrives by an operation of this end.
    pub(super) fn target(&self, pair: usize, size: usize) -> Result<Element, PerfError> {
        self.element(self.target_at(pair), size)
    }

    /// The place of a message of any size, with its header.
    pub(super) fn receive(&self, pair: usize) -> Result<Element, PerfError> {
        self.element(self.target_at(pair) - self.header, self.max_size + self.header)
    }

    fn element(&self, at: usize, len_bytes: usize) -> Result<Element, PerfError> {
        let size = self.region.len();
        self.region.element(at, len_bytes).ok_or(PerfError::Bounds(OutOfBounds { offset: at, len_bytes, size }))
    }

    /// Writes the bytes of a run to all sources, and clears all targets.
    pub(super) fn prepare(&self, pairs: usize, run: &Run) -> Result<(), PerfError> {
        let size = usize::try_from(run.size).unwrap_or(usize::MAX);
        let (bytes, zeros) = (pattern(run.seed, size), vec![0; size]);
        for pair in 0..pairs {
            self.buffer.write(self.source_at(pair), &bytes)?;
            self.buffer.write(self.target_at(pair), &zeros)?;
        }
        Ok(())
    }

    /// Whether what has arrived at all targets are the bytes of the run, but for the last ones.
    pub(super) fn has_arrived(&self, pairs: usize, run: &Run, but_last: usize) -> Result<bool, PerfError> {
        let size = usize::try_from(run.size).unwrap_or(usize::MAX).saturating_sub(but_last);
        let (wanted, mut there) = (pattern(run.seed, size), vec![0; size]);
        for pair in 0..pairs {
            self.buffer.read(self.target_at(pair), &mut there)?;
            if there != wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether each target's word is the number of operations that were done on it.
    pub(super) fn has_counted(&self, operations: &[u64]) -> Result<bool, PerfError> {
        let mut word = [0; WORD as usize];
        for (pair, wanted) in operations.iter().enumerate() {
            self.buffer.read(self.target_at(pair), &mut word)?;
            if u64::from_ne_bytes(word) != *wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Changes the last byte of a message.
    pub(super) fn mark(&self, pair: usize, size: usize, mark: u8) -> Result<(), PerfError> {
        Ok(self.buffer.write(self.source_at(pair) + size - 1, &[mark])?)
    }

    /// The last byte of what has arrived.
    pub(super) fn marked(&self, pair: usize, size: usize) -> Result<u8, PerfError> {
        Ok(self.buffer.look(self.target_at(pair) + size - 1)?)
    }
}

/// The bytes of a run. None of them is zero in all runs, and neighbours differ.
pub(super) fn pattern(seed: u8, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at as u8).wrapping_mul(31) ^ ((at >> 8) as u8) ^ seed).collect()
}

/// What a compare-and-swap expects as its `number`th operation, and what it writes; FETCH_ADD adds one.
pub(super) fn swap(atomic: Atomic, number: u64) -> (u64, u64) {
    match atomic {
        Atomic::FetchAndAdd => (0, 1),
        Atomic::CmpAndSwap => (number, number + 1),
    }
}
