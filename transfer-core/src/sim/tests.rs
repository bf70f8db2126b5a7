//! Schedules: thousands of seeds, each a cluster with its misfortunes.

use super::cluster::{Play, Tally, run};
use crate::protocol::Broken;
use crate::rails;
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

/// Plays many seeds. With `TRANSFER_SEED` only that one; `TRANSFER_SCHEDULES` says how many.
fn play_many(what: &str, how: Play, usual: usize) {
    let (first, count) = match std::env::var("TRANSFER_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => (seed, 1),
        None => (0, setting("TRANSFER_SCHEDULES", usual) as u64),
    };
    let mut tally = Tally::default();
    for seed in first..first + count {
        match play(seed, how) {
            Ok(one) => tally.add(&one),
            Err(why) => {
                replay(seed, how);
                panic!("{what}: seed {seed}: {why}\nplay it again with TRANSFER_SEED={seed}");
            }
        }
    }
    println!("{what}: {count} schedules, {tally:?}");
}

#[test]
fn in_calm_weather_everything_succeeds() {
    play_many("calm", Play { calm: true, ..Play::default() }, 100);
}

#[test]
fn in_any_weather_the_rules_hold() {
    play_many("any", Play::default(), 250);
}

#[test]
fn late_packets_touch_nothing_that_was_delivered() {
    play_many("late", Play { late_packets: 50, ..Play::default() }, 100);
}

const RAILS: Play = Play { broken: None, late_packets: 0, calm: false, rails: true, broken_rails: None };

#[test]
fn while_one_rail_lives_everything_succeeds() {
    play_many("calm rails", Play { calm: true, ..RAILS }, 150);
}

#[test]
fn with_rails_that_die_the_rules_hold() {
    play_many("rails", RAILS, 250);
}

#[test]
fn late_packets_of_dead_rails_touch_nothing() {
    play_many("late rails", Play { late_packets: 50, ..RAILS }, 100);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..5 {
        let traces = [0, 1].map(|_| {
            let mut world = None;
            run(seed, Play::default(), &mut world, true).unwrap();
            world.unwrap().trace()
        });
        assert!(!traces[0].is_empty());
        assert_eq!(traces[0], traces[1], "seed {seed}");
    }
}

/// Plays seeds until one of them shows that the rule is broken, and tells which.
fn first_that_notices(how: Play, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| play(seed, how).err().map(|why| (seed, why)))
}

fn is_noticed(rule: Broken, how: Play, seeds: u64) {
    let how = Play { broken: Some(rule), ..how };
    let Some((seed, why)) = first_that_notices(how, seeds) else {
        panic!("{rule:?} was not noticed by {seeds} schedules");
    };
    println!("{rule:?} is noticed by seed {seed}: {why}");
}

#[test]
fn delivery_before_the_revoke_is_noticed() {
    is_noticed(Broken::DeliversBeforeRevoke, Play { late_packets: 50, ..Play::default() }, 300);
}

#[test]
fn a_slot_without_quarantine_is_noticed() {
    is_noticed(Broken::SkipsQuarantine, Play::default(), 300);
}

#[test]
fn forgotten_credits_are_noticed() {
    is_noticed(Broken::ForgetsCredits, Play::default(), 300);
}

#[test]
fn lost_adds_that_are_denied_are_noticed() {
    is_noticed(Broken::DeniesLostAdds, Play::default(), 1000);
}

#[test]
fn delivery_out_of_order_is_noticed() {
    is_noticed(Broken::DeliversOutOfOrder, Play { calm: true, ..Play::default() }, 300);
}

#[test]
fn slots_used_again_before_they_are_recalled_are_noticed() {
    is_noticed(Broken::ReclaimsAtOnce, Play::default(), 1000);
}

fn is_noticed_by_rails(rule: rails::Broken, how: Play, seeds: u64) {
    let how = Play { broken_rails: Some(rule), ..how };
    let Some((seed, why)) = first_that_notices(how, seeds) else {
        panic!("{rule:?} was not noticed by {seeds} schedules");
    };
    println!("{rule:?} is noticed by seed {seed}: {why}");
}

#[test]
fn posting_again_before_the_confirmation_is_noticed() {
    is_noticed_by_rails(rails::Broken::RedoesUnconfirmed, RAILS, 300);
}

#[test]
fn a_confirmation_before_the_end_is_drained_is_noticed() {
    is_noticed_by_rails(rails::Broken::ConfirmsUndrained, RAILS, 30_000);
}

#[test]
fn forgotten_fences_are_noticed() {
    is_noticed_by_rails(rails::Broken::ForgetsFences, RAILS, 300);
}
