//! A fetch returns exactly the pushed tensor: every element type, shape, size and version, on one node and between
//! two.

use transfer_client::DType;
use transfer_tests::pattern::len_of;
use transfer_tests::{Carrier, PushMode, Scene, Spec};

/// Checks that a fetched tensor is exactly the pushed one.
#[track_caller]
fn same(fetched: &transfer_tests::Fetched, spec: &Spec) {
    assert_eq!((&fetched.dtype, &fetched.shape), (&spec.dtype, &spec.shape));
    assert_eq!((fetched.len, fetched.sum), (len_of(spec), spec.sum()), "{spec:?}");
    assert_eq!(fetched.report.bytes, len_of(spec));
}

/// Returns specs of every element type, each with another shape, and of shapes that are easily forgotten.
fn specs() -> Vec<Spec> {
    let mut specs: Vec<_> = (0u64..)
        .zip(DType::ALL)
        .map(|(i, dtype)| Spec { dtype: dtype.name().into(), shape: vec![3 + i, 5, 14], seed: 100 + i })
        .collect();
    let more: [(&str, &[u64]); 9] = [
        ("f32", &[]),
        ("bool", &[]),
        ("c64", &[1]),
        ("bf16", &[1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2]),
        ("f64", &[0]),
        ("u8", &[4, 0, 1_000_000]),
        ("u8", &[63]),
        ("u8", &[64]),
        ("u8", &[65]),
    ];
    specs.extend(more.iter().map(|(dtype, shape)| Spec { dtype: (*dtype).into(), shape: shape.to_vec(), seed: 9 }));
    specs
}

fn all_specs_come_back(scene: Scene, carrier: Option<Carrier>) {
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    for (way, of) in [(PushMode::Owned, "owned"), (PushMode::Frozen, "frozen"), (PushMode::Foreign, "foreign")] {
        for (i, spec) in specs().iter().enumerate() {
            let key = format!("{of}/{i}");
            let pushed = giver.push(&key, spec.clone()).way(way).get();
            assert_eq!(pushed.version, 1);
            let copied_in = if way == PushMode::Foreign { len_of(spec) } else { 0 };
            assert_eq!(pushed.report.copied, copied_in, "{spec:?}: {}", pushed.report.text);
            let fetched = taker.fetch(&key).get();
            same(&fetched, spec);
            assert_eq!(fetched.version, 1);
            match carrier {
                Some(carrier) => carrier.carried(&fetched.report),
                None => assert_eq!((fetched.report.fabric.as_str(), fetched.report.copied), ("local", 0)),
            }
        }
    }
    assert!(giver.close().success() && taker.close().success());
    scene.end();
}

// Promise: bytes-type-and-shape, seen to fail
#[test]
fn every_type_and_shape_arrives_on_one_node() {
    all_specs_come_back(Scene::one(), None);
}

// Promise: bytes-type-and-shape, seen to fail
// Promise: four-bit-elements
#[test]
fn every_type_and_shape_arrives_between_nodes() {
    all_specs_come_back(Scene::two(), Some(Carrier::chosen()));
}

// Promise: bytes-type-and-shape, seen to fail
#[test]
fn every_type_and_shape_lands_at_another_node() {
    let scene = Scene::two();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    for (i, spec) in specs().iter().enumerate() {
        let key = format!("to/{i}");
        let pushed = giver.push(&key, spec.clone()).to("taker").get();
        assert_eq!(pushed.report.bytes, len_of(spec));
        Carrier::chosen().carried(&pushed.report);
        // The tensor has landed, so the fetch is a local hand-over.
        let fetched = taker.fetch(&key).get();
        same(&fetched, spec);
        assert_eq!((fetched.report.fabric.as_str(), fetched.report.copied), ("local", 0));
    }
    drop((giver, taker));
    scene.end();
}

/// `AtLeast` and `Latest` return the newest version. `Exactly` returns its own version, and waits for it.
fn versions(scene: Scene) {
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let spec = |version| Spec::bytes(1000, version);
    // A fetch may come before its push.
    let early = [
        taker.fetch("w").start(),
        taker.fetch("w").exactly(7).start(),
        taker.fetch("w").at_least(3).start(),
        taker.fetch("w").at_least(8).start(),
    ];
    scene.b().until("four fetches wait", |s| transfer_tests::status::operations_of(s, "taker") == 4);
    giver.push("w", spec(7)).version(7).get();
    let [latest, exactly, from_3, from_8] = early;
    for fetched in [latest.get(), exactly.get(), from_3.get()] {
        same(&fetched, &spec(7));
        assert_eq!(fetched.version, 7);
    }
    giver.push("w", spec(9)).version(9).get();
    let fetched = from_8.get();
    same(&fetched, &spec(9));
    assert_eq!(fetched.version, 9);
    // The older version is gone, and no newer version is returned in its place.
    taker.fetch("w").exactly(7).trouble().expect("VersionGone", &["\"w\"", "v7", "v9"]);
    // A push without a version number gets the next one.
    assert_eq!(giver.push("w", spec(10)).get().version, 10);
    // The push is done, so a fetch of the newest version returns it without waiting.
    same(&taker.fetch("w").get(), &spec(10));
    same(&taker.fetch("w").exactly(10).get(), &spec(10));
    drop((giver, taker));
    scene.end();
}

// Promise: version-choices, seen to fail
#[test]
fn version_choices_hold_on_one_node() {
    versions(Scene::one());
}

// Promise: version-choices, seen to fail
// Promise: finished-push, seen to fail
#[test]
fn version_choices_hold_between_nodes() {
    versions(Scene::two());
}

/// Pushes 60 versions in turn to the other node, which uses the same two landing slots for all of them.
#[test]
fn versions_reuse_two_landing_slots() {
    let scene = Scene::two();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    for version in 1..=60 {
        let spec = Spec::bytes(50_000, version);
        giver.push("grad", spec.clone()).version(version).to("taker").get();
        let fetched = taker.fetch("grad").exactly(version).get();
        same(&fetched, &spec);
    }
    let pool = scene.b().status().pools[0].used_bytes;
    assert!(pool < 3 * 50_176, "{pool} bytes are more than two slots");
    drop((giver, taker));
    scene.end();
}

/// The tensors of one key grow, shrink and change their type. New slots are requested where they are necessary.
#[test]
fn tensors_may_grow_shrink_and_change_type() {
    let scene = Scene::two();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let lens = [1, 100, 100_000, 64, 0, 100_000, 3_000_000, 7, 3_000_001];
    for (version, len) in (1..).zip(lens) {
        let spec = Spec::bytes(len, version);
        giver.push("pushed", spec.clone()).to("taker").get();
        same(&taker.fetch("pushed").exactly(version).get(), &spec);
        giver.push("pulled", spec.clone()).get();
        same(&taker.fetch("pulled").exactly(version).get(), &spec);
    }
    let other = Spec { dtype: "f64".into(), shape: vec![10, 10], seed: 77 };
    giver.push("pushed", other.clone()).to("taker").get();
    same(&taker.fetch("pushed").at_least(10).get(), &other);
    giver.push("pulled", other.clone()).get();
    same(&taker.fetch("pulled").at_least(10).get(), &other);
    drop((giver, taker));
    scene.end();
}

/// The tensor is larger than one RDMA WRITE can carry on a device with a lower limit for messages.
#[test]
fn tensor_of_64_mib_arrives() {
    let scene = Scene::two_with(&["--pool-bytes", "208MiB"]);
    let start = |node, name| transfer_tests::Worker::of(node, name).arena_bytes(144 << 20).start();
    let (mut giver, mut near) = (start(scene.a(), "giver"), scene.a().worker("near"));
    let mut far = scene.b().worker("far");
    let spec = Spec { dtype: "f32".into(), shape: vec![4096, 4096], seed: 64 };
    giver.push("large", spec.clone()).get();
    let at_hand = near.fetch("large").get();
    same(&at_hand, &spec);
    assert_eq!((at_hand.report.fabric.as_str(), at_hand.report.copied), ("local", 0));
    let over_there = far.fetch("large").get();
    same(&over_there, &spec);
    Carrier::chosen().carried(&over_there.report);
    let pushed = giver.push("pushed", spec.clone()).to("far").get();
    Carrier::chosen().carried(&pushed.report);
    same(&far.fetch("pushed").get(), &spec);
    drop((giver, near, far));
    scene.end();
}

/// Transfers many tensors at once, in both directions.
#[test]
fn concurrent_tensors_arrive_in_both_directions() {
    let scene = Scene::two();
    let (mut one, mut two) = (scene.a().worker("one"), scene.b().worker("two"));
    let fetches: Vec<_> = (0..40)
        .map(|i| {
            let (one_s, two_s) = (Spec::bytes(3000 + i, i), Spec::bytes(5000 + i, 1000 + i));
            let there = two.fetch(&format!("one/{i}")).start();
            let here = one.fetch(&format!("two/{i}")).start();
            let pushes = (
                one.push(&format!("one/{i}"), one_s.clone()).start(),
                two.push(&format!("two/{i}"), two_s.clone()).start(),
            );
            (there, here, pushes, one_s, two_s)
        })
        .collect();
    for (there, here, pushes, one_s, two_s) in fetches {
        pushes.0.get();
        pushes.1.get();
        same(&there.get(), &one_s);
        same(&here.get(), &two_s);
    }
    drop((one, two));
    scene.end();
}
