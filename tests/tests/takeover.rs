//! Keys that move from one owner to another, and worker names that are used again at once.

use transfer_tests::{Scene, Spec};

const LEN: u64 = 100_000;

// Promise: one-owner, seen to fail
#[test]
fn a_key_is_taken_over_on_one_node_and_across_two() {
    for mut scene in [Scene::one().with_bystanders(), Scene::two().with_bystanders()] {
        let (mut old, mut new) = (scene.a().worker("old"), scene.b().worker("new"));
        let (mut near, mut far) = (scene.a().worker("near"), scene.b().worker("far"));
        old.push("k", Spec::bytes(LEN, 1)).version(100).get();
        near.fetch("k").hold("k").get();
        far.fetch("k").hold("k").get();
        new.push("k", Spec::bytes(LEN, 2)).trouble().expect("KeyOwned", &["\"old\"", "\"a\""]);
        assert_eq!(new.push("k", Spec::bytes(LEN, 2)).takeover().get().version, 1);
        for reader in [&mut near, &mut far] {
            // A node that has cached the old owner's node learns there that the owner has changed.
            let seen = transfer_tests::poll(|| match reader.fetch("k").get() {
                got if got.version == 1 => Ok(got.sum),
                got => Err(got.version),
            });
            assert_eq!(seen, Ok(Spec::bytes(LEN, 2).sum()));
            assert_eq!(reader.read("k"), Spec::bytes(LEN, 1).sum(), "what is being read stays");
        }
        old.push("k", Spec::bytes(LEN, 3)).version(101).trouble().expect("KeyOwned", &["\"new\""]);
        scene.others_go_on();
        assert_eq!(old.push("k", Spec::bytes(LEN, 4)).takeover().get().version, 1);
        // The other node learns of the takeover a moment later, and accepts pushes until then.
        let refused = transfer_tests::poll(|| match new.push("k", Spec::bytes(LEN, 5)).start().wait() {
            Err(trouble) => Ok(trouble),
            Ok(pushed) => Err(pushed.version),
        });
        refused.expect("it has not heard of it").expect("KeyOwned", &["\"old\""]);
        drop((old, new, near, far));
        scene.end();
    }
}

/// A worker is killed and started again under the same name, repeatedly and without a pause. It is never told that its
/// name is taken.
#[test]
fn worker_restarted_at_once_regains_its_name() {
    let mut scene = Scene::one().with_bystanders();
    let mut worker = scene.a().worker("again");
    for round in 1..20 {
        // Each session pushes a lower version than the one before, because each session is an epoch of its own.
        worker.push("k", Spec::bytes(LEN, round)).version(100 - round).get();
        worker.kill();
        worker = scene.a().worker("again");
    }
    scene.others_go_on();
    drop(worker);
    scene.end();
}
