//! Fetches into the memory of the reader: where the bytes land, how often they are copied, and when the memory is the reader's
//! again.

use std::time::Duration;
use transfer_client::{
    BlockingClient, Client, DType, Error, FailureCode, FetchedInto, Landing, NodeConfig, TensorMut, s,
};
use transfer_tests::{Carrier, Scene, poll, sidecar_of_this_process};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const WIDTH: u64 = 1024;

pub(crate) fn connect(socket: std::path::PathBuf, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(socket).name(name).arena_bytes(64 << 20);
    connect.call().expect("the sidecar takes workers")
}

/// Returns a tensor in the arena whose elements are their numbers plus `first`.
pub(crate) fn numbers(client: &BlockingClient, rows: u64, first: u32) -> TensorMut {
    let mut tensor = client.allocate(DType::U32, [rows, WIDTH]).expect("room");
    (first..).zip(tensor.as_mut_slice::<u32>().expect("u32")).for_each(|(n, element)| *element = n);
    tensor
}

pub(crate) fn empty(client: &BlockingClient, rows: u64) -> TensorMut {
    let mut tensor = client.allocate(DType::U32, [rows, WIDTH]).expect("room");
    tensor.as_mut_bytes().fill(0xee);
    tensor
}

pub(crate) fn has(tensor: &TensorMut, first: u32) -> bool {
    tensor.as_slice::<u32>().expect("u32").iter().copied().eq(first..first + tensor.meta().len_bytes() as u32 / 4)
}

/// How a version lands that comes from another node. With one key for all of a segment nothing lands in place.
pub(crate) fn from_afar() -> Landing {
    if Carrier::chosen() == Carrier::VerbsPool { Landing::NotOpened } else { Landing::InPlace }
}

/// Checks that nothing was copied beside what the fabric copies, and beside the copy out of the pool if there is one.
fn check_copies(fetched: &FetchedInto) {
    let (report, bytes) = (fetched.report(), fetched.tensor().meta().len_bytes());
    let further = if fetched.landing() == Landing::InPlace { 0 } else { bytes };
    assert_eq!((report.bytes, report.fabric.name()), (bytes, Carrier::chosen().name()));
    assert!(Carrier::chosen().copies(bytes).contains(&(report.copied - further)), "{report}, {}", fetched.landing());
}

// Promise: into-memory
#[test]
fn version_lands_in_the_tensor_of_its_reader() {
    let scene = Scene::two_with(&["--pool-bytes", "4MiB"]);
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    // The second one does not fit the landing pool, and needs no room there.
    let sizes = if from_afar() == Landing::InPlace { &[MIB, 16 * MIB][..] } else { &[MIB] };
    for (version, bytes) in (1..).zip(sizes) {
        let (rows, first) = (bytes / 4 / WIDTH, version as u32 * 7);
        pusher.push_tensor("w", numbers(&pusher, rows, first)).version(version).call().expect("pushed");
        for round in 0..3 {
            let tensor = empty(&far, rows);
            let at = tensor.slice();
            let fetched = far.fetch("w").at_least(version).into(tensor).call().expect("it lands");
            assert_eq!((fetched.version(), fetched.landing()), (version, from_afar()), "round {round}");
            check_copies(&fetched);
            let tensor = fetched.into_tensor();
            assert!(has(&tensor, first) && tensor.slice() == at, "it is the tensor that was given");
        }
        let fetched = near.fetch("w").at_least(version).into(empty(&near, rows)).call().expect("it is copied");
        assert_eq!((fetched.landing(), fetched.report().copied), (Landing::OnThisHost, *bytes));
        assert!(has(fetched.tensor(), first));
    }
    // One that is staged lands in the pool, which has room for the first one.
    let staged = far.fetch("w").into(empty(&far, 256)).staged().call();
    let (error, tensor) = staged.expect_err("another shape, or no room in the pool").into_parts();
    assert!(tensor.is_some_and(|tensor| tensor.as_bytes().iter().all(|byte| *byte == 0xee)), "{error}");
    pusher.push_tensor("small", numbers(&pusher, 256, 3)).call().expect("pushed");
    for (client, landing) in [(&near, Landing::OnThisHost), (&far, Landing::Staged)] {
        let staged = client.fetch("small").into(empty(client, 256)).staged().call().expect("it is copied");
        assert!(has(staged.tensor(), 3) && staged.landing() == landing);
    }
    // Of a slice, nothing else moves.
    let rows = sizes.last().expect("there are some") / 4 / WIDTH;
    let first = sizes.len() as u32 * 7;
    for client in [&near, &far] {
        let before: u64 = scene.b().status().links.iter().map(|link| link.bytes_in).sum();
        let tensor = client.allocate(DType::U32, [rows, 16]).expect("room");
        let fetched = client.fetch("w").slice(s![.., -16..]).into(tensor).call().expect("it lands");
        let expected = (0..rows as u32).flat_map(|row| (0..16).map(move |n| first + row * 1024 + 1008 + n));
        assert!(fetched.tensor().as_slice::<u32>().expect("u32").iter().copied().eq(expected));
        let after: u64 = scene.b().status().links.iter().map(|link| link.bytes_in).sum();
        assert!(after - before <= fetched.tensor().meta().len_bytes());
    }
    // What was landed in is the reader's own, and can be pushed on.
    let tensor = far.fetch("w").into(empty(&far, rows)).call().expect("it lands").into_tensor();
    far.push_tensor("copy", tensor).call().expect("pushed");
    let fetched = near.fetch("copy").into(empty(&near, rows)).call().expect("it lands");
    assert!(has(fetched.tensor(), first) && fetched.landing() == from_afar());
    drop(fetched);
    drop((pusher, near, far));
    scene.end();
}

// Promise: into-memory
#[test]
fn tensor_that_does_not_fit_the_version_stays_as_it_was() {
    let scene = Scene::two();
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    pusher.push_tensor("w", numbers(&pusher, 64, 0)).call().expect("pushed");
    for client in [&near, &far] {
        for meta in [(DType::F32, [64, WIDTH]), (DType::U32, [WIDTH, 64]), (DType::U32, [65, WIDTH])] {
            let mut tensor = client.allocate(meta.0, meta.1).expect("room");
            tensor.as_mut_bytes().fill(0xee);
            let (e, tensor) = client.fetch("w").into(tensor).call().expect_err("another shape").into_parts();
            assert_eq!(e.failure_code(), Some(FailureCode::Invalid), "{e}");
            assert!(e.to_string().contains("u32[64, 1024]") && !matches!(e, Error::DestinationTorn { .. }), "{e}");
            assert!(tensor.expect("it comes back").as_bytes().iter().all(|byte| *byte == 0xee));
        }
        let tensor = empty(client, 64);
        let nobody = client.fetch("nobody").timeout(Duration::from_millis(50)).into(tensor).call();
        let (e, tensor) = nobody.expect_err("nobody pushes it").into_parts();
        assert_eq!(e.failure_code(), Some(FailureCode::UnknownKey), "{e}");
        assert!(tensor.expect("it comes back").as_bytes().iter().all(|byte| *byte == 0xee));
    }
    drop((pusher, near, far));
    scene.end();
}

// Promise: into-memory
#[test]
fn version_is_copied_into_the_arena_of_another_client() {
    let scene = Scene::two();
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    pusher.push_tensor("w", numbers(&pusher, 64, 5)).call().expect("pushed");
    let fetched = far.fetch("w").into(empty(&near, 64)).call().expect("it is copied");
    assert!(has(fetched.tensor(), 5) && fetched.landing() == Landing::OtherArena, "{}", fetched.landing());
    let fetched = near.fetch("w").into(empty(&far, 64)).call().expect("it is copied");
    assert!(has(fetched.tensor(), 5) && fetched.landing() == Landing::OnThisHost, "{}", fetched.landing());
    // The memory goes back to its own arena.
    drop(fetched);
    drop((pusher, near, far));
    scene.end();
}

// Promise: into-memory
#[test]
fn version_lands_on_a_runtime() {
    let scene = Scene::two();
    let pusher = connect(scene.a().socket(), "pusher");
    pusher.push_tensor("w", numbers(&pusher, 256, 3)).call().expect("pushed");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(scene.b().socket()).name("async").await.expect("the sidecar takes workers");
        let tensor = client.allocate(DType::U32, [256, WIDTH]).expect("room");
        let fetched = client.fetch("w").into(tensor).await.expect("it lands");
        assert_eq!(fetched.landing(), from_afar());
        check_copies(&fetched);
        assert!(has(fetched.tensor(), 3));
        let pair = || [("w", 256), ("b", 1)].map(|(name, rows)| (name.to_owned(), rows));
        pusher
            .push_bundle("pair", pair().map(|(name, rows)| (name, numbers(&pusher, rows, 5))))
            .call()
            .expect("pushed");
        let into = pair().map(|(name, rows)| (name, client.allocate(DType::U32, [rows, WIDTH]).expect("room")));
        let fetched = client.fetch_bundle("pair").into(into.into_iter().collect()).await.expect("it lands");
        let by_reference = fetched.landing() == Landing::OnThisHost && Carrier::chosen() == Carrier::Shm;
        assert!(by_reference || fetched.landing() == from_afar(), "{}", fetched.landing());
        assert!(fetched.tensors().iter().all(|(_, tensor)| has(tensor, 5)));
        drop(fetched);
        // A call that is given up frees its memory by itself.
        let (free, tensor) = (client.arena_free_bytes(), client.allocate(DType::U32, [256, WIDTH]).expect("room"));
        let waiting = tokio::time::timeout(Duration::from_millis(20), client.fetch("nobody").into(tensor));
        assert!(waiting.await.is_err(), "nobody pushes it");
        while client.arena_free_bytes() < free {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    drop(pusher);
    scene.end();
}

// Promise: into-memory
#[test]
fn version_lands_in_the_memory_of_an_embedded_node() {
    let _turn = sidecar_of_this_process();
    for carrier in [Carrier::Tcp, Carrier::Shm] {
        let scene = Scene::over(carrier, &[&["--listen", "127.0.0.1:0"]]);
        let outside = connect(scene.a().socket(), "outside");
        outside.push_tensor("w", numbers(&outside, 256, 5)).call().expect("pushed");
        let config = NodeConfig::new("inside").set("listen", "127.0.0.1:0");
        let config = config.set("directory", format!("http://{}", scene.a().address()));
        let config = config.set("shm_dir", scene.a().folder().display());
        let arguments = carrier.arguments();
        let config = arguments
            .chunks_exact(2)
            .fold(config, |config, pair| config.set(pair[0].trim_start_matches("--").replace('-', "_"), pair[1]));
        let inside = BlockingClient::embedded_with(config).name("inside").arena_bytes(8 << 20);
        let inside = inside.call().expect("a session");
        let fetched = inside.fetch("w").into(empty(&inside, 256)).call().expect("it lands");
        assert_eq!((fetched.landing(), fetched.report().fabric.name()), (Landing::InPlace, carrier.name()));
        assert!(has(fetched.tensor(), 5));
        let tensors = [("w", numbers(&outside, 256, 6)), ("b", numbers(&outside, 1, 7))];
        outside.push_bundle("pair", tensors).call().expect("pushed");
        let into = [("w".to_owned(), empty(&inside, 256)), ("b".to_owned(), empty(&inside, 1))];
        let pair = inside.fetch_bundle("pair").into(into.into_iter().collect()).call().expect("it lands");
        let by_reference = pair.landing() == Landing::OnThisHost && carrier == Carrier::Shm;
        assert!(by_reference || pair.landing() == Landing::InPlace, "{}", pair.landing());
        assert!(has(pair.tensors().get("w").expect("w"), 6) && has(pair.tensors().get("b").expect("b"), 7));
        drop((pair, fetched, inside, outside));
        scene.end();
    }
}

// Promise: into-memory
#[test]
fn nothing_lands_in_an_arena_that_a_restarted_sidecar_has_taken_back() {
    let mut scene = Scene::two();
    let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
    pusher.push_tensor("w", numbers(&pusher, 256, 5)).call().expect("pushed");
    far.fetch("w").into(empty(&far, 256)).call().expect("it lands");
    let mut waits = far.fetch("nobody").into(empty(&far, 256)).begin();
    assert!(waits.wait(Duration::ZERO).is_none(), "nobody pushes it");
    scene.nodes[1].kill();
    scene.nodes[1].restart();
    scene.b().until("the reader is back", |s| s.sessions.len() == 1);
    let fetched =
        poll(|| far.fetch("w").into(empty(&far, 256)).call().map_err(|e| e.to_string())).expect("it is copied");
    assert_eq!(fetched.landing(), Landing::ReturnedArena);
    check_copies(&fetched);
    assert!(has(fetched.tensor(), 5));
    // Nobody can know what has landed of this one by now, so the tensor does not come back as if it was as before.
    let (e, tensor) = waits.wait(Duration::from_secs(20)).expect("it ends").expect_err("it is over").into_parts();
    assert!(matches!(e, Error::SidecarGone(_)) && tensor.is_none(), "{e}");
    drop((fetched, waits, pusher, far));
    scene.end();
}
