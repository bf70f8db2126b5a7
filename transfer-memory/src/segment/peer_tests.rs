use super::*;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use std::sync::atomic::Ordering;

const LEN: u64 = 8 * 4096;

fn segment() -> Segment {
    let options = SegmentOptions { len: LEN, pages: Pages::Base, lock: Lock::No };
    Segment::create("peer test", &options, &PinnedBudget::new(1 << 20)).unwrap()
}

/// A memfd as any process can make it.
fn foreign(len: u64, filled: u64, seals: SealFlags) -> OwnedFd {
    let fd = fs::memfd_create("foreign", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    fs::ftruncate(&fd, len).unwrap();
    // As in a sidecar's segment, each page is present because something was written to it.
    let page = [1; 4096];
    for at in (0..filled).step_by(page.len()) {
        rustix::io::pwrite(&fd, &page, at).unwrap();
    }
    fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn a_peer_reads_what_is_written_and_marks_it() {
    let own = segment();
    let passed = own.open_for_peer().unwrap();
    assert!(own.writers_sealed().unwrap());
    own.mapping().copy_in(5000, b"after the seal").unwrap();
    let theirs = Segment::adopt_from_peer(passed, LEN, 7, None).unwrap();
    let mut seen = [0; 14];
    theirs.mapping().copy_out(5000, &mut seen).unwrap();
    assert_eq!((&seen, theirs.mapping().access()), (b"after the seal", Access::ReadOnly));
    assert!(is_marked(own.fd(), 7).unwrap() && !is_marked(own.fd(), 8).unwrap());
    drop(theirs);
    assert!(!is_marked(own.fd(), 7).unwrap());
    own.open_for_peer().unwrap();
}

/// The owner's segment as a sidecar of this host keeps it, over the link of this number.
fn kept(own: &Segment, link: u64) -> Segment {
    Segment::adopt_from_peer(own.open_for_peer().unwrap(), LEN, 7, Some(link)).unwrap()
}

/// The descriptor that the sidecar `keeper` passes on to a worker.
fn passed_on(keeper: &Segment) -> OwnedFd {
    reopen(keeper.fd()).unwrap()
}

/// The owner and the worker that writes the segment find it referenced from the moment at which the peer reports that
/// it has the segment until its last reader has dropped it, in whatever order they die.
#[test]
fn reference_is_marked_from_beginning_to_end() {
    let own = segment();
    let keeper = kept(&own, 20);
    let marks = keeper.references().unwrap();
    let marked = |link| (own.is_referenced(link), is_marked(own.fd(), 7).unwrap());
    assert_eq!((marked(20), own.is_referenced(22)), ((true, true), false), "kept, and of no other link");
    let reader = Segment::adopt_reference(passed_on(&keeper), LEN, marks).unwrap().unwrap();
    own.mapping().copy_in(100, b"read").unwrap();
    let mut seen = [0; 4];
    reader.copy_out(100, &mut seen).unwrap();
    assert_eq!((&seen, reader.access()), (b"read", Access::ReadOnly));
    let mapping = keeper.mapping().clone();
    drop(keeper);
    assert_eq!(marked(20), (true, true), "a copy is still going on from its mapping");
    drop(mapping);
    assert_eq!(marked(20), (true, true), "the reader reads on");
    drop(reader);
    assert_eq!(marked(20), (false, false));
}

/// A reader that comes after the keeper has gone reads nothing, even if others still read: the owner may have looked
/// before.
// Promise: referenced-versions, seen to fail
#[test]
fn reader_without_a_keeper_reads_nothing() {
    let own = segment();
    let keeper = kept(&own, 20);
    let marks = keeper.references().unwrap();
    let (late, later) = (passed_on(&keeper), passed_on(&keeper));
    let other_link = kept(&own, 30);
    drop(keeper);
    assert!(Segment::adopt_reference(late, LEN, marks).unwrap().is_none());
    assert!(!own.is_referenced(20), "and leaves no mark");
    let keeper = kept(&own, 20);
    let reader = Segment::adopt_reference(passed_on(&keeper), LEN, marks).unwrap().unwrap();
    drop(keeper);
    assert!(Segment::adopt_reference(later, LEN, marks).unwrap().is_none());
    assert!(own.is_referenced(20) && own.is_referenced(30));
    drop((reader, other_link));
    assert!(!own.is_referenced(20) && !own.is_referenced(30));
}

/// A segment that could kill a process that maps it, or cost it memory, is not mapped.
// Promise: hostile-neighbours, seen to fail
#[test]
fn unsealed_or_sparse_segment_is_refused() {
    let size = SealFlags::SHRINK | SealFlags::GROW;
    let writers = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let refused = |fd| Segment::adopt_from_peer(fd, LEN, 1, None).unwrap_err();
    assert!(Segment::adopt_from_peer(foreign(LEN, LEN, size | writers), LEN, 1, None).is_ok());
    assert_eq!(refused(foreign(LEN, LEN, size)), SegmentError::StillWritable);
    assert_eq!(refused(foreign(LEN, LEN, size | SealFlags::FUTURE_WRITE)), SegmentError::StillWritable);
    for (seals, can) in [(SealFlags::GROW, "shrunk"), (SealFlags::SHRINK, "grown")] {
        assert_eq!(refused(foreign(LEN, LEN, seals | writers)), SegmentError::Unsealed { can });
    }
    assert_eq!(refused(foreign(LEN, 4096, size | writers)), SegmentError::Sparse { found: 4096, expected: LEN });
    // It has the right number of pages, but not at the right places.
    let beyond = fs::memfd_create("beyond", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    fs::ftruncate(&beyond, LEN).unwrap();
    fs::fallocate(&beyond, FallocateFlags::KEEP_SIZE, LEN, 2 * LEN).unwrap();
    fs::fcntl_add_seals(&beyond, size | writers).unwrap();
    assert_eq!(refused(beyond), SegmentError::Sparse { found: 0, expected: LEN });
    let longer = refused(foreign(2 * LEN, 2 * LEN, size | writers));
    assert_eq!(longer, SegmentError::WrongSize { found: 2 * LEN, expected: LEN });
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(refused(file.into()), SegmentError::NotMemfd { .. }));
}

#[test]
fn a_word_is_shared() {
    let own = segment();
    let again = Segment::adopt(own.fd().try_clone_to_owned().unwrap(), Access::ReadWrite, LEN).unwrap();
    own.mapping().word_at(128).unwrap().store(5, Ordering::Relaxed);
    assert_eq!(again.mapping().word_at(128).unwrap().load(Ordering::Relaxed), 5);
    for bad in [2, LEN, LEN - 2, u64::MAX - 3] {
        assert!(matches!(own.mapping().word_at(bad), Err(MapError::OutOfBounds { .. })), "{bad}");
    }
    let read_only = Segment::adopt(own.fd().as_fd().try_clone_to_owned().unwrap(), Access::ReadOnly, LEN).unwrap();
    assert!(matches!(read_only.mapping().word_at(128), Err(MapError::ReadOnly { .. })));
}
