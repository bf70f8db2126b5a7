//! Landing slots that are negotiated before the first push.

use std::time::Duration;
use transfer_client::{BlockingClient, DType, Error, FailureCode};
use transfer_tests::Scene;

fn connect(socket: std::path::PathBuf, name: &str) -> BlockingClient {
    BlockingClient::connect(socket).name(name).call().expect("the sidecar takes workers")
}

#[test]
fn a_prepared_push_needs_no_request() {
    let scene = Scene::two();
    let sender = connect(scene.a().socket(), "sender");
    let receiver = connect(scene.b().socket(), "receiver");
    for i in 0..20 {
        sender.reserve(format!("grad/{i}"), DType::F32, [250], "receiver").call().expect("there is room");
    }
    // The slots are granted before anything is pushed.
    scene.b().until("two slots for each key", |status| status.counters.as_ref().is_some_and(|c| c.slots == 40));
    for i in 0..20 {
        for version in 1..=5_u64 {
            let values = vec![(i * 10 + version) as f32; 250];
            sender
                .push_slice(format!("grad/{i}"), [250], &values)
                .version(version)
                .to("receiver")
                .call()
                .expect("pushed");
            let fetched = receiver.fetch(format!("grad/{i}")).exactly(version).call().expect("it has landed");
            assert_eq!(fetched.as_slice::<f32>().expect("f32"), values);
        }
    }
    // The key was prepared for a smaller tensor. Its push flow grows like any other.
    let large = vec![7_u8; 4096];
    sender.push_slice("grad/0", [4096], &large).version(9).to("receiver").call().expect("it grows");
    assert_eq!(receiver.fetch("grad/0").exactly(9).call().expect("it has landed").as_bytes(), large);
    drop((sender, receiver));
    scene.end();
}

#[test]
fn refused_prepare_says_why() {
    let scene = Scene::two();
    let sender = connect(scene.a().socket(), "sender");
    let receiver = connect(scene.b().socket(), "receiver");
    let code = |e: Error| (e.failure_code(), e.to_string());
    let (failure, text) = code(sender.reserve("k", DType::U8, [1], "nobody").call().expect_err("nobody is there"));
    assert_eq!(failure, Some(FailureCode::UnknownWorker), "{text}");
    let (failure, text) = code(sender.reserve("k", DType::U8, [1 << 40], "receiver").call().expect_err("too large"));
    assert_eq!(failure, Some(FailureCode::TooLarge), "{text}");
    receiver.push_slice("mine", [1], &[1_u8]).call().expect("pushed");
    let (failure, text) = code(sender.reserve("mine", DType::U8, [1], "receiver").call().expect_err("it has an owner"));
    assert_eq!(failure, Some(FailureCode::KeyOwned), "{text}");
    assert!(text.contains("receiver"), "{text}");
    // A push to a worker of the same sidecar needs no slot, so there is nothing to reserve.
    let other = connect(scene.a().socket(), "other");
    sender.reserve("k", DType::U8, [1], "other").timeout(Duration::from_secs(5)).call().expect("by reference");
    drop((sender, receiver, other));
    scene.end();
}
