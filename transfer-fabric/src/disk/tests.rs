use super::file::Piece;
use super::store::{Place, Store};
use super::*;
use std::path::Path;
use std::sync::Arc;
use transfer_core::protocol::{SpillId, Tenant};
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

fn place(segment: &Arc<Segment>, offset: u64, len: u64) -> Place {
    Place { segment: segment.clone(), offset, len }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n / 7 % 251) as u8 ^ seed).collect()
}

fn write(store: &mut Store, id: u64, from: Vec<Place>) -> Result<(), String> {
    let len = from.iter().map(|place| place.len).sum();
    let mut left = Some(store.begin(SpillId(id), TENANT, from, len)?);
    while let Some(write) = left {
        left = store.step(write)?;
    }
    Ok(())
}

fn read(store: &mut Store, id: u64, ranges: &[(u64, u64)]) -> Result<Vec<u8>, String> {
    let len: u64 = ranges.iter().map(|(_, len)| len).sum();
    let to = segment(&vec![0; len as usize]);
    store.read(SpillId(id), ranges, &place(&to, 0, len))?;
    let mut bytes = vec![0; len as usize];
    to.mapping().copy_out(0, &mut bytes).unwrap();
    Ok(bytes)
}

#[test]
fn ranges_are_written_back_to_back_and_any_part_is_read() {
    let folder = folder();
    let mut store = Store::new(folder.path().to_owned()).unwrap();
    let bytes = pattern(2 * PIECE + 12_345, 0);
    let from = segment(&bytes);
    let cuts = [0, 100, 64 << 10, PIECE as u64 + 1, bytes.len() as u64];
    write(&mut store, 1, cuts.windows(2).map(|w| place(&from, w[0], w[1] - w[0])).collect()).unwrap();
    write(&mut store, 2, vec![place(&from, 7, 50)]).unwrap();
    assert!(read(&mut store, 1, &[(0, bytes.len() as u64)]).unwrap() == bytes);
    for (start, len) in [(0, 1), (16_383, 2), (PIECE as u64 - 5, 10), (bytes.len() as u64 - 1, 1)] {
        assert_eq!(read(&mut store, 1, &[(start, len)]).unwrap(), bytes[start as usize..(start + len) as usize]);
    }
    let both = read(&mut store, 1, &[(5, 3), (40_000, 4)]).unwrap();
    assert_eq!(both, [&bytes[5..8], &bytes[40_000..40_004]].concat());
    assert_eq!(read(&mut store, 2, &[(0, 50)]).unwrap(), bytes[7..57]);
    assert!(read(&mut store, 2, &[(0, 51)]).is_err(), "it has 50 bytes");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    store.free(SpillId(1));
    assert!(read(&mut store, 1, &[(0, 1)]).is_err());
    store.free(SpillId(2));
    assert_eq!(store.counts(), (0, 0));
}

#[test]
fn flipped_bit_is_found_in_its_block_and_nowhere_else() {
    let folder = folder();
    let mut store = Store::new(folder.path().to_owned()).unwrap();
    let bytes = pattern(3 * BLOCK, 1);
    let from = segment(&bytes);
    write(&mut store, 1, vec![place(&from, 0, bytes.len() as u64)]).unwrap();
    store.damage(SpillId(1), BLOCK as u64 + 77);
    assert!(read(&mut store, 1, &[(BLOCK as u64, 1)]).unwrap_err().contains("checksum"));
    assert!(read(&mut store, 1, &[(0, bytes.len() as u64)]).is_err());
    assert_eq!(read(&mut store, 1, &[(0, BLOCK as u64)]).unwrap(), bytes[..BLOCK]);
    assert_eq!(read(&mut store, 1, &[(2 * BLOCK as u64, 9)]).unwrap(), bytes[2 * BLOCK..2 * BLOCK + 9]);
}

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
