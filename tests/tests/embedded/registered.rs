//! Memory that a program has allocated by itself, registered with a sidecar inside of its process.

use super::node_of;
use rustix::process::{Pid, WaitOptions, waitpid};
use std::time::Duration;
use transfer_client::{BlockingClient, Client, DType, Error, FabricKind, FailureCode, Landing, TensorMut};
use transfer_tests::{Carrier, Scene, sidecar_of_this_process};

const LEN: usize = 1 << 18;
const BYTES: u64 = LEN as u64 * 4;

fn numbers(first: u32) -> Vec<u32> {
    (first..first + LEN as u32).collect()
}

fn connect(socket: std::path::PathBuf, name: &str) -> BlockingClient {
    BlockingClient::connect(socket).name(name).arena_bytes(8 << 20).call().expect("a session")
}

/// One test for all of it, because a process has one such sidecar.
// Promise: registered-memory
#[test]
fn memory_of_the_program_is_sent_and_landed_in_without_a_copy() {
    let _turn = sidecar_of_this_process();
    for carrier in [Carrier::Tcp, Carrier::Shm] {
        let scene = Scene::over(carrier, &[&["--pool-bytes", "16MiB", "--listen", "127.0.0.1:0"]]);
        let config = node_of(&scene, carrier).set("pinned_limit", "96MiB");
        let inside = BlockingClient::embedded_with(config.clone()).name("inside").arena_bytes(1 << 20);
        let inside = inside.call().expect("a session");
        let near =
            BlockingClient::embedded_with(config.clone()).name("near").arena_bytes(1 << 20).call().expect("another");
        let far = connect(scene.a().socket(), "far");
        inside.take_answers();
        let free = inside.arena_free_bytes();

        // It is the vector's memory, takes no room in the arena, and is sent from there.
        let values = numbers(3);
        let at = values.as_ptr();
        let tensor = inside.register(values, DType::U32, [LEN as u64]).expect("it is registered");
        assert!(tensor.is_registered() && std::ptr::eq(tensor.as_bytes().as_ptr(), at.cast()));
        let pushed = inside.push_tensor("w", tensor).call().expect("a push");
        assert_eq!((pushed.report.copied, inside.arena_free_bytes()), (0, free));
        for is_first in [true, false] {
            let fetched = far.fetch("w").call().expect("a fetch");
            assert!(fetched.as_slice::<u32>().expect("u32").iter().copied().eq(3..3 + LEN as u32));
            // Over shared memory it is copied into the pool first, once.
            let before = if carrier == Carrier::Tcp || !is_first { 0 } else { BYTES };
            let copied = fetched.report().copied;
            assert!(carrier.copies(BYTES).contains(&(copied - before)), "{carrier:?}: {}", fetched.report());
            // The workers of this sidecar, also its own, share one copy, with the peers over shared memory.
            for (client, shares) in [(&near, !is_first || carrier == Carrier::Shm), (&inside, true)] {
                let copied = if shares { 0 } else { BYTES };
                let fetched = client.fetch("w").call().expect("a fetch");
                assert!(fetched.as_slice::<u32>().expect("u32").iter().copied().eq(3..3 + LEN as u32));
                assert_eq!((fetched.report().fabric, fetched.report().copied), (FabricKind::Local, copied));
            }
        }
        // Nobody but its owner changes it: it comes back when no reader has it, and it is the same memory.
        let mut tensor = inside.take_back("w").call().expect("it is taken back");
        assert!(tensor.is_registered() && std::ptr::eq(tensor.as_bytes().as_ptr(), at.cast()));
        tensor.as_mut_slice::<u32>().expect("u32").fill(5);

        // As one tensor of a bundle, beside one of the arena.
        let frozen = tensor.freeze();
        let mut small = inside.allocate(DType::U8, [3]).expect("room");
        small.as_mut_bytes().copy_from_slice(b"abc");
        let small = small.freeze();
        let pushed = inside.push_bundle("b", [("w", &frozen), ("s", &small)]).call().expect("a push");
        assert_eq!(pushed.report.copied, 0, "{}", pushed.report);
        for client in [&far, &near] {
            let bundle = client.fetch_bundle("b").call().expect("a fetch");
            assert!(bundle.get("w").expect("w").as_slice::<u32>().expect("u32").iter().all(|n| *n == 5));
            assert_eq!(bundle.get("s").expect("s").as_bytes(), b"abc");
        }
        inside.take_back_bundle("b").call().expect_err("it was pushed frozen");
        inside.delete("b").call().expect("it is deleted");
        inside.take_answers();
        drop(small);
        let tensor = frozen.try_into_mut().expect("nobody else has it");

        // What comes from another node lands in it.
        let mut there = far.allocate(DType::U32, [LEN as u64]).expect("room");
        there.as_mut_slice::<u32>().expect("u32").copy_from_slice(&numbers(9));
        far.push_tensor("from-far", there).call().expect("a push");
        let fetched = inside.fetch("from-far").into(tensor).call().expect("it lands");
        assert_eq!(fetched.landing(), Landing::InPlace);
        let tensor = fetched.into_tensor();
        assert!(std::ptr::eq(tensor.as_bytes().as_ptr(), at.cast()));

        // What fails leaves it to its owner, who gets the vector back, with what has landed.
        let failed = inside.fetch("nowhere").timeout(Duration::from_millis(100)).into(tensor).call();
        let (error, tensor) = failed.expect_err("nobody pushes it").into_parts();
        assert!(matches!(error.failure_code(), Some(FailureCode::Deadline | FailureCode::UnknownKey)), "{error}");
        let values: Vec<u32> = inside.unregister(tensor.expect("it is the caller's")).expect("it is released");
        assert!(std::ptr::eq(values.as_ptr(), at) && values == numbers(9));

        refused(&inside, &far, values);
        if carrier == Carrier::Tcp {
            kept(&inside);
        }
        async_client(&config, &far);

        drop((inside, near));
        drop(far);
        scene.end();
    }
}

/// What cannot be registered is given back, with the reason.
fn refused(inside: &BlockingClient, far: &BlockingClient, values: Vec<u32>) {
    let (error, values) =
        far.register(values, DType::U32, [LEN as u64]).map(drop).expect_err("not inside").into_parts();
    assert!(error.to_string().contains("the sidecar is another process"), "{error}");
    let (error, values) =
        inside.register(values.expect("it is given back"), DType::U32, [7]).map(drop).expect_err("7").into_parts();
    assert!(matches!(error, Error::WrongLength { expected_bytes: 28, found_bytes: BYTES, .. }), "{error}");
    let (error, none) = inside.register(Vec::<u8>::new(), DType::U8, [0]).map(drop).expect_err("no byte").into_parts();
    assert!(error.to_string().contains("a segment has 1 to") && none.is_some(), "{error}");
    let large = vec![0_u8; 96 << 20];
    let (error, large) = inside.register(large, DType::U8, [96 << 20]).map(drop).expect_err("too much").into_parts();
    assert!(error.to_string().contains("of pinned memory are wanted") && large.is_some(), "{error}");
    // Memory counts as pinned only while it is registered: 200 registrations, one after the other, fit the limit.
    let mut values = values.expect("it is given back");
    for _ in 0..200 {
        let tensor = inside.register(values, DType::U32, [LEN as u64]).expect("it is registered");
        values = inside.unregister(tensor).expect("it is released");
    }
    let tensor = inside.register(values, DType::U32, [LEN as u64]).expect("it is registered");
    let (error, tensor) = inside.unregister::<Vec<u8>>(tensor).expect_err("another type").into_parts();
    assert!(matches!(error, Error::OtherMemory { .. }), "{error}");
    // A dropped tensor releases its memory, once nothing is published there.
    inside.push_tensor("last", tensor.expect("it is the caller's")).call().expect("a push");
    inside.delete("last").call().expect("it is deleted");
    let tensor = inside.allocate(DType::U8, [8]).expect("room");
    let (error, _) = inside.unregister::<Vec<u8>>(tensor).expect_err("of the arena").into_parts();
    assert!(matches!(error, Error::OtherMemory { .. }), "{error}");
}

/// A forked child cannot end a registration, and neither can anyone while something of the process has the memory.
fn kept(inside: &BlockingClient) {
    let tensor = inside.register(numbers(1), DType::U32, [LEN as u64]).expect("it is registered");
    let mapping = tensor.mapping().clone();
    let tensor = match fork::fork().expect("a child can be made") {
        fork::Fork::Child => {
            let refused = inside.unregister::<Vec<u32>>(tensor).expect_err("it is the parent's").into_parts();
            let is_right = matches!(&refused, (Error::Forked, Some(tensor)) if tensor.is_registered());
            std::mem::forget(refused);
            std::process::exit(if is_right { 0 } else { 1 });
        }
        fork::Fork::Parent(child) => {
            let child = Pid::from_raw(child);
            let (_, status) = waitpid(child, WaitOptions::empty()).expect("a child").expect("it ends");
            assert_eq!(status.exit_status(), Some(0), "the child is refused, and has the tensor again");
            tensor
        }
    };
    let (error, none) = inside.unregister::<Vec<u32>>(tensor).expect_err("it is held").into_parts();
    assert!(matches!(error, Error::NoAnswer { waited } if waited == Duration::from_secs(30)), "{error}");
    assert!(none.is_none() && mapping.len() == BYTES);
    // It is free with its last holder.
    drop(mapping);
    let tensor = inside.register(numbers(1), DType::U32, [LEN as u64]).expect("it is registered");
    let mapping = tensor.mapping().clone();
    let values: Vec<u32> = std::thread::scope(|threads| {
        let waits = threads.spawn(|| inside.unregister(tensor).expect("it is released"));
        drop(mapping);
        waits.join().expect("no panic")
    });
    assert_eq!(values, numbers(1));
}

fn async_client(config: &transfer_client::NodeConfig, far: &BlockingClient) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let inside = Client::embedded_with(config.clone()).name("async").arena_bytes(1 << 20).await.expect("a session");
        let tensor: TensorMut =
            inside.register(vec![1.5_f32; LEN], DType::F32, [LEN as u64]).expect("it is registered");
        inside.push_tensor("async", tensor).await.expect("a push");
        let fetched = far.fetch("async").call().expect("a fetch");
        assert!(fetched.as_slice::<f32>().expect("f32").iter().all(|x| *x == 1.5));
        drop(fetched);
        let tensor = inside.take_back("async").await.expect("it is taken back");
        let values: Vec<f32> = inside.unregister(tensor).expect("it is released");
        assert_eq!(values, vec![1.5; LEN]);
        // A session that ends leaves nothing behind.
        let tensor = inside.register(values, DType::F32, [LEN as u64]).expect("it is registered");
        inside.push_tensor("left", tensor).await.expect("a push");
        inside.close().await;
    });
}
