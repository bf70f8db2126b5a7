//! Deadlines that pass in the middle of a transfer: the caller gets an error, and no memory is lost.

use std::time::Duration;
use transfer_tests::{Scene, Spec};

const LEN: u64 = 3 << 20;

/// Yields timeouts from 0 to about 34 ms: the first ones cannot be met, the last ones can.
fn timeouts() -> impl Iterator<Item = Duration> {
    (0..30).map(|i| Duration::from_micros(i * i * 40))
}

// Promise: calls-end
#[test]
fn expired_fetches_leak_no_landing_slot() {
    let mut scene = Scene::two_with(&["--pool-bytes", "16MiB"]).with_bystanders();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    for (version, timeout) in (1..).zip(timeouts()) {
        // Each version has another size, so that its description is not known yet and a new slot is requested.
        let spec = Spec::bytes(LEN + version, version);
        giver.push("w", spec.clone()).get();
        match taker.fetch("w").exactly(version).timeout(timeout).start().wait() {
            Ok(fetched) => assert_eq!(fetched.sum, spec.sum()),
            Err(trouble) => {
                let known = ["Deadline", "UnknownKey", "PeerUnreachable"];
                assert!(known.contains(&trouble.kind.as_str()) && trouble.can_retry, "{trouble}");
            }
        }
    }
    let spec = Spec::bytes(LEN, 99);
    giver.push("w", spec.clone()).get();
    assert_eq!(taker.fetch("w").at_least(31).get().sum, spec.sum());
    scene.others_go_on();
    drop((giver, taker));
    scene.end();
}

// Promise: calls-end
#[test]
fn expired_pushes_leak_no_memory() {
    let mut scene = Scene::two_with(&["--pool-bytes", "16MiB"]).with_bystanders();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let free = giver.arena_free();
    for (version, timeout) in (1..).zip(timeouts()) {
        let spec = Spec::bytes(LEN + version, version);
        match giver.push("w", spec.clone()).version(version).to("taker").timeout(timeout).start().wait() {
            Ok(pushed) => {
                assert_eq!(pushed.version, version);
                assert_eq!(taker.fetch("w").exactly(version).get().sum, spec.sum());
            }
            Err(trouble) => {
                let known = ["Deadline", "PoolFull", "PeerUnreachable", "DirectoryUnreachable", "ArenaFull"];
                assert!(known.contains(&trouble.kind.as_str()) && trouble.can_retry, "{trouble}");
            }
        }
    }
    let spec = Spec::bytes(LEN, 99);
    giver.push("w", spec.clone()).version(1000).to("taker").get();
    assert_eq!(taker.fetch("w").at_least(1000).get().sum, spec.sum());
    let got = transfer_tests::poll(|| match giver.arena_free() {
        bytes if bytes == free => Ok(()),
        bytes => Err(bytes),
    });
    assert_eq!(got, Ok(()), "of {free} bytes: what was being written comes back");
    scene.others_go_on();
    drop((giver, taker));
    scene.end();
}

/// Three fetches at a time expire, round after round, in a pool that has room for one tensor.
// Promise: dropped-calls, seen to fail
#[test]
fn expired_fetches_return_the_only_landing_slot() {
    let mut scene = Scene::two_with(&["--pool-bytes", "4MiB"]).with_bystanders();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    for key in ["one", "two", "three"] {
        giver.push(key, Spec::bytes(LEN, 1)).get();
    }
    for timeout in timeouts() {
        let fetches = ["one", "two", "three"].map(|key| taker.fetch(key).timeout(timeout).start());
        for fetch in fetches {
            match fetch.wait() {
                Ok(fetched) => assert_eq!(fetched.sum, Spec::bytes(LEN, 1).sum()),
                Err(trouble) => assert!(trouble.can_retry, "{trouble}"),
            }
        }
    }
    for key in ["one", "two", "three"] {
        assert_eq!(taker.fetch(key).get().sum, Spec::bytes(LEN, 1).sum());
    }
    scene.others_go_on();
    drop((giver, taker));
    scene.end();
}
