use super::*;
use FabricKind::{Tcp, Verbs};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Makes the peers of a node whose only fabric is tcp.
fn peers_of(me: &str) -> Peers {
    Peers::new(name(me), vec![Tcp])
}

fn dialed(action: Option<Action>) -> Attempt {
    let Some(Action::Dial { attempt, .. }) = action else { panic!("{action:?}") };
    attempt
}

fn waits(action: Option<Action>) -> Attempt {
    let Some(Action::Wait { attempt, .. }) = action else { panic!("{action:?}") };
    attempt
}

fn accepts(verdict: Verdict) -> Attempt {
    let Verdict::Accept(attempt, _) = verdict else { panic!("{verdict:?}") };
    attempt
}

#[test]
fn repeated_request_dials_once() {
    let b = name("b");
    let mut peers = peers_of("a");
    let attempt = dialed(peers.wanted(&b));
    assert_eq!(peers.wanted(&b), None);
    waits(peers.answered(&b, attempt, LinkId(1), Tcp));
    peers.link_up(&b, LinkId(1));
    assert_eq!(peers.link_down(&b, LinkId(0), "an older one"), None);
    assert_eq!(peers.link_down(&b, LinkId(1), "gone"), None);
    dialed(peers.wanted(&b));
}

#[test]
fn smaller_name_wins_when_both_dial() {
    let (a, b) = (name("a"), name("b"));
    let (mut at_a, mut at_b) = (peers_of("a"), peers_of("b"));
    let from_a = dialed(at_a.wanted(&b));
    let from_b = dialed(at_b.wanted(&a));
    // b's call reaches a while a is dialling.
    assert_eq!(at_a.incoming(&b, Tcp), Verdict::TurnAway);
    // a's call reaches b before b learns that its own call was refused, or after that.
    for b_hears_first in [false, true] {
        let mut at_b = peers_of("b");
        assert_eq!(dialed(at_b.wanted(&a)), from_b);
        if b_hears_first {
            waits(at_b.yielded(&a, from_b));
        }
        let accepted = accepts(at_b.incoming(&a, Tcp));
        if !b_hears_first {
            assert_eq!(at_b.yielded(&a, from_b), None);
        }
        at_b.accepted(&a, accepted, LinkId(7));
        at_b.link_up(&a, LinkId(7));
        assert_eq!(at_b.waited(&a, accepted), None);
    }
    waits(at_a.answered(&b, from_a, LinkId(3), Tcp));
    // b sent its call before it answered, and the call arrives late.
    assert_eq!(at_a.incoming(&b, Tcp), Verdict::TurnAway);
    at_a.link_up(&b, LinkId(3));
    // An answer to a call is abandoned if another call has won.
    accepts(at_b.incoming(&a, Tcp));
    assert_eq!(at_b.answered(&a, from_b, LinkId(9), Tcp), None);
}

#[test]
fn yielding_node_dials_again_when_no_call_comes() {
    let a = name("a");
    let mut peers = peers_of("b");
    let first = dialed(peers.wanted(&a));
    let waiting = waits(peers.yielded(&a, first));
    assert_eq!(peers.wanted(&a), None);
    let second = dialed(peers.waited(&a, waiting));
    assert_ne!(first, second);
    assert_eq!(peers.waited(&a, waiting), None);
}

#[test]
fn unreachable_peer_fails_after_some_tries() {
    let b = name("b");
    let mut peers = peers_of("a");
    let mut action = peers.wanted(&b);
    let mut pauses = Vec::new();
    let why = loop {
        match action.unwrap() {
            Action::Dial { attempt, pause, .. } => {
                pauses.push(pause.as_millis());
                action = peers.dial_failed(&b, attempt, true, "refused".into());
            }
            Action::Fail { peer, link: None, why } if peer == b => break why,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((why.as_str(), &pauses[..]), ("refused", &[0, 50, 150, 450][..]));
    // A final failure is not tried again. A new request starts from the beginning.
    let attempt = dialed(peers.wanted(&b));
    let action = peers.dial_failed(&b, attempt, false, "another version".into());
    assert!(matches!(action, Some(Action::Fail { .. })));
    assert_eq!(peers.dial_failed(&b, attempt, true, "late".into()), None);
}

#[test]
fn link_that_does_not_come_up_ends_the_request() {
    let b = name("b");
    let mut peers = peers_of("a");
    let attempt = dialed(peers.wanted(&b));
    let waiting = waits(peers.answered(&b, attempt, LinkId(1), Tcp));
    let action = peers.waited(&b, waiting);
    assert!(matches!(&action, Some(Action::Fail { link: Some(LinkId(1)), .. })), "{action:?}");

    // A link that dies while it forms is dialled again if the engine waits for it.
    let attempt = dialed(peers.wanted(&b));
    waits(peers.answered(&b, attempt, LinkId(2), Tcp));
    dialed(peers.link_down(&b, LinkId(2), "reset"));

    // An accepted link for which the engine does not wait is forgotten.
    let mut peers = peers_of("a");
    let accepted = accepts(peers.incoming(&b, Tcp));
    peers.accepted(&b, accepted, LinkId(3));
    assert_eq!(peers.link_down(&b, LinkId(3), "reset"), None);
    let accepted = accepts(peers.incoming(&b, Tcp));
    assert_eq!(peers.accept_failed(&b, accepted, "bad offer".into()), None);
}

#[test]
fn request_during_a_peers_call_waits_for_that_link() {
    let b = name("b");
    let mut peers = peers_of("a");
    let accepted = accepts(peers.incoming(&b, Tcp));
    assert_eq!(peers.wanted(&b), None);
    // The engine could not accept the call, or the link does not come up. Now this side dials.
    dialed(peers.accept_failed(&b, accepted, "bad offer".into()));
    let mut peers = peers_of("a");
    let accepted = accepts(peers.incoming(&b, Tcp));
    assert_eq!(peers.wanted(&b), None);
    dialed(peers.waited(&b, accepted));
}

#[test]
fn a_restarted_peer_may_call_while_its_old_link_seems_up() {
    let b = name("b");
    let mut peers = peers_of("a");
    peers.link_up(&b, LinkId(1));
    let accepted = accepts(peers.incoming(&b, Tcp));
    peers.accepted(&b, accepted, LinkId(2));
    assert_eq!(peers.link_down(&b, LinkId(1), "reset"), None);
    peers.link_up(&b, LinkId(2));
    assert_eq!(peers.link_down(&b, LinkId(2), "reset"), None);
}

#[test]
fn second_request_dials_again_once_the_first_was_answered() {
    let b = name("b");
    let mut peers = peers_of("a");
    let attempt = dialed(peers.wanted(&b));
    assert_eq!(peers.wanted(&b), None);
    let waiting = waits(peers.answered(&b, attempt, LinkId(1), Tcp));
    // The link died while it formed, and the engine saw that first.
    dialed(peers.wanted(&b));
    assert_eq!(peers.waited(&b, waiting), None);
}

#[test]
fn failed_fabric_is_passed_over_until_the_next_request() {
    let b = name("b");
    let mut peers = Peers::new(name("a"), vec![Verbs, Tcp]);
    // The peer has no verbs.
    let attempt = dialed(peers.wanted(&b));
    assert_eq!(peers.fabric_for(&b, attempt), Some((Verbs, vec![])));
    assert!(peers.pass_over(&b, attempt, Verbs, "b has none"));
    let passed = vec![PassedOver { fabric: Verbs, why: "b has none".into() }];
    assert_eq!(peers.fabric_for(&b, attempt), Some((Tcp, passed)));
    // The last fabric is not passed over, because another call over it may succeed.
    assert!(!peers.pass_over(&b, attempt, Tcp, "refused"));
    assert_eq!(peers.fabric_for(&b, attempt).unwrap().0, Tcp);
    waits(peers.answered(&b, attempt, LinkId(1), Tcp));
    peers.link_up(&b, LinkId(1));
    peers.link_down(&b, LinkId(1), "gone");
    let attempt = dialed(peers.wanted(&b));
    assert_eq!(peers.fabric_for(&b, attempt), Some((Verbs, vec![])));

    // Both sides agreed on a link that does not come up.
    waits(peers.answered(&b, attempt, LinkId(2), Verbs));
    let attempt = dialed(peers.link_down(&b, LinkId(2), "retry exceeded"));
    let (fabric, passed) = peers.fabric_for(&b, attempt).unwrap();
    assert_eq!((fabric, passed[0].why.as_str()), (Tcp, "the verbs link did not come up: retry exceeded"));
    // If every fabric fails, the error lists all reasons.
    let action = peers.dial_failed(&b, attempt, false, "refused".into());
    let Some(Action::Fail { why, .. }) = action else { panic!("{action:?}") };
    assert_eq!(why, "refused; before that, the verbs link did not come up: retry exceeded");

    // The link does not come up in time. It still could, so it is abandoned.
    let attempt = dialed(peers.wanted(&b));
    let waiting = waits(peers.answered(&b, attempt, LinkId(3), Verbs));
    let action = peers.waited(&b, waiting);
    let Some(Action::Dial { attempt, instead_of: Some(LinkId(3)), .. }) = action else { panic!("{action:?}") };
    assert_eq!(peers.fabric_for(&b, attempt).unwrap().0, Tcp);
    // An obsolete call gets no fabric.
    assert_eq!(peers.fabric_for(&b, waiting), None);
}

#[test]
fn fabric_of_a_failed_incoming_call_is_passed_over() {
    let b = name("b");
    let mut peers = Peers::new(name("a"), vec![Verbs, Tcp]);
    let accepted = accepts(peers.incoming(&b, Verbs));
    peers.accepted(&b, accepted, LinkId(1));
    assert_eq!(peers.wanted(&b), None);
    let attempt = dialed(peers.link_down(&b, LinkId(1), "no route"));
    assert_eq!(peers.fabric_for(&b, attempt).unwrap().0, Tcp);
    // A failure of a worse fabric than this side would choose does not count against the better one.
    let mut peers = Peers::new(name("a"), vec![Verbs, Tcp]);
    let accepted = accepts(peers.incoming(&b, Tcp));
    peers.accepted(&b, accepted, LinkId(2));
    assert_eq!(peers.wanted(&b), None);
    let attempt = dialed(peers.link_down(&b, LinkId(2), "no route"));
    assert_eq!(peers.fabric_for(&b, attempt), Some((Verbs, vec![])));
}
