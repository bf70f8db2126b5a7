//! Slices of tensors and of bundles, on one node and between two.

use std::collections::BTreeMap;
use std::time::Duration;
use transfer_client::{
    BlockingClient, BundleError, Client, DType, Element, Error, FailureCode, FetchedSlice, Slice, TensorMut, Until, s,
};
use transfer_tests::http::get;
use transfer_tests::{Carrier, Scene, Sidecar, poll};

fn connect(socket: std::path::PathBuf, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(socket).name(name).arena_bytes(32 << 20);
    connect.call().expect("the sidecar takes workers")
}

/// A worker that pushes, and a reader on its host and one on the other.
fn workers(scene: &Scene) -> [BlockingClient; 3] {
    let (a, b) = (scene.a().socket(), scene.b().socket());
    [connect(a.clone(), "pusher"), connect(a, "near"), connect(b, "far")]
}

/// Publishes "w" of 3 x 4 elements, the same as "counted" and in "bundle", and "scalar".
fn publish_small_ones(pusher: &BlockingClient) {
    pusher.push_tensor("w", numbers(pusher, &[3, 4], 0)).call().expect("pushed");
    pusher.push_tensor("scalar", numbers(pusher, &[], 0)).call().expect("pushed");
    pusher.push_bundle("bundle", [("w", numbers(pusher, &[3, 4], 0))]).call().expect("pushed");
    let once = Until::Fetched(std::num::NonZeroU32::new(2).expect("not 0"));
    pusher.push_tensor("counted", numbers(pusher, &[3, 4], 0)).keep(once).call().expect("pushed");
}

/// Returns a tensor in the arena whose elements are their numbers plus `first`.
fn numbers(client: &BlockingClient, dims: &[u64], first: u32) -> TensorMut {
    let mut tensor = client.allocate(DType::U32, dims).expect("room");
    (first..).zip(tensor.as_mut_slice::<u32>().expect("u32")).for_each(|(n, element)| *element = n);
    tensor
}

/// The numbers of a slice of a tensor with rows of this many numbers.
fn expected(rows: impl Iterator<Item = u32>, columns: impl Iterator<Item = u32> + Clone, width: u32) -> Vec<u32> {
    rows.flat_map(|row| columns.clone().map(move |column| row * width + column)).collect()
}

fn elements<T: Element>(slice: &FetchedSlice) -> Vec<T> {
    let copied = slice.to_vec().expect("the element type");
    assert_eq!(slice.as_slice::<T>().expect("the element type").is_some(), slice.is_contiguous());
    let size = slice.dtype().size_bytes() as usize;
    assert_eq!(slice.to_contiguous().len(), copied.len() * size);
    copied
}

fn invalid(e: &Error) -> bool {
    matches!(e, Error::Failed(failure) if failure.code == FailureCode::Invalid)
}

fn metrics(sidecar: &Sidecar) -> BTreeMap<String, f64> {
    let body = get(&sidecar.http(), "/metrics").body;
    let samples = body.lines().filter_map(|line| line.rsplit_once(' '));
    samples.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

/// Waits until a metric of the sidecar has the given value.
fn until(sidecar: &Sidecar, name: &str, value: f64) {
    let seen = poll(|| match metrics(sidecar).get(name) {
        Some(found) if *found == value => Ok(()),
        found => Err(found.copied()),
    });
    assert_eq!(seen, Ok(()), "{name} is to be {value}");
}

const ROWS: u32 = 600;
const WIDTH: u32 = 3000;

// Promise: slices
#[test]
fn slices_have_their_elements_and_nothing_else_moves() {
    let scene = Scene::two();
    let [pusher, near, far] = workers(&scene);
    pusher.push_tensor("w", numbers(&pusher, &[ROWS.into(), WIDTH.into()], 0)).call().expect("pushed");
    let cases: [(Slice, &[u64], Vec<u32>); 8] = [
        (s![.., 0..64], &[600, 64], expected(0..600, 0..64, WIDTH)),
        (s![-100.., -1500..], &[100, 1500], expected(500..600, 1500..3000, WIDTH)),
        (s![10..20], &[10, 3000], expected(10..20, 0..3000, WIDTH)),
        (s![5..; 100, ..-2000; 333], &[6, 4], expected((5..600).step_by(100), (0..1000).step_by(333), WIDTH)),
        (s![.., 7], &[600], expected(0..600, 7..8, WIDTH)),
        (s![-1, -1], &[], expected(599..600, 2999..3000, WIDTH)),
        (s![300..200, ..], &[0, 3000], Vec::new()),
        (s![], &[600, 3000], expected(0..600, 0..3000, WIDTH)),
    ];
    let mut moved = 0;
    for (slice, shape, wanted) in cases {
        for (client, is_here) in [(&near, true), (&far, false)] {
            let found = client.fetch("w").slice(slice.clone()).call().unwrap_or_else(|e| panic!("{slice}: {e}"));
            assert_eq!((found.shape(), found.dtype(), found.version()), (shape, DType::U32, 1), "{slice}");
            assert!(elements::<u32>(&found) == wanted, "{slice}");
            let report = found.report();
            assert_eq!(report.bytes, wanted.len() as u64 * 4, "{slice}");
            assert_eq!(report.fabric.name(), if is_here { "local" } else { Carrier::chosen().name() });
            if is_here {
                assert_eq!(report.copied, 0, "{slice} is a view");
            } else {
                assert!(found.is_contiguous(), "{slice} has landed alone");
                moved += report.bytes;
            }
        }
    }
    assert_eq!(scene.b().status().links.iter().map(|link| link.bytes_in).sum::<u64>(), moved);
    drop((pusher, near, far));
    scene.end();
}

// Promise: slices
#[test]
fn packed_bytes_are_counted_as_copied_and_long_runs_are_not_packed() {
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
    pusher.push_tensor("w", numbers(&pusher, &[ROWS.into(), WIDTH.into()], 0)).call().expect("pushed");
    let copies = |slice: Slice| {
        let found = far.fetch("w").slice(slice).call().expect("fetched");
        (found.report().copied, found.report().bytes)
    };
    let ((long, bytes), (short, fewer)) = (copies(s![.., 0..1024]), copies(s![.., 0..64]));
    // A fabric copies each byte so many times; the packed ones are copied once more.
    assert_eq!(short / fewer, long / bytes + 1);
    drop((pusher, far));
    scene.end();
}

// Promise: slice-views
#[test]
fn slice_on_one_host_is_a_view_that_asks_nobody() {
    let scene = Scene::with(&[&["--http-listen", "127.0.0.1:0"]]);
    let (pusher, near) = (connect(scene.a().socket(), "pusher"), connect(scene.a().socket(), "near"));
    pusher.push_tensor("w", numbers(&pusher, &[100, 40], 0)).call().expect("pushed");
    pusher.push_bundle("b", [("w", numbers(&pusher, &[100, 40], 0))]).call().expect("pushed");
    let found = near.fetch_bundle("b").slices([("w", s![.., 1])]).call().expect("fetched");
    assert_eq!((found.get("w").map(FetchedSlice::strides), found.report().copied), (Some(&[40][..]), 0));
    drop(found);
    // The first fetch lets the sidecar show the version on the board.
    near.fetch("w").call().expect("fetched");
    until(scene.a(), "transfer_board_versions", 1.0);
    // Two pushes, two fetches, and the ends of their leases.
    until(scene.a(), "transfer_ring_submissions_total", 6.0);
    for _ in 0..50 {
        let found = near.fetch("w").slice(s![10..20, 4..; 3]).call().expect("fetched");
        assert_eq!((found.shape(), found.strides(), found.is_contiguous()), (&[10, 12][..], &[40, 3][..], false));
        assert_eq!((found.report().bytes, found.report().copied), (480, 0));
        assert_eq!(found.as_bytes().len(), (9 * 40 + 11 * 3 + 1) * 4);
    }
    let e = near.fetch("w").slice(s![0..101]).call().expect_err("it has 100 rows");
    assert!(invalid(&e) && e.to_string().contains("slice [0:101] does not fit shape [100, 40]"), "{e}");
    until(scene.a(), "transfer_board_hits_total", 51.0);
    assert_eq!(metrics(scene.a())["transfer_ring_submissions_total"], 6.0, "somebody was asked");
    drop((pusher, near));
    scene.end();
}

// Promise: slice-views
#[test]
fn slice_in_the_memory_of_a_sidecar_of_the_same_host_is_a_view() {
    let listen: [&str; 4] = ["--listen", "127.0.0.1:0", "--verbs", "off"];
    let scene = Scene::exactly(&[&listen, &listen]);
    let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
    pusher.push_tensor("w", numbers(&pusher, &[100, 40], 0)).call().expect("pushed");
    pusher.push_bundle("b", [("w", numbers(&pusher, &[100, 40], 0))]).call().expect("pushed");
    for _ in 0..2 {
        let found = far.fetch("w").slice(s![10..20, 4..; 3]).call().expect("fetched");
        assert_eq!((found.strides(), found.as_bytes().len()), (&[40, 3][..], (9 * 40 + 11 * 3 + 1) * 4));
        assert_eq!(elements::<u32>(&found), expected(10..20, (4..40).step_by(3), 40));
        let report = found.report();
        assert_eq!((report.fabric.name(), report.bytes, report.copied), ("shm", 480, 0));
        let found = far.fetch_bundle("b").slices([("w", s![.., 1])]).call().expect("fetched");
        let slice = found.get("w").expect("asked for");
        assert_eq!((slice.strides(), found.report().copied), (&[40][..], 0));
        assert_eq!(elements::<u32>(slice), expected(0..100, 1..2, 40));
    }
    drop((pusher, far));
    scene.end();
}

// Promise: slices-that-do-not-fit
#[test]
fn slice_that_does_not_fit_names_shape_and_slice() {
    let scene = Scene::two();
    let [pusher, near, far] = workers(&scene);
    publish_small_ones(&pusher);
    let cases = [
        ("w", s![.., 0..5], "slice [:, 0:5] does not fit shape [3, 4]"),
        ("w", s![-4..], "-3 to 3 would fit"),
        ("w", s![..; 0], "step 0 of dimension 0 is below 1"),
        ("w", s![..; -1], "step -1 of dimension 0 is below 1"),
        ("w", s![3], "slice [3] does not fit shape [3, 4]"),
        ("w", s![.., .., ..], "it has 3 dimensions, at most 2 would fit"),
        ("w", Slice::new(vec![0.into(); 40]), "dimensions"),
        ("scalar", s![], "a tensor without dimensions has no slices"),
        ("counted", s![0..1], "a number of times"),
    ];
    for (key, slice, says) in cases {
        for client in [&near, &far] {
            let e = client.fetch(key).slice(slice.clone()).call().expect_err(says);
            assert!(invalid(&e) && e.to_string().contains(says), "{slice}: {e}");
        }
    }
    for client in [&near, &far] {
        let slices = |name: &'static str, slice: Slice| {
            client.fetch_bundle("bundle").slices([(name, slice)]).call().expect_err("it does not fit")
        };
        let e = slices("w", s![.., 0..5]);
        let text = "tensor \"w\" of key \"bundle\" has u32[3, 4]: slice [:, 0:5] does not fit shape [3, 4]";
        assert!(invalid(&e) && e.to_string().contains(text), "{e}");
        assert!(matches!(slices("v", s![]), Error::Bundle(BundleError::NoSuchTensor { .. })));
        let twice = client.fetch_bundle("bundle").slices([("w", s![0..1]), ("w", s![1..2])]).call();
        assert!(matches!(twice, Err(Error::Bundle(BundleError::NamedTwice { .. }))), "{twice:?}");
        client.fetch("bundle").slice(s![0..1]).call().expect_err("a bundle is no tensor");
    }
    // The link is the same as before, and the version is there.
    assert_eq!(elements::<u32>(&far.fetch("w").slice(s![2, 1..]).call().expect("fetched")), [9, 10, 11]);
    drop((pusher, near, far));
    scene.end();
}

// Promise: slices
#[test]
fn slices_of_a_bundle_are_of_one_version_and_follow_its_table() {
    let scene = Scene::two();
    let [pusher, near, far] = workers(&scene);
    for (version, width) in [(1, 500), (2, 500), (3, 700), (4, 300)] {
        // More slices than one request names.
        let names: Vec<_> = (0..60).map(|n| format!("layer{n}/w")).collect();
        let tensors =
            names.iter().enumerate().map(|(n, name)| (name, numbers(&pusher, &[20, width], n as u32 * 100_000)));
        pusher.push_bundle("policy", tensors).version(version).call().expect("pushed");
        for client in [&near, &far] {
            let wanted = names.iter().rev().map(|name| (name, s![1..; 2, 3..8]));
            let found = client.fetch_bundle("policy").slices(wanted).at_least(version).call().expect("fetched");
            assert_eq!((found.version(), found.len()), (version, 60));
            for (n, (name, slice)) in found.iter().enumerate() {
                assert_eq!((name, slice.shape()), (&names[n][..], &[10, 5][..]));
                let first = n as u32 * 100_000;
                let numbers: Vec<_> =
                    expected((1..20).step_by(2), 3..8, width as u32).iter().map(|e| e + first).collect();
                assert_eq!(elements::<u32>(slice), numbers);
            }
            let table = found.report().bytes - 60 * 256;
            assert!((1..8192).contains(&table), "{}", found.report());
        }
    }
    // Whole tensors beside slices, one of no elements, and an odd length in front of another.
    let mut odd = pusher.allocate(DType::U8, [77]).expect("room");
    odd.as_mut_bytes().fill(3);
    let tensors = [("odd", odd), ("none", numbers(&pusher, &[0, 4], 0)), ("w", numbers(&pusher, &[5, 4], 0))];
    pusher.push_bundle("mixed", tensors).call().expect("pushed");
    for client in [&near, &far] {
        for _ in 0..2 {
            let wanted = [("w", Some(s![.., 1])), ("odd", Some(s![..-2])), ("none", None)];
            let found = client.fetch_bundle("mixed").slices(wanted).call().expect("fetched");
            let of = |name| found.get(name).expect("asked for");
            assert_eq!((elements::<u8>(of("odd")), elements::<u32>(of("none"))), (vec![3; 75], Vec::new()));
            assert_eq!((of("none").shape(), elements::<u32>(of("w"))), (&[0, 4][..], vec![1, 5, 9, 13, 17]));
        }
    }
    drop((pusher, near, far));
    scene.end();
}

// Promise: slice-views
#[test]
fn subscriber_reads_slices_each_version_once() {
    let scene = Scene::two();
    let [pusher, near, far] = workers(&scene);
    for client in [&near, &far] {
        let (weights, policy) = (client.subscriber("w").expect("a key"), client.bundle_subscriber("b").expect("a key"));
        let first = weights.seen().unwrap_or(0);
        for _ in 0..3 {
            let version = pusher.push_tensor("w", numbers(&pusher, &[10, 10], 7)).call().expect("pushed").version;
            pusher.push_bundle("b", [("w", numbers(&pusher, &[10, 10], 7))]).call().expect("pushed");
            let found = weights.next().slice(s![2, 2..4]).call().expect("a new version");
            assert_eq!((found.version(), elements::<u32>(&found)), (version, vec![29, 30]));
            let found = policy.next().slices([("w", s![2, 2..4])]).call().expect("a new version");
            assert_eq!(Some(found.version()), policy.seen());
            assert!(weights.seen() == Some(version) && version > first);
            // Each version is returned once, whole or in part.
            let soon = Duration::from_millis(300);
            weights.next().slice(s![0]).timeout(soon).call().expect_err("there is no newer one");
            policy.next().slices([("w", s![0])]).timeout(soon).call().expect_err("there is no newer one");
        }
    }
    drop((pusher, near, far));
    scene.end();
}

#[test]
fn async_clients_fetch_slices_at_the_same_time() {
    let scene = Scene::two();
    let pusher = connect(scene.a().socket(), "pusher");
    pusher.push_tensor("w", numbers(&pusher, &[ROWS.into(), WIDTH.into()], 0)).call().expect("pushed");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let far = Client::connect(scene.b().socket()).name("far").await.expect("the sidecar takes workers");
        // More than the owner packs at a time for one peer, some of which are given up.
        let tasks: Vec<_> = (0..60_u32)
            .map(|n| {
                let far = far.clone();
                tokio::spawn(async move {
                    let fetch = far.fetch("w").slice(s![.., n..n + 50]).into_future();
                    if n % 3 == 0 {
                        let _ = tokio::time::timeout(Duration::from_micros(u64::from(n) * 20), fetch).await;
                        return;
                    }
                    let found = fetch.await.expect("fetched");
                    assert!(elements::<u32>(&found) == expected(0..ROWS, n..n + 50, WIDTH), "{n}");
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        far.close().await;
    });
    drop(pusher);
    scene.end();
}

/// Indices of rows below `len`, in no order, and some of them several times.
fn scattered(count: i64, len: i64) -> Vec<i64> {
    (0..count).map(|n| n * 7919 % 100_003 % len).collect()
}

// Promise: rows
#[test]
fn rows_are_gathered_where_they_lie_and_nothing_else_moves() {
    let scene = Scene::two();
    let [pusher, near, far] = workers(&scene);
    // Rows of 12,000 bytes are sent from where they lie, and those of 32 are packed.
    pusher.push_tensor("wide", numbers(&pusher, &[ROWS.into(), WIDTH.into()], 0)).call().expect("pushed");
    pusher.push_tensor("narrow", numbers(&pusher, &[50_000, 8], 0)).call().expect("pushed");
    let mut moved = 0;
    for (key, width, indices) in [
        ("wide", WIDTH, vec![5]),
        ("wide", WIDTH, vec![599, 0, 599, 7, 8, 9]),
        ("wide", WIDTH, vec![]),
        ("narrow", 8, vec![1, 2, 3, 49_999]),
        // They take dozens of requests.
        ("narrow", 8, scattered(20_000, 50_000)),
    ] {
        let wanted: Vec<u32> =
            indices.iter().flat_map(|row| (0..width).map(move |column| *row as u32 * width + column)).collect();
        for (client, is_here) in [(&near, true), (&far, false)] {
            let found = client.take(key, indices.iter().copied()).call().expect("taken");
            assert_eq!((found.shape(), found.version()), (&[indices.len() as u64, width.into()][..], 1));
            assert!(elements::<u32>(&found) == wanted && found.is_contiguous(), "{key}");
            let (report, bytes) = (found.report(), wanted.len() as u64 * 4);
            if is_here {
                assert_eq!((report.fabric.name(), report.bytes, report.copied), ("local", bytes, bytes));
            } else {
                let sent =
                    indices.iter().collect::<std::collections::BTreeSet<_>>().len() as u64 * u64::from(width) * 4;
                assert_eq!((report.fabric.name(), report.bytes), (Carrier::chosen().name(), sent));
                moved += sent;
            }
        }
    }
    assert_eq!(scene.b().status().links.iter().map(|link| link.bytes_in).sum::<u64>(), moved);
    drop((pusher, near, far));
    scene.end();
}

// Promise: rows
#[test]
fn row_that_is_not_there_is_named_with_the_shape() {
    let scene = Scene::two();
    let [pusher, near, far] = workers(&scene);
    publish_small_ones(&pusher);
    let fits = "0 to 2 would fit; negative ones do not count from the end";
    for (key, indices, says) in [
        ("w", vec![0, 3], &["slice [3] does not fit shape [3, 4]: index 3 is no row", fits][..]),
        ("w", vec![0, -1], &["slice [-1] does not fit shape [3, 4]: index -1 is no row", fits]),
        ("w", vec![i64::MAX, i64::MIN], &["does not fit shape [3, 4]", fits]),
        ("scalar", vec![0], &["a tensor without dimensions"]),
        ("counted", vec![0], &["a number of times"]),
    ] {
        for client in [&near, &far] {
            let e = client.take(key, indices.clone()).call().expect_err(key);
            assert!(invalid(&e) && says.iter().all(|text| e.to_string().contains(text)), "{indices:?}: {e}");
        }
    }
    for client in [&near, &far] {
        client.take("bundle", [0]).call().expect_err("a bundle is no tensor");
    }
    assert_eq!(elements::<u32>(&far.take("w", [2, 0]).call().expect("taken")), [8, 9, 10, 11, 0, 1, 2, 3]);
    drop((pusher, near, far));
    scene.end();
}

// Promise: rows, seen to fail
#[test]
fn rows_of_several_requests_are_of_one_version() {
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
    let version = |n: u32| {
        let mut tensor = pusher.allocate_wait(DType::U32, [4000, 4]).call().expect("room");
        tensor.as_mut_slice::<u32>().expect("u32").fill(n);
        pusher.push_tensor("w", tensor).version(n.into()).call().expect("pushed");
    };
    let taken = || {
        let found = far.take("w", scattered(4000, 4000)).call().expect("taken");
        let (all, version) = (elements::<u32>(&found), found.version());
        assert!(all.iter().all(|n| u64::from(*n) == version), "{version}: {:?}", all.iter().max());
        version
    };
    version(1);
    std::thread::scope(|scope| {
        let pushes = scope.spawn(|| (2..=300).for_each(version));
        while !pushes.is_finished() {
            taken();
        }
    });
    assert_eq!(taken(), 300);
    // A version that has to be this one is gone with the next one.
    let e = far.take("w", [0]).exactly(7).call().expect_err("it was replaced");
    assert!(matches!(&e, Error::Failed(failure) if failure.code == FailureCode::VersionGone), "{e}");
    drop((pusher, far));
    scene.end();
}

#[test]
fn async_clients_take_rows() {
    let scene = Scene::two();
    let pusher = connect(scene.a().socket(), "pusher");
    pusher.push_tensor("w", numbers(&pusher, &[9000, 8], 0)).call().expect("pushed");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let far = Client::connect(scene.b().socket()).name("far").await.expect("the sidecar takes workers");
        let take = |count| {
            let far = far.clone();
            async move {
                let found = far.take("w", scattered(count, 9000)).await.expect("taken");
                let firsts: Vec<_> = elements::<u32>(&found).into_iter().step_by(8).collect();
                let wanted: Vec<_> = scattered(count, 9000).into_iter().map(|row| row as u32 * 8).collect();
                assert!(firsts == wanted, "{count}");
            }
        };
        tokio::join!(take(1), take(500), take(5000), take(9000));
        // One that is given up leaves nothing behind.
        let given_up = far.take("w", scattered(9000, 9000)).into_future();
        let _ = tokio::time::timeout(Duration::from_micros(500), given_up).await;
        take(3).await;
        far.close().await;
    });
    drop(pusher);
    scene.end();
}
