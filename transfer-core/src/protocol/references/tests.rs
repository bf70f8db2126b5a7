//! Tests of the references alone.

use super::lent::LOOK_EVERY;
use super::*;
use crate::protocol::action::{Action, Actions, HostAction, Post};
use crate::protocol::slab::Id;
use crate::tensor::{DType, Name, TensorMeta};
use crate::time::Time;

const LINK: LinkId = LinkId(1);
const MARK: u64 = 77;
const OURS: SegmentId = SegmentId(4);
const THEIRS: SegmentId = SegmentId(9);

fn references(change: impl FnOnce(&mut NodeConfig)) -> (References, Actions) {
    let mut config = NodeConfig::new(Name::new("n").unwrap(), 1);
    change(&mut config);
    let mut references = References::new(&config);
    references.begin(LINK, MARK);
    (references, Actions::default())
}

fn blob(n: u64) -> BlobId {
    Id::from_u64(n)
}

#[test]
fn segment_is_passed_once_and_requests_wait_until_it_is_kept() {
    let (mut r, mut actions) = references(|_| {});
    assert_eq!(r.pass(LinkId(2), 1, OURS, &mut actions), Passing::Never, "that link allows no references");
    assert_eq!(r.pass(LINK, 1, OURS, &mut actions), Passing::Waits);
    assert_eq!(r.pass(LINK, 2, OURS, &mut actions), Passing::Waits);
    assert!(matches!(actions.pop(), Some(Action::Post(Post::Share { segment: OURS, .. }))));
    assert!(actions.is_empty());
    assert_eq!((r.segment_kept(LINK, OURS), r.segment_kept(LINK, OURS)), (vec![1, 2], vec![]));
    assert_eq!(r.pass(LINK, 3, OURS, &mut actions), Passing::Kept);
    r.unshare(OURS);
    assert_eq!(r.pass(LINK, 4, OURS, &mut actions), Passing::Waits);
}

#[test]
fn references_are_refused_at_their_limits() {
    let (mut r, mut actions) = references(|config| (config.max_references, config.max_requests_per_link) = (1, 2));
    for (index, expected) in [(1, Passing::Waits), (2, Passing::Waits), (3, Passing::Never)] {
        assert_eq!(r.pass(LINK, index, OURS, &mut actions), expected);
    }
    r.segment_kept(LINK, OURS);
    let lease = r.lend(LINK, blob(1)).unwrap();
    assert_eq!(r.pass(LINK, 4, OURS, &mut actions), Passing::Never, "the peers hold as many as they may");
    assert_eq!((r.released(LINK, lease), r.released(LINK, lease)), (Some(blob(1)), None));
    assert_eq!(r.pass(LINK, 4, OURS, &mut actions), Passing::Kept);
}

#[test]
fn versions_of_a_lost_peer_stay_held_until_no_reader_is_left() {
    let (mut r, mut actions) = references(|_| {});
    r.lend(LINK, blob(1)).unwrap();
    r.lend(LINK, blob(2)).unwrap();
    let lost = r.link_down(LINK).unwrap();
    assert!(!r.are_allowed(LINK));
    let mut lent = r.lost(lost, &mut actions);
    while r.keep_unreturned(Time(0), &mut lent, |_| Some(OURS)) {}
    let first = r.look_at().unwrap();
    assert_eq!(first, Time(0) + LOOK_EVERY);
    r.look_after(Time(0), &mut actions);
    assert!(actions.is_empty(), "it is not time");
    r.look_after(first, &mut actions);
    assert!(matches!(actions.pop(), Some(Action::Host(HostAction::AskReaders { segment: OURS, mark: MARK }))));
    assert_eq!((r.look_at(), r.counts()), (Some(first + LOOK_EVERY), (0, 2)));
    assert_eq!(r.answered(OURS, MARK), [blob(1), blob(2)]);
    assert_eq!((r.look_at(), r.counts()), (None, (0, 0)));
}

#[test]
fn lost_link_without_leases_is_not_checked_for_readers() {
    let (mut r, mut actions) = references(|_| {});
    let lost = r.link_down(LINK).unwrap();
    let mut lent = r.lost(lost, &mut actions);
    assert!(!r.keep_unreturned(Time(0), &mut lent, |_| Some(OURS)));
    assert_eq!(r.look_at(), None);
}

#[test]
fn peer_segment_ends_with_its_last_reader() {
    let (mut r, mut actions) = references(|_| {});
    assert!(r.keep(LINK, 5, THEIRS, 4096) && !r.keep(LinkId(2), 5, THEIRS, 4096));
    assert_eq!(r.mark_of(THEIRS), Some(MARK));
    r.begin_reading(THEIRS);
    r.segment_gone(LINK, 5, &mut actions);
    assert!(actions.is_empty(), "it is read still");
    r.end_reading(THEIRS, &mut actions);
    assert!(matches!(actions.pop(), Some(Action::Host(HostAction::SegmentUnused { segment: THEIRS }))));
    assert_eq!(r.counts(), (0, 0));
}

#[test]
fn reference_lies_within_a_segment_that_was_passed() {
    let (mut r, _) = references(|_| {});
    r.keep(LINK, 5, THEIRS, 4096);
    let at = |segment, offset| Referred { lease: 0, segment, offset, ranges: 0 };
    assert_eq!(
        r.find(LINK, &at(5, 64), &bytes(4032)),
        Ok(crate::memory::LocalSlice { segment: THEIRS, offset: 64, len: 4032 })
    );
    for (referred, len, what) in
        [(at(6, 0), 8, "was not passed"), (at(5, 64), 4033, "within"), (at(5, 8), 8, "multiple")]
    {
        assert!(r.find(LINK, &referred, &bytes(len)).unwrap_err().contains(what), "{what}");
    }
}

fn bytes(n: u64) -> TensorMeta {
    TensorMeta::of(DType::U8, &[n]).unwrap()
}
