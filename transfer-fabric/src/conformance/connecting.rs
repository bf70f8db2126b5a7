//! How links begin and end.

use super::Rig;
use super::pair::{Heard, Pair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;
use transfer_core::fabric::{DownReason, Fabric, FabricError, GrantAccess, LinkId, Offer, PostError, WorkId};
use transfer_core::memory::{RemoteKey, RemoteSlice};

const LEN: u64 = 1 << 16;

pub fn connects_in_both_directions<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let (a, b) = (pair.connect(0), pair.connect(1));
    pair.works(a);
    pair.works(b);
    pair.works(a);
    for side in [0, 1] {
        let rails = pair.rails(side, a.0[side]);
        assert_eq!((rails.live, rails.all > 0), (rails.all, true));
    }
}

pub fn connected_is_reported_first<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    for initiator in [0, 1] {
        // The initiator is polled as little as possible: once at first, which is enough for fabrics that only have to
        // send its greeting.
        let mut polls = 1;
        connected_comes_first(&mut pair, initiator, |pair| {
            (0..std::mem::replace(&mut polls, 100)).for_each(|_| _ = pair.round_of(initiator));
        });
    }
}

/// The acceptor sends messages as soon as it is connected. The initiator polls late, when they may have arrived in any
/// order; it must report `Connected` first, then the messages in order. `greet` is called repeatedly, and polls the
/// initiator until the acceptor can connect.
pub fn connected_comes_first<R: Rig>(pair: &mut Pair<R>, initiator: usize, mut greet: impl FnMut(&mut Pair<R>)) {
    let acceptor = 1 - initiator;
    let link = pair.begin(initiator);
    let most = Duration::from_millis(100);
    let connected = Heard::Connected(link.0[acceptor]);
    pair.until("Connected", |pair| {
        greet(pair);
        pair.alone(acceptor, most, |heard| *heard == connected);
        pair.sides[acceptor].heard.contains(&connected)
    });
    let sent: Vec<_> = (0_u8..20).map(|n| pair.post_send(acceptor, link, &[n]).unwrap()).collect();
    // Some fabrics need the peer to complete a send, others only its device, so this wait is bounded.
    let last = Heard::SendDone(link.0[acceptor], sent[19]);
    pair.alone(acceptor, most, |heard| *heard == last);
    let of = link.0[initiator];
    pair.until("the last message", |pair| pair.sides[initiator].heard.contains(&Heard::Message(of, vec![19])));
    let told = pair.sides[initiator].heard.iter();
    let told = told.filter(|heard| matches!(heard, Heard::Connected(_) | Heard::Message(..)));
    let wanted = (0..20).map(|n| Heard::Message(of, vec![n]));
    let wanted: Vec<_> = std::iter::once(Heard::Connected(of)).chain(wanted).collect();
    assert_eq!(told.cloned().collect::<Vec<_>>(), wanted);
    pair.sides.iter_mut().for_each(|side| side.heard.clear());
    pair.works(link);
}

pub fn states_are_checked<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = LinkId(7);
    let fabric = pair.fabric(0);
    let unknown = RemoteSlice::new(0, 0, RemoteKey(1));
    assert!(matches!(fabric.connect(link, &Offer::default()), Err(FabricError::WrongState { .. })));
    assert_eq!(fabric.post_send(link, WorkId(1), b"x"), Err(PostError::LinkDown(link)));
    assert_eq!(fabric.post_write(link, WorkId(1), &[], unknown, None), Err(PostError::LinkDown(link)));
    assert_eq!(fabric.grant(link, Pair::<R>::slice(0, 1), GrantAccess::Write, 1), Err(PostError::LinkDown(link)));
    assert_eq!(fabric.revoke(link, RemoteKey(1), 1), Err(PostError::LinkDown(link)));
    fabric.disconnect(link, DownReason::Closed("unknown links are ignored".into()));
    fabric.offer(link).unwrap();
    assert_eq!(fabric.post_send(link, WorkId(1), b"x"), Err(PostError::LinkDown(link)));
    let reason = DownReason::Closed("changed my mind".into());
    fabric.disconnect(link, reason.clone());
    pair.hear(0, "LinkDown", |h| (*h == Heard::Down(link, reason.clone())).then_some(()));
}

pub fn bad_offers_are_refused<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.new_link();
    let offer = pair.fabric(0).offer(link.0[0]).unwrap();
    for cut in 0..offer.0.len() {
        let bad = Offer(offer.0[..cut].to_vec());
        assert!(matches!(pair.fabric(1).accept(link.0[1], &bad), Err(FabricError::BadOffer { .. })), "cut to {cut}");
    }
    let answer = pair.fabric(1).accept(link.0[1], &offer).unwrap();
    for cut in 0..answer.0.len() {
        let bad = Offer(answer.0[..cut].to_vec());
        assert!(matches!(pair.fabric(0).connect(link.0[0], &bad), Err(FabricError::BadOffer { .. })), "cut to {cut}");
    }
    pair.fabric(0).connect(link.0[0], &answer).unwrap();
    for side in 0..2 {
        pair.hear(side, "Connected", |h| (*h == Heard::Connected(link.0[side])).then_some(()));
    }
    pair.works(link);
}

pub fn disconnect_is_reported_to_both_sides<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    for side in 0..2 {
        let link = pair.connect(0);
        let reason = DownReason::Closed("enough".into());
        pair.fabric(side).disconnect(link.0[side], reason.clone());
        let heard = pair.dead(link);
        assert_eq!(heard[side], reason);
        assert!(!matches!(heard[1 - side], DownReason::Closed(_)), "{heard:?}");
        pair.fabric(side).disconnect(link.0[side], reason);
    }
    let again = pair.connect(1);
    pair.works(again);
}

pub fn a_dead_peer_is_noticed<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let links = [pair.connect(0), pair.connect(1)];
    let remote = pair.grant(1, links[0], Pair::<R>::slice(0, LEN));
    for _ in 0..10 {
        pair.post_write(0, links[0], &[Pair::<R>::slice(0, LEN)], remote, None).unwrap();
    }
    pair.kill(1);
    for link in links {
        pair.hear(0, "LinkDown", |h| matches!(h, Heard::Down(l, _) if *l == link.0[0]).then_some(()));
    }
}

pub fn dead_link_refuses_posts<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(0, 64));
    pair.fabric(1).disconnect(link.0[1], DownReason::Closed("test".into()));
    pair.dead(link);
    for (side, id) in link.0.into_iter().enumerate() {
        let fabric = pair.fabric(side);
        let slice = Pair::<R>::slice(0, 64);
        assert_eq!(fabric.post_send(id, WorkId(1), b"x"), Err(PostError::LinkDown(id)));
        assert_eq!(fabric.post_write(id, WorkId(1), &[slice], remote, None), Err(PostError::LinkDown(id)));
        assert_eq!(fabric.grant(id, slice, GrantAccess::Write, 1), Err(PostError::LinkDown(id)));
        assert_eq!(fabric.revoke(id, remote.key(), 1), Err(PostError::LinkDown(id)));
    }
}

pub fn many_links_at_once<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let links: Vec<_> = (0..40).map(|i| pair.connect(i % 2)).collect();
    for link in &links {
        pair.works(*link);
    }
    for (i, link) in links.iter().enumerate() {
        if i % 3 == 0 {
            pair.fabric(i % 2).disconnect(link.0[i % 2], DownReason::Closed("test".into()));
            pair.dead(*link);
        }
    }
    for (i, link) in links.iter().enumerate() {
        if i % 3 != 0 {
            pair.works(*link);
        }
    }
}

/// A fabric with a descriptor to wait on makes it readable when there is something to do, and keeps it unreadable when
/// there is nothing.
pub fn sleeper_is_woken<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    if pair.fabric(1).wait_fds().is_empty() {
        return;
    }
    // The fabric is armed before it has a link.
    pair.fabric(1).arm();
    let link = pair.connect(0);
    let waits = |pair: &mut Pair<R>, millis: i64| {
        let fabric = pair.fabric(1);
        fabric.arm();
        while fabric.poll(&mut |event| panic!("{event:?}")) {}
        let silent = readable(fabric, Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 }) == 0;
        if !silent {
            fabric.woken();
        }
        silent
    };
    // Events that are left over from connecting may still wake it.
    pair.until("silence", |pair| waits(pair, 30));
    pair.post_send(0, link, b"wake up").unwrap();
    while pair.fabric(0).poll(&mut |_| ()) {}
    assert_ne!(readable(pair.fabric(1), Timespec { tv_sec: 20, tv_nsec: 0 }), 0);
    pair.fabric(1).woken();
    let to = link.0[1];
    pair.hear(1, "Message", |h| (*h == Heard::Message(to, b"wake up".to_vec())).then_some(()));
}

/// Returns how many of the fabric's descriptors are readable. Waits up to `timeout` for the first one.
fn readable(fabric: &impl Fabric, timeout: Timespec) -> usize {
    let fds = fabric.wait_fds();
    let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&timeout)).unwrap()
}
