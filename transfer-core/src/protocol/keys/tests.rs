//! Tests of the keys alone: there is no node and no link, and a session is only a number.

use super::*;
use crate::memory::{LocalSlice, SegmentId};
use crate::op::OpId;
use crate::protocol::action::Actions;
use crate::protocol::action::{Action, HostAction};
use crate::protocol::control::Control;
use crate::protocol::directory::DirectoryRequest;
use crate::protocol::ids::OperationId;
use crate::protocol::ids::RecordId;
use crate::protocol::tenant::Tenant;
use crate::tensor::{DType, Retention, Select, Shape, TensorMeta, Until, Version};
use crate::time::Time;

const USER: Tenant = Tenant::User(1);
const OWNER: SessionId = SessionId(7);
const NOW: Time = Time(0);

/// Returns keys with one worker and one board.
fn keys() -> (Keys, Actions) {
    let mut keys = Keys::default();
    keys.session_opened(OWNER, USER);
    keys.add_board(USER, 8);
    (keys, Actions::default())
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Returns a tensor that the owner has pushed.
fn tensor(offset: u64) -> Blob {
    let slice = LocalSlice { segment: SegmentId(1), offset, len: 64 };
    let meta = TensorMeta::new(DType::U8, Shape::new(&[64]).unwrap()).unwrap();
    Blob::new(slice, meta, USER, Source::Arena(OpId(offset)))
}

/// Adds a key that `OWNER` owns.
fn owned(keys: &mut Keys, text: &str) -> RecordId {
    let id = keys.find_or_make(&key(text));
    keys.give(id, Owner::Session(OWNER));
    id
}

/// Removes all actions, and names each of them with one word.
fn out(actions: &mut Actions) -> Vec<&'static str> {
    let word = |action| match action {
        Action::Host(HostAction::Show(_)) => "show",
        Action::Host(HostAction::Withdraw { .. }) => "withdraw",
        Action::Host(HostAction::Control(Control::Claim(_))) => "claim",
        Action::Host(HostAction::Control(Control::Directory(DirectoryRequest::Resolve { .. }))) => "resolve",
        Action::Host(HostAction::Control(Control::Directory(DirectoryRequest::StopResolve { .. }))) => "stop",
        _ => "another",
    };
    std::iter::from_fn(|| actions.pop()).map(word).collect()
}

/// The keys that the end of a session affects.
fn keys_of(keys: &Keys, session: SessionId) -> Vec<RecordId> {
    let mut found = Vec::new();
    while let Some(next) = keys.next_key_of(session, found.last().map_or(0, |id: &RecordId| id.index() + 1)) {
        found.push(next);
    }
    found
}

#[test]
fn what_earlier_waiters_have_looked_at_does_not_concern_the_next_ones() {
    let (mut keys, mut actions) = keys();
    let record = owned(&mut keys, "k");
    let kept = keys.insert(tensor(0).retained(Retention { until: Until::Deleted, ..Retention::default() }));
    keys.publish(NOW, record, kept, Version(9), &mut actions);
    let first = Waiter::Local(OperationId::from_u64(1));
    keys.wait(record, first, Select::Exactly(Version(10)));
    let newest = keys.insert(tensor(64));
    keys.publish(NOW, record, newest, Version(10), &mut actions);
    assert_eq!(keys.exactly_awaited(record, Concerned::All), [Version(10)]);
    keys.take_waiter(record, first);
    assert!(keys.record(record).unwrap().older().is_some(), "the kept version stays beside the newest one");
    keys.wait(record, Waiter::Local(OperationId::from_u64(2)), Select::Exactly(Version(5)));
    let next = keys.insert(tensor(128));
    keys.publish(NOW, record, next, Version(12), &mut actions);
    assert_eq!(keys.exactly_awaited(record, Concerned::All), [Version(5)], "it can no longer come");
}

/// The newest version has ended, and an epoch has begun that has none yet: an older one with fetches left answers still.
#[test]
fn a_waiter_finds_an_older_version_where_the_newest_has_ended_with_its_epoch() {
    let (mut keys, mut actions) = keys();
    let record = owned(&mut keys, "k");
    let kept = keys.insert(tensor(0).retained(Retention { until: Until::Deleted, ..Retention::default() }));
    let newest = keys.insert(tensor(64));
    keys.publish(NOW, record, kept, Version(1), &mut actions);
    keys.publish(NOW, record, newest, Version(2), &mut actions);
    assert!(keys.take_version(record, newest, &mut actions));
    keys.begin_epoch(record);
    let [latest, after] = [1, 2].map(|n| Waiter::Local(OperationId::from_u64(n)));
    keys.wait(record, latest, Select::Latest);
    keys.wait(record, after, Select::After(Version(2)));
    assert_eq!(keys.pick(record, Select::Latest), Picked::Blob(kept));
    assert_eq!(keys.first_rising(record), Some(latest));
    keys.take_waiter(record, latest);
    assert_eq!((keys.first_rising(record), keys.pick(record, Select::After(Version(2)))), (None, Picked::NotYet));
}

#[test]
fn a_version_ends_when_it_is_replaced_and_its_readers_are_done() {
    let (mut keys, mut actions) = keys();
    let record = owned(&mut keys, "k");
    let first = keys.insert(tensor(0));
    assert_eq!(keys.publish(NOW, record, first, Version(1), &mut actions)[..], []);
    keys.hold(first);
    let second = keys.insert(tensor(64));
    assert_eq!(keys.publish(NOW, record, second, Version(2), &mut actions)[..], [first]);
    assert!(matches!(keys.release(first), Released::Held), "a reader has it");
    let Released::Ended(ended) = keys.release(first) else { panic!("nobody holds it") };
    assert!(matches!(ended.source, Source::Arena(OpId(0))));
    assert_eq!((keys.blobs().len(), keys.published_count(), keys.versions_of_tenant(USER)), (1, 1, 1));
    keys.check().unwrap();
}

#[test]
fn a_claim_is_answered_once_and_a_refusal_gives_the_key_back() {
    let (mut keys, mut actions) = keys();
    let record = owned(&mut keys, "k");
    let other = SessionId(8);
    keys.session_opened(other, USER);
    let claiming = Claiming::new((name("other"), USER), Claimant::Session(other), true);
    keys.claim(record, claiming, name("1"), &mut actions);
    assert_eq!(out(&mut actions), ["claim"]);
    assert_eq!((keys_of(&keys, OWNER), keys_of(&keys, other)), (vec![record], vec![record]), "both ends concern it");
    assert_eq!((keys.keys_of_worker(OWNER), keys.keys_of_worker(other)), (1, 0), "counted for who has it");
    let push = OperationId::from_u64(3);
    keys.join_claim(record, other, push);
    let answered = keys.answer_claim(record).unwrap();
    assert_eq!(answered.pushes, [push]);
    keys.claim_refused(record, answered.before);
    assert!(keys.record(record).unwrap().owner().is(OWNER));
    assert!(keys.answer_claim(record).is_none());
    assert!(keys_of(&keys, other).is_empty());
    keys.check().unwrap();
}

#[test]
fn an_abandoned_claim_waits_for_its_answer() {
    let (mut keys, mut actions) = keys();
    let record = keys.find_or_make(&key("k"));
    let claiming = Claiming::new((name("owner"), USER), Claimant::Session(OWNER), false);
    keys.claim(record, claiming, name("1"), &mut actions);
    assert!(keys.let_go(record).is_none());
    assert!(matches!(keys.record(record).unwrap().owner(), Owner::Claiming(c) if c.who == Claimant::Gone));
    assert!(keys.let_go(record).is_some(), "the answer has come");
    keys.tidy(record, &mut actions);
    assert_eq!((keys.find(&key("k")), keys.records().len()), (None, 0));
}

#[test]
fn directory_question_is_stopped_with_the_last_waiter() {
    let (mut keys, mut actions) = keys();
    let record = keys.find_or_make(&key("k"));
    let waiter = Waiter::Local(OperationId::from_u64(1));
    keys.wait(record, waiter, Select::Latest);
    keys.resolve(record, 0, &mut actions);
    keys.resolve(record, 0, &mut actions);
    keys.forget_waiter(&key("k"), waiter, &mut actions);
    assert_eq!(out(&mut actions), ["resolve", "stop"]);
    assert_eq!(keys.records().len(), 0);
}

#[test]
fn a_failed_fetch_gives_a_counted_version_back() {
    let (mut keys, mut actions) = keys();
    let record = owned(&mut keys, "k");
    let once = Retention { until: Until::Fetched(std::num::NonZeroU32::MIN), ..Retention::default() };
    let blob = keys.insert(tensor(0).retained(once));
    keys.publish(NOW, record, blob, Version(1), &mut actions);
    keys.fetch_begins(&key("k"), blob);
    assert_eq!(keys.pick(record, Select::Latest), Picked::NotYet, "it may come back");
    assert_eq!(keys.fetch_ends(record, blob, false, &mut actions), Some((Version(1), false)));
    assert_eq!(keys.pick(record, Select::Latest), Picked::Blob(blob));
    keys.fetch_begins(&key("k"), blob);
    assert_eq!(keys.fetch_ends(record, blob, true, &mut actions), Some((Version(1), true)));
    assert_eq!(keys.pick(record, Select::Exactly(Version(1))), Picked::Gone(Version(1)));
}

#[test]
fn fetched_key_is_shown_and_its_ticket_holds_the_version() {
    let (mut keys, mut actions) = keys();
    let record = owned(&mut keys, "k");
    let first = keys.insert(tensor(0));
    keys.publish(NOW, record, first, Version(1), &mut actions);
    assert_eq!(out(&mut actions), [""; 0], "nobody has fetched it");
    keys.want_on_board(record);
    keys.show(record, &mut actions);
    let second = keys.insert(tensor(64));
    assert_eq!(keys.publish(NOW, record, second, Version(2), &mut actions)[..], [first]);
    assert_eq!(out(&mut actions), ["show", "show", "withdraw"]);
    assert!(matches!(keys.release(first), Released::Held), "somebody may have marked it");
    assert_eq!((keys.withdrawn(1), keys.withdrawn(1)), (Some(first), None));
    assert!(matches!(keys.release(first), Released::Ended(_)));
    keys.close_boards(&mut actions);
    assert_eq!(out(&mut actions), ["withdraw"]);
    keys.check().unwrap();
}

#[test]
fn a_version_that_outlives_its_owner_stays_counted_for_it() {
    let (mut keys, mut actions) = keys();
    let record = owned(&mut keys, "k");
    let blob = keys.insert(tensor(0));
    keys.publish(NOW, record, blob, Version(4), &mut actions);
    assert!(matches!(keys.outlive(record, name("owner"), &mut actions), Some(Owner::Session(OWNER))));
    keys.session_closed(OWNER);
    assert_eq!(keys.keys_of_tenant(USER), 1);
    assert!(keys_of(&keys, OWNER).is_empty());
    assert_eq!(keys.record(record).unwrap().next_version(), 0, "who goes on with it begins anew");
    keys.let_go(record);
    assert_eq!(keys.keys_of_tenant(USER), 0);
}
