//! Copies by a real GPU. `make test-gpu` runs these tests on a machine that has one.

#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use transfer_core::memory::SegmentId;
use transfer_cuda::registration::{CHUNK_BYTES, NotRegistered, registered_bytes};
use transfer_cuda::{
    Copying, CudaError, DeviceMemory, Gpu, HostMemory, Stream, copy_from_device, copy_from_host, copy_to_device,
    copy_to_host, devices, driver_version,
};
use transfer_memory::arena::Arena;
use transfer_memory::segment::{Lock, Mapping, Pages, PinnedBudget, Segment, SegmentOptions};
use transfer_memory::view::Bytes;

const MIB: u64 = 1 << 20;

fn segment(len: u64) -> Segment {
    let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
    Segment::create("gpu", &options, &PinnedBudget::new(len)).unwrap()
}

/// The segment as a worker maps it that has fetched something.
fn read_only(segment: &Segment) -> Arc<Mapping> {
    let fd = segment.fd().try_clone_to_owned().unwrap();
    Segment::adopt_to_read(fd, segment.len(), 7).unwrap()
}

/// Bytes without a period, other ones for every seed.
fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..len.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(len as usize).collect()
}

/// A view of a mapping, and a watch on the lease that it keeps.
fn leased(mapping: &Arc<Mapping>, offset: u64, len: u64) -> (Bytes, Weak<()>) {
    let lease = Arc::new(());
    let watch = Arc::downgrade(&lease);
    // SAFETY: the tests write no range while they have a view of it.
    (unsafe { Bytes::of_mapping(mapping, offset, len, lease) }.unwrap(), watch)
}

/// The GPU, with a stream, for one test at a time: the driver lets a thread wait for what others do to the GPU.
fn gpu() -> (Gpu, Stream, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let gpu = Gpu::open(0).expect("a machine with a GPU");
    let stream = Stream::new(&gpu).unwrap();
    (gpu, stream, alone)
}

/// The bytes of a GPU's memory.
fn bytes_of(memory: DeviceMemory, stream: &Stream) -> Vec<u8> {
    let host = HostMemory::pageable(vec![0xee; memory.len_bytes() as usize].into());
    copy_to_host(memory, host, stream).unwrap().wait().unwrap().1.as_bytes().to_vec()
}

/// Puts so much work into the stream that what is put behind it is under way for some 10 ms. Returns what has to be kept
/// meanwhile: to free memory would wait for the work.
#[must_use]
fn keep_busy(gpu: &Gpu, stream: &Stream) -> Vec<Copying<(HostMemory, DeviceMemory)>> {
    let copies: Vec<_> = (0..4)
        .map(|_| {
            let host = HostMemory::pinned(gpu, 256 << 20).unwrap();
            (host, DeviceMemory::allocate(gpu, 256 << 20).unwrap())
        })
        .collect();
    copies.into_iter().map(|(host, memory)| copy_from_host(host, memory, stream).unwrap()).collect()
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < give_up, "it is not so: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn gpus_and_their_driver_are_described() {
    let found = devices().unwrap();
    for (number, gpu) in found.iter().enumerate() {
        assert_eq!(gpu.ordinal as usize, number);
        assert!(!gpu.name.is_empty() && gpu.pci_address.contains(':') && gpu.memory_bytes > 1 << 30, "{gpu:?}");
        assert!(gpu.compute_capability.0 >= 3, "{gpu:?}");
    }
    assert!(driver_version().unwrap().major >= 11);
}

#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn a_gpu_that_is_not_there_is_refused_with_the_right_numbers() {
    let count = u32::try_from(devices().unwrap().len()).unwrap();
    for asked in [count, u32::MAX] {
        assert_eq!(Gpu::open(asked).unwrap_err(), CudaError::NoSuchDevice { asked, count });
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn too_much_memory_is_refused_with_what_is_free() {
    let (gpu, _stream, _alone) = gpu();
    let (_, total) = gpu.memory_bytes().unwrap();
    let error = DeviceMemory::allocate(&gpu, total + MIB).unwrap_err();
    let CudaError::OutOfMemory { device: 0, wanted_bytes, free_bytes, total_bytes } = error else { panic!("{error}") };
    assert_eq!((wanted_bytes, total_bytes), (total + MIB, total));
    assert!(free_bytes > 0 && free_bytes < total);
    // The GPU works on.
    assert_eq!(DeviceMemory::allocate(&gpu, 7).unwrap().len_bytes(), 7);
}

#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn bytes_go_both_ways_at_every_place_of_a_segment() {
    let (gpu, stream, _alone) = gpu();
    let segment = segment(3 * CHUNK_BYTES + 4096);
    let arena = Arena::new(SegmentId(1), segment.mapping().clone()).unwrap();
    let reader = read_only(&segment);
    let registers_read_only = devices().unwrap()[0].read_only_host_registration;
    let mut blocks = Vec::new();
    // The first one reaches across a chunk's end, and so does the fifth, at other places of its pages.
    for (seed, len) in [CHUNK_BYTES + 1, 0, 1, 4096, CHUNK_BYTES + 777, 63].into_iter().enumerate() {
        let expected = pattern(len, seed as u64);
        let mut block = arena.allocate(len).unwrap();
        block.as_bytes_mut().copy_from_slice(&expected);
        let offset = block.slice().offset;
        let (bytes, _) = leased(&reader, offset, len);
        let to = copy_to_device(bytes, DeviceMemory::allocate(&gpu, len).unwrap(), &stream).unwrap();
        let registered = if registers_read_only { len } else { 0 };
        assert_eq!((to.report().bytes, to.report().registered_bytes), (len, registered), "{:?}", to.report());
        let (_, memory) = to.wait().unwrap();
        block.as_bytes_mut().fill(0);
        let from = copy_from_device(memory, block, &stream).unwrap();
        assert_eq!((from.report().registered_bytes, from.report().not_registered.clone()), (len, None));
        let (memory, block) = from.wait().unwrap();
        assert!(block.as_bytes() == expected, "{len} bytes at {offset}");
        assert!(bytes_of(memory, &stream) == expected, "{len} bytes at {offset}");
        blocks.push(block);
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn only_the_touched_chunks_are_registered() {
    let (gpu, stream, _alone) = gpu();
    let segment = segment(10 * CHUNK_BYTES + 4096);
    let mapping = segment.mapping();
    let copy = |offset, len| {
        let to = DeviceMemory::allocate(&gpu, len).unwrap();
        copy_to_device(leased(mapping, offset, len).0, to, &stream).unwrap().wait().unwrap();
        registered_bytes(mapping)
    };
    assert_eq!(registered_bytes(mapping), 0);
    assert_eq!(copy(5 * CHUNK_BYTES - 1, 1), CHUNK_BYTES);
    assert_eq!(copy(4 * CHUNK_BYTES, 4096), CHUNK_BYTES);
    assert_eq!(copy(5 * CHUNK_BYTES - 1, 2), 2 * CHUNK_BYTES);
    // The last chunk is short.
    assert_eq!(copy(10 * CHUNK_BYTES + 1, 9), 2 * CHUNK_BYTES + 4096);
}

// Promise: gpu-copies, seen to fail
#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn a_segment_is_mapped_and_registered_again_and_again() {
    let (gpu, stream, _alone) = gpu();
    let segment = segment(MIB);
    let expected = pattern(MIB, 5);
    segment.mapping().copy_in(0, &expected).unwrap();
    for _ in 0..50 {
        // The kernel mostly maps it at the same address: there the driver would find a registration that was left.
        let mapping = read_only(&segment);
        let to = DeviceMemory::allocate(&gpu, MIB).unwrap();
        let copying = copy_to_device(leased(&mapping, 0, MIB).0, to, &stream).unwrap();
        let refused = copying.report().not_registered.clone();
        assert!(matches!(refused, None | Some(NotRegistered::Unsupported { read_only: true, .. })), "{refused:?}");
        assert!(bytes_of(copying.wait().unwrap().1, &stream) == expected);
    }
}

// Promise: gpu-copies, seen to fail
#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn a_dropped_copy_keeps_its_lease_until_the_gpu_is_done_and_no_longer() {
    let (gpu, stream, _alone) = gpu();
    let segment = segment(MIB);
    let mapping = read_only(&segment);
    let mapped = Arc::downgrade(&mapping);
    let (bytes, lease) = leased(&mapping, 0, MIB);
    drop(mapping);
    let memory = DeviceMemory::allocate(&gpu, MIB).unwrap();
    let busy = keep_busy(&gpu, &stream);
    let copying = copy_to_device(bytes, memory, &stream).unwrap();
    assert_eq!(copying.is_done(), Ok(false), "the stream is busy");
    drop(copying);
    assert!(lease.upgrade().is_some() && mapped.upgrade().is_some());
    drop(busy);
    stream.synchronize().unwrap();
    until("the lease has ended, and the segment is unmapped", || {
        lease.upgrade().is_none() && mapped.upgrade().is_none()
    });
}

// Promise: gpu-copies, seen to fail
#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn a_copy_from_the_gpu_that_is_dropped_frees_its_block_when_it_is_done() {
    let (gpu, stream, _alone) = gpu();
    let segment = segment(MIB);
    let arena = Arena::new(SegmentId(1), segment.mapping().clone()).unwrap();
    let (memory, block) = (DeviceMemory::allocate(&gpu, MIB).unwrap(), arena.allocate(MIB).unwrap());
    let busy = keep_busy(&gpu, &stream);
    let copying = copy_from_device(memory, block, &stream).unwrap();
    assert_eq!(copying.is_done(), Ok(false), "the stream is busy");
    drop(copying);
    assert!(arena.allocate(64).is_err(), "the GPU still writes to the range");
    drop(busy);
    stream.synchronize().unwrap();
    until("the range is free", || arena.allocate(MIB).is_ok());
}

/// Sends a word when it is woken.
struct NotifyOnDrop(Sender<()>);

impl Wake for NotifyOnDrop {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn an_awaited_copy_wakes_its_task_when_it_has_ended() {
    let (gpu, stream, _alone) = gpu();
    let (sender, receiver) = channel();
    let waker = Waker::from(Arc::new(NotifyOnDrop(sender)));
    let host = HostMemory::pageable(pattern(MIB, 9).into());
    let memory = copy_from_host(host, DeviceMemory::allocate(&gpu, MIB).unwrap(), &stream).unwrap().wait().unwrap().1;
    let host = HostMemory::pinned(&gpu, MIB as usize).unwrap();
    let busy = keep_busy(&gpu, &stream);
    let mut copying = std::pin::pin!(copy_to_host(memory, host, &stream).unwrap());
    let mut context = Context::from_waker(&waker);
    assert!(copying.as_mut().poll(&mut context).is_pending(), "the stream is busy");
    drop(busy);
    receiver.recv_timeout(Duration::from_secs(60)).expect("it is woken");
    let Poll::Ready(ended) = copying.as_mut().poll(&mut context) else { panic!("it was woken too early") };
    assert!(ended.unwrap().1.as_bytes() == pattern(MIB, 9));
}

#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn ends_that_do_not_fit_are_refused_and_come_back() {
    let (gpu, stream, _alone) = gpu();
    let segment = segment(MIB);
    let arena = Arena::new(SegmentId(1), segment.mapping().clone()).unwrap();
    let (block, memory) = (arena.allocate(100).unwrap(), DeviceMemory::allocate(&gpu, 99).unwrap());
    let refused = copy_from_device(memory, block, &stream).unwrap_err();
    assert_eq!(refused.error, CudaError::WrongLength { host_bytes: 100, device_bytes: 99 });
    let (memory, block) = refused.owned.unwrap();
    assert_eq!((memory.len_bytes(), block.slice().len), (99, 100));
}

#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn memory_outside_of_segments_is_copied_by_the_driver_and_the_report_says_so() {
    let (gpu, stream, _alone) = gpu();
    let host = HostMemory::pageable(pattern(3 * MIB + 5, 3).into());
    let copying = copy_from_host(host, DeviceMemory::allocate(&gpu, 3 * MIB + 5).unwrap(), &stream).unwrap();
    assert_eq!(copying.report().registered_bytes, 0);
    assert_eq!(copying.report().not_registered, Some(NotRegistered::NoSegment));
    assert!(bytes_of(copying.wait().unwrap().1, &stream) == pattern(3 * MIB + 5, 3));
}
