//! Attackers beside an honest job: a hostile worker, a hostile peer and a stranger at each of two sidecars, as another
//! user. They attack all at once, then one kind after the other, then all at once again.
//!
//! Each part takes `TRANSFER_TEST_WORST_SECONDS` seconds; default 1. Only root can start a program as another user.
//! Without root, the test reports that it did not run.

use crate::other_user::can_be_others;
use std::time::Duration;
use transfer_tests::worst::beside::{Beside, PARTS};

// Promise: attackers-at-once, seen to fail
#[test]
fn attackers_harm_themselves_alone() {
    if !can_be_others() {
        return;
    }
    let seconds = std::env::var("TRANSFER_TEST_WORST_SECONDS").map_or(1, |text| text.parse().expect("seconds"));
    let lasts = Duration::from_secs(seconds);
    let mut beside = Beside::start(std::process::id().into());
    println!("attackers are {}", beside.how_held());
    // All of them attack first, too, so that buffers which grow once have grown by then.
    for parts in [&PARTS[..], &PARTS[..1], &PARTS[1..2], &PARTS[2..], &PARTS] {
        let (times, accounts) = beside.with(parts, lasts);
        println!("{} rounds of the job beside {parts:?}", times.len());
        for (part, account) in accounts {
            println!("{part:?}: {}", serde_json::to_string(&account).expect("plain values"));
            assert_eq!(account.strange, Vec::<String>::new(), "{part:?}: {account:#?}");
            // Every deed was done, so the attackers were not simply idle.
            assert!(account.deeds.values().all(|outcome| outcome.times > 0), "{part:?}: {account:#?}");
        }
    }
    beside.end();
}
