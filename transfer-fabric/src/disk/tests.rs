use super::file::Piece;
use super::store::{MemoryRange, Store};
use super::*;
use smallvec::{SmallVec, smallvec};
use std::path::Path;
use std::sync::Arc;
use transfer_core::protocol::{SpillId, Tenant};
use transfer_core::tensor::{BodyBox, Packing, Repeat};
use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

const TENANT: Tenant = Tenant::User(3);

/// A folder beside this program: the usual one for temporary files may lie in memory.
fn folder() -> tempfile::TempDir {
    let program = std::env::current_exe().unwrap();
    tempfile::tempdir_in(program.parent().unwrap()).unwrap()
}

fn segment(bytes: &[u8]) -> Arc<Segment> {
    let len = (bytes.len() as u64).max(1);
    let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
    let segment = Segment::create("disk-test", &options, &PinnedBudget::new(1 << 30)).unwrap();
    segment.mapping().copy_in(0, bytes).unwrap();
    Arc::new(segment)
}

fn place(segment: &Arc<Segment>, offset: u64, len: u64) -> MemoryRange {
    MemoryRange { segment: segment.clone(), offset, len }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n / 7 % 251) as u8 ^ seed).collect()
}

fn write(store: &Store, id: u64, from: Vec<MemoryRange>) -> Result<(), String> {
    let len = from.iter().map(|place| place.len).sum();
    let mut left = Some(store.begin(SpillId(id), TENANT, from, len)?);
    while let Some(write) = left {
        left = store.step(write, &mut Piece::new())?;
    }
    Ok(())
}

fn read(store: &Store, id: u64, ranges: &[(u64, u64)]) -> Result<Vec<u8>, String> {
    let range = |(offset, len): &(u64, u64)| BodyBox::new(*offset, *len, SmallVec::new()).unwrap();
    read_packed(store, id, Packing::new(ranges.iter().map(range).collect()))
}

/// Reads runs back, and checks that there are zeros between them. Returns their bytes without those.
fn read_packed(store: &Store, id: u64, packing: Packing) -> Result<Vec<u8>, String> {
    let len = packing.len_bytes().unwrap().next_multiple_of(64);
    let to = segment(&vec![0xee; len as usize]);
    store.read(SpillId(id), packing.clone(), &place(&to, 0, len), &mut Piece::new())?;
    let mut bytes = vec![0; len as usize];
    to.mapping().copy_out(0, &mut bytes).unwrap();
    let (mut runs, mut end) = (Vec::new(), 0);
    for run in packing {
        assert!(bytes[end..run.to as usize].iter().all(|b| *b == 0));
        end = (run.to + run.len) as usize;
        runs.extend(&bytes[run.to as usize..end]);
    }
    assert!(bytes[end..].iter().all(|b| *b == 0));
    Ok(runs)
}

// Promise: slices
#[test]
fn short_and_long_runs_are_packed() {
    let folder = folder();
    let store = Store::new(folder.path().to_owned()).unwrap();
    let bytes = pattern(2 * PIECE + 12_345, 3);
    let from = segment(&bytes);
    write(&store, 1, vec![place(&from, 0, bytes.len() as u64)]).unwrap();
    let repeat = |count, stride| Repeat { count, stride };
    let boxes = [
        BodyBox::new(5, 3, smallvec![repeat(2, 1 << 22), repeat(1000, 300)]).unwrap(),
        BodyBox::new(70, 20_000, smallvec![repeat(9, 900_001)]).unwrap(),
        BodyBox::new(bytes.len() as u64 - 100, 1, smallvec![repeat(34, 3)]).unwrap(),
    ];
    for b in boxes {
        let packing = Packing::new(smallvec![b]);
        let expected: Vec<u8> =
            packing.clone().flat_map(|run| bytes[run.from as usize..][..run.len as usize].to_vec()).collect();
        assert!(read_packed(&store, 1, packing.clone()).unwrap() == expected, "{packing:?}");
    }
    store.damage(SpillId(1), PIECE as u64 + 9);
    let across = BodyBox::new(0, 1, smallvec![repeat(3, PIECE as u64)]).unwrap();
    assert!(read_packed(&store, 1, Packing::new(smallvec![across])).unwrap_err().contains("checksum"));
}

// Promise: rows-on-disk
#[test]
fn ranges_are_written_back_to_back_and_any_part_is_read() {
    let folder = folder();
    let store = Store::new(folder.path().to_owned()).unwrap();
    let bytes = pattern(2 * PIECE + 12_345, 0);
    let from = segment(&bytes);
    let cuts = [0, 100, 64 << 10, PIECE as u64 + 1, bytes.len() as u64];
    write(&store, 1, cuts.windows(2).map(|w| place(&from, w[0], w[1] - w[0])).collect()).unwrap();
    write(&store, 2, vec![place(&from, 7, 50)]).unwrap();
    assert!(read(&store, 1, &[(0, bytes.len() as u64)]).unwrap() == bytes);
    for (start, len) in [(0, 1), (16_383, 2), (PIECE as u64 - 5, 10), (bytes.len() as u64 - 1, 1)] {
        assert_eq!(read(&store, 1, &[(start, len)]).unwrap(), bytes[start as usize..(start + len) as usize]);
    }
    let both = read(&store, 1, &[(5, 3), (40_000, 4)]).unwrap();
    assert_eq!(both, [&bytes[5..8], &bytes[40_000..40_004]].concat());
    assert_eq!(read(&store, 2, &[(0, 50)]).unwrap(), bytes[7..57]);
    assert!(read(&store, 2, &[(0, 51)]).is_err(), "it has 50 bytes");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    store.free(SpillId(1));
    assert!(read(&store, 1, &[(0, 1)]).is_err());
    store.free(SpillId(2));
    assert_eq!(store.counts(), (0, 0));
}

#[test]
fn space_of_a_version_that_is_being_read_is_not_written_again() {
    let folder = folder();
    let store = Store::new(folder.path().to_owned()).unwrap();
    let (first, second) = (segment(&pattern(BLOCK, 1)), segment(&pattern(BLOCK, 2)));
    let place = |from: &Arc<Segment>| vec![place(from, 0, BLOCK as u64)];
    write(&store, 1, place(&first)).unwrap();
    write(&store, 2, place(&second)).unwrap();
    let at = |id| store.place_of(SpillId(id));
    let (place_of_first, let_go) = (at(1), store.hold(SpillId(1)));
    store.free(SpillId(1));
    write(&store, 3, place(&second)).unwrap();
    assert_ne!(at(3), place_of_first, "it is being read");
    let_go();
    write(&store, 4, place(&second)).unwrap();
    assert_eq!(at(4), place_of_first);
    (2..=4).for_each(|id| store.free(SpillId(id)));
    assert_eq!(store.counts(), (0, 0));
}

#[test]
fn threads_write_and_read_at_the_same_time() {
    let folder = folder();
    let bell = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
    let disk = Disk::start(Store::new(folder.path().to_owned()).unwrap(), bell.clone()).unwrap();
    let bytes = pattern(PIECE + 5 * BLOCK + 3, 5);
    let (from, len) = (segment(&bytes), bytes.len() as u64);
    let done = |count: usize| {
        let mut all = Vec::new();
        while all.len() < count {
            // Each job rings once.
            rustix::io::read(&*bell, &mut [0_u8; 8]).unwrap();
            all.extend(std::iter::from_fn(|| disk.done()));
        }
        all
    };
    (1..=8).for_each(|id| disk.write(SpillId(id), TENANT, vec![place(&from, 0, len)], len));
    for done in done(8) {
        assert!(matches!(done, Done::Written(_, Ok(()))));
    }
    let to: Vec<_> = (0..8).map(|_| segment(&vec![0; bytes.len()])).collect();
    for (id, to) in (1..=8).zip(&to) {
        disk.read(SpillId(id), Packing::all(len), place(to, 0, len), id);
        disk.write(SpillId(id + 8), TENANT, vec![place(&from, 0, len)], len);
    }
    for done in done(16) {
        assert!(matches!(done, Done::Written(_, Ok(())) | Done::Read(_, Ok(()))));
    }
    for to in to {
        let mut found = vec![0; bytes.len()];
        to.mapping().copy_out(0, &mut found).unwrap();
        assert!(found == bytes);
    }
}

// Promise: failing-disks
#[test]
fn flipped_bit_is_found_in_its_block_and_nowhere_else() {
    let folder = folder();
    let store = Store::new(folder.path().to_owned()).unwrap();
    let bytes = pattern(3 * BLOCK, 1);
    let from = segment(&bytes);
    write(&store, 1, vec![place(&from, 0, bytes.len() as u64)]).unwrap();
    store.damage(SpillId(1), BLOCK as u64 + 77);
    assert!(read(&store, 1, &[(BLOCK as u64, 1)]).unwrap_err().contains("checksum"));
    assert!(read(&store, 1, &[(0, bytes.len() as u64)]).is_err());
    assert_eq!(read(&store, 1, &[(0, BLOCK as u64)]).unwrap(), bytes[..BLOCK]);
    assert_eq!(read(&store, 1, &[(2 * BLOCK as u64, 9)]).unwrap(), bytes[2 * BLOCK..2 * BLOCK + 9]);
}

// Promise: failing-disks
#[test]
fn memory_is_no_disk_and_a_folder_has_to_exist() {
    let error = |folder: &str| Store::new(folder.into()).map(drop).unwrap_err().to_string();
    if Path::new("/dev/shm").is_dir() {
        assert!(error("/dev/shm").contains("choose a folder on a disk"));
    }
    assert!(error("/nowhere/at/all").contains("/nowhere/at/all"));
}

#[test]
fn pieces_are_aligned() {
    let mut piece = Piece::new();
    assert_eq!((piece.bytes().as_ptr() as usize % BLOCK, piece.bytes().len()), (0, PIECE));
}
