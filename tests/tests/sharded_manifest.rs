//! What a fetch of a sharded state asks for beside the tensors.

use super::sharded::{connect, elements};
use transfer_client::{Rank, Shard};
use transfer_tests::Scene;

const ROWS: u64 = 2000;

/// Who does not know what a key is fetches it as a bundle, and finds the manifest there.
#[test]
fn manifest_that_was_fetched_as_a_bundle_is_not_fetched_again() {
    let scene = Scene::two();
    let (pusher, reader) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "reader"));
    let push = |version: u64| {
        let row = |row: u64| {
            let mut shard = pusher.allocate(transfer_client::DType::U32, [1, 1]).expect("room");
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
        let row = fetch.slices([("w", transfer_client::s![1000..1001])]).call().expect("fetched");
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
