//! Schedules: thousands of seeds, each a cluster with its misfortunes; and mistakes made on purpose, which they must notice.

use super::cluster::{Play, Tally, run};
use super::digest::Digest;
use crate::protocol::Broken;
use crate::rails;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Plays one seed; the error has what went wrong.
fn play(seed: u64, play: Play) -> Result<Tally, String> {
    match catch_unwind(AssertUnwindSafe(|| run(seed, play, &mut None, false))) {
        Ok(result) => result,
        Err(panic) => Err(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panicked".into())),
    }
}

/// Plays a seed again and prints what happened. The same seed gives the same run.
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

/// How many seeds each test plays for a change: 4,200 in all. `make test-all` plays 100,000. Miri is a few hundred times slower.
const USUAL_COUNT: usize = if cfg!(miri) { 2 } else { 280 };

/// Plays `TRANSFER_SCHEDULES` seeds, by default [`USUAL_COUNT`], or only the one that `TRANSFER_SEED` names. The `part` of several tests,
/// which run beside each other, begins where the one before ends.
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
    assert!(count < 100 || how.tight || tally.noticed > 0, "{test}: nobody has found anything in a notice: {tally:?}");
    println!("{test}: {count} schedules from {first}, {tally:?}");
}

/// Tests that play schedules, one after the other's seeds.
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
    in_any_weather_the_rules_hold_1: Play::USUAL, 0;
    in_any_weather_the_rules_hold_2: Play::USUAL, 1;
    in_any_weather_the_rules_hold_3: Play::USUAL, 2;
    while_sidecars_and_directories_restart_the_rules_hold_1: RESTARTS, 0;
    while_sidecars_and_directories_restart_the_rules_hold_2: RESTARTS, 1;
    in_calm_weather_everything_succeeds: CALM, 0;
    where_room_is_short_everything_succeeds_in_its_turn: Play { tight: true, ..CALM }, 0;
    late_packets_touch_nothing_that_was_delivered: Play { late_packets: 50, ..Play::USUAL }, 0;
    a_header_that_lies_ends_its_link: Play { lies: 10, ..Play::USUAL }, 0;
    while_one_rail_lives_everything_succeeds: Play { calm: true, ..RAILS }, 0;
    with_rails_that_die_the_rules_hold: RAILS, 0;
    with_one_key_for_all_grants_the_rules_hold: Play { one_key: true, ..Play::USUAL }, 0;
    with_one_key_and_rails_everything_succeeds: Play { one_key: true, calm: true, ..RAILS }, 0;
    with_one_key_and_rails_that_die_the_rules_hold: Play { one_key: true, ..RAILS }, 0;
    late_packets_of_dead_rails_touch_nothing: Play { late_packets: 50, ..RAILS }, 0;
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

/// What others have seen of the first seeds of each of [`PLAYS`]: of 20, and of 840. A change of the protocol, of its texts or of the
/// schedules changes them; the test says what they are then, and the commit why.
const DIGESTS: [(u64, u64); 2] = [(20, 0x279b_4812_148e_d8ea), (840, 0x3e41_242a_dcdb_a3e1)];

/// 240 schedules for each change. `TRANSFER_DIGEST=all` plays 10,080.
#[test]
#[cfg_attr(miri, ignore = "it plays hundreds of schedules")]
fn what_others_see_is_as_it_was() {
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

/// Plays seeds until one of them shows that the rule is broken, and tells which.
fn first_that_notices(how: Play, seeds: Range<u64>) -> Option<(u64, String)> {
    let mut seeds = seeds;
    seeds.find_map(|seed| play(seed, how).err().map(|why| (seed, why)))
}

/// The mistakes, what notices them, and by which seeds. docs/protocol.md lists them.
const MISTAKES: [(Broken, Play, Range<u64>); 18] = [
    (Broken::DeliversBeforeRevoke, Play { late_packets: 50, ..Play::USUAL }, 0..1000),
    (Broken::SkipsQuarantine, Play::USUAL, 0..1000),
    (Broken::ForgetsCredits, Play::USUAL, 0..1000),
    (Broken::DeniesLostAdds, Play::USUAL, 0..5000),
    (Broken::DeliversOutOfOrder, CALM, 0..2000),
    (Broken::ReclaimsAtOnce, Play::USUAL, 0..1000),
    (Broken::BelievesHeaders, Play { lies: 10, ..Play::USUAL }, 0..1000),
    // Those before take long and notice nothing.
    (Broken::MixesRounds, Play::USUAL, 2_200..32_200),
    (Broken::ReusesNames, Play::USUAL, 0..1000),
    (Broken::KeepsSpeculation, Play::USUAL, 0..1000),
    (Broken::ForgetsReleases, Play::USUAL, 0..1000),
    (Broken::ForgetsMarks, Play::USUAL, 0..1000),
    (Broken::AnswersAtOnce, CALM, 0..5000),
    (Broken::KeepsReferences, Play::USUAL, 0..1000),
    (Broken::ForgetsReaders, Play::USUAL, 0..30_000),
    (Broken::KeepsLostKeys, RESTARTS, 0..1000),
    (Broken::ServesStrangers, Play::USUAL, 0..1000),
    (Broken::NamesSlotsByKey, Play { one_key: true, ..Play::USUAL }, 0..1000),
];

const MISTAKES_OF_RAILS: [(rails::Broken, Range<u64>); 3] = [
    (rails::Broken::RedoesUnconfirmed, 0..1000),
    (rails::Broken::ConfirmsUndrained, 0..30_000),
    (rails::Broken::ForgetsFences, 0..1000),
];

#[test]
#[cfg_attr(miri, ignore = "some need thousands of schedules")]
fn every_mistake_is_noticed() {
    for (rule, how, seeds) in MISTAKES {
        let found = first_that_notices(Play { broken: Some(rule), ..how }, seeds.clone());
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
    let names = MISTAKES.iter().map(|(rule, _, _)| format!("{rule:?}"));
    for name in names.chain(MISTAKES_OF_RAILS.iter().map(|(rule, _)| format!("{rule:?}"))) {
        assert!(document.contains(&format!("| `{name}` |")), "docs/protocol.md does not list {name}");
    }
}
