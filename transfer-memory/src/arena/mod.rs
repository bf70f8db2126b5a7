//! A worker's allocations in the segment that it writes.
//!
//! The worker allocates without asking the sidecar; the records lie in the worker's own memory. Every allocation starts
//! at a multiple of 64 bytes and is padded to one with zeros, so that a NIC can gather it in place.
//!
//! An allocation has up to three kinds of holders, and its range is free again when none is left:
//!
//! - a [`Block`]: one owner, who may write. [`Block::lend`] hands it to the sidecar, [`Block::freeze`] makes it
//!   immutable, [`OpenBlock`] lets fetches land there;
//! - a frozen view ([`Bytes`](crate::view::Bytes), or the Arrow buffers made of it): any number of readers in this
//!   process;
//! - the sidecar: a published tensor, until [`Arena::give_back`]. [`Arena::share`] adds it to a frozen allocation, for
//!   Arrow arrays that lie in the arena already.
//!
//! Memory of the worker's own that is [registered](Arena::adopt) has such holders, too. It has a place behind the arena, by which both
//! sides name it, and leaves the arena with its last holder.

mod block;
mod open;
mod region;

pub use block::Block;
pub use open::OpenBlock;

use crate::segment::{MapError, Mapping};
use parking_lot::Mutex;
use region::{Region, Regions};
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use transfer_core::alloc::{AllocError, Allocation, Allocator, NotLent as NotLentByAllocator};
use transfer_core::memory::{LocalSlice, SegmentId};

/// A worker's arena. Cheap to clone; all clones are the same arena. Thread-safe.
#[derive(Clone)]
pub struct Arena(Arc<ArenaInner>);

impl fmt::Debug for Arena {
    /// Each tensor has an arena, whose records are long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arena").field(&self.0.id).finish()
    }
}

struct ArenaInner {
    id: SegmentId,
    mapping: Arc<Mapping>,
    /// The mapping's first byte.
    base: NonNull<u8>,
    state: Mutex<State>,
    /// What is called when memory is free again.
    on_free: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

// SAFETY: `base` points into the mapping, which is Send and Sync and lives as long as this.
unsafe impl Send for ArenaInner {}
// SAFETY: as above; references into the memory are formed only by holders of disjoint ranges.
unsafe impl Sync for ArenaInner {}

#[derive(Debug)]
struct State {
    allocator: Allocator,
    /// The allocations by offset.
    entries: BTreeMap<u64, Entry>,
    regions: Regions,
}

#[derive(Debug)]
struct Entry {
    room: Room,
    holder: LocalHolder,
    /// The number of times that the sidecar holds it.
    lent: u32,
}

/// What an entry takes up.
#[derive(Debug)]
enum Room {
    /// A range of the arena.
    Allocated(Allocation),
    /// Registered memory of this length.
    Registered(u64),
}

/// What has been freed.
struct Freed {
    _region: Option<Region>,
}

impl Room {
    fn len(&self) -> u64 {
        match self {
            Room::Allocated(allocation) => allocation.len(),
            Room::Registered(len) => *len,
        }
    }

    /// The length with the zeros behind it.
    fn padded_len(&self) -> u64 {
        match self {
            Room::Allocated(allocation) => allocation.padded_len(),
            Room::Registered(len) => *len,
        }
    }
}

impl Entry {
    fn is_unheld(&self) -> bool {
        self.lent == 0 && self.holder == LocalHolder::Nobody
    }

    /// Whether the sidecar holds it, once, and nothing else does.
    fn is_lent_alone(&self) -> bool {
        self.lent == 1 && self.holder == LocalHolder::Nobody
    }
}

/// The holder of an allocation in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LocalHolder {
    Nobody,
    Writer,
    Readers,
}

/// The sidecar returned, or was asked for, an allocation that it does not hold, or that others hold as well. Nothing
/// has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no allocation at offset {offset} of {arena} is lent to the sidecar in that way")]
pub struct NotLent {
    /// The arena.
    pub arena: SegmentId,
    /// The offset given, in bytes from the arena's start.
    pub offset: u64,
}

/// A range of the arena that the sidecar holds as well, after [`Arena::share`] or [`OpenBlock::lend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentSlice {
    /// The range.
    pub slice: LocalSlice,
    /// The start of the allocation that contains the range, as [`Arena::give_back`] takes it. Bytes from the arena's
    /// start.
    pub allocation: u64,
    /// The end of that allocation, padding included. Bytes from the arena's start.
    pub allocation_end: u64,
}

impl Arena {
    /// Makes an arena of all of `mapping`, with nothing allocated.
    ///
    /// # Errors
    /// [`MapError::ReadOnly`].
    pub fn new(id: SegmentId, mapping: Arc<Mapping>) -> Result<Arena, MapError> {
        let outside = MapError::OutOfBounds { offset: 0, len: mapping.len(), mapping_len: mapping.len() };
        let base = NonNull::new(mapping.writable_at(0, mapping.len())?).ok_or(outside)?;
        let state = Mutex::new(State {
            allocator: Allocator::new(mapping.len()),
            entries: BTreeMap::new(),
            regions: Regions::default(),
        });
        Ok(Arena(Arc::new(ArenaInner { id, mapping, base, state, on_free: OnceLock::new() })))
    }

    /// Calls this whenever memory is free again, on the thread that has freed it. The first call counts.
    pub fn on_free(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.on_free.set(Box::new(call));
    }

    /// Ends a change of an entry, without the lock.
    fn changed(&self, freed: Option<Freed>) {
        let Some(freed) = freed else { return };
        // Registered memory may be freed with this.
        drop(freed);
        if let Some(call) = self.0.on_free.get() {
            call();
        }
    }

    /// Allocates `len` bytes. Their contents are left over from earlier use; the padding behind them is zero.
    ///
    /// # Errors
    /// [`AllocError::NoRoom`], with the free bytes and the longest free range: a later call may succeed once something
    /// is freed. [`AllocError::TooLong`]: no later call succeeds.
    pub fn allocate(&self, len: u64) -> Result<Block, AllocError> {
        let mut state = self.0.state.lock();
        let allocation = state.allocator.allocate(len)?;
        let offset = allocation.offset();
        let padding = allocation.padded_len() - len;
        let room = Room::Allocated(allocation);
        state.entries.insert(offset, Entry { room, holder: LocalHolder::Writer, lent: 0 });
        drop(state);
        // SAFETY: the allocator's region is the mapping, so the allocation with its padding lies in it; it is this
        // thread's alone until the block is returned.
        unsafe { self.0.base.add((offset + len) as usize).write_bytes(0, padding as usize) };
        Ok(Block::new(self.clone(), offset, len, None))
    }

    /// Adds `len` bytes at `pointer` to the ranges that the sidecar holds. The bytes must lie within one frozen
    /// allocation that still has a reader in this process. Returns `None` if they do not: the caller has to copy them
    /// into an allocation of their own.
    #[must_use]
    pub fn share(&self, pointer: *const u8, len: u64) -> Option<LentSlice> {
        let inside = self.0.mapping.offset_of(pointer);
        let mut state = self.0.state.lock();
        let offset = inside.or_else(|| state.regions.offset_of(pointer))?;
        let (start, entry) = state.entries.range_mut(..=offset).next_back()?;
        let inside = offset.checked_add(len)? <= start + entry.room.len();
        if !inside || entry.holder != LocalHolder::Readers {
            return None;
        }
        entry.lent = entry.lent.checked_add(1)?;
        let allocation_end = start + entry.room.padded_len();
        Some(LentSlice { slice: LocalSlice { segment: self.0.id, offset, len }, allocation: *start, allocation_end })
    }

    /// Lends an allocation that an [`OpenBlock`] owns to the sidecar once more.
    fn lend_open(&self, offset: u64) -> Option<LentSlice> {
        let mut state = self.0.state.lock();
        let entry = state.entries.get_mut(&offset)?;
        entry.lent = entry.lent.checked_add(1)?;
        let (len, allocation_end) = (entry.room.len(), offset + entry.room.padded_len());
        Some(LentSlice { slice: LocalSlice { segment: self.0.id, offset, len }, allocation: offset, allocation_end })
    }

    /// Whether the sidecar holds the allocation that starts at `offset`.
    fn is_lent(&self, offset: u64) -> bool {
        self.0.state.lock().entries.get(&offset).is_some_and(|entry| entry.lent > 0)
    }

    /// Holds the allocation that starts at `offset` once more, if the sidecar holds it: its memory stays until
    /// [`Arena::give_back`] is called for this, too. Returns whether it does.
    #[must_use]
    pub fn hold(&self, offset: u64) -> bool {
        let mut state = self.0.state.lock();
        let entry = state.entries.get_mut(&offset).filter(|entry| entry.lent > 0);
        entry.is_some_and(|entry| {
            entry.lent += 1;
            true
        })
    }

    /// Records that the sidecar returned the allocation that starts at `offset`. Call it once for each time that it was
    /// lent or shared.
    ///
    /// # Errors
    /// [`NotLent`] where it is not lent.
    pub fn give_back(&self, offset: u64) -> Result<(), NotLent> {
        let give = |entry: &mut Entry| entry.lent.checked_sub(1).map(|left| entry.lent = left);
        let (given, freed) = self.0.state.lock().change(offset, give);
        self.changed(freed);
        given.flatten().ok_or(NotLent { arena: self.0.id, offset })
    }

    /// Takes the allocation that starts at `offset` back from the sidecar, with one owner that may write it: at the end
    /// of a push that failed.
    ///
    /// # Errors
    /// [`NotLent`] where the sidecar does not hold it, or is not its only holder.
    pub fn take_back(&self, offset: u64) -> Result<Block, NotLent> {
        let mut state = self.0.state.lock();
        match state.entries.get_mut(&offset) {
            Some(entry) if entry.is_lent_alone() => {
                entry.lent = 0;
                entry.holder = LocalHolder::Writer;
                let len = entry.room.len();
                Ok(Block::new(self.clone(), offset, len, state.regions.get(offset)))
            }
            _ => Err(NotLent { arena: self.0.id, offset }),
        }
    }

    /// Takes allocations back from the sidecar like [`Arena::take_back`]: all of them, or none.
    ///
    /// # Errors
    /// [`NotLent`] with the first allocation that the sidecar does not hold, or of which it is not the only holder.
    pub fn take_back_all(&self, offsets: &[u64]) -> Result<Vec<Block>, NotLent> {
        let mut state = self.0.state.lock();
        let mut lens = Vec::with_capacity(offsets.len());
        for offset in offsets {
            match state.entries.get_mut(offset).filter(|entry| entry.is_lent_alone()) {
                Some(entry) => {
                    entry.lent = 0;
                    entry.holder = LocalHolder::Writer;
                    lens.push(entry.room.len());
                }
                None => {
                    for taken in &offsets[..lens.len()] {
                        if let Some(entry) = state.entries.get_mut(taken) {
                            entry.lent = 1;
                            entry.holder = LocalHolder::Nobody;
                        }
                    }
                    return Err(NotLent { arena: self.0.id, offset: *offset });
                }
            }
        }
        let blocks = offsets.iter().zip(lens);
        Ok(blocks.map(|(offset, len)| Block::new(self.clone(), *offset, len, state.regions.get(*offset))).collect())
    }

    /// The length of the allocation that starts at `offset`, and whether [`Arena::take_back`] would return it. `None`
    /// if no allocation starts there.
    #[must_use]
    pub fn lent_at(&self, offset: u64) -> Option<(u64, bool)> {
        let state = self.0.state.lock();
        let entry = state.entries.get(&offset)?;
        Some((entry.room.len(), entry.is_lent_alone()))
    }

    /// The start and the length of the allocation that contains the byte at `offset`, padding included, and whether
    /// [`Arena::take_back`] would return it. `None` if no allocation contains it.
    #[must_use]
    pub fn lent_around(&self, offset: u64) -> Option<(u64, u64, bool)> {
        let state = self.0.state.lock();
        let (start, entry) = state.entries.range(..=offset).next_back()?;
        let is_inside = offset - start < entry.room.padded_len();
        is_inside.then(|| (*start, entry.room.len(), entry.is_lent_alone()))
    }

    /// Splits the allocation of a writer. Returns the starts of its parts, each with a writer. `None` if these are not the
    /// lengths of its parts.
    fn split(&self, offset: u64, lens: &[u64]) -> Option<Vec<u64>> {
        let mut state = self.0.state.lock();
        let Entry { room, holder, lent } = state.entries.remove(&offset)?;
        let allocation = match room {
            Room::Allocated(allocation) => allocation,
            registered => {
                state.entries.insert(offset, Entry { room: registered, holder, lent });
                return None;
            }
        };
        match state.allocator.split(allocation, lens) {
            Ok(parts) => {
                let starts = parts.iter().map(Allocation::offset).collect();
                let entries =
                    parts.into_iter().map(|part| (part.offset(), Entry { room: Room::Allocated(part), holder, lent }));
                state.entries.extend(entries);
                Some(starts)
            }
            Err(NotLentByAllocator(allocation)) => {
                state.entries.insert(offset, Entry { room: Room::Allocated(allocation), holder, lent });
                None
            }
        }
    }

    /// The number of the arena's segment.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.0.id
    }

    /// The arena's memory.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.0.mapping
    }

    /// Bytes allocated, padding included.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.state.lock().allocator.used_bytes()
    }

    /// Bytes free, in all free ranges together.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.0.state.lock().allocator.free_bytes()
    }

    /// Makes the only reader of the allocation at `offset` its writer. `false` if the sidecar holds it.
    fn thaw(&self, offset: u64) -> bool {
        let mut state = self.0.state.lock();
        let entry = state.entries.get_mut(&offset);
        let entry = entry.filter(|entry| entry.lent == 0 && entry.holder == LocalHolder::Readers);
        entry.is_some_and(|entry| {
            entry.holder = LocalHolder::Writer;
            true
        })
    }

    /// Records the holder of the allocation in this process from now on, and whether the sidecar holds it too
    /// (`lend`).
    fn hand_over(&self, offset: u64, holder: LocalHolder, lend: bool) {
        let (_, freed) = self.0.state.lock().change(offset, |entry| {
            entry.holder = holder;
            entry.lent += u32::from(lend);
        });
        self.changed(freed);
    }
}

impl State {
    /// Changes who holds the allocation that starts at `offset`, and frees it if nobody holds it then. `None` if no allocation starts there.
    /// Registered memory that nobody holds leaves the arena.
    fn change<T>(&mut self, offset: u64, change: impl FnOnce(&mut Entry) -> T) -> (Option<T>, Option<Freed>) {
        let btree_map::Entry::Occupied(mut place) = self.entries.entry(offset) else { return (None, None) };
        let changed = change(place.get_mut());
        if !place.get().is_unheld() {
            return (Some(changed), None);
        }
        let region = match place.remove().room {
            Room::Registered(_) => self.regions.remove(offset),
            Room::Allocated(allocation) => {
                if let Err(e) = self.allocator.free(allocation) {
                    debug_assert!(false, "an allocation was kept for another allocator: {e}");
                }
                None
            }
        };
        (Some(changed), Some(Freed { _region: region }))
    }
}

#[cfg(test)]
mod tests;
