//! Tensors to a real GPU and back. `make test-gpu` runs those tests on a machine that has one. The others run where there
//! is none.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used, reason = "test")]

use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use transfer_client::gpu::{CudaError, DeviceMemory, Gpu, Stream, available};
use transfer_client::{BlockingClient, Client, DType, Error, Fault, Until};

/// The GPU, for one test at a time: the driver lets a thread wait for what others do to the GPU.
fn stream() -> (Stream, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (Stream::new(&Gpu::open(0).expect("a machine with a GPU")).unwrap(), alone)
}

fn client(name: &str) -> BlockingClient {
    BlockingClient::embedded().name(name).arena_bytes(256 << 20).call().unwrap()
}

#[test]
fn without_a_driver_the_error_names_the_library_and_what_would_be_right() {
    let Err(missing) = available() else {
        // A machine with a GPU: the other tests say what happens there.
        assert!(Gpu::open(0).is_ok());
        return;
    };
    assert!(missing.is_missing(), "{missing:?}");
    let error = Error::from(Gpu::open(0).unwrap_err());
    assert_eq!(error, Error::Gpu(missing.clone()));
    assert_eq!((error.fault(), error.can_retry()), (Fault::Operator, false));
    if let CudaError::NoDriver { library, .. } = missing {
        assert_eq!(library, "libcuda.so.1");
        let text = error.to_string();
        assert!(text.contains("libcuda.so.1") && text.contains("NVIDIA driver") && text.contains("ldconfig"), "{text}");
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn a_fetched_tensor_goes_to_the_gpu_and_back_into_the_arena() {
    let (giver, taker) = (client("giver"), client("taker"));
    let (stream, _alone) = stream();
    // Across the borders of registered chunks, and shorter than a page.
    for len in [0u64, 1, 1000, 40 << 20] {
        let mut tensor = giver.allocate(DType::U8, [len]).unwrap();
        let numbers = tensor.as_mut_slice::<u8>().unwrap();
        numbers.iter_mut().enumerate().for_each(|(i, n)| *n = (i * 31 / 7) as u8);
        let expected = numbers.to_vec();
        giver.push_tensor("w", tensor).call().unwrap();
        let fetched = taker.fetch("w").call().unwrap();
        let to = fetched.copy_to_device(&stream).unwrap();
        assert_eq!((to.report().bytes, to.report().registered_bytes), (len, len), "{:?}", to.report());
        let memory = to.wait().unwrap();
        let back = taker.allocate(DType::U8, [len]).unwrap().copy_from_device(memory, &stream).unwrap();
        assert_eq!((back.report().bytes, back.report().registered_bytes), (len, len), "{:?}", back.report());
        let (back, _) = back.wait().unwrap();
        taker.push_tensor("back", back).call().unwrap();
        assert!(giver.fetch("back").call().unwrap().as_slice::<u8>().unwrap() == expected);
    }
}

#[tokio::test]
#[ignore = "needs a GPU: make test-gpu runs it"]
async fn copies_are_awaited() -> Result<(), Error> {
    let client = Client::embedded().name("awaiting").arena_bytes(64 << 20).await?;
    let stream = Stream::new(&Gpu::open(0)?)?;
    let mut tensor = client.allocate(DType::F32, [1 << 20])?;
    tensor.as_mut_slice::<f32>()?.fill(0.5);
    client.push_tensor("f", tensor).await?;
    let memory = client.fetch("f").await?.copy_to_device(&stream)?.await?;
    let (back, memory) = client.allocate(DType::F32, [1 << 20])?.copy_from_device(memory, &stream)?.await?;
    assert_eq!(memory.len_bytes(), 4 << 20);
    assert!(back.as_slice::<f32>()?.iter().all(|&f| f == 0.5));
    Ok(())
}

#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn a_tensor_that_does_not_fit_comes_back_with_the_memory() {
    let client = client("refused");
    let (stream, _alone) = stream();
    client.push_slice("s", [8], &[7u8; 8]).call().unwrap();
    let memory = client.fetch("s").call().unwrap().copy_to_device(&stream).unwrap().wait().unwrap();
    let tensor = client.allocate(DType::U8, [9]).unwrap();
    let (error, owned) = tensor.copy_from_device(memory, &stream).unwrap_err().into_parts();
    assert_eq!(error, Error::Gpu(CudaError::WrongLength { host_bytes: 9, device_bytes: 8 }));
    let (tensor, memory) = owned.unwrap();
    assert_eq!((tensor.as_bytes().len(), memory.len_bytes()), (9, 8));
}

// Promise: gpu-copies
#[test]
#[ignore = "needs a GPU: make test-gpu runs it"]
fn a_version_stays_leased_until_its_copy_has_ended() {
    let client = client("leasing");
    let (stream, _alone) = stream();
    let tensor = client.allocate(DType::U8, [64 << 20]).unwrap();
    let taken = client.arena_free_bytes();
    client.push_tensor("once", tensor).keep(Until::Fetched(NonZeroU32::MIN)).call().unwrap();
    let fetched = client.fetch("once").call().unwrap();
    // The first copy registers the memory. The others keep the GPU busy for some 20 ms, and their leases are all that keeps
    // the version.
    let memory = fetched.copy_to_device(&stream).unwrap().wait().unwrap();
    let mut memories: Vec<_> =
        (0..16).map(|_| DeviceMemory::allocate(stream.gpu(), memory.len_bytes()).unwrap()).collect();
    memories.push(memory);
    let copies: Vec<_> =
        memories.into_iter().map(|memory| fetched.copy_into_device(memory, &stream).unwrap()).collect();
    drop(fetched);
    client.take_answers();
    let found = client.arena_free_bytes();
    assert_eq!(copies.last().unwrap().is_done(), Ok(false), "the GPU is busy");
    assert_eq!(found, taken, "the range is free while the GPU reads it");
    drop(copies);
    let until = Instant::now() + Duration::from_secs(60);
    while client.arena_free_bytes() < taken + (64 << 20) {
        assert!(Instant::now() < until, "the range is not free: {}", client.arena_free_bytes());
        std::thread::sleep(Duration::from_millis(1));
        client.take_answers();
    }
}
