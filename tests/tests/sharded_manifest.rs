//! The manifest of a sharded state: fetched once, and shown in lists.

use super::sharded::{connect, elements, four_ranks, push_all};
use transfer_client::{BundleTensor, DType, Rank, Shard, s};
use transfer_tests::{Ctl, Scene, Sidecar};

const ROWS: u64 = 2000;

/// Who does not know what a key is fetches it as a bundle, and finds the manifest there.
#[test]
fn manifest_that_was_fetched_as_a_bundle_is_not_fetched_again() {
    let scene = Scene::two();
    let (pusher, reader) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "reader"));
    let push = |version: u64| {
        let row = |row: u64| {
            let mut shard = pusher.allocate(DType::U32, [1, 1]).expect("room");
            shard.as_mut_slice::<u32>().expect("u32")[0] = (row + version) as u32;
            Shard::new("w", [ROWS, 1], [row, 0], shard)
        };
        pusher.push_shards("policy", version, Rank { rank: 0, world_size: 1 }, (0..ROWS).map(row)).call()
    };
    let numbers = |version: u64| (0..ROWS).map(|row| (row + version) as u32).collect::<Vec<_>>();
    let moved = || scene.b().status().links.iter().map(|link| link.bytes_in).sum::<u64>();
    for version in 1..=2 {
        push(version).expect("pushed");
        let before = moved();
        let bundle = reader.fetch_bundle("policy").at_least(version).call().expect("it has a manifest");
        let (ranks, layouts) = (bundle.get("__ranks__").expect("there"), bundle.get("__layouts__"));
        let layouts_bytes = layouts.map_or(0, |layouts| layouts.as_bytes().len() as u64);
        let plain = moved() - before;
        assert!(layouts_bytes > 50 * ROWS && plain >= layouts_bytes, "{layouts_bytes} of {plain} bytes");
        let before = moved();
        let fetch = reader.fetch_sharded("policy").manifest(ranks, layouts);
        let row = fetch.slices([("w", s![1000..1001])]).call().expect("fetched");
        assert_eq!((row.version(), elements(&row)), (version, vec![(1000 + version) as u32]));
        // A row, the table of the rank's bundle, which is shorter, and no manifest.
        assert!(moved() - before < layouts_bytes * 2 / 3, "{} bytes beside {layouts_bytes}", moved() - before);
    }
    // One of a version that has ended meanwhile.
    let bundle = reader.fetch_bundle("policy").call().expect("it has a manifest");
    (3..=4).for_each(|version| assert!(push(version).expect("pushed").is_whole));
    let (ranks, layouts) = (bundle.get("__ranks__").expect("there"), bundle.get("__layouts__"));
    let all = reader.fetch_sharded("policy").manifest(ranks, layouts).call().expect("the newest");
    assert_eq!((all.version(), elements(&all)), (4, numbers(4)));
    // What is no manifest.
    let w = all.get("w").expect("there");
    let e = reader.fetch_sharded("policy").manifest(w, None).call().expect_err("it is a tensor");
    assert!(e.to_string().contains("the manifest begins with another mark"), "{e}");
    drop((pusher, reader, bundle, all));
    scene.end();
}

#[test]
fn sharded_states_are_listed_with_their_global_tensors() {
    let (scene, ranks) = four_ranks();
    push_all(&ranks, 3);
    let one = [Shard::new("b", [4], [0], BundleTensor::from_slice([2], &[1_u8; 2]).expect("its length"))];
    // Of this one rank 1 is missing.
    ranks[0].push_shards("jobs/half", 7, Rank { rank: 0, world_size: 2 }, one).call().expect("committed");
    ranks[3].push_slice("plain", [1], &[1_u8]).call().expect("pushed");
    let two = ["w", "v"]
        .map(|name| Shard::new(name, [2], [0], BundleTensor::from_slice([2], &[1_u16; 2]).expect("its length")));
    ranks[3].push_shards("two", 1, Rank { rank: 0, world_size: 1 }, two).call().expect("pushed");
    // Its shards are there, and its key is that of a tensor by now.
    let mixed = [Shard::new("w", [2], [0], BundleTensor::from_slice([2], &[1_u8; 2]).expect("its length"))];
    ranks[3].push_shards("mixed", 1, Rank { rank: 0, world_size: 1 }, mixed).call().expect("pushed");
    ranks[3].push_slice("mixed", [1], &[1_u8]).call().expect("pushed");
    let list = |node: &Sidecar, options: &[&str]| {
        let socket = node.socket().to_string_lossy().into_owned();
        Ctl::of(node, &[&["tensors", "--sharded", "--socket", &socket], options].concat()).ends(0, &[])
    };
    let text = list(scene.a(), &[]).text();
    let line =
        |start: &str| text.lines().find(|line| line.trim_start().starts_with(start)).unwrap_or_default().to_owned();
    for words in ["w u32[400, 600]", "937.5 KiB", " 3 ", " 4 ", "a, b"] {
        assert!(line("policy").contains(words), "{words}: {text}");
    }
    assert!(line("jobs/half").contains("no version is whole"), "{text}");
    assert!(text.contains("2 sharded states") && !text.contains("rank-") && !text.contains("two"), "{text}");
    let json = list(scene.a(), &["--cluster", "--json"]).json_lines();
    let keys: Vec<_> = json.iter().map(|state| state["key"].as_str().unwrap_or_default()).collect();
    assert_eq!(keys, ["jobs/half", "mixed", "policy", "two"]);
    assert_eq!((&json[0]["version"], &json[0]["error"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    assert!(json[1]["error"].as_str().is_some_and(|why| why.contains("mixed")), "{}", json[1]);
    let expected = serde_json::json!({
        "key": "policy", "version": 3, "tensors": [{ "name": "w", "dtype": "u32", "shape": [400, 600] }], "len_bytes": 960_000,
        "ranks": 4, "nodes": ["a", "b"], "unproved": 0,
    });
    assert_eq!(json[2], expected);
    let text = list(scene.b(), &["--limit", "1"]).text();
    assert!(text.contains("1 sharded state") && text.contains("there are more"), "{text}");
    drop(ranks);
    scene.end();
}
