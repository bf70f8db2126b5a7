//! Versions in files, with their checksums.

use super::file::{Piece, Unnamed};
use super::space::Space;
use super::{BLOCK, DiskError, PIECE};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use transfer_core::protocol::{SpillId, Tenant};
use transfer_memory::segment::Segment;

/// A range of a segment.
pub(crate) struct Place {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The versions on disk.
pub(crate) struct Store {
    folder: PathBuf,
    files: HashMap<Tenant, TenantFile>,
    versions: HashMap<SpillId, Version>,
    piece: Piece,
}

struct TenantFile {
    file: Unnamed,
    space: Space,
}

struct Version {
    tenant: Tenant,
    at: u64,
    len: u64,
    sums: Vec<u32>,
}

/// A version that is being written.
pub(super) struct Write {
    pub(super) id: SpillId,
    version: Version,
    from: Vec<Place>,
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

impl Store {
    /// Makes a store in this folder. A file is made once, to see that it works.
    pub(crate) fn new(folder: PathBuf) -> Result<Store, DiskError> {
        Unnamed::create(&folder)?;
        Ok(Store { folder, files: HashMap::new(), versions: HashMap::new(), piece: Piece::new() })
    }

    /// Begins to write ranges of this length, one behind the other.
    pub(super) fn begin(&mut self, id: SpillId, tenant: Tenant, from: Vec<Place>, len: u64) -> Result<Write, String> {
        let TenantFile { file, space } = match self.files.entry(tenant) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let file = Unnamed::create(&self.folder).map_err(|e| e.to_string())?;
                new.insert(TenantFile { file, space: Space::default() })
            }
        };
        let at = space.take(blocks(len));
        let version = Version { tenant, at, len, sums: Vec::new() };
        match file.reserve(at, blocks(len)) {
            Ok(()) => Ok(Write { id, version, from, next: 0, done: 0, written: 0 }),
            Err(why) => {
                self.give_back(&version);
                Err(format!("{len} bytes in {}: {why}", self.folder.display()))
            }
        }
    }

    /// Writes one piece. Returns what is left to write, if anything. After an error nothing of the version is left.
    pub(super) fn step(&mut self, mut write: Write) -> Result<Option<Write>, String> {
        match self.write_piece(&mut write) {
            Ok(true) => {
                self.versions.insert(write.id, write.version);
                Ok(None)
            }
            Ok(false) => Ok(Some(write)),
            Err(why) => {
                self.give_back(&write.version);
                Err(why)
            }
        }
    }

    /// Returns whether that was the last piece.
    fn write_piece(&mut self, write: &mut Write) -> Result<bool, String> {
        let piece = self.piece.bytes();
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
        write.version.sums.extend(piece.chunks(BLOCK).map(sum));
        if let Some(of) = self.files.get(&write.version.tenant) {
            let failed = |why| format!("{} bytes in {}: {why}", write.version.len, self.folder.display());
            of.file.write(write.version.at + write.written, piece).map_err(failed)?;
        }
        write.written += end as u64;
        Ok(write.next >= write.from.len())
    }

    /// Reads ranges of a version, one behind the other, into a range of a segment.
    pub(super) fn read(&mut self, id: SpillId, ranges: &[(u64, u64)], to: &Place) -> Result<(), String> {
        let Store { folder, files, versions, piece } = self;
        let Some(version) = versions.get(&id) else { return Err("it is not on disk".into()) };
        let Some(TenantFile { file, .. }) = files.get(&version.tenant) else { return Err("it is not on disk".into()) };
        let mut at = to.offset;
        for (start, len) in ranges {
            let (mut start, end) = (*start, start + len);
            if end > version.len || at + len > to.offset + to.len {
                return Err(format!("{len} bytes at {start} of {} that are on disk", version.len));
            }
            while start < end {
                let block = start / BLOCK as u64;
                let first = block * BLOCK as u64;
                let whole = (blocks(end) - first).min(PIECE as u64) as usize;
                let bytes = &mut piece.bytes()[..whole];
                file.read(version.at + first, bytes)
                    .map_err(|why| format!("reading it back from {}: {why}", folder.display()))?;
                let sums = version.sums.get(block as usize..).unwrap_or(&[]);
                if !bytes.chunks(BLOCK).map(sum).eq(sums.iter().copied().take(whole / BLOCK)) {
                    return Err(format!(
                        "the disk of {} returned other bytes than were written, as a checksum shows",
                        folder.display()
                    ));
                }
                let upto = end.min(first + whole as u64);
                let part = &bytes[(start - first) as usize..(upto - first) as usize];
                to.segment.mapping().copy_in(at, part).map_err(|e| e.to_string())?;
                (at, start) = (at + part.len() as u64, upto);
            }
        }
        Ok(())
    }

    /// Frees a version.
    pub(super) fn free(&mut self, id: SpillId) {
        if let Some(version) = self.versions.remove(&id) {
            self.give_back(&version);
        }
    }

    fn give_back(&mut self, version: &Version) {
        let Some(TenantFile { file, space }) = self.files.get_mut(&version.tenant) else { return };
        match space.give_back(version.at, blocks(version.len)) {
            Some(0) => drop(self.files.remove(&version.tenant)),
            Some(end) => file.cut(end),
            None => file.punch(version.at, blocks(version.len)),
        }
    }

    /// Flips a bit of a version, for tests.
    #[cfg(test)]
    pub(super) fn damage(&self, id: SpillId, at: u64) {
        let version = &self.versions[&id];
        self.files[&version.tenant].file.damage(version.at + at);
    }

    /// The number of versions and of files, for tests.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.versions.len(), self.files.len())
    }
}
