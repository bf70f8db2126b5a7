//! Tests of what a node knows of exchanges, and of the limit on their partitions.

use super::pair::{Pair, Worker, bytes, key};
use crate::exchange::{ExchangeId, Label, anchor_key, bundle_key, mark_key, note_key};
use crate::op::{Answer, Command, FailureCode, OpId, Push, Reply};
use crate::protocol::{ExchangeStatus, ExchangeTotals, LimitsReached, PushRead, SpillConfig};
use crate::tensor::{Key, Life, Retention, Select, Spill};
use crate::time::Time;
use std::time::Duration;

const ID: ExchangeId = ExchangeId([3; 16]);

fn totals(pair: &Pair) -> ExchangeTotals {
    pair.nodes[0].node.state().snapshot(Time(0)).exchanges
}

fn only(pair: &Pair) -> ExchangeStatus {
    let page = pair.nodes[0].node.state().exchanges(Time(0), "", 0, 100);
    assert_eq!((page.entries.len(), page.next), (1, None));
    page.entries.into_iter().next().unwrap()
}

/// Pushes an anchor or a mark. Returns the failure.
fn push_label(pair: &mut Pair, w: Worker, key: Key, label: Label) -> Option<(FailureCode, String)> {
    let bytes = label.to_bytes();
    pair.world.write(w.arena, 0, &bytes);
    let push = Push { timeout: Duration::from_secs(1), ..Push::new(key, super::pair::bytes(bytes.len() as u64), 0) };
    // As the engine does: a label is what lies under such a key.
    let node = &mut pair.nodes[w.node].node;
    let label = node.label_of(w.session, &push).map(|_| label);
    let read = PushRead { label, ..PushRead::default() };
    node.push_read(pair.world.now(), w.session, OpId(1 << 20), push, read);
    pair.settle();
    pair.replies(w).into_iter().find_map(|reply| match reply {
        Reply::Answer { answer: Answer::Failed { failure, .. }, .. } => Some((failure.code, failure.text)),
        _ => None,
    })
}

#[test]
fn rows_on_disk_and_in_memory_are_counted_until_the_keys_end() {
    let config = SpillConfig { high_percent: 60, low_percent: 20, tenant_bytes: 1 << 20, total_bytes: 1 << 20 };
    let mut pair = Pair::with(|c| c.spill = Some(config));
    let (w, r) = (pair.worker(0, "w"), pair.worker(0, "r"));
    let keys = [
        anchor_key("e", ID).unwrap(),
        bundle_key("e", ID, (1, 0), 1).unwrap(),
        bundle_key("e", ID, (1, 0), 0).unwrap(),
        mark_key("e", ID, (1, 0)).unwrap(),
    ];
    assert_eq!(push_label(&mut pair, w, keys[0].clone(), Label::new(2, 4, 0, 0)), None);
    for (key, spill) in [(&keys[1], Spill::Now), (&keys[2], Spill::Never)] {
        pair.retention = Retention { life: Life::Parent, spill, ..Retention::default() };
        pair.push(w, key.as_str(), bytes(1000).with_metadata(100).unwrap(), 7, None);
        pair.settle();
    }
    let seen = only(&pair);
    assert_eq!((seen.partitions, seen.tasks, seen.committed, seen.is_opener), (2, 4, 0, true));
    assert_eq!((seen.memory, seen.spilled, seen.writers_waiting), (1128, 1128, 0));
    assert_eq!(push_label(&mut pair, w, keys[3].clone(), Label::of_task(4, 9, &[100, 1900])), None);
    let seen = only(&pair);
    assert_eq!((seen.committed, seen.rows, seen.bytes, seen.lengths), (1, 9, 2000, vec![100, 1900]));

    pair.fetch(r, note_key("e", ID, 2).unwrap().as_str(), Select::Latest);
    pair.settle();
    let all = ExchangeTotals {
        exchanges: 1,
        tasks: 1,
        rows: 9,
        bytes: 2000,
        memory: 1128,
        spilled: 1128,
        reads_waiting: 1,
        writes_waiting: 0,
    };
    assert_eq!(totals(&pair), all);
    pair.leave(r, "r");
    for key in keys {
        pair.command(w, OpId(1), Command::Delete { key });
        pair.settle();
    }
    assert_eq!(totals(&pair), ExchangeTotals { tasks: 1, rows: 9, bytes: 2000, ..ExchangeTotals::default() });
    pair.ends_clean(&[(w, "w")]);
}

// Promise: partition-limit, seen to fail
#[test]
fn an_exchange_with_too_many_partitions_is_refused_at_its_anchor() {
    let mut pair = Pair::with(|config| config.limits.partitions_per_exchange = 3);
    let w = pair.worker(0, "w");
    let anchor = anchor_key("e/1", ID).unwrap();
    let text = "exchange \"e/1\" would have 4 partitions, and the limit of node a is 3, which is limits.partitions_per_exchange; \
                open it with fewer, or raise the limit";
    let refused = push_label(&mut pair, w, anchor.clone(), Label::new(4, 1, 0, 0));
    assert_eq!(refused, Some((FailureCode::Invalid, text.to_owned())));
    assert_eq!(
        pair.nodes[0].node.state().limits_reached(),
        LimitsReached { partitions: 1, ..LimitsReached::default() }
    );
    assert_eq!(totals(&pair), ExchangeTotals::default());
    assert_eq!(push_label(&mut pair, w, anchor, Label::new(3, 1, 0, 0)), None);
    // A mark is not refused: its task has committed, and the opener's node has allowed the exchange.
    let mark = mark_key("other", ExchangeId([4; 16]), (0, 0)).unwrap();
    assert_eq!(push_label(&mut pair, w, mark, Label::new(4, 1, 0, 0)), None);
    assert_eq!(totals(&pair).exchanges, 2);
    pair.ends_clean(&[(w, "w")]);
}

#[test]
fn keys_that_only_look_like_parts_count_for_little() {
    let mut pair = Pair::new();
    let w = pair.worker(0, "w");
    for text in [anchor_key("e", ID).unwrap(), mark_key("e", ID, (0, 0)).unwrap(), key("exchange/e")] {
        // They have no labels.
        pair.push(w, text.as_str(), bytes(8), 1, None);
        pair.settle();
    }
    assert_eq!(totals(&pair), ExchangeTotals::default());
    pair.push(w, bundle_key("e", ID, (0, 0), 0).unwrap().as_str(), bytes(8), 1, None);
    pair.settle();
    assert_eq!((only(&pair).memory, only(&pair).committed), (8, 0));
    pair.ends_clean(&[(w, "w")]);
}
