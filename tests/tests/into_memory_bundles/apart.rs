//! Fetches of bundles whose tensors lie apart in the memory of the reader, in more pieces than one request has ranges for.

use crate::into_memory::{WIDTH, connect, empty, from_afar, has, numbers};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use transfer_client::{BlockingClient, BundleMut, DType, FetchedInto, Landing, s};
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
