use super::*;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use std::sync::atomic::Ordering;

const LEN: u64 = 8 * 4096;

fn segment() -> Segment {
    let options = SegmentOptions { len: LEN, pages: Pages::Base, lock: Lock::No };
    Segment::create("peer test", &options, &PinnedBudget::new(1 << 20)).unwrap()
}

/// A memfd as anybody can make one.
fn foreign(len: u64, filled: u64, seals: SealFlags) -> OwnedFd {
    let fd = fs::memfd_create("foreign", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    fs::ftruncate(&fd, len).unwrap();
    if filled > 0 {
        fs::fallocate(&fd, FallocateFlags::empty(), 0, filled).unwrap();
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
    let theirs = Segment::adopt_from_peer(passed, LEN, 7).unwrap();
    let mut seen = [0; 14];
    theirs.copy_out(5000, &mut seen).unwrap();
    assert_eq!((&seen, theirs.access()), (b"after the seal", Access::ReadOnly));
    assert!(is_marked(own.fd(), 7).unwrap() && !is_marked(own.fd(), 8).unwrap());
    drop(theirs);
    assert!(!is_marked(own.fd(), 7).unwrap());
    own.open_for_peer().unwrap();
}

/// What could kill who maps it, or cost it memory, is not mapped.
#[test]
fn a_trap_is_refused() {
    let size = SealFlags::SHRINK | SealFlags::GROW;
    let writers = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let refused = |fd| Segment::adopt_from_peer(fd, LEN, 1).unwrap_err();
    assert!(Segment::adopt_from_peer(foreign(LEN, LEN, size | writers), LEN, 1).is_ok());
    assert_eq!(refused(foreign(LEN, LEN, size)), SegmentError::StillWritable);
    assert_eq!(refused(foreign(LEN, LEN, size | SealFlags::FUTURE_WRITE)), SegmentError::StillWritable);
    for (seals, can) in [(SealFlags::GROW, "shrunk"), (SealFlags::SHRINK, "grown")] {
        assert_eq!(refused(foreign(LEN, LEN, seals | writers)), SegmentError::Unsealed { can });
    }
    assert_eq!(refused(foreign(LEN, 4096, size | writers)), SegmentError::Sparse { found: 4096, expected: LEN });
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
