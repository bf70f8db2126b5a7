//! Fetches of bundles whose tensors lie apart in the memory of the reader, in more pieces than one request has ranges for.

use super::Owner;
use crate::into_memory::{WIDTH, connect, empty, from_afar, has, numbers};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use transfer_client::{BlockingClient, BundleMut, DType, Error, FailureCode, FetchedInto, Landing, s};
use transfer_core::op::Failure;
use transfer_core::tensor::{TensorMeta, TensorName};
use transfer_core::wire::bundle::BundleTable;
use transfer_core::wire::message::{Body, Role};
use transfer_tests::{Carrier, Scene};

/// The number of tensors. Every fourth is short.
const COUNT: u32 = 160;

fn rows(n: u32) -> u64 {
    if n % 4 == 3 { 1 } else { 16 + u64::from(n % 3) }
}

fn push(pusher: &BlockingClient, version: u64) {
    let tensors = (0..COUNT).map(|n| (format!("t{n:03}"), numbers(pusher, rows(n), n + version as u32 * 1000)));
    pusher.push_bundle("k", tensors).version(version).call().expect("pushed");
}

/// Memory for each of these tensors, allocated one by one, so that no two of them lie beside each other in the order of the bundle.
fn apart(client: &BlockingClient, numbers: impl Iterator<Item = u32>) -> BundleMut {
    numbers.map(|n| (format!("t{n:03}"), empty(client, rows(n)))).collect()
}

fn landings(fetched: &FetchedInto<BundleMut>) -> HashMap<String, Landing> {
    fetched.landings().map(|(name, landing)| (name.to_owned(), landing)).collect()
}

// Promise: into-memory, seen to fail
#[test]
fn any_number_of_tensors_that_lie_apart_lands_in_place() {
    let scene = Scene::two();
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    for version in 1..=3 {
        push(&pusher, version);
        let first = |n: u32| n + version as u32 * 1000;
        for (client, is_here) in [(&near, true), (&far, false)] {
            let plain = *client.fetch_bundle("k").call().expect("fetched").report();
            let by_reference = is_here || plain.fabric.name() == "shm" && plain.copied == 0;
            // All of them but one, and then all but some, which come beside.
            for kept in [1000, 11] {
                let into = apart(client, (0..COUNT).filter(|n| n % kept != 6));
                let fetched =
                    client.fetch_bundle("k").at_least(version).into(into).keep_rest().call().expect("fetched");
                assert_eq!(fetched.version(), version);
                let landed = landings(&fetched);
                for n in (0..COUNT).filter(|n| n % kept != 6) {
                    let name = format!("t{n:03}");
                    // Short ones land in place where they happen to lie behind the one before.
                    let is_short = rows(n) == 1 && [Landing::Short, Landing::InPlace].contains(&landed[&name]);
                    let expected = if by_reference { Landing::OnThisHost } else { from_afar() };
                    assert!(!by_reference && is_short || landed[&name] == expected, "{name}: {}", landed[&name]);
                    assert!(has(fetched.tensors().get(&name).expect("it was given"), first(n)), "{name}");
                }
                let rest: Vec<_> = fetched.rest().iter().map(|(name, _)| name.clone()).collect();
                let expected: Vec<_> = (0..COUNT).filter(|n| n % kept == 6).map(|n| format!("t{n:03}")).collect();
                assert!(rest.len() == expected.len() && expected.iter().all(|name| rest.contains(name)), "{rest:?}");
                for (name, tensor) in fetched.rest() {
                    let n: u32 = name[1..].parse().expect("a number");
                    let expected = first(n)..first(n) + rows(n) as u32 * WIDTH as u32;
                    assert!(tensor.as_slice::<u32>().expect("u32").iter().copied().eq(expected), "{name}");
                }
                if !by_reference && from_afar() == Landing::InPlace {
                    let is_beside = |n: &u32| landed.get(&format!("t{n:03}")) != Some(&Landing::InPlace);
                    let beside: u64 = (0..COUNT).filter(is_beside).map(|n| rows(n) * WIDTH * 4).sum();
                    let report = *fetched.report();
                    let carried = Carrier::chosen().copies(report.bytes);
                    assert!(carried.contains(&(report.copied - beside)), "{report}: {beside} further bytes are copied");
                }
                assert_eq!(fetched.landing(), if by_reference { Landing::OnThisHost } else { from_afar() });
            }
        }
    }
    // Slices of all of them, each into a tensor of its own.
    let names: Vec<_> = (0..COUNT).filter(|n| rows(*n) > 1).collect();
    let slices = names.iter().map(|n| (format!("t{n:03}"), s![0..16]));
    let into = names.iter().map(|n| (format!("t{n:03}"), empty(&far, 16))).collect();
    let fetched = far.fetch_bundle("k").slices(slices).into(into).call().expect("fetched");
    assert!(fetched.landings().all(|(_, landing)| landing == Landing::OnThisHost || landing == from_afar()));
    assert!(names.iter().all(|n| has(fetched.tensors().get(&format!("t{n:03}")).expect("given"), n + 3000)));
    drop(fetched);
    drop((pusher, near, far));
    scene.end();
}

/// Ends the pusher, also where an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// Promise: into-memory, seen to fail
#[test]
fn tensors_that_lie_apart_are_of_one_version_although_others_follow() {
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
    let filled = |version: u32| {
        (0..COUNT).map(move |n| (n, version)).map(|(n, version)| {
            let mut tensor = pusher.allocate(DType::U32, [rows(n), WIDTH]).expect("room");
            tensor.as_mut_slice::<u32>().expect("u32").fill(version);
            (format!("t{n:03}"), tensor)
        })
    };
    pusher.push_bundle("k", filled(1)).version(1).call().expect("pushed");
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut version = 1;
            while !stops.load(Ordering::Relaxed) {
                version += 1;
                pusher.push_bundle("k", filled(version)).version(version.into()).call().expect("pushed");
                // As fast as fetches are, so that some of them meet with a new version.
                std::thread::yield_now();
            }
        });
        let _stop = Stop(&stops);
        let mut into = apart(&far, 0..COUNT);
        for _ in 0..20 {
            let fetched = far.fetch_bundle("k").into(into).call().expect("it comes");
            let version = fetched.version() as u32;
            for (name, tensor) in fetched.tensors().iter() {
                let elements = tensor.as_slice::<u32>().expect("u32");
                assert!(
                    elements.iter().all(|element| *element == version),
                    "{name} of version {version}: {elements:?}"
                );
            }
            into = fetched.into_tensors();
        }
    });
    drop((pusher, far));
    scene.end();
}

// Promise: into-memory, seen to fail
#[test]
fn a_tensor_beside_that_is_longer_than_a_bucket_comes_with_the_others() {
    let scene = Scene::two_with(&["--pool-bytes", "4MiB"]);
    let (pusher, far, other) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.b().socket(), "far"),
        connect(scene.b().socket(), "other"),
    );
    let (count, long) = (60, 1200);
    let pushed = (0..count).map(|n| (format!("t{n:03}"), numbers(&pusher, 16, n)));
    pusher.push_bundle("k", pushed.chain([("long".to_owned(), numbers(&pusher, long, 7))])).call().expect("pushed");
    for _ in 0..2 {
        let apart = (0..count).map(|n| (format!("t{n:03}"), empty(&far, 16)));
        let into: BundleMut = apart.chain([("long".to_owned(), empty(&other, long))]).collect();
        let links = || scene.b().status().links.iter().map(|link| link.bytes_in).sum::<u64>();
        let before = links();
        let fetched = far.fetch_bundle("k").bucket_bytes(1 << 20).into(into).call().expect("fetched");
        let body = (u64::from(count) * 16 + long) * WIDTH * 4;
        let moved = links() - before;
        assert!(moved < body + body / 4, "{moved} bytes came for {body}");
        assert!(has(fetched.tensors().get("long").expect("given"), 7));
        assert!((0..count).all(|n| has(fetched.tensors().get(&format!("t{n:03}")).expect("given"), n)));
    }
    drop((pusher, far, other));
    scene.end();
}

/// The description of a bundle of these tensors, its table, and memory of a reader for each of them, which lie apart.
fn foreign(
    reader: &BlockingClient,
    tensors: impl Iterator<Item = (String, u64)>,
) -> (TensorMeta, Vec<u8>, Vec<(String, transfer_client::TensorMut)>) {
    let into: Vec<_> = tensors.map(|(name, rows)| (name, empty(reader, rows))).collect();
    let entry = |(name, tensor): &(String, transfer_client::TensorMut)| {
        (TensorName::new(name).expect("a name"), tensor.meta().clone())
    };
    let table = BundleTable::new(into.iter().map(entry).collect()).expect("a table");
    let mut metadata = table.to_bytes();
    let meta = TensorMeta::of(DType::U8, &[table.body_len()]);
    let meta = meta.and_then(|meta| meta.with_metadata(metadata.len() as u32)).expect("a description");
    metadata.resize(metadata.len().next_multiple_of(64), 0);
    (meta, metadata, into)
}

/// What a request brings: the table, and a body of this byte.
fn part(metadata: &[u8], meta: &TensorMeta, byte: u8) -> Vec<u8> {
    let body = meta.len_bytes() - meta.body_offset();
    [metadata, &vec![byte; body as usize]].concat()
}

// Promise: into-memory, seen to fail
#[test]
fn error_names_the_tensors_of_all_requests_that_have_written() {
    let scene = Scene::over(Carrier::Tcp, &[&["--listen", "127.0.0.1:0"]]);
    let mut owner = Owner::of("k", &scene);
    let reader = connect(scene.a().socket(), "reader");
    // 23 for each request, beside the table.
    let (whole, metadata, into) = foreign(&reader, (0..60).map(|n| (format!("t{n:03}"), 16)));
    let mut fetch = reader.fetch_bundle("k").into(into.into_iter().collect()).begin();
    assert!(fetch.wait(Duration::ZERO).is_none());
    let (index, meta) = owner.request(&whole);
    let slot = owner.describe(index, &meta);
    owner.write(index, &slot, &metadata);
    let ended = std::thread::scope(|threads| {
        let waits = threads.spawn(|| fetch.wait(Duration::from_secs(60)).expect("it ends"));
        let asked: Vec<_> = (0..3).map(|_| owner.request(&whole)).collect();
        // All of the first one comes, a part of the second one, and nothing of the third one, which has no slot.
        let slot = owner.describe(asked[0].0, &asked[0].1);
        owner.write(asked[0].0, &slot, &part(&metadata, &asked[0].1, 0x11));
        let slot = owner.describe(asked[1].0, &asked[1].1);
        assert_eq!(slot.body.len(), 24);
        owner.link.write(&slot.body[1], 0, None, &[0x22; 4096]);
        let failed = Body::ErrorStatus(Failure::new(FailureCode::PoolFull, "it is enough"));
        owner.link.send(Role::Pull, asked[1].0, failed);
        let (index, ()) = owner.link.recv("CANCEL", |body| matches!(body, Body::Cancel).then_some(()));
        assert_eq!(index, asked[2].0, "the third one is not waited for");
        owner.link.send(Role::Pull, index, Body::Cancelled);
        waits.join().expect("no panic")
    });
    let (error, tensors) = ended.expect_err("it fails").into_parts();
    let Error::DestinationTorn(torn) = &error else { panic!("{error}") };
    let mut names: Vec<_> = torn.tensors.iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    assert_eq!(names, (0..46).map(|n| format!("t{n:03}")).collect::<Vec<_>>(), "{error}");
    assert_eq!(error.failure_code(), Some(FailureCode::PoolFull));
    let tensors = tensors.expect("they are the caller's");
    for (name, tensor) in tensors.iter() {
        let expected = match name {
            name if name < "t023" => [0x11, 0x11],
            "t023" => [0x22, 0xee],
            _ => [0xee, 0xee],
        };
        let (first, rest) = tensor.as_bytes().split_at(4096);
        let found = [first, rest].map(|bytes| bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0]));
        assert_eq!(found, expected.map(Some), "{name}");
    }
    drop((tensors, fetch, reader));
    owner.end();
    scene.end();
}

/// The requests of each kind that may be under way: of all, and of those of which nothing lands in place.
const IN_FLIGHT: usize = 16;
const BESIDE: usize = 2;

// Promise: into-memory, seen to fail
#[test]
fn sixteen_requests_of_a_bundle_are_under_way_two_of_them_of_what_lands_beside() {
    let scene = Scene::over(Carrier::Tcp, &[&["--listen", "127.0.0.1:0"]]);
    let mut owner = Owner::of("k", &scene);
    let reader = connect(scene.a().socket(), "reader");
    let long = (0..20 * 23).map(|n| (format!("t{n:03}"), 16));
    // Four buckets of shorter ones, of 32 KiB.
    let short = (0..4 * 32).map(|n| (format!("s{n:03}"), 8));
    let (whole, metadata, into) = foreign(&reader, long.chain(short));
    let mut fetch = reader.fetch_bundle("k").bucket_bytes(1 << 20).into(into.into_iter().collect()).begin();
    assert!(fetch.wait(Duration::ZERO).is_none());
    let (index, meta) = owner.request(&whole);
    let slot = owner.describe(index, &meta);
    owner.write(index, &slot, &metadata);
    let ended = std::thread::scope(|threads| {
        let waits = threads.spawn(|| fetch.wait(Duration::from_secs(60)).expect("it ends"));
        let (mut left, mut open) = ([20, 4], VecDeque::new());
        while left != [0, 0] || !open.is_empty() {
            let beside = open.iter().filter(|(_, _, beside)| *beside).count();
            let may_come = left[0] + left[1].min(BESIDE - beside);
            if open.len() < IN_FLIGHT && may_come > 0 {
                let (index, meta) = owner.request(&whole);
                let is_beside = meta.len_bytes() - meta.body_offset() == 1 << 20;
                assert!(!is_beside || beside < BESIDE, "more than {BESIDE} requests of what lands beside");
                left[usize::from(is_beside)] -= 1;
                open.push_back((index, meta, is_beside));
                continue;
            }
            // No other request comes before its slot.
            let (index, meta, is_beside) = open.pop_front().expect("a request");
            let slot = owner.describe(index, &meta);
            assert_eq!(slot.body.is_empty(), is_beside);
            owner.write(index, &slot, &part(&metadata, &meta, 0x11));
        }
        waits.join().expect("no panic")
    });
    let fetched = ended.expect("all of it has come");
    assert!(fetched.tensors().iter().all(|(_, tensor)| tensor.as_bytes().iter().all(|byte| *byte == 0x11)));
    drop((fetched, fetch, reader));
    owner.end();
    scene.end();
}
