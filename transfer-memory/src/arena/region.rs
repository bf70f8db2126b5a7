//! Memory of the worker's own that is registered beside its arena.

use super::{Arena, Block, Entry, LocalHolder, Room};
use crate::segment::{MapError, Mapping};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Registered memory.
pub(super) struct Region {
    mapping: Arc<Mapping>,
    /// Ends the registration when it is dropped.
    _registration: Box<dyn Any + Send + Sync>,
}

/// All registered memory of an arena.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// By its place.
    by_place: BTreeMap<u64, Region>,
    /// The places by address.
    by_address: BTreeMap<usize, u64>,
}

impl Regions {
    fn insert(&mut self, place: u64, region: Region) {
        self.by_address.insert(region.address(), place);
        self.by_place.insert(place, region);
    }

    pub(super) fn remove(&mut self, place: u64) -> Option<Region> {
        let region = self.by_place.remove(&place)?;
        self.by_address.remove(&region.address());
        Some(region)
    }

    /// The memory that has this place.
    pub(super) fn get(&self, place: u64) -> Option<Arc<Mapping>> {
        Some(self.by_place.get(&place)?.mapping.clone())
    }

    /// The memory in which this place lies, and where.
    fn around(&self, place: u64) -> Option<(&Arc<Mapping>, u64)> {
        let (start, region) = self.by_place.range(..=place).next_back()?;
        Some((&region.mapping, place - start))
    }

    /// The place of a byte.
    pub(super) fn offset_of(&self, pointer: *const u8) -> Option<u64> {
        let (_, place) = self.by_address.range(..=pointer.addr()).next_back()?;
        Some(place + self.by_place.get(place)?.mapping.offset_of(pointer)?)
    }
}

impl Region {
    fn address(&self) -> usize {
        self.mapping.start().addr()
    }
}

impl Arena {
    /// Adds registered memory at `place`, which lies behind the arena and all other registered memory. It has one owner, who may write it.
    /// When nobody holds it any more, `registration` is dropped.
    #[must_use]
    pub fn adopt(&self, place: u64, mapping: Arc<Mapping>, registration: Box<dyn Any + Send + Sync>) -> Block {
        let len = mapping.len();
        let mut state = self.0.state.lock();
        let entry = Entry { room: Room::Registered(len), holder: LocalHolder::Writer, lent: 0 };
        state.entries.insert(place, entry);
        state.regions.insert(place, Region { mapping: mapping.clone(), _registration: registration });
        drop(state);
        Block::new(self.clone(), place, len, Some(mapping))
    }

    /// Whether what lies at this place is registered memory.
    #[must_use]
    pub fn is_registered(&self, place: u64) -> bool {
        place >= self.0.mapping.len()
    }

    /// Copies the bytes at `place` into `to`, from the arena or from registered memory.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`]; then `to` is unchanged.
    pub fn copy_out(&self, place: u64, to: &mut [u8]) -> Result<(), MapError> {
        if !self.is_registered(place) {
            return self.0.mapping.copy_out(place, to);
        }
        let state = self.0.state.lock();
        let (mapping, at) = state.regions.around(place).ok_or(MapError::OutOfBounds {
            offset: place,
            len: to.len() as u64,
            mapping_len: self.0.mapping.len(),
        })?;
        let mapping = mapping.clone();
        drop(state);
        mapping.copy_out(at, to)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Region").field(&self.mapping).finish()
    }
}
