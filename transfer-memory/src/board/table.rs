//! The sidecar's end of a board.

use super::layout::{ENTRY_WORDS, HEADER_WORDS, NAMES_A_NOTICE, NOTICE_BYTES, PROBES, body, entries_of, hash_of};
use super::words::Words;
use super::{entry, futex};
use crate::segment::{MapError, Mapping};
use std::collections::HashMap;
use std::sync::Arc;
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::tensor::{Key, MetaParts, TensorMeta, Version};

/// The board has no entry for a version: its key and shape are too long, or all entries that its key may use are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the board has no place for it")]
pub struct NoRoom;

/// The writer of a board. Each board has one.
#[derive(Debug)]
pub struct BoardWriter {
    words: Words,
    /// The content of each entry, in private memory. The entries in shared memory are for the readers.
    places: Vec<Option<Occupant>>,
    tickets: HashMap<u64, usize>,
}

#[derive(Debug, Clone)]
struct Occupant {
    key: Key,
    ticket: u64,
    /// Whether workers may sleep until the entry changes.
    is_watched: bool,
}

impl BoardWriter {
    /// Makes a board in a writable segment that is all zeros.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn new(mapping: Arc<Mapping>) -> Result<BoardWriter, MapError> {
        let entries = entries_of(mapping.len()) as usize;
        let words = Words::to_write(mapping, 0, HEADER_WORDS + entries * ENTRY_WORDS)?;
        Ok(BoardWriter { words, places: vec![None; entries], tickets: HashMap::new() })
    }

    /// The number of entries.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.places.len()
    }

    /// Publishes a version. It replaces the entry of its key.
    ///
    /// # Errors
    /// [`NoRoom`]: the entry of its key is unchanged.
    pub fn publish(
        &mut self,
        key: &Key,
        ticket: u64,
        version: Version,
        meta: &TensorMeta,
        slice: LocalSlice,
    ) -> Result<(), NoRoom> {
        let hash = hash_of(key.as_str());
        // An entry has no field for metadata: such a tensor is not shown.
        let MetaParts { dtype, dims, metadata_bytes: 0 } = meta.parts() else { return Err(NoRoom) };
        let shape = u64::from(slice.segment.0) | (dtype as u64) << 32;
        let written = encode(key, [hash, ticket, version.0, shape, slice.offset], dims).ok_or(NoRoom)?;
        self.put(key, hash, Occupant { key: key.clone(), ticket, is_watched: false }, &written)
    }

    /// Publishes a notice of the worker that owns `arena`. It replaces the entry of the key. `notices` is the segment
    /// of that worker's notices.
    ///
    /// # Errors
    /// [`NoRoom`]: the entry of its key is unchanged.
    pub fn publish_notice(
        &mut self,
        key: &Key,
        ticket: u64,
        (notices, notice): (SegmentId, u16),
        arena: SegmentId,
    ) -> Result<(), NoRoom> {
        let hash = hash_of(key.as_str());
        let shape = u64::from(notices.0) | u64::from(NAMES_A_NOTICE) << 32;
        let offset = u64::from(notice) * NOTICE_BYTES;
        let written = encode(key, [hash, ticket, 0, shape, offset], &[u64::from(arena.0)]).ok_or(NoRoom)?;
        self.put(key, hash, Occupant { key: key.clone(), ticket, is_watched: true }, &written)
    }

    fn put(&mut self, key: &Key, hash: u64, new: Occupant, written: &Body) -> Result<(), NoRoom> {
        let mut free = None;
        let mut own = None;
        for at in probes(hash, self.places.len()) {
            match self.places.get(at) {
                Some(Some(place)) if place.key == *key => own = Some(at),
                Some(None) if free.is_none() => free = Some(at),
                _ => {}
            }
        }
        let at = own.or(free).ok_or(NoRoom)?;
        let place = self.places.get_mut(at).ok_or(NoRoom)?;
        self.tickets.insert(new.ticket, at);
        let before = place.replace(new);
        if let Some(before) = &before {
            self.tickets.remove(&before.ticket);
        }
        self.write(at, &written.words[..written.len], before);
        Ok(())
    }

    /// Unlinks the entry of a ticket, if it is on the board.
    pub fn unlink(&mut self, ticket: u64) {
        if let Some(at) = self.tickets.remove(&ticket) {
            let before = self.places.get_mut(at).and_then(Option::take);
            // Hash and ticket are enough: readers ignore an entry without a ticket.
            self.write(at, &[0, 0], before);
        }
    }

    fn write(&self, at: usize, body: &[u64], before: Option<Occupant>) {
        let entry = self.words.part(HEADER_WORDS + at * ENTRY_WORDS, ENTRY_WORDS);
        entry::write(entry, body);
        if before.is_some_and(|place| place.is_watched) {
            futex::wake_all(entry);
        }
    }

    /// Orders the unlinking of entries before the search for hazard pointers to their tickets. Call it between the two.
    pub fn fence_before_scan(&self) {
        entry::changed();
    }
}

/// The entries that a key of this hash may use.
pub(super) fn probes(hash: u64, entries: usize) -> impl Iterator<Item = usize> {
    // `entries` is a power of two, or 0; then the range below is empty.
    let mask = entries.wrapping_sub(1);
    (0..PROBES.min(entries)).map(move |i| (hash as usize).wrapping_add(i) & mask)
}

struct Body {
    words: [u64; body::WORDS],
    len: usize,
}

/// Encodes the words of an entry. It adds the number of dimensions and the length of the key to `shape`.
fn encode(key: &Key, [hash, ticket, version, shape, offset]: [u64; 5], dims: &[u64]) -> Option<Body> {
    let text = key.as_str().as_bytes();
    let mut words = [0; body::WORDS];
    let (rank, length) = (dims.len() as u64, text.len() as u64);
    for (at, value) in [
        (body::HASH, hash),
        (body::TICKET, ticket),
        (body::VERSION, version),
        (body::SHAPE, shape | rank << 40 | length << 48),
        (body::OFFSET, offset),
    ] {
        words[at] = value;
    }
    let len = body::REST + dims.len() + text.len().div_ceil(8);
    words.get_mut(body::REST..body::REST + dims.len())?.copy_from_slice(dims);
    for (word, bytes) in words.get_mut(body::REST + dims.len()..len)?.iter_mut().zip(text.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
    Some(Body { words, len })
}
