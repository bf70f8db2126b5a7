//! Bundles: many tensors as one version, on one node and between two.

use std::sync::atomic::{AtomicBool, Ordering};
use transfer_client::{BlockingClient, BundleError, BundleTensor, DType, Error, FetchedBundle, TensorMut};
use transfer_tests::{Carrier, Scene, poll};

fn connect(socket: std::path::PathBuf, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(socket).name(name).arena_bytes(32 << 20);
    connect.call().expect("the sidecar takes workers")
}

/// Returns a tensor in the arena, whose bytes follow from `seed`.
fn tensor(client: &BlockingClient, dtype: DType, dims: &[u64], seed: u8) -> TensorMut {
    let mut tensor = client.allocate(dtype, dims).expect("room");
    let bytes = tensor.as_mut_bytes();
    bytes.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n as u8).wrapping_mul(31).wrapping_add(seed));
    tensor
}

const SHAPES: [(&str, DType, &[u64]); 6] = [
    ("layer0/w", DType::F32, &[33, 7]),
    ("layer0/b", DType::BF16, &[7]),
    ("scale", DType::F64, &[]),
    ("nothing", DType::I64, &[0, 5]),
    ("mask", DType::U8, &[1, 2, 3]),
    ("steps", DType::U64, &[1]),
];

fn contents(bundle: &FetchedBundle) -> Vec<(String, DType, Vec<u64>, Vec<u8>)> {
    let all = bundle.iter();
    all.map(|(name, t)| (name.to_owned(), t.dtype(), t.shape().to_vec(), t.as_bytes().to_vec())).collect()
}

// Promise: bundles, seen to fail
#[test]
fn a_bundle_comes_as_it_was_pushed() {
    let scene = Scene::two();
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    let free = pusher.arena_free_bytes();
    let made = || SHAPES.map(|(name, dtype, dims)| (name, tensor(&pusher, dtype, dims, name.len() as u8)));
    let expected: Vec<_> =
        made().map(|(name, t)| (name.to_owned(), t.dtype(), t.shape().to_vec(), t.as_bytes().to_vec())).into();
    for version in 1..=3 {
        let pushed = pusher.push_bundle("policy", made()).version(version).call().expect("pushed");
        assert_eq!(pushed.report.copied, 0);
        for (client, fabric) in [(&near, "local"), (&near, "local"), (&far, Carrier::chosen().name())] {
            let bundle = client.fetch_bundle("policy").at_least(version).call().expect("fetched");
            assert_eq!((bundle.version(), bundle.len()), (version, SHAPES.len()));
            assert_eq!(contents(&bundle), expected, "{fabric}");
            assert_eq!(bundle.report().fabric.name(), fabric);
            if fabric == "local" {
                assert_eq!(bundle.report().copied, 0);
            }
            assert_eq!(bundle.get("mask").map(|t| t.shape().to_vec()), Some(vec![1, 2, 3]));
            assert!(bundle.get("layer0").is_none() && !bundle.is_empty());
        }
    }
    // A fetched bundle is pushed again from another arena, so its tensors are copied.
    let again = far.fetch_bundle("policy").call().expect("fetched");
    let pushed = far.push_bundle("again", again.iter()).call().expect("pushed on");
    assert!(pushed.report.copied > 0);
    assert_eq!(contents(&near.fetch_bundle("again").call().expect("fetched")), expected);
    drop(again);
    pusher.delete("policy").call().expect("its own");
    poll(|| match pusher.arena_free_bytes() {
        now if now == free => Ok(()),
        now => Err(format!("{now} of {free} bytes are free")),
    })
    .expect("all memory comes back");
    drop((pusher, near, far));
    scene.end();
}

/// Two sidecars of one host share a directory. Nothing is copied, and a reader keeps its version while newer versions
/// are published.
// Promise: references, seen to fail
#[test]
fn a_bundle_is_read_in_the_memory_of_a_worker_of_another_sidecar() {
    let listen = ["--listen", "127.0.0.1:0", "--verbs", "off"];
    let scene = Scene::exactly(&[&listen, &listen]);
    let (pusher, reader) = (connect(scene.nodes[0].socket(), "pusher"), connect(scene.nodes[1].socket(), "reader"));
    let free = pusher.arena_free_bytes();
    let made = |seed: u8| SHAPES.map(|(name, dtype, dims)| (name, tensor(&pusher, dtype, dims, seed)));
    let expected = |seed: u8| -> Vec<_> {
        made(seed).map(|(name, t)| (name.to_owned(), t.dtype(), t.shape().to_vec(), t.as_bytes().to_vec())).into()
    };
    let mut kept = Vec::new();
    for version in 1..=3_u8 {
        pusher.push_bundle("policy", made(version)).version(version.into()).call().expect("pushed");
        let bundle = reader.fetch_bundle("policy").at_least(version.into()).call().expect("fetched");
        let report = bundle.report();
        assert_eq!((report.fabric.name(), report.copied), ("shm", 0), "{report}");
        kept.push(bundle);
    }
    pusher.delete("policy").call().expect("its own");
    for (bundle, seed) in kept.iter().zip(1..) {
        assert_eq!((contents(bundle), bundle.version()), (expected(seed), seed.into()));
    }
    assert!(pusher.arena_free_bytes() < free, "three versions are being read");
    drop(kept);
    poll(|| {
        // A worker learns with its next call which leases have ended and which memory is free again.
        let _ = reader.delete("none").call();
        let _ = pusher.delete("none").call();
        match pusher.arena_free_bytes() {
            now if now == free => Ok(()),
            now => Err(format!("{now} of {free} bytes are free")),
        }
    })
    .expect("all memory comes back");
    drop((pusher, reader));
    scene.end();
}

// Promise: bundles, seen to fail
#[test]
fn the_tensors_of_a_bundle_are_of_one_version() {
    let scene = Scene::two();
    let readers = [connect(scene.a().socket(), "near"), connect(scene.b().socket(), "far")];
    let pusher = connect(scene.a().socket(), "pusher");
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for reader in &readers {
            threads.spawn(|| {
                let mut newest = 0;
                while !done.load(Ordering::Relaxed) || newest < 150 {
                    let bundle = reader.fetch_bundle("w").call().expect("fetched");
                    assert!(bundle.version() >= newest, "{} after {newest}", bundle.version());
                    newest = bundle.version();
                    for (name, tensor) in bundle.iter() {
                        let values = tensor.as_slice::<u64>().expect("as pushed");
                        assert!(values.iter().all(|v| *v == newest), "{name} of version {newest} has {values:?}");
                    }
                }
            });
        }
        for version in 1..=150_u64 {
            let tensors = (0..20_u64).map(|n| {
                let mut tensor = pusher.allocate(DType::U64, [n * 17]).expect("room");
                tensor.as_mut_slice::<u64>().expect("of that type").fill(version);
                (format!("t{n}"), tensor)
            });
            pusher.push_bundle("w", tensors).version(version).call().expect("pushed");
        }
        done.store(true, Ordering::Relaxed);
    });
    drop((pusher, readers));
    scene.end();
}

#[test]
fn a_bundle_of_foreign_memory_is_copied_once() {
    let scene = Scene::one();
    let client = connect(scene.a().socket(), "pusher");
    let (a, b) = ([1.5_f32; 100], [7_u16; 3]);
    let tensors = [("a", BundleTensor::from_slice([10, 10], &a)), ("b", BundleTensor::from_slice([3], &b))];
    let pushed = client.push_bundle("k", tensors.map(|(name, t)| (name, t.expect("as long as its shape")))).call();
    assert_eq!(pushed.expect("pushed").report.copied, 406);
    let bundle = client.fetch_bundle("k").call().expect("fetched");
    assert_eq!(bundle.get("a").expect("there").as_slice::<f32>().expect("as pushed"), a);
    assert_eq!(bundle.get("b").expect("there").as_slice::<u16>().expect("as pushed"), b);
    drop((bundle, client));
    scene.end();
}

/// Copied tensors share allocations, and their bundle is taken back like any other.
// Promise: bundles, seen to fail
// Promise: long-tables
#[test]
fn bundle_holds_at_most_131072_tensors() {
    const MAX_TENSORS: u64 = 131_072;
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
    let values: Vec<u64> = (0..=MAX_TENSORS).collect();
    let tensors = |n: u64| {
        let one = |n| BundleTensor::from_slice([1], std::slice::from_ref(n)).expect("as long as its shape");
        values[..n as usize].iter().map(move |n| (n.to_string(), one(n)))
    };
    let pushed = pusher.push_bundle("k", tensors(MAX_TENSORS)).call().expect("as many as there may be");
    assert_eq!(pushed.report.copied, 8 * MAX_TENSORS);
    for client in [&pusher, &far] {
        let bundle = client.fetch_bundle("k").call().expect("fetched");
        let found = bundle.iter().map(|(name, t)| (name.to_owned(), t.as_slice::<u64>().expect("as pushed")[0]));
        assert!(found.eq((0..MAX_TENSORS).map(|n| (n.to_string(), n))));
        assert_eq!(bundle.get("99999").expect("there").as_slice::<u64>().expect("as pushed"), [99_999]);
        let part = client.fetch_bundle("k").only(["100000", "7"]).call().expect("fetched");
        let found = part.iter().map(|(_, t)| t.as_slice::<u64>().expect("as pushed")[0]);
        assert_eq!(found.collect::<Vec<_>>(), [7, 100_000]);
    }
    let mut taken = pusher.take_back_bundle("k").call().expect("nobody reads it");
    let last = taken.iter_mut().last().expect("not empty").1.as_mut_slice::<u64>().expect("of that type");
    assert_eq!(std::mem::replace(&mut last[0], 1), MAX_TENSORS - 1);
    let pushed = pusher.push_bundle("k", taken).call().expect("pushed again");
    assert_eq!(pushed.report.copied, 0);
    let bundle = far.fetch_bundle("k").at_least(pushed.version).call().expect("fetched");
    assert_eq!(bundle.iter().last().expect("not empty").1.as_slice::<u64>().expect("as pushed"), [1]);
    let e = pusher.push_bundle("k", tensors(MAX_TENSORS + 1)).call().expect_err("one too many");
    assert!(matches!(e.error(), Error::Bundle(_)) && e.to_string().contains("at most 131072 tensors"), "{e}");
    let none: [(&str, TensorMut); 0] = [];
    pusher.push_bundle("none", none).call().expect("an empty bundle");
    assert!(far.fetch_bundle("none").call().expect("fetched").is_empty());
    drop((bundle, pusher, far));
    scene.end();
}

/// Each tensor lies in a range of its own, since they are pushed in another order than they were allocated in.
// Promise: bundles
#[test]
fn thousands_of_tensors_of_an_arena_are_not_copied() {
    const TENSORS: u64 = 10_000;
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
    let tensors: Vec<_> = (0..TENSORS)
        .map(|n| {
            let mut tensor = pusher.allocate(DType::U64, [1]).expect("room");
            tensor.as_mut_slice::<u64>().expect("of that type").fill(n);
            (n.to_string(), tensor)
        })
        .collect();
    let pushed = pusher.push_bundle("k", tensors.into_iter().rev()).call().expect("pushed");
    assert_eq!(pushed.report.copied, 0);
    for client in [&pusher, &far] {
        let bundle = client.fetch_bundle("k").call().expect("fetched");
        let found = bundle.iter().map(|(name, t)| (name.to_owned(), t.as_slice::<u64>().expect("as pushed")[0]));
        assert!(found.eq((0..TENSORS).rev().map(|n| (n.to_string(), n))));
    }
    drop((pusher, far));
    scene.end();
}

#[test]
fn bundle_is_distinguished_from_tensors_and_batches() {
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
    let one = || tensor(&pusher, DType::U8, &[3], 0);
    pusher.push_bundle("bundle", [("t", one())]).call().expect("pushed");
    pusher.push_tensor("tensor", one()).call().expect("pushed");
    let ints = std::sync::Arc::new(arrow_array::Int32Array::from(vec![1])) as arrow_array::ArrayRef;
    let batch = arrow_array::RecordBatch::try_from_iter([("n", ints)]).expect("a batch");
    pusher.push_batch("batch", &batch).call().expect("pushed");
    for client in [&pusher, &far] {
        for key in ["tensor", "batch"] {
            let e = client.fetch_bundle(key).call().expect_err("no bundle");
            assert!(matches!(e, Error::Bundle(BundleError::NotABundle { .. })), "{key}: {e}");
        }
        let e = client.fetch("bundle").call().expect_err("no tensor").to_string();
        assert!(e.contains("fetch_bundle()"), "{e}");
        let e = client.fetch_table("bundle").call().expect_err("no batches").to_string();
        assert!(e.contains("fetch_bundle()"), "{e}");
    }
    let e = pusher.push_bundle("k", [("t", one()), ("t", one())]).call().expect_err("twice");
    assert!(e.to_string().contains("\"t\" twice"), "{e}");
    let e = pusher.push_bundle("k", [("", one())]).call().expect_err("no name");
    assert!(e.to_string().contains("a tensor name must have at least 1 byte"), "{e}");
    drop((pusher, far));
    scene.end();
}

/// Pushes 120 tensors of `len` bytes each as version `version`; the bytes are their number plus the version.
fn push_many(pusher: &BlockingClient, key: &str, names: impl Fn(usize) -> String, len: u64, version: u64) {
    let tensors = (0..120).map(|n| {
        let mut tensor = pusher.allocate(DType::U8, [len]).expect("room");
        tensor.as_mut_bytes().fill((n as u64 + version) as u8);
        (names(n), tensor)
    });
    pusher.push_bundle(key, tensors).version(version).call().expect("pushed");
}

// Promise: parts-of-bundles, seen to fail
#[test]
fn part_of_a_bundle_moves_alone() {
    let scene = Scene::two();
    let pusher = connect(scene.a().socket(), "pusher");
    let (near, far) = (connect(scene.a().socket(), "near"), connect(scene.b().socket(), "far"));
    const LEN: u64 = 4096;
    let name = |n: usize| format!("layer{n}/weight");
    push_many(&pusher, "policy", name, LEN, 1);
    // Three tensors, in another order, two of them side by side; and every other one, which takes several requests.
    let few = vec![name(7), name(3), name(8)];
    let many: Vec<_> = (0..120).step_by(2).map(name).collect();
    for version in 1..=3 {
        for (client, is_near) in [(&near, true), (&far, false)] {
            for names in [&few, &many] {
                let part = client.fetch_bundle("policy").only(names).exactly(version).call().expect("fetched");
                let mut expected: Vec<_> = names
                    .iter()
                    .map(|name| name["layer".len()..].split('/').next().unwrap().parse().unwrap())
                    .collect();
                expected.sort_unstable();
                assert_eq!((part.version(), part.len()), (version, expected.len()));
                for ((found, tensor), n) in part.iter().zip(expected) {
                    assert_eq!(found, name(n));
                    assert_eq!(tensor.as_bytes(), vec![(n as u64 + version) as u8; LEN as usize], "{found}");
                }
                let report = part.report();
                let table = report.bytes - names.len() as u64 * LEN;
                assert!((1..8192).contains(&table), "{report:?}");
                assert!(!is_near || report.copied == 0);
                assert_eq!(report.fabric.name(), if is_near { "local" } else { Carrier::chosen().name() });
            }
        }
        if version < 3 {
            push_many(&pusher, "policy", name, LEN, version + 1);
        }
    }
    // What moved is no more than what was asked for: three times both parts, and their tables, the first one twice.
    let moved = scene.b().status().links.iter().map(|link| link.bytes_in).sum::<u64>();
    let asked = 3 * (few.len() + many.len()) as u64 * LEN;
    assert!((asked..asked + 9 * 8192).contains(&moved), "{moved} bytes moved, {asked} were asked for");
    drop((pusher, near, far));
    scene.end();
}

// Promise: parts-of-bundles
#[test]
fn part_of_a_bundle_follows_its_changed_table() {
    let scene = Scene::two();
    let pusher = connect(scene.a().socket(), "pusher");
    let far = connect(scene.b().socket(), "far");
    let wanted = |version| {
        let part = far.fetch_bundle("k").only(["t5", "t90"]).at_least(version).call()?;
        Ok::<_, Error>(part.iter().map(|(name, t)| (name.to_owned(), t.as_bytes().to_vec())).collect::<Vec<_>>())
    };
    push_many(&pusher, "k", |n| format!("t{n}"), 64, 1);
    assert_eq!(wanted(1).expect("fetched")[1], ("t90".to_owned(), vec![91; 64]));
    // Longer tensors; then the same names in another order; then shorter ones, so that the known ranges lie beyond the
    // body.
    push_many(&pusher, "k", |n| format!("t{n}"), 1024, 2);
    assert_eq!(wanted(2).expect("fetched")[0], ("t5".to_owned(), vec![7; 1024]));
    push_many(&pusher, "k", |n| format!("t{}", 119 - n), 1024, 3);
    assert_eq!(wanted(3).expect("fetched")[0], ("t90".to_owned(), vec![29 + 3; 1024]));
    push_many(&pusher, "k", |n| format!("t{n}"), 1, 4);
    assert_eq!(wanted(4).expect("fetched"), [("t5".to_owned(), vec![9]), ("t90".to_owned(), vec![94])]);
    // A name that is gone, and a key that is no bundle.
    push_many(&pusher, "k", |n| format!("other{n}"), 64, 5);
    let e = wanted(5).expect_err("the names are gone");
    assert!(matches!(&e, Error::Bundle(BundleError::NoSuchTensor { name }) if name == "t5" || name == "t90"), "{e}");
    pusher.push_tensor("dense", tensor(&pusher, DType::U8, &[64], 1)).call().expect("pushed");
    let e = far.fetch_bundle("dense").only(["t5"]).call().expect_err("no bundle");
    assert!(e.to_string().contains("is no bundle"), "{e}");
    drop((pusher, far));
    scene.end();
}
