//! The sidecar's end of a board.

use super::entry;
use super::layout::{ENTRY_WORDS, HEADER_WORDS, PROBES, body, entries_of, hash_of};
use super::words::Words;
use crate::segment::{MapError, Mapping};
use std::collections::HashMap;
use std::sync::Arc;
use transfer_core::memory::LocalSlice;
use transfer_core::tensor::{Key, TensorMeta, Version};

/// A version has no place on the board: its key and shape are too long for an entry, or all places that it could have are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the board has no place for it")]
pub struct NoRoom;

/// Writes a board. There is one for each.
#[derive(Debug)]
pub struct BoardWriter {
    words: Words,
    /// What each entry shows: kept here, for what is in shared memory is only for others.
    places: Vec<Option<(Key, u64)>>,
    tickets: HashMap<u64, usize>,
}

impl BoardWriter {
    /// Over a segment that can be written, and is all zeros.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn new(mapping: Arc<Mapping>) -> Result<BoardWriter, MapError> {
        let entries = entries_of(mapping.len()) as usize;
        let words = Words::to_write(mapping, 0, HEADER_WORDS + entries * ENTRY_WORDS)?;
        Ok(BoardWriter { words, places: vec![None; entries], tickets: HashMap::new() })
    }

    /// How many keys it can show at most.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.places.len()
    }

    /// Shows a version, in the place of what was shown under its key.
    ///
    /// # Errors
    /// [`NoRoom`]: what was shown under its key still is.
    pub fn show(
        &mut self,
        key: &Key,
        ticket: u64,
        version: Version,
        meta: &TensorMeta,
        slice: LocalSlice,
    ) -> Result<(), NoRoom> {
        let hash = hash_of(key.as_str());
        let (written, len) = encode(key, hash, ticket, version, meta, slice).ok_or(NoRoom)?;
        let mut free = None;
        let mut own = None;
        for at in probes(hash, self.places.len()) {
            match self.places.get(at) {
                Some(Some((k, _))) if k == key => own = Some(at),
                Some(None) if free.is_none() => free = Some(at),
                _ => {}
            }
        }
        let at = own.or(free).ok_or(NoRoom)?;
        let place = self.places.get_mut(at).ok_or(NoRoom)?;
        if let Some((_, before)) = place.replace((key.clone(), ticket)) {
            self.tickets.remove(&before);
        }
        self.tickets.insert(ticket, at);
        entry::write(self.words.part(HEADER_WORDS + at * ENTRY_WORDS, ENTRY_WORDS), &written[..len]);
        Ok(())
    }

    /// Shows a ticket no more, if it is shown.
    pub fn hide(&mut self, ticket: u64) {
        if let Some(at) = self.tickets.remove(&ticket) {
            if let Some(place) = self.places.get_mut(at) {
                *place = None;
            }
            // Hash and ticket are enough: no ticket, nothing shown.
            entry::write(self.words.part(HEADER_WORDS + at * ENTRY_WORDS, ENTRY_WORDS), &[0, 0]);
        }
    }

    /// To be called before marks are looked for of what is shown no more.
    pub fn settle(&self) {
        entry::changed();
    }
}

/// The places that a key of this hash can have.
pub(super) fn probes(hash: u64, entries: usize) -> impl Iterator<Item = usize> {
    // A power of two, or 0 of which there are none.
    let mask = entries.wrapping_sub(1);
    (0..PROBES.min(entries)).map(move |i| (hash as usize).wrapping_add(i) & mask)
}

fn encode(
    key: &Key,
    hash: u64,
    ticket: u64,
    version: Version,
    meta: &TensorMeta,
    slice: LocalSlice,
) -> Option<([u64; body::WORDS], usize)> {
    let (dims, text) = (meta.shape().dims(), key.as_str().as_bytes());
    let mut words = [0; body::WORDS];
    words[body::HASH] = hash;
    words[body::TICKET] = ticket;
    words[body::VERSION] = version.0;
    let (rank, length) = (dims.len() as u64, text.len() as u64);
    words[body::SHAPE] = u64::from(slice.segment.0) | (meta.dtype() as u64) << 32 | rank << 40 | length << 48;
    words[body::OFFSET] = slice.offset;
    let len = body::REST + dims.len() + text.len().div_ceil(8);
    words.get_mut(body::REST..body::REST + dims.len())?.copy_from_slice(dims);
    for (word, bytes) in words.get_mut(body::REST + dims.len()..len)?.iter_mut().zip(text.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
    Some((words, len))
}
