use super::*;
use crate::Errno;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{self, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{self, MapFlags, ProtFlags};

fn options(len: u64) -> SegmentOptions {
    SegmentOptions { len, pages: Pages::Base, lock: Lock::Try }
}

fn segment(len: u64) -> Segment {
    Segment::create("test", &options(len), &PinnedBudget::new(u64::MAX)).unwrap()
}

fn duplicate(segment: &Segment) -> OwnedFd {
    segment.fd().try_clone_to_owned().unwrap()
}

fn reopened_for_writing(segment: &Segment) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", segment.fd().as_raw_fd());
    fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn map_for_writing(fd: &OwnedFd, len: usize) -> rustix::io::Result<()> {
    // SAFETY: a new mapping at an address of the kernel's choosing, unmapped at once.
    unsafe {
        let p = mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?;
        mm::munmap(p, len)
    }
}

// Promise: immutable-versions, seen to fail
#[test]
fn a_sealed_segment_has_no_further_writers_and_keeps_its_size() {
    let s = segment(8192);
    let again = reopened_for_writing(&s);
    map_for_writing(&again, 8192).unwrap();
    let early = Segment::adopt(duplicate(&s), Access::ReadWrite, 8192).unwrap();
    assert!(!s.writers_sealed().unwrap());
    s.seal_writers().unwrap();
    s.seal_writers().unwrap();
    assert!(s.writers_sealed().unwrap());

    assert_eq!(map_for_writing(&again, 8192), Err(Errno::PERM));
    assert_eq!(map_for_writing(&reopened_for_writing(&s), 8192), Err(Errno::PERM));
    assert_eq!(rustix::io::pwrite(&again, b"x", 0), Err(Errno::PERM));
    assert_eq!(fs::ftruncate(&again, 4096), Err(Errno::PERM));
    assert_eq!(fs::ftruncate(&again, 16384), Err(Errno::PERM));
    let punch = fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE;
    assert_eq!(fs::fallocate(&again, punch, 0, 4096), Err(Errno::PERM));
    assert!(Segment::adopt(duplicate(&s), Access::ReadWrite, 8192).is_err());

    // Writers from before the seal still write, readers from after it still read.
    early.mapping().copy_in(100, b"early").unwrap();
    let reader = Segment::adopt(duplicate(&s), Access::ReadOnly, 8192).unwrap();
    let mut read = [0; 5];
    reader.mapping().copy_out(100, &mut read).unwrap();
    assert_eq!(&read, b"early");
    assert_eq!(reader.mapping().copy_in(0, b"x"), Err(MapError::ReadOnly { offset: 0, len: 1 }));
}

#[test]
fn adopt_refuses_what_could_change_its_size() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let make = |seals| {
        let fd = fs::memfd_create("test", flags).unwrap();
        fs::ftruncate(&fd, 4096).unwrap();
        fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let adopt = |fd, len| Segment::adopt(fd, Access::ReadOnly, len).map(|s| s.len());
    assert_eq!(adopt(make(SealFlags::GROW), 4096), Err(SegmentError::Unsealed { can: "shrunk" }));
    assert_eq!(adopt(make(SealFlags::SHRINK), 4096), Err(SegmentError::Unsealed { can: "grown" }));
    assert_eq!(adopt(make(SealFlags::empty()), 4096), Err(SegmentError::Unsealed { can: "shrunk and grown" }));
    let good = SealFlags::GROW | SealFlags::SHRINK;
    assert_eq!(adopt(make(good), 8192), Err(SegmentError::WrongSize { found: 4096, expected: 8192 }));
    assert_eq!(adopt(make(good), 4096), Ok(4096));
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert_eq!(adopt(pipe, 4096), Err(SegmentError::NotMemfd { source: Errno::INVAL }));
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    fs::ftruncate(&file, 4096).unwrap();
    // A file on tmpfs knows seals, and has none of these; a file on a disk does not know them.
    assert!(matches!(adopt(file, 4096), Err(SegmentError::NotMemfd { .. } | SegmentError::Unsealed { .. })));
}

#[test]
fn the_budget_counts_whole_pages_until_the_last_reference_is_gone() {
    let budget = PinnedBudget::new(10_000);
    let s = Segment::create("test", &options(5000), &budget).unwrap();
    assert_eq!((s.len(), budget.used()), (8192, 8192));
    let e = Segment::create("test", &options(5000), &budget).unwrap_err();
    assert_eq!(e, SegmentError::Budget(BudgetExceeded { wanted: 8192, free: 1808, limit: 10_000, group_limit: None }));
    let mapping = s.mapping().clone();
    drop(s);
    assert_eq!(budget.used(), 8192);
    drop(mapping);
    assert_eq!(budget.used(), 0);
}

#[test]
fn achieved_options_are_reported() {
    let budget = PinnedBudget::new(64 << 20);
    let wanted = SegmentOptions { len: 1 << 20, pages: Pages::Huge, lock: Lock::Try };
    let s = Segment::create("test", &wanted, &budget).unwrap();
    let a = s.achieved();
    assert_eq!(a.locked, a.lock_refused.is_none());
    match a.pages {
        PageKind::Huge { page_bytes } => assert_eq!((s.len() % page_bytes, a.huge_refused), (0, None)),
        PageKind::Base => assert!(a.huge_refused.is_some()),
    }
    assert_eq!(budget.used(), s.len());
    let adopted = Segment::adopt(duplicate(&s), Access::ReadOnly, s.len()).unwrap();
    assert_eq!((adopted.achieved().pages, adopted.achieved().locked), (a.pages, false));
    assert!(!segment_with_lock(Lock::No).achieved().locked);
}

fn segment_with_lock(lock: Lock) -> Segment {
    Segment::create("test\0name", &SegmentOptions { lock, ..options(1) }, &PinnedBudget::new(4096)).unwrap()
}

#[test]
fn impossible_lengths_are_refused() {
    let budget = PinnedBudget::new(u64::MAX);
    for len in [0, u64::MAX, i64::MAX as u64] {
        let e = Segment::create("test", &options(len), &budget).unwrap_err();
        assert!(matches!(e, SegmentError::BadLength { .. }), "{len}: {e}");
        assert_eq!(budget.used(), 0);
    }
}

#[test]
fn accesses_are_bounded() {
    let s = segment(4096);
    let m = s.mapping();
    assert_eq!(m.ptr_at(4096, 0).unwrap(), m.ptr_at(0, 0).unwrap().wrapping_add(4096));
    for (offset, len) in [(4096, 1), (0, 4097), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX), (4097, 0)] {
        let e = MapError::OutOfBounds { offset, len, mapping_len: 4096 };
        assert_eq!(m.ptr_at(offset, len), Err(e));
        assert_eq!(m.zero(offset, len), Err(e));
        assert!(m.copy_from(offset, m, 0, len).is_err());
        assert_eq!(m.copy_from(0, m, offset, len), Err(e));
    }
    assert!(m.copy_out(4095, &mut [0; 2]).is_err());
    assert!(m.copy_in(4095, &[0; 2]).is_err());
}

#[test]
fn copies_arrive_also_where_they_overlap() {
    let s = segment(4096);
    let m = s.mapping();
    m.copy_in(0, b"abcdef").unwrap();
    m.copy_from(2, m, 0, 6).unwrap();
    m.zero(0, 1).unwrap();
    let mut all = [0; 9];
    m.copy_out(0, &mut all).unwrap();
    assert_eq!(&all, b"\0babcdef\0");
    // SAFETY: no one writes the segment while the slice lives.
    assert_eq!(unsafe { m.as_bytes(1, 3) }.unwrap(), b"bab");
    assert_eq!(m.offset_of(m.ptr_at(7, 0).unwrap()), Some(7));
    assert_eq!(m.offset_of(m.ptr_at(4096, 0).unwrap()), None);
    assert_eq!(m.offset_of(std::ptr::null()), None);
}

#[test]
fn parallel_copies_equal_serial_ones() {
    let len = (9 << 20) + 4097;
    let bytes: Vec<u8> = (0..len).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let s = segment(len.into());
    for threads in [0, 1, 2, 3, 64] {
        s.mapping().zero(0, len.into()).unwrap();
        s.mapping().copy_in_parallel(0, &bytes, threads).unwrap();
        let mut back = vec![0; bytes.len()];
        s.mapping().copy_out(0, &mut back).unwrap();
        assert!(back == bytes, "{threads} threads");
        back.fill(0);
        copy_in_parallel(&mut back, &bytes, threads);
        assert!(back == bytes, "{threads} threads");
    }
    assert!(s.mapping().copy_in_parallel(4096, &bytes, 2).is_err());
    s.seal_writers().unwrap();
    let reader = Segment::adopt(s.fd().as_fd().try_clone_to_owned().unwrap(), Access::ReadOnly, s.len()).unwrap();
    assert!(matches!(reader.mapping().copy_in_parallel(0, &bytes, 2), Err(MapError::ReadOnly { .. })));
}

/// Wherever the two ranges begin and end, every byte arrives, and no other byte changes.
#[test]
fn streamed_copies_equal_others() {
    let (from, to) = (segment(1 << 16), segment(1 << 16));
    let bytes: Vec<u8> = (0..1_u32 << 16).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 | 1).collect();
    from.mapping().copy_in(0, &bytes).unwrap();
    for (offset, start, len) in
        [(0, 0, 1 << 16), (1, 0, 1000), (63, 7, 1), (64, 100, 64), (65, 3, 63), (5, 64, 0), (4095, 17, 40_001)]
    {
        let (at, end) = (offset as usize, (offset + len) as usize);
        let expected = &bytes[start as usize..(start + len) as usize];
        for is_mapped in [true, false] {
            to.mapping().zero(0, 1 << 16).unwrap();
            match is_mapped {
                true => to.mapping().stream_from(offset, from.mapping(), start, len).unwrap(),
                false => to.mapping().stream_in(offset, expected).unwrap(),
            }
            let mut seen = vec![0; 1 << 16];
            to.mapping().copy_out(0, &mut seen).unwrap();
            assert!(&seen[at..end] == expected, "{offset} {start} {len}");
            assert!(seen[..at].iter().chain(&seen[end..]).all(|byte| *byte == 0), "{offset} {start} {len}");
        }
    }
    assert!(to.mapping().stream_in(1, &bytes).is_err());
    assert!(to.mapping().stream_from(1, from.mapping(), 0, 1 << 16).is_err());
    assert!(to.mapping().stream_from(0, from.mapping(), 1, 1 << 16).is_err());
}

/// Pages of a sparse segment come when they are written: not when it is sealed or locked, and not when somebody maps it.
#[test]
fn sparse_segment_takes_the_pages_that_are_written() {
    [Lock::No, Lock::Try].into_iter().for_each(takes_the_pages_that_are_written);
}

fn takes_the_pages_that_are_written(lock: Lock) {
    let segment = Segment::create_sparse("sparse", 64 << 10, lock, &PinnedBudget::new(1 << 20)).unwrap();
    assert_eq!(segment.achieved().locked, lock == Lock::Try && segment.achieved().lock_refused.is_none());
    let pages = || fs::fstat(segment.fd()).unwrap().st_blocks * 512 / 4096;
    let writer = Segment::adopt(duplicate(&segment), Access::ReadWrite, segment.len()).unwrap();
    segment.seal_writers().unwrap();
    let _reader = Segment::adopt(duplicate(&segment), Access::ReadOnly, segment.len()).unwrap();
    assert_eq!(pages(), 0);
    writer.mapping().copy_in(5 << 12, &[7]).unwrap();
    assert_eq!(pages(), 1);
}

/// Notes at its end whether the page that it is about is still mapped.
#[derive(Default)]
struct Watching(std::sync::OnceLock<((usize, u64), std::sync::mpsc::Sender<bool>)>);

impl Drop for Watching {
    fn drop(&mut self) {
        let (place, sender) = self.0.get().unwrap();
        sender.send(is_mapped(*place)).unwrap();
    }
}

/// Whether a file of this inode is mapped at the address. Other tests may map others there.
fn is_mapped((address, inode): (usize, u64)) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let is_file = line.split_whitespace().nth(4).unwrap() == inode.to_string();
        is_file && (number(from)..number(to)).contains(&address)
    })
}

// Promise: gpu-copies, seen to fail
#[test]
fn a_companion_ends_before_its_memory_is_unmapped() {
    let segment = segment(8192);
    let mapping = Segment::adopt_to_read(duplicate(&segment), 8192, 7).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let place = (mapping.ptr_at(0, 1).unwrap().addr(), rustix::fs::fstat(segment.fd()).unwrap().st_ino);
    mapping.companion::<Watching>().unwrap().0.set((place, sender)).unwrap();
    assert_eq!(mapping.companion::<Watching>().unwrap().0.get().unwrap().0, place);
    assert!(mapping.companion::<String>().is_none());
    assert!(segment.mapping().companion::<String>().is_some_and(String::is_empty));
    assert!(receiver.try_recv().is_err());
    drop(mapping);
    assert_eq!(receiver.try_recv(), Ok(true));
    assert!(!is_mapped(place));
}
