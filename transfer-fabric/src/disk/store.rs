//! Versions in files, with their checksums.

use super::file::{Piece, Unnamed};
use super::space::Space;
use super::{BLOCK, DiskError, PIECE};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use transfer_core::protocol::{SpillId, Tenant};
use transfer_core::tensor::{BodyBox, PackedRun, Packing};
use transfer_memory::segment::Segment;

/// A range of a segment.
pub(crate) struct MemoryRange {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The versions on disk. Threads share it, and each has a [`Piece`] of its own.
pub(crate) struct Store {
    folder: PathBuf,
    index: Mutex<Index>,
}

/// Which version lies where. While it is locked, files get longer and shorter, and are neither written nor read.
#[derive(Default)]
struct Index {
    files: HashMap<Tenant, TenantFile>,
    versions: HashMap<SpillId, Arc<Version>>,
}

struct TenantFile {
    file: Arc<Unnamed>,
    space: Space,
}

struct Version {
    tenant: Tenant,
    file: Arc<Unnamed>,
    at: u64,
    len: u64,
    sums: Vec<u32>,
}

/// A version that is being written.
pub(super) struct Write {
    pub(super) id: SpillId,
    version: Version,
    from: Vec<MemoryRange>,
    /// The index of the current range, and how much of it is written.
    next: usize,
    done: u64,
    written: u64,
}

fn blocks(len: u64) -> u64 {
    len.next_multiple_of(BLOCK as u64)
}

fn sum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Whether most blocks between the first and the last byte are needed anyway, so that many are read at once.
fn reads_ahead(packing: &Packing) -> bool {
    let is_dense = |b: &BodyBox| b.repeats().last().is_some_and(|inner| inner.stride <= 2 * BLOCK as u64);
    packing.boxes().iter().any(is_dense)
}

/// Writes zeros between two places of a range.
fn zero(to: &MemoryRange, from: u64, upto: u64) -> Result<(), String> {
    let len = upto.saturating_sub(from);
    to.segment.mapping().zero(to.offset + from, len).map_err(|e| e.to_string())
}

impl Store {
    /// Makes a store in this folder. A file is made once, to see that it works.
    pub(crate) fn new(folder: PathBuf) -> Result<Store, DiskError> {
        Unnamed::create(&folder)?;
        Ok(Store { folder, index: Mutex::default() })
    }

    /// Begins to write ranges of this length, one behind the other.
    pub(super) fn begin(&self, id: SpillId, tenant: Tenant, from: Vec<MemoryRange>, len: u64) -> Result<Write, String> {
        let mut index = self.index.lock();
        let TenantFile { file, space } = match index.files.entry(tenant) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let file = Unnamed::create(&self.folder).map_err(|e| e.to_string())?;
                new.insert(TenantFile { file: Arc::new(file), space: Space::default() })
            }
        };
        let at = space.take(blocks(len));
        let version = Version { tenant, file: file.clone(), at, len, sums: Vec::new() };
        // The end of the file moves only while the index is locked.
        match version.file.reserve(at, blocks(len)) {
            Ok(()) => Ok(Write { id, version, from, next: 0, done: 0, written: 0 }),
            Err(why) => {
                index.give_back(&version);
                Err(format!("{len} bytes in {}: {why}", self.folder.display()))
            }
        }
    }

    /// Writes one piece. Returns what is left to write, if anything. After an error nothing of the version is left.
    pub(super) fn step(&self, mut write: Write, piece: &mut Piece) -> Result<Option<Write>, String> {
        match self.write_piece(&mut write, piece) {
            Ok(true) => {
                self.index.lock().versions.insert(write.id, Arc::new(write.version));
                Ok(None)
            }
            Ok(false) => Ok(Some(write)),
            Err(why) => {
                self.index.lock().give_back(&write.version);
                Err(why)
            }
        }
    }

    /// Returns whether that was the last piece.
    fn write_piece(&self, write: &mut Write, piece: &mut Piece) -> Result<bool, String> {
        let piece = piece.bytes();
        let mut filled = 0;
        while filled < PIECE
            && let Some(place) = write.from.get(write.next)
        {
            let len = (place.len - write.done).min((PIECE - filled) as u64);
            let to = &mut piece[filled..filled + len as usize];
            place.segment.mapping().copy_out(place.offset + write.done, to).map_err(|e| e.to_string())?;
            (filled, write.done) = (filled + len as usize, write.done + len);
            if write.done == place.len {
                (write.next, write.done) = (write.next + 1, 0);
            }
        }
        let end = filled.next_multiple_of(BLOCK);
        piece[filled..end].fill(0);
        let piece = &piece[..end];
        let version = &mut write.version;
        version.sums.extend(piece.chunks(BLOCK).map(sum));
        let failed = |why| format!("{} bytes in {}: {why}", version.len, self.folder.display());
        version.file.write(version.at + write.written, piece).map_err(failed)?;
        write.written += end as u64;
        Ok(write.next >= write.from.len())
    }

    /// Packs what lies in a version into a range of a segment.
    pub(super) fn read(
        &self,
        id: SpillId,
        packing: Packing,
        to: &MemoryRange,
        piece: &mut Piece,
    ) -> Result<(), String> {
        let version = self.index.lock().versions.get(&id).cloned().ok_or("it is not on disk")?;
        let read = self.read_version(&version, packing, to, piece);
        self.let_go(version);
        read
    }

    fn read_version(
        &self,
        version: &Version,
        packing: Packing,
        to: &MemoryRange,
        piece: &mut Piece,
    ) -> Result<(), String> {
        let ahead = reads_ahead(&packing);
        // The bytes of the version that are in memory.
        let mut here = 0..0;
        let mut end = 0;
        for PackedRun { from, to: at, len } in packing {
            let (mut start, stop) = (from, from + len);
            if stop > version.len || at + len > to.len {
                return Err(format!("{len} bytes at {from} of {} that are on disk", version.len));
            }
            zero(to, end, at)?;
            end = at;
            while start < stop {
                if !here.contains(&start) {
                    here = self.read_blocks(version, start, if ahead { version.len } else { stop }, piece)?;
                }
                let upto = stop.min(here.end);
                let part = &piece.bytes()[(start - here.start) as usize..(upto - here.start) as usize];
                to.segment.mapping().copy_in(to.offset + end, part).map_err(|e| e.to_string())?;
                (end, start) = (end + part.len() as u64, upto);
            }
        }
        zero(to, end, to.len)
    }

    /// Reads the block with this byte of a version, and those behind it up to `stop`, as far as they fit. Returns which
    /// bytes these are.
    fn read_blocks(&self, version: &Version, start: u64, stop: u64, piece: &mut Piece) -> Result<Range<u64>, String> {
        let folder = self.folder.display();
        let block = start / BLOCK as u64;
        let first = block * BLOCK as u64;
        let whole = (blocks(stop) - first).min(PIECE as u64) as usize;
        let bytes = &mut piece.bytes()[..whole];
        version.file.read(version.at + first, bytes).map_err(|why| format!("reading it back from {folder}: {why}"))?;
        let sums = version.sums.get(block as usize..).unwrap_or(&[]);
        match bytes.chunks(BLOCK).map(sum).eq(sums.iter().copied().take(whole / BLOCK)) {
            true => Ok(first..first + whole as u64),
            false => Err(format!("the disk of {folder} returned other bytes than were written, as a checksum shows")),
        }
    }

    /// Frees a version. Its space is free when the last thread that reads it has ended.
    pub(super) fn free(&self, id: SpillId) {
        let version = self.index.lock().versions.remove(&id);
        if let Some(version) = version {
            self.let_go(version);
        }
    }

    /// Lets go of a reference to a version. Without the last one its space is free.
    fn let_go(&self, version: Arc<Version>) {
        let mut index = self.index.lock();
        if let Some(version) = Arc::into_inner(version) {
            index.give_back(&version);
        }
    }

    /// Flips a bit of a version, for tests.
    #[cfg(test)]
    pub(super) fn damage(&self, id: SpillId, at: u64) {
        let version = self.index.lock().versions[&id].clone();
        version.file.damage(version.at + at);
        self.let_go(version);
    }

    /// Begins to read a version, for tests: the function that is returned ends it.
    #[cfg(test)]
    pub(super) fn hold(&self, id: SpillId) -> impl FnOnce() {
        let version = self.index.lock().versions[&id].clone();
        move || self.let_go(version)
    }

    /// Where a version begins, for tests.
    #[cfg(test)]
    pub(super) fn place_of(&self, id: SpillId) -> u64 {
        self.index.lock().versions[&id].at
    }

    /// The number of versions and of files, for tests.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let index = self.index.lock();
        (index.versions.len(), index.files.len())
    }
}

impl Index {
    fn give_back(&mut self, version: &Version) {
        let Some(TenantFile { file, space }) = self.files.get_mut(&version.tenant) else { return };
        match space.give_back(version.at, blocks(version.len)) {
            Some(0) => drop(self.files.remove(&version.tenant)),
            Some(end) => file.cut(end),
            None => file.punch(version.at, blocks(version.len)),
        }
    }
}
