//! Schedules: thousands of seeds, each a cluster with its failures; and deliberately broken rules, which the schedules
//! must notice.

use super::cluster::{Play, Tally, run};
use super::digest::Digest;
use crate::protocol::Broken;
use crate::rails;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Plays one seed. The error says what went wrong.
fn play(seed: u64, play: Play) -> Result<Tally, String> {
    match catch_unwind(AssertUnwindSafe(|| run(seed, play, &mut None, false))) {
        Ok(result) => result,
        Err(panic) => Err(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panicked".into())),
    }
}

/// Plays a seed again and prints its trace. The same seed gives the same run.
fn replay(seed: u64, play: Play) {
    let mut world = None;
    let _ = catch_unwind(AssertUnwindSafe(|| run(seed, play, &mut world, true)));
    let trace = world.map(|w| w.trace()).unwrap_or_default();
    let skipped = trace.len().saturating_sub(setting("TRANSFER_TRACE_LINES", 400));
    eprintln!("... {skipped} lines before");
    for line in &trace[skipped..] {
        eprintln!("{line}");
    }
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// The default number of seeds that each test plays: 8,120 over all tests. `make test-all` plays 203,000. Miri is a few
/// hundred times slower.
const USUAL_COUNT: usize = if cfg!(miri) { 2 } else { 280 };

/// Plays `TRANSFER_SCHEDULES` seeds, by default [`USUAL_COUNT`], or only the seed in `TRANSFER_SEED`. Several tests
/// with one kind of schedule run in parallel; each has a `part`, whose seeds begin where those of the previous part
/// end.
fn play_many(test: &str, how: Play, part: u64) {
    let count = setting("TRANSFER_SCHEDULES", USUAL_COUNT) as u64;
    let (first, count) = match std::env::var("TRANSFER_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => (seed, 1),
        None => (part * count, count),
    };
    let mut tally = Tally::default();
    for seed in first..first + count {
        match play(seed, how) {
            Ok(one) => tally.add(&one),
            Err(why) => {
                replay(seed, how);
                panic!(
                    "seed {seed}: {why}\nplay it again, with all that happened: TRANSFER_SEED={seed} TRANSFER_TRACE_LINES=1000000 \
                     cargo test --package transfer-core --lib {test}"
                );
            }
        }
    }
    assert!(count < 100 || how.tight || tally.look_ups > 0, "{test}: nobody has found anything on a board");
    // Where ranks take most steps, few workers wait for a notice.
    assert!(
        count < 100 || how.tight || how.rosters || tally.noticed > 0,
        "{test}: nobody has found anything in a notice: {tally:?}"
    );
    assert!(count < 100 || how.calm || tally.gathered > 0, "{test}: nothing has come together: {tally:?}");
    assert!(count < 100 || tally.sliced > 0, "{test}: no slice has come: {tally:?}");
    assert!(count < 100 || !how.spill || tally.read_back > 0, "{test}: nothing was read back from disk: {tally:?}");
    assert!(count < 100 || !how.deltas || tally.deltas > 0, "{test}: no delta was applied: {tally:?}");
    assert!(count < 100 || !how.deltas || tally.chains > 0, "{test}: no deltas came together: {tally:?}");
    let has_bases = tally.lent_bases > 0 && (tally.wrong_bases > 0 || how.restarts);
    assert!(count < 100 || !how.bases || has_bases, "{test}: no delta of a base that was lent: {tally:?}");
    assert!(count < 100 || !how.spreads || tally.relayed > 0, "{test}: no version has spread: {tally:?}");
    assert!(
        count < 100 || !how.spreads || how.calm || how.lies > 0 || tally.damaged > 0,
        "{test}: no version was damaged on its way: {tally:?}"
    );
    assert!(count < 100 || !how.into || tally.landed > 0, "{test}: nothing has landed in place: {tally:?}");
    assert!(count < 100 || !how.into || tally.scattered > 0, "{test}: nothing has landed in several ranges: {tally:?}");
    assert!(count < 100 || !how.into || how.calm || tally.torn > 0, "{test}: nothing was torn: {tally:?}");
    assert!(count < 100 || !how.rosters || tally.whole > 0 && (tally.held > 0 || !how.calm), "{test}: {tally:?}");
    println!("{test}: {count} schedules from {first}, {tally:?}");
}

/// Defines tests that play schedules.
macro_rules! schedules {
    ($($name:ident: $how:expr, $part:expr;)*) => {
        $(
            #[test]
            fn $name() {
                play_many(stringify!($name), $how, $part);
            }
        )*
    };
}

const RAILS: Play = Play { rails: true, ..Play::USUAL };
const CALM: Play = Play { calm: true, ..Play::USUAL };
const RESTARTS: Play = Play { restarts: true, ..Play::USUAL };

/// Each kind of schedule once.
const PLAYS: [Play; 12] = [
    Play::USUAL,
    RESTARTS,
    CALM,
    Play { tight: true, ..CALM },
    Play { late_packets: 50, ..Play::USUAL },
    Play { lies: 10, ..Play::USUAL },
    Play { calm: true, ..RAILS },
    RAILS,
    Play { one_key: true, ..Play::USUAL },
    Play { one_key: true, calm: true, ..RAILS },
    Play { one_key: true, ..RAILS },
    Play { late_packets: 50, ..RAILS },
];

schedules! {
    // Promise: range-reuse, seen to fail
    // Promise: calls-end, seen to fail
    // Promise: killed-worker, seen to fail
    // Promise: traces, seen to fail
    rules_hold_under_random_conditions_1: Play::USUAL, 0;
    rules_hold_under_random_conditions_2: Play::USUAL, 1;
    rules_hold_under_random_conditions_3: Play::USUAL, 2;
    // Promise: reused-notices, seen to fail
    // Promise: node-alone, seen to fail
    rules_hold_while_sidecars_and_directories_restart_1: RESTARTS, 0;
    rules_hold_while_sidecars_and_directories_restart_2: RESTARTS, 1;
    everything_succeeds_under_calm_conditions: CALM, 0;
    // Promise: full-pools
    everything_succeeds_in_turn_when_room_is_short: Play { tight: true, ..CALM }, 0;
    // Promise: range-reuse, seen to fail
    late_packets_change_no_delivered_bytes: Play { late_packets: 50, ..Play::USUAL }, 0;
    false_header_ends_its_link: Play { lies: 10, ..Play::USUAL }, 0;
    // Promise: dead-rail, seen to fail
    everything_succeeds_while_one_rail_is_live: Play { calm: true, ..RAILS }, 0;
    // Promise: rows-on-disk
    rules_hold_while_versions_are_written_to_disk: Play { spill: true, ..Play::USUAL }, 0;
    // Promise: rows-on-disk
    everything_succeeds_while_versions_are_written_to_disk: Play { spill: true, ..CALM }, 0;
    // Promise: into-memory, seen to fail
    memory_is_its_workers_again_when_a_fetch_into_it_ends: Play { into: true, ..Play::USUAL }, 0;
    // Promise: into-memory, seen to fail
    late_packets_change_no_memory_that_is_its_workers_again: Play { into: true, late_packets: 50, ..RAILS }, 0;
    everything_lands_in_memory_under_calm_conditions: Play { into: true, ..CALM }, 0;
    // Promise: whole-versions, seen to fail
    // Promise: sharded-restart, seen to fail
    // Promise: unfinished-versions
    sharded_versions_are_whole_for_one_set_of_ranks: Play { rosters: true, ..Play::USUAL }, 0;
    // Promise: lost-homes, seen to fail
    sharded_versions_are_whole_for_one_set_of_ranks_while_homes_die: Play { rosters: true, ..RESTARTS }, 0;
    every_sharded_version_becomes_whole_under_calm_conditions: Play { rosters: true, ..CALM }, 0;
    // Promise: deltas, seen to fail
    rules_hold_while_versions_come_as_deltas: Play { deltas: true, ..Play::USUAL }, 0;
    // Promise: deltas, seen to fail
    rules_hold_while_deltas_come_and_sidecars_restart: Play { deltas: true, ..RESTARTS }, 0;
    // Promise: deltas, seen to fail
    late_packets_change_no_version_that_is_made_of_a_delta: Play { deltas: true, late_packets: 50, ..RAILS }, 0;
    // Promise: lent-bases
    rules_hold_while_workers_lend_bases: Play { bases: true, deltas: true, ..Play::USUAL }, 0;
    // Promise: lent-bases
    rules_hold_while_workers_lend_bases_and_sidecars_restart: Play { bases: true, deltas: true, ..RESTARTS }, 0;
    // Promise: deltas, seen to fail
    everything_succeeds_while_versions_come_as_deltas: Play { deltas: true, ..CALM }, 0;
    false_header_ends_its_link_while_versions_come_as_deltas: Play { deltas: true, lies: 10, ..Play::USUAL }, 0;
    // Promise: spreading, seen to fail
    rules_hold_while_versions_spread: Play { spreads: true, ..Play::USUAL }, 0;
    // Promise: spreading
    rules_hold_while_versions_spread_and_sidecars_restart: Play { spreads: true, ..RESTARTS }, 0;
    // Promise: spreading
    late_packets_change_no_version_that_spreads: Play { spreads: true, late_packets: 50, ..RAILS }, 0;
    everything_succeeds_while_versions_spread: Play { spreads: true, ..CALM }, 0;
    false_header_ends_its_link_while_versions_spread: Play { spreads: true, lies: 10, ..Play::USUAL }, 0;
    versions_spread_and_come_as_deltas: Play { spreads: true, deltas: true, ..Play::USUAL }, 0;
    rules_hold_while_rails_die: RAILS, 0;
    rules_hold_with_one_key_for_all_grants: Play { one_key: true, ..Play::USUAL }, 0;
    everything_succeeds_with_one_key_and_rails: Play { one_key: true, calm: true, ..RAILS }, 0;
    rules_hold_with_one_key_while_rails_die: Play { one_key: true, ..RAILS }, 0;
    // Promise: dead-rail, seen to fail
    late_packets_of_dead_rails_change_no_bytes: Play { late_packets: 50, ..RAILS }, 0;
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for (seed, how) in (0..4).flat_map(|seed| [(seed, Play::USUAL), (seed, RESTARTS), (seed, RAILS)]) {
        let traces = [0, 1].map(|_| {
            let mut world = None;
            run(seed, how, &mut world, true).unwrap();
            world.unwrap().trace()
        });
        assert!(!traces[0].is_empty());
        assert_eq!(traces[0], traces[1], "seed {seed}");
    }
}

/// The digests of the first seeds of each of [`PLAYS`]: of 20 seeds and of 840. A change of the protocol, of its texts
/// or of the schedules changes them. The test then prints the new values, and the commit says why they changed.
const DIGESTS: [(u64, u64); 2] = [(20, 0xb8c2_8103_c15d_ba06), (840, 0x49c7_8e47_544a_a50e)];

/// Plays 240 schedules by default, and 10,080 with `TRANSFER_DIGEST=all`.
#[test]
#[cfg_attr(miri, ignore = "it plays hundreds of schedules")]
fn digests_of_known_seeds_are_unchanged() {
    let all = std::env::var("TRANSFER_DIGEST").is_ok_and(|which| which == "all");
    let (seeds, known) = DIGESTS[usize::from(all)];
    let mut digest = Digest::default();
    for how in PLAYS {
        for seed in 0..seeds {
            let mut world = None;
            run(seed, how, &mut world, false).unwrap_or_else(|why| panic!("seed {seed} of {how:?}: {why}"));
            digest.add_run(world.unwrap().digest());
        }
    }
    let digest = digest.number();
    assert_eq!(digest, known, "the digest of {seeds} seeds of each play is {digest:#018x}");
}

/// Plays seeds until one fails. Returns that seed and its error.
fn first_that_notices(how: Play, seeds: Range<u64>) -> Option<(u64, String)> {
    let mut seeds = seeds;
    seeds.find_map(|seed| play(seed, how).err().map(|why| (seed, why)))
}

/// The broken rules, the schedules that notice them, and the range of seeds. Where hundreds of the first seeds notice nothing, it
/// begins behind most of them, because these two tests took most of the time of all here. docs/protocol.md lists the rules.
const MISTAKES: [(Broken, Play, Range<u64>); 28] = [
    (Broken::DeliversBeforeRevoke, Play { late_packets: 50, ..Play::USUAL }, 0..1000),
    (Broken::SkipsQuarantine, Play::USUAL, 0..1000),
    (Broken::ReturnsBeforeClosed, Play { into: true, ..Play::USUAL }, 0..1000),
    (Broken::ClosesOneRange, Play { into: true, late_packets: 50, ..RAILS }, 0..1000),
    (Broken::ForgetsCredits, Play::USUAL, 0..1000),
    (Broken::DeniesLostAdds, Play::USUAL, 400..5_400),
    (Broken::DeliversOutOfOrder, CALM, 250..2_250),
    (Broken::ReclaimsAtOnce, Play::USUAL, 0..1000),
    (Broken::BelievesHeaders, Play { lies: 10, ..Play::USUAL }, 0..1000),
    (Broken::MixesRounds, Play { tight: true, ..CALM }, 0..1000),
    (Broken::ReusesNames, Play::USUAL, 0..1000),
    (Broken::KeepsSpeculation, Play::USUAL, 0..1000),
    (Broken::ForgetsReleases, Play::USUAL, 0..1000),
    (Broken::ForgetsMarks, Play::USUAL, 0..1000),
    (Broken::AnswersAtOnce, CALM, 500..5_500),
    (Broken::KeepsReferences, Play::USUAL, 0..1000),
    (Broken::ForgetsReaders, Play::USUAL, 0..30_000),
    (Broken::KeepsLostKeys, RESTARTS, 0..1000),
    (Broken::ServesStrangers, Play::USUAL, 0..1000),
    (Broken::SharesEarlierAnswers, CALM, 0..5000),
    (Broken::NamesSlotsByKey, Play { one_key: true, ..Play::USUAL }, 0..1000),
    (Broken::PublishesOtherRanks, Play { rosters: true, ..Play::USUAL }, 0..1000),
    (Broken::ForgetsHolds, Play { rosters: true, ..CALM }, 0..1000),
    (Broken::AcceptsOlderRestarts, Play { rosters: true, ..Play::USUAL }, 0..1000),
    (Broken::ReplacesMovedRanks, Play { rosters: true, ..Play::USUAL }, 15_800..17_800),
    (Broken::ForgetsCommits, Play { rosters: true, ..RESTARTS }, 0..1000),
    (Broken::SendsDeltasToAll, Play { deltas: true, ..Play::USUAL }, 0..1000),
    (Broken::BelievesChains, Play { deltas: true, ..Play::USUAL }, 0..1000),
];

const MISTAKES_OF_SPREADING: [(Broken, Play, Range<u64>); 2] = [
    (Broken::RelaysBeforeRevoke, Play { spreads: true, late_packets: 50, ..Play::USUAL }, 0..1000),
    (Broken::BelievesRelays, Play { spreads: true, ..Play::USUAL }, 0..1000),
];

const MISTAKES_OF_RAILS: [(rails::Broken, Range<u64>); 3] = [
    (rails::Broken::RedoesUnconfirmed, 0..1000),
    (rails::Broken::ConfirmsUndrained, 1_950..31_950),
    (rails::Broken::ForgetsFences, 0..1000),
];

// Promise: immutable-versions, seen to fail
// Promise: range-reuse, seen to fail
// Promise: order-of-pushes, seen to fail
// Promise: key-at-two-nodes, seen to fail
// Promise: barriers-and-counters, seen to fail
// Promise: other-tenants, seen to fail
#[test]
#[cfg_attr(miri, ignore = "some need thousands of schedules")]
fn every_mistake_is_noticed() {
    notice(&MISTAKES);
}

// Promise: spreading, seen to fail
#[test]
#[cfg_attr(miri, ignore = "some need thousands of schedules")]
fn every_mistake_of_spreading_is_noticed() {
    notice(&MISTAKES_OF_SPREADING);
}

fn notice(mistakes: &[(Broken, Play, Range<u64>)]) {
    for (rule, how, seeds) in mistakes {
        let found = first_that_notices(Play { broken: Some(*rule), ..*how }, seeds.clone());
        let (seed, why) = found.unwrap_or_else(|| panic!("{rule:?} is noticed by none of the seeds {seeds:?}"));
        println!("{rule:?} is noticed by seed {seed}: {why}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "some need thousands of schedules")]
fn every_mistake_of_rails_is_noticed() {
    for (rule, seeds) in MISTAKES_OF_RAILS {
        let found = first_that_notices(Play { broken_rails: Some(rule), ..RAILS }, seeds.clone());
        let (seed, why) = found.unwrap_or_else(|| panic!("{rule:?} is noticed by none of the seeds {seeds:?}"));
        println!("{rule:?} is noticed by seed {seed}: {why}");
    }
}

#[test]
fn the_document_lists_the_mistakes() {
    let document = include_str!("../../../docs/protocol.md");
    let names = MISTAKES.iter().chain(&MISTAKES_OF_SPREADING).map(|(rule, _, _)| format!("{rule:?}"));
    for name in names.chain(MISTAKES_OF_RAILS.iter().map(|(rule, _)| format!("{rule:?}"))) {
        assert!(document.contains(&format!("| `{name}` |")), "docs/protocol.md does not list {name}");
    }
}
