//! Tests of the counts of exchanges.

use super::*;
use crate::exchange::{anchor_key, bundle_key, mark_key, note_key};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const ID: ExchangeId = ExchangeId([9; 16]);
const ME: Tenant = Tenant::User(7);

fn blob(number: u64) -> BlobId {
    BlobId::from_u64(number)
}

fn came(exchanges: &mut Exchanges, tenant: Tenant, key: &Key, number: u64, len: u64, label: Option<Label>) {
    let worker = &Name::new("w").unwrap();
    let label = label.map(Box::new);
    let came = Came { tenant, worker, key, blob: blob(number), len, urgent: len == 77, label };
    exchanges.came(Time(5), came);
}

fn only(exchanges: &Exchanges) -> ExchangeStatus {
    let (mut entries, next) = exchanges.page(Time(5), "", 0, (16, 512), |_| Name::new("t").unwrap());
    assert_eq!((entries.len(), next), (1, None));
    entries.remove(0)
}

#[test]
fn rows_and_bytes_are_those_of_committed_tasks() {
    let mut x = Exchanges::default();
    came(&mut x, ME, &anchor_key("e", ID).unwrap(), 1, 32, Some(Label::new(3, 8, 0, 0)));
    // An attempt that has not committed has bytes in memory, and no rows.
    came(&mut x, ME, &bundle_key("e", ID, (0, 1), 0).unwrap(), 2, 500, None);
    let seen = only(&x);
    assert_eq!((seen.partitions, seen.tasks, seen.committed, seen.is_opener), (3, 8, 0, true));
    assert_eq!((seen.rows, seen.bytes, seen.memory, seen.lengths), (0, 0, 500, vec![]));
    came(&mut x, ME, &mark_key("e", ID, (0, 1)).unwrap(), 3, 40, Some(Label::of_task(8, 10, &[100, 0, 300])));
    came(&mut x, ME, &note_key("e", ID, 0).unwrap(), 4, 4, None);
    came(&mut x, ME, &mark_key("e", ID, (7, 0)).unwrap(), 5, 40, Some(Label::of_task(8, 5, &[50, 20, 0])));
    let seen = only(&x);
    assert_eq!((seen.committed, seen.rows, seen.bytes, seen.memory), (2, 15, 470, 500));
    assert_eq!(seen.lengths, [150, 20, 300]);
    let totals = ExchangeTotals { exchanges: 1, tasks: 2, rows: 15, bytes: 470, memory: 500, ..Default::default() };
    assert_eq!(x.totals(), totals);
    for number in [1, 2, 3, 5] {
        assert!(!x.is_empty());
        x.went(blob(number));
    }
    assert!(x.is_empty());
    // What has happened since the start stays counted.
    assert_eq!(x.totals(), ExchangeTotals { tasks: 2, rows: 15, bytes: 470, ..Default::default() });
}

// Promise: exchange-lists, seen to fail
#[test]
fn a_task_that_commits_again_counts_once() {
    let mut x = Exchanges::default();
    came(&mut x, ME, &mark_key("e", ID, (4, 0)).unwrap(), 1, 40, Some(Label::of_task(8, 10, &[100, 7])));
    came(&mut x, ME, &mark_key("e", ID, (4, 1)).unwrap(), 2, 40, Some(Label::of_task(8, 11, &[100, 9])));
    let seen = only(&x);
    assert_eq!((seen.committed, seen.rows, seen.bytes, seen.lengths), (1, 11, 109, vec![100, 9]));
    // The end of the older mark changes nothing.
    x.went(blob(1));
    assert_eq!((only(&x).committed, only(&x).rows), (1, 11));
    x.went(blob(2));
    assert!(x.is_empty());
}

#[test]
fn bytes_move_to_disk_and_writers_wait_until_then() {
    let mut x = Exchanges::default();
    came(&mut x, ME, &bundle_key("e", ID, (2, 1), 1).unwrap(), 1, 77, None);
    came(&mut x, ME, &bundle_key("e", ID, (2, 1), 2).unwrap(), 2, 77, None);
    let seen = only(&x);
    let writer = &seen.writers[0];
    assert_eq!((seen.writers_waiting, writer.task, writer.attempt, writer.bytes), (1, 2, 1, 154));
    assert_eq!((writer.worker.as_str(), x.totals().writes_waiting), ("w", 1));
    x.spilled(blob(1), SpillId(1));
    assert_eq!((only(&x).memory, only(&x).spilled), (154, 77));
    x.went(blob(1));
    assert_eq!((only(&x).memory, only(&x).spilled, only(&x).writers_waiting), (77, 77, 1));
    x.spilled(blob(2), SpillId(2));
    x.went(blob(2));
    assert_eq!((only(&x).memory, only(&x).spilled, only(&x).writers_waiting), (0, 154, 0));
    assert_eq!((x.totals().spilled, x.totals().writes_waiting), (154, 0));
    x.unspilled(SpillId(1));
    x.unspilled(SpillId(2));
    assert!(x.is_empty());
}

#[test]
fn an_attempt_that_has_committed_waits_no_longer() {
    let mut x = Exchanges::default();
    came(&mut x, ME, &bundle_key("e", ID, (2, 1), 1).unwrap(), 1, 77, None);
    came(&mut x, ME, &mark_key("e", ID, (2, 0)).unwrap(), 2, 40, Some(Label::of_task(8, 1, &[77])));
    assert_eq!(only(&x).writers_waiting, 1, "another attempt has committed");
    came(&mut x, ME, &mark_key("e", ID, (2, 1)).unwrap(), 3, 40, Some(Label::of_task(8, 1, &[77])));
    assert_eq!((only(&x).writers_waiting, x.totals().writes_waiting, only(&x).memory), (0, 0, 77));
    (1..4).for_each(|number| x.went(blob(number)));
    assert!(x.is_empty());
}

#[test]
fn labels_that_differ_hide_the_partitions_and_no_sum() {
    let mut x = Exchanges::default();
    came(&mut x, ME, &mark_key("e", ID, (0, 0)).unwrap(), 1, 40, Some(Label::of_task(8, 10, &[100, 7])));
    came(&mut x, ME, &mark_key("e", ID, (1, 0)).unwrap(), 2, 40, Some(Label::of_task(8, 1, &[1, 1, 1])));
    came(&mut x, ME, &mark_key("e", ID, (2, 0)).unwrap(), 3, 40, Some(Label::new(2, 8, 3, 1 << 50)));
    let seen = only(&x);
    assert_eq!((seen.partitions, seen.committed, seen.rows, seen.lengths), (2, 3, 14, vec![]));
    x.went(blob(2));
    x.went(blob(3));
    assert_eq!(only(&x).lengths, [100, 7]);
    x.went(blob(1));
    assert!(x.is_empty());
}

// Promise: exchange-lists
#[test]
fn tenants_have_exchanges_of_their_own_and_not_too_many() {
    let mut x = Exchanges::default();
    let label = || Some(Label::new(1, 1, 0, 0));
    came(&mut x, ME, &anchor_key("e", ID).unwrap(), 1, 1, label());
    // Another name with the same identity is not counted.
    came(&mut x, ME, &anchor_key("f", ID).unwrap(), 2, 1, label());
    came(&mut x, Tenant::User(8), &anchor_key("e", ID).unwrap(), 3, 1, label());
    assert_eq!(x.all.len(), 2);
    for n in 0..2 * MAX_PER_TENANT {
        let mut id = [1; 16];
        id[..8].copy_from_slice(&n.to_le_bytes());
        came(&mut x, ME, &anchor_key("e", ExchangeId(id)).unwrap(), 10 + n, 1, label());
    }
    assert_eq!(x.all.len() as u64, MAX_PER_TENANT + 1);
    let page = x.page(Time(5), "e", 2, (16, 512), |_| Name::new("t").unwrap());
    assert_eq!((page.0.len(), page.1), (16, Some(18)));
    let page = x.page(Time(5), "f", 0, (16, 512), |_| Name::new("t").unwrap());
    assert_eq!((page.0.len(), page.1), (0, Some(513)));
    (0..10 + 2 * MAX_PER_TENANT).for_each(|n| x.went(blob(n)));
    assert!(x.is_empty());
}

// Promise: exchange-lists, seen to fail
#[test]
fn counts_agree_with_a_model_in_any_order() {
    for seed in 0..200 {
        let mut random = SmallRng::seed_from_u64(seed);
        let (mut x, mut live) = (Exchanges::default(), Vec::new());
        let mut next_spill = 0;
        for number in 1..80_u64 {
            let (task, attempt) = (random.random_range(0..3), random.random_range(0..3));
            let lengths = [random.random_range(0..1000), random.random_range(0..1000)];
            match random.random_range(0..4) {
                0 => {
                    let label = Label::of_task(3, random.random_range(0..50), &lengths);
                    came(&mut x, ME, &mark_key("e", ID, (task, attempt)).unwrap(), number, 40, Some(label));
                    live.push(number);
                }
                1 => {
                    let len = if random.random_bool(0.5) { 77 } else { lengths[0] };
                    came(&mut x, ME, &bundle_key("e", ID, (task, attempt), 0).unwrap(), number, len, None);
                    live.push(number);
                }
                2 if !live.is_empty() => {
                    next_spill += 1;
                    x.spilled(blob(live[random.random_range(0..live.len())]), SpillId(next_spill));
                }
                _ if !live.is_empty() => x.went(blob(live.swap_remove(random.random_range(0..live.len())))),
                _ => {}
            }
            for exchange in x.all.values() {
                let labels: Vec<_> = exchange.committed.values().map(|(_, label)| label).collect();
                assert_eq!(exchange.rows, labels.iter().map(|label| label.rows).sum());
                assert_eq!(exchange.bytes, labels.iter().map(|label| label.bytes).sum());
                assert_eq!(exchange.bytes, exchange.lengths.iter().sum());
                assert_eq!(x.totals().memory, exchange.memory);
                assert_eq!(x.totals().spilled, exchange.spilled);
                assert_eq!(x.totals().writes_waiting, exchange.waiting.len() as u64);
            }
        }
        live.into_iter().for_each(|number| x.went(blob(number)));
        (1..=next_spill).for_each(|id| x.unspilled(SpillId(id)));
        assert!(x.is_empty(), "seed {seed}");
    }
}
