//! Bundles that are updated in place: no reader ever sees tensors of two versions, or half an update.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use transfer_client::{BlockingClient, BundleError, BundleMut, BundleTensor, DType, Error, FailureCode, FetchedBundle};
use transfer_tests::order::{Answer, InPlace, Order};
use transfer_tests::{Scene, poll};

/// The number of versions that each test publishes.
const LAST: u64 = 300;

/// The time-out of each call, which is long enough for any reader of a test.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The tensors of a bundle: one without elements, and lengths that need padding.
const LAYOUT: [(&str, [u64; 2]); 4] = [("w", [64, 33]), ("nothing", [0, 7]), ("b", [1, 3]), ("steps", [1, 1])];

fn connect(socket: std::path::PathBuf, name: &str) -> BlockingClient {
    BlockingClient::connect(socket).name(name).arena_bytes(4 << 20).call().expect("the sidecar takes workers")
}

fn bundle(client: &BlockingClient) -> Vec<(&'static str, transfer_client::TensorMut)> {
    LAYOUT.map(|(name, dims)| (name, client.allocate(DType::U64, dims).expect("room"))).into()
}

/// Writes one element after the other, so that a reader that is let in too early sees both versions.
fn write<'a>(tensors: impl IntoIterator<Item = &'a mut transfer_client::TensorMut>, version: u64) {
    for tensor in tensors {
        tensor.as_mut_slice::<u64>().expect("of that type").iter_mut().for_each(|element| *element = version);
    }
}

fn write_all(mut bundle: BundleMut, version: u64) -> BundleMut {
    assert_eq!(bundle.iter().map(|(name, t)| (name, t.shape().to_vec())).collect::<Vec<_>>(), shapes());
    write(bundle.iter_mut().map(|(_, tensor)| tensor), version);
    bundle
}

fn shapes() -> Vec<(&'static str, Vec<u64>)> {
    LAYOUT.map(|(name, dims)| (name, dims.to_vec())).into()
}

/// Publishes versions 1 to `LAST` as fast as possible, and calls `published` after each.
fn update(writer: &BlockingClient, way: InPlace, published: impl Fn(u64)) {
    match way {
        InPlace::TakeBack => {
            let mut tensors = bundle(writer);
            write(tensors.iter_mut().map(|(_, tensor)| tensor), 1);
            writer.push_bundle("policy", tensors).version(1).call().expect("pushed");
            for version in 2..=LAST {
                let taken = writer.take_back_bundle("policy").timeout(CALL_TIMEOUT).call().expect("taken back");
                let pushed = writer.push_bundle("policy", write_all(taken, version)).version(version).call();
                assert_eq!(pushed.expect("pushed").report.copied, 0);
                published(version);
            }
        }
        InPlace::TwoBuffers => {
            let layout = LAYOUT.map(|(name, dims)| (name, DType::U64, dims));
            let mut buffers = writer.two_bundle_buffers("policy", layout).expect("a layout");
            for version in 1..=LAST {
                let next = buffers.turn().timeout(CALL_TIMEOUT).call().expect("its turn");
                let pushed = buffers.push(write_all(next, version), version).call().expect("pushed");
                assert_eq!(pushed.report.copied, 0);
                published(version);
            }
        }
        InPlace::Snapshot => {
            let mut live = bundle(writer);
            let bytes: u64 = live.iter().map(|(_, tensor)| tensor.as_bytes().len() as u64).sum();
            for version in 1..=LAST {
                write(live.iter_mut().map(|(_, tensor)| tensor), version);
                let snapshot = writer.push_bundle_snapshot("policy", live.iter().map(|(name, t)| (name, t)));
                let pushed = snapshot.version(version).timeout(CALL_TIMEOUT).call().expect("pushed");
                assert_eq!(pushed.report.copied, bytes, "the copy is counted");
                published(version);
            }
        }
    }
}

/// Fetches until the last version has come, and checks every element of each version twice. `last` is the newest version
/// seen.
fn watch(reader: &BlockingClient, last: &AtomicU64) {
    let mut version = 0;
    while version < LAST {
        let bundle = reader.fetch_bundle("policy").at_least(version + 1).timeout(CALL_TIMEOUT).call().expect("fetched");
        version = bundle.version();
        for look in ["at once", "again"] {
            assert_eq!(torn(&bundle), None, "version {version} is torn, seen {look}");
        }
        last.store(version, Ordering::SeqCst);
    }
}

/// The first element that does not have the number of the version.
fn torn(bundle: &FetchedBundle) -> Option<(String, u64)> {
    let version = bundle.version();
    bundle.iter().find_map(|(name, tensor)| {
        let elements = tensor.as_slice::<u64>().expect("as pushed");
        elements.iter().find(|element| **element != version).map(|element| (name.to_owned(), *element))
    })
}

/// Two readers at each of the scene's sidecars check all versions that they get, while the writer updates as fast as it
/// can. At the end all memory of the writer's arena is free again.
fn is_never_torn(scene: &Scene, way: InPlace) {
    let writer = connect(scene.nodes[0].socket(), "writer");
    let free = writer.arena_free_bytes();
    let readers: Vec<_> =
        (0..4).map(|n| connect(scene.nodes[n % scene.nodes.len()].socket(), &format!("reader-{n}"))).collect();
    let newest: Vec<_> = readers.iter().map(|_| AtomicU64::new(0)).collect();
    // A reader that sees hardly any version shows nothing. So the writer waits for all of them now and then.
    let all_follow = |version: u64| {
        let follow = || newest.iter().all(|newest| newest.load(Ordering::SeqCst) >= version);
        let waited =
            poll(|| if !version.is_multiple_of(LAST / 10) || follow() { Ok(()) } else { Err(format!("{newest:?}")) });
        assert_eq!(waited, Ok(()), "a reader has not seen version {version}");
    };
    std::thread::scope(|threads| {
        let watch_one = |(reader, newest)| threads.spawn(move || watch(reader, newest));
        let watching: Vec<_> = readers.iter().zip(&newest).map(watch_one).collect();
        update(&writer, way, all_follow);
        for reader in watching {
            reader.join().expect("no version is torn");
        }
    });
    drop(readers);
    writer.delete("policy").call().expect("its own");
    all_is_free(&writer, free);
}

fn all_is_free(writer: &BlockingClient, free: u64) {
    poll(|| {
        // A worker learns with its next call which memory is free again.
        let _ = writer.delete("none").call();
        match writer.arena_free_bytes() {
            now if now == free => Ok(()),
            now => Err(format!("{now} of {free} bytes are free")),
        }
    })
    .expect("all memory comes back");
}

/// Two sidecars of one host that pass bundles by reference.
fn by_reference() -> Scene {
    let listen = ["--listen", "127.0.0.1:0", "--verbs", "off"];
    Scene::exactly(&[&listen, &listen])
}

// Promise: bundle-updates-in-place, seen to fail
#[test]
fn gated_bundle_is_never_torn() {
    let scene = Scene::two();
    is_never_torn(&scene, InPlace::TakeBack);
    scene.end();
}

// Promise: bundle-updates-in-place, seen to fail
#[test]
fn double_buffered_bundle_is_never_torn() {
    let scene = Scene::two();
    is_never_torn(&scene, InPlace::TwoBuffers);
    scene.end();
}

// Promise: bundle-updates-in-place, seen to fail
#[test]
fn snapshot_of_a_bundle_is_never_torn() {
    let scene = Scene::two();
    is_never_torn(&scene, InPlace::Snapshot);
    scene.end();
}

// Promise: bundle-updates-in-place, seen to fail
#[test]
fn gated_bundle_that_is_read_by_reference_is_never_torn() {
    let scene = by_reference();
    is_never_torn(&scene, InPlace::TakeBack);
    scene.end();
}

// Promise: bundle-updates-in-place, seen to fail
#[test]
fn double_buffered_bundle_that_is_read_by_reference_is_never_torn() {
    let scene = by_reference();
    is_never_torn(&scene, InPlace::TwoBuffers);
    scene.end();
}

// Promise: bundle-gates, seen to fail
#[test]
fn gate_of_a_bundle_that_is_read_fails_at_its_deadline_and_the_version_stays() {
    for (scene, far) in [(Scene::one(), 0), (by_reference(), 1)] {
        let writer = connect(scene.nodes[0].socket(), "writer");
        let reader = connect(scene.nodes[far].socket(), "reader");
        let free = writer.arena_free_bytes();
        let mut tensors = bundle(&writer);
        write(tensors.iter_mut().map(|(_, tensor)| tensor), 1);
        writer.push_bundle("policy", tensors).version(1).call().expect("pushed");
        let read = reader.fetch_bundle("policy").call().expect("fetched");
        let e =
            writer.take_back_bundle("policy").timeout(Duration::from_millis(50)).call().expect_err("it is being read");
        assert_eq!(e.failure_code(), Some(FailureCode::Deadline), "{e}");
        assert!(e.to_string().contains("published again"), "{e}");
        let again = reader.fetch_bundle("policy").exactly(1).call().expect("it is published again");
        assert_eq!((torn(&read), torn(&again)), (None, None));
        drop((read, again));
        let taken = writer.take_back_bundle("policy").timeout(CALL_TIMEOUT).call().expect("nothing reads it");
        assert_eq!(taken.get("steps").expect("it is there").as_slice::<u64>().expect("as pushed"), [1]);
        writer.push_bundle("policy", write_all(taken, 2)).version(2).call().expect("pushed");
        assert_eq!(reader.fetch_bundle("policy").at_least(2).call().map(|b| torn(&b)), Ok(None));
        writer.delete("policy").call().expect("its own");
        drop(reader);
        all_is_free(&writer, free);
        drop(writer);
        scene.end();
    }
}

// Promise: bundle-gates, seen to fail
#[test]
fn killed_reader_of_a_bundle_lets_the_gate_pass() {
    let scene = Scene::one();
    let writer = connect(scene.a().socket(), "writer");
    let mut tensors = bundle(&writer);
    write(tensors.iter_mut().map(|(_, tensor)| tensor), 1);
    writer.push_bundle("policy", tensors).call().expect("pushed");
    let mut reader = scene.a().worker("reader");
    reader.order(Order::HoldBundle("policy".into()), |a| matches!(a, Answer::Done).then_some(())).get();
    std::thread::scope(|threads| {
        let take_back = threads.spawn(|| writer.take_back_bundle("policy").timeout(CALL_TIMEOUT).call());
        let waits = |s: &transfer_tests::status::Seen| s.sessions.iter().map(|s| s.operations).sum::<u64>() == 1;
        scene.a().until("the call waits", waits);
        assert!(!take_back.is_finished());
        reader.kill();
        assert_eq!(take_back.join().expect("no panic").expect("taken back").len(), LAYOUT.len());
    });
    drop(writer);
    scene.end();
}

// Promise: bundle-gates, seen to fail
#[test]
fn gate_returns_the_tensors_of_a_bundle_that_were_copied_and_merged() {
    let scene = Scene::one();
    let writer = connect(scene.a().socket(), "writer");
    let free = writer.arena_free_bytes();
    // Neighbours in the arena are one range of the body, and foreign memory is copied.
    let (foreign, short): (&[u8], &[u8]) = (&[7; 640], &[3; 5]);
    let near = |seed: u8| {
        let mut tensor = writer.allocate(DType::U8, [64]).expect("room");
        tensor.as_mut_bytes().fill(seed);
        BundleTensor::from(tensor)
    };
    let from = |bytes: &'static [u8]| BundleTensor::from_slice([bytes.len() as u64], bytes).expect("fits its shape");
    let tensors = [("a", near(1)), ("b", near(2)), ("foreign", from(foreign)), ("short", from(short)), ("c", near(4))];
    let pushed = writer.push_bundle("mixed", tensors).call().expect("pushed");
    assert_eq!(pushed.report.copied, 645);
    let mut taken = writer.take_back_bundle("mixed").call().expect("taken back");
    let contents: Vec<_> = taken.iter().map(|(name, t)| (name.to_owned(), t.as_bytes().to_vec())).collect();
    let of = |name: &str, byte, len| (name.to_owned(), vec![byte; len]);
    let expected = [of("a", 1, 64), of("b", 2, 64), of("foreign", 7, 640), of("short", 3, 5), of("c", 4, 64)];
    assert_eq!(contents, expected);
    taken.get_mut("short").expect("it is there").as_mut_bytes().fill(9);
    assert_eq!(writer.push_bundle("mixed", taken).call().expect("pushed").report.copied, 0);
    let fetched = writer.fetch_bundle("mixed").call().expect("fetched");
    assert_eq!(fetched.get("short").map(|t| t.as_bytes().to_vec()), Some(vec![9; 5]));
    drop(fetched);
    drop(writer.take_back_bundle("mixed").call().expect("taken back"));
    all_is_free(&writer, free);
    drop(writer);
    scene.end();
}

// Promise: bundle-gates, seen to fail
#[test]
fn gate_of_a_bundle_whose_tensor_is_held_names_it_and_the_version_stays() {
    let scene = Scene::one();
    let (writer, reader) = (connect(scene.a().socket(), "writer"), connect(scene.a().socket(), "reader"));
    let free = writer.arena_free_bytes();
    let allocate = || writer.allocate(DType::F32, [8]).expect("room").freeze();
    let (w, held) = (allocate(), allocate());
    writer.push_bundle("policy", [("w", &w), ("held", &held)]).call().expect("pushed");
    drop(w);
    let array = held.to_arrow::<arrow_array::types::Float32Type>().expect("numbers");
    for holder in [Some(held), None] {
        match writer.take_back_bundle("policy").call() {
            Err(Error::Bundle(BundleError::NotAlone { name, .. })) => assert_eq!(name, "held"),
            other => panic!("{other:?}"),
        }
        assert_eq!(reader.fetch_bundle("policy").latest().call().map(|b| b.version()), Ok(1));
        drop(holder);
    }
    drop(array);
    assert_eq!(writer.take_back_bundle("policy").call().map(|taken| taken.len()), Ok(2));

    // A tensor under two names is lent twice.
    let tied = allocate();
    writer.push_bundle("tied", [("first", &tied), ("second", &tied)]).call().expect("pushed");
    let e = writer.take_back_bundle("tied").call().expect_err("it is held");
    assert!(e.to_string().contains("\"first\""), "{e}");
    // After a withdrawal its holder writes it.
    writer.withdraw("tied").call().expect("nothing reads it");
    let e = reader.fetch_bundle("tied").timeout(Duration::from_millis(50)).call().expect_err("it was taken back");
    assert!(e.can_retry(), "{e}");
    drop(tied.try_into_mut().expect("nothing else holds it"));

    writer.push_tensor("tensor", writer.allocate(DType::F32, [8]).expect("room")).call().expect("pushed");
    let e = writer.take_back_bundle("tensor").call().expect_err("no bundle");
    assert!(matches!(e, Error::Bundle(BundleError::NotABundle { .. })), "{e}");
    assert_eq!(reader.fetch("tensor").call().map(|t| t.version()), Ok(1));
    drop(writer.take_back("tensor").call().expect("taken back"));
    let e = writer.take_back_bundle("other").call().expect_err("it was not pushed");
    assert_eq!(e.failure_code(), Some(FailureCode::NotOwner), "{e}");
    all_is_free(&writer, free);
    drop((writer, reader));
    scene.end();
}

// Promise: bundle-gates, seen to fail
#[test]
fn gate_of_a_frozen_tensor_is_refused_and_the_version_stays() {
    let scene = Scene::one();
    let writer = connect(scene.a().socket(), "writer");
    let frozen = writer.allocate(DType::F32, [8]).expect("room").freeze();
    writer.push_frozen("w", &frozen).call().expect("pushed");
    assert!(matches!(writer.take_back("w").call(), Err(Error::NotAlone { .. })));
    assert_eq!(writer.fetch("w").call().map(|t| t.version()), Ok(1));
    drop((frozen, writer));
    scene.end();
}

#[test]
fn bundle_is_gated_and_has_its_turn_on_a_runtime() {
    let scene = Scene::one();
    let socket = scene.a().socket();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = transfer_client::Client::connect(socket).name("writer").await.expect("connected");
        let w = client.allocate(DType::F32, [8]).expect("room");
        client.push_bundle("policy", [("w", w)]).await.expect("pushed");
        let taken = client.take_back_bundle("policy").await.expect("taken back");
        client.push_bundle("policy", taken).await.expect("pushed");
        client.withdraw("policy").version(2).await.expect("nothing reads it");
        let mut buffers = client.two_bundle_buffers("two", [("w", DType::F32, [8])]).expect("a layout");
        for version in 1..=5 {
            let next = buffers.turn().await.expect("its turn");
            assert_eq!(buffers.push(next, version).await.map(|p| p.report.copied).ok(), Some(0));
        }
        assert_eq!(client.fetch_bundle("two").exactly(4).await.map(|b| b.version()), Ok(4));
    });
    drop(runtime);
    scene.end();
}
