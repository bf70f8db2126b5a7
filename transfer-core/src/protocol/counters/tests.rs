//! Tests of the counters of two nodes. The tests play the directory and the link between the nodes.

use super::*;
use crate::fabric::DownReason;
use crate::op::{CounterAsk, CounterPath, FailureCode, RankCommit, RosterAnswer, RosterAsk};
use crate::protocol::action::HostAction;
use crate::protocol::control::Control;
use crate::protocol::directory::ClaimRefused;
use crate::protocol::slab::Id;
use crate::protocol::tenant::Vouches;
use crate::tensor::Version;
use crate::time::Time;
use hashbrown::HashSet;
use std::time::Duration;

const NOW: Time = Time(1000);
const TENANT: Tenant = Tenant::User(0);
const LINK: LinkId = LinkId(1);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn counter() -> Key {
    Key::of_counter(&name("c")).unwrap()
}

fn barrier() -> Key {
    Key::of_barrier(&name("b")).unwrap()
}

fn op(n: u64) -> OperationId {
    Id::from_u64(n)
}

fn peer(of: &str) -> PeerInfo {
    PeerInfo { name: name(of), incarnation: 1, receive_slots: 8, vouches: Vouches::ForAll, passed_over: Vec::new() }
}

/// Returns the counters of a node of this name, with a link to the other node.
fn node(own: &str, other: &str) -> Counters {
    let mut counters = Counters::new(&NodeConfig::new(name(own), 1));
    counters.link_up(LINK, peer(other), FabricKind::Tcp, false);
    counters
}

type Ended = (OperationId, Result<Outcome, FailureCode>);

/// Returns the number of claims that were sent to the directory, and the outcomes of the operations that ended.
fn outcome(counters: &mut Counters) -> (usize, Vec<Ended>) {
    let (mut claims, mut ended) = (0, Vec::new());
    for effect in counters.take_effects() {
        match effect {
            Effect::Do(Action::Host(HostAction::Control(Control::Claim(_)))) => claims += 1,
            Effect::Ended(op, outcome) => ended.push((op, Ok(outcome))),
            Effect::Failed(op, failure) => ended.push((op, Err(failure.code))),
            _ => {}
        }
    }
    (claims, ended)
}

/// Returns a node at which the counter lives, and the counter's identity.
fn home() -> (Counters, u64) {
    let mut home = node("home", "away");
    home.begin(NOW, op(1), (counter(), TENANT), CounterAsk::Open);
    assert_eq!(outcome(&mut home), (1, vec![]), "the directory is asked");
    home.claimed(NOW, &counter(), Ok(1));
    let (_, ended) = outcome(&mut home);
    let [(_, Ok(Outcome::Opened(_, identity)))] = &ended[..] else { panic!("{ended:?}") };
    let identity = *identity;
    (home, identity)
}

fn add(home: &str, identity: u64) -> CounterAsk {
    CounterAsk::Operate { home: name(home), identity, op: AtomicOp::FetchAdd(5) }
}

/// Returns the message that was sent last, and the index of its request.
fn sent(counters: &mut Counters) -> Option<(u32, Body)> {
    let effects = counters.take_effects().into_iter();
    effects.rev().find_map(|effect| match effect {
        Effect::Send(_, index, body) => Some((index, body)),
        _ => None,
    })
}

#[test]
fn counter_lives_and_counts_where_it_was_claimed() {
    let (mut home, identity) = home();
    for (n, expected) in [(2, 0), (3, 5)] {
        home.begin(NOW, op(n), (counter(), TENANT), add("home", identity));
        let (_, ended) = outcome(&mut home);
        let route = Route { path: CounterPath::Here, fabric: FabricKind::Local, posted: NOW };
        assert_eq!(ended, [(op(n), Ok(Outcome::Counted(expected, route)))]);
    }
    home.begin(NOW, op(4), (counter(), TENANT), add("home", identity + 1));
    assert_eq!(outcome(&mut home).1, [(op(4), Err(FailureCode::CounterLost))]);
    home.begin(NOW, op(5), (counter(), Tenant::User(9)), add("home", identity));
    assert_eq!(outcome(&mut home).1, [(op(5), Err(FailureCode::PermissionDenied))]);
    assert_eq!((home.live_here(), home.busy()), (1, 0));
}

#[test]
fn operation_is_answered_by_its_home() {
    let ((mut home, identity), mut away) = (home(), node("away", "home"));
    away.begin(NOW, op(1), (counter(), TENANT), add("home", identity));
    let effects = away.take_effects();
    assert!(matches!(&effects[..], [Effect::Connect(_, node)] if *node == name("home")), "{effects:?}");
    assert_eq!(away.other_node(op(1)), Some(&name("home")));
    away.connected(NOW, op(1), LINK);
    let effects = away.take_effects();
    let [Effect::Ask(_, index, Asked { what: AskedFor::Operate { identity: asked, op: what }, .. })] = effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(home.may_ask(LINK, index), Ok(Ok(())));
    home.asked_to_operate(NOW, LINK, index, (counter(), TENANT), (asked, what));
    let (answered, body) = sent(&mut home).unwrap();
    assert_eq!((answered, &body), (index, &Body::CounterResult { old: 0 }));
    away.result(LINK, index, 0);
    let route = Route { path: CounterPath::Message, fabric: FabricKind::Tcp, posted: NOW };
    assert_eq!(outcome(&mut away).1, [(op(1), Ok(Outcome::Counted(0, route)))]);
    away.result(LINK, index, 0);
    assert!(matches!(away.take_effects()[..], [Effect::Violation(LINK, _)]), "it is answered once");
    assert_eq!((home.busy(), away.busy()), (0, 0));
}

#[test]
fn sent_request_has_an_unknown_outcome_after_link_loss() {
    let lost = |unsent: bool| {
        let mut away = node("away", "home");
        away.begin(NOW, op(1), (counter(), TENANT), add("home", 7));
        away.connected(NOW, op(1), LINK);
        let effects = away.take_effects();
        let Some(Effect::Ask(_, index, _)) = effects.last() else { panic!("{effects:?}") };
        let unsent: HashSet<u32> = unsent.then_some(*index).into_iter().collect();
        away.link_down(NOW, LINK, &unsent, &DownReason::Closed("a test".into()).to_string());
        assert_eq!(away.busy(), 0);
        outcome(&mut away).1
    };
    assert_eq!(lost(false), [(op(1), Err(FailureCode::OutcomeUnknown))]);
    assert_eq!(lost(true), [(op(1), Err(FailureCode::PeerLost))]);
}

#[test]
fn barrier_waits_for_all_members_that_have_not_left() {
    let mut home = node("home", "away");
    let wait = |home: &mut Counters, n| home.begin(NOW, op(n), (barrier(), TENANT), CounterAsk::Wait { members: 2 });
    wait(&mut home, 1);
    home.claimed(NOW, &barrier(), Ok(1));
    assert_eq!(home.waits_for(op(1)).unwrap(), "1 of 2 members to arrive at it");
    home.give_up(op(1));
    home.asked(NOW, LINK, 9, (barrier(), TENANT), Request::Wait { members: 2 });
    assert_eq!(outcome(&mut home), (1, vec![]), "the first left before the second came");
    wait(&mut home, 2);
    let effects = home.take_effects();
    let [Effect::Send(LINK, 9, Body::BarrierReleased { leader: false, .. }), Effect::Ended(_, released)] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert!(matches!(released, Outcome::Released(0, true, _)), "the last to arrive leads: {released:?}");
    assert_eq!(home.busy(), 0);
}

#[test]
fn abandoned_wait_is_cancelled_at_its_home() {
    let mut away = node("away", "home");
    away.begin(NOW, op(1), (barrier(), TENANT), CounterAsk::Wait { members: 2 });
    away.claimed(NOW, &barrier(), Err(ClaimRefused::Owned { owner: name("home"), node: name("home") }));
    away.connected(NOW, op(1), LINK);
    let failure = away.deadline(op(1), Duration::from_secs(1)).unwrap();
    assert_eq!(failure.code, FailureCode::Deadline);
    away.give_up(op(1));
    let (index, body) = sent(&mut away).unwrap();
    assert_eq!(body, Body::Cancel);
    away.released(LINK, index, 0, false);
    assert!(away.take_effects().is_empty(), "the release crossed the CANCEL");
    away.cancelled(LINK, index);
    assert_eq!(away.busy(), 0);
}

#[test]
fn operations_that_wait_for_a_claim_share_it_and_its_refusal() {
    let mut counters = node("away", "home");
    for n in 0..3 {
        counters.begin(NOW, op(n), (counter(), TENANT), CounterAsk::Open);
    }
    counters.give_up(op(1));
    assert_eq!(outcome(&mut counters).0, 1, "the directory is asked once");
    counters.claimed(NOW, &counter(), Err(ClaimRefused::Unreachable("a test".into())));
    let unreachable = Err(FailureCode::DirectoryUnreachable);
    assert_eq!(outcome(&mut counters).1, [(op(0), unreachable.clone()), (op(2), unreachable)]);
    assert_eq!((counters.live_here(), counters.busy()), (0, 0));
}

#[test]
fn counter_is_lost_when_another_node_owns_its_name() {
    let (mut home, identity) = home();
    home.claim_all();
    assert_eq!(outcome(&mut home).0, 1);
    home.claimed(NOW, &counter(), Err(ClaimRefused::Owned { owner: name("away"), node: name("away") }));
    home.asked_to_operate(NOW, LINK, 3, (counter(), TENANT), (identity, AtomicOp::Load));
    let (_, body) = sent(&mut home).unwrap();
    assert!(matches!(body, Body::ErrorStatus(failure) if failure.code == FailureCode::CounterLost));
    assert_eq!(home.live_here(), 0);
}

fn roster_key() -> Key {
    Key::of_roster(&name("policy")).unwrap()
}

/// Asks a roster, and answers the claim that this makes, if it makes one. Returns the outcomes and the number of claims that were
/// given back.
fn ask_roster(home: &mut Counters, n: u64, tenant: Tenant, ask: RosterAsk) -> (Vec<Ended>, usize) {
    home.begin(NOW, op(n), (roster_key(), tenant), CounterAsk::Roster(ask));
    let (mut ended, mut given_back) = (Vec::new(), 0);
    loop {
        let effects = home.take_effects();
        if effects.is_empty() {
            return (ended, given_back);
        }
        for effect in effects {
            match effect {
                Effect::Do(Action::Host(HostAction::Control(Control::Claim(_)))) => {
                    home.claimed(NOW, &roster_key(), Ok(1));
                }
                Effect::Do(Action::Host(HostAction::Control(Control::Directory(_)))) => given_back += 1,
                Effect::Ended(op, outcome) => ended.push((op, Ok(outcome))),
                Effect::Failed(op, failure) => ended.push((op, Err(failure.code))),
                effect => panic!("{effect:?}"),
            }
        }
    }
}

// Promise: other-tenants, seen to fail
#[test]
fn question_before_the_first_commit_makes_no_roster() {
    let (mut home, _) = home();
    let (reader, trainer) = (Tenant::User(1), Tenant::User(2));
    let nothing = Outcome::Roster(RosterAnswer::State { restart: 0, whole: None, settled: false, held: Vec::new() });
    let (ended, given_back) = ask_roster(&mut home, 10, reader, RosterAsk::Look);
    assert_eq!((&ended[..], given_back), (&[(op(10), Ok(nothing))][..], 1));
    assert_eq!((home.live_here(), home.busy()), (1, 0), "the counter");
    // One that waits keeps it, but for no tenant.
    let version = Version(7);
    assert_eq!(ask_roster(&mut home, 11, reader, RosterAsk::Hold { version }), (vec![], 0));
    let held = Outcome::Roster(RosterAnswer::State { restart: 0, whole: None, settled: false, held: vec![version] });
    assert_eq!(ask_roster(&mut home, 12, trainer, RosterAsk::Look).0, [(op(12), Ok(held))]);
    let commit = RankCommit {
        version,
        rank: 0,
        world_size: 2,
        restart: 0,
        instance: 1,
        layout: 1,
        worker: Some(name("rank-0")),
    };
    let (ended, _) = ask_roster(&mut home, 13, trainer, RosterAsk::Commit(commit));
    assert!(matches!(ended[..], [(_, Ok(Outcome::Roster(RosterAnswer::Committed { .. })))]), "{ended:?}");
    home.give_up(op(11));
    assert_eq!(ask_roster(&mut home, 14, reader, RosterAsk::Look).0, [(op(14), Err(FailureCode::PermissionDenied))]);
    assert_eq!(home.live_here(), 2, "it stays");
}

#[test]
fn questions_that_wait_for_one_claim_are_all_answered() {
    let mut home = node("home", "away");
    for n in [1, 2] {
        home.begin(NOW, op(n), (roster_key(), TENANT), CounterAsk::Roster(RosterAsk::Look));
    }
    assert_eq!(outcome(&mut home), (1, vec![]));
    home.claimed(NOW, &roster_key(), Ok(1));
    // The first forgets the roster, and the second claims it again.
    assert_eq!(outcome(&mut home).1.len(), 1);
    home.claimed(NOW, &roster_key(), Ok(1));
    assert_eq!((outcome(&mut home).1.len(), home.live_here(), home.busy()), (1, 0, 0));
}

#[test]
fn roster_of_a_name_that_nobody_commits_is_forgotten_when_it_is_settled() {
    let mut home = node("home", "away");
    let until = RosterAsk::UntilWhole { restart: 0, version: Version(7), rank: None };
    assert_eq!(ask_roster(&mut home, 1, TENANT, until), (vec![], 0));
    assert_eq!(home.live_here(), 1);
    home.timeout(NOW + Duration::from_secs(60));
    assert_eq!((outcome(&mut home).1.len(), home.live_here(), home.busy()), (1, 0, 0));
}
