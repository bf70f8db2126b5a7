//! How long versions stay published, at the sidecar of the worker that pushed them and at another one.

use transfer_tests::order::Until;
use transfer_tests::{Scene, Spec};

const LEN: u64 = 100_000;

fn scenes() -> [Scene; 2] {
    [Scene::one().with_bystanders(), Scene::two().with_bystanders()]
}

// Promise: retention, seen to fail
#[test]
fn versions_stay_until_replaced_fetched_or_deleted() {
    for mut scene in scenes() {
        let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
        let free = giver.arena_free();
        giver.push("k", Spec::bytes(LEN, 1)).keep(Until::Deleted).get();
        giver.push("k", Spec::bytes(LEN, 2)).keep(Until::Fetched(2)).get();
        giver.push("k", Spec::bytes(LEN, 3)).get();
        giver.push("k", Spec::bytes(LEN, 4)).get();
        assert_eq!(taker.fetch("k").get().version, 4);
        taker.fetch("k").exactly(3).trouble().expect("VersionGone", &["v3", "v4"]);
        for _ in 0..2 {
            assert_eq!(taker.fetch("k").exactly(2).get().sum, Spec::bytes(LEN, 2).sum());
        }
        taker.fetch("k").exactly(2).trouble().expect("VersionGone", &["v2"]);
        assert_eq!(taker.fetch("k").exactly(1).get().sum, Spec::bytes(LEN, 1).sum());
        let listed = scene.a().admin().tensors("k").expect("it answers");
        let row = listed.iter().find(|t| t.key == "k").expect("it is listed");
        assert_eq!((row.version, row.older, row.retention.as_str()), (4, 1, "until replaced"));
        scene.others_go_on();
        giver.delete("k").expect("it is the giver's");
        let freed = transfer_tests::poll(|| match giver.arena_free() {
            now if now == free => Ok(()),
            now => Err(now),
        });
        assert_eq!(freed, Ok(()), "all of {free} comes back");
        drop((giver, taker));
        scene.end();
    }
}

// Promise: retention, seen to fail
#[test]
fn version_outlives_its_worker_and_is_inherited_by_name() {
    for mut scene in scenes() {
        let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
        giver.push("k", Spec::bytes(LEN, 1)).version(7).outlive().get();
        giver.push("gone", Spec::bytes(LEN, 1)).get();
        giver.kill();
        scene.a().until("the giver is gone", |s| s.sessions.iter().all(|s| s.worker != "giver"));
        let got = taker.fetch("k").hold("k").get();
        assert_eq!((got.version, got.sum), (7, Spec::bytes(LEN, 1).sum()));
        scene.others_go_on();
        let mut other = scene.a().worker("other");
        other.push("k", Spec::bytes(10, 2)).trouble().expect("KeyOwned", &["giver"]);
        // The new session is a new epoch, so it may begin with a lower version.
        let mut heir = scene.a().worker("giver");
        heir.push("k", Spec::bytes(LEN, 2)).version(3).get();
        assert_eq!(taker.fetch("k").get().version, 3);
        assert_eq!(taker.read("k"), Spec::bytes(LEN, 1).sum());
        drop((heir, taker, other));
        scene.end();
    }
}
