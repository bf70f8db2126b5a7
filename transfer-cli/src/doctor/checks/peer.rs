//! Another node, compared with this one.

use super::{fail, found, moved, ok, warn};
use crate::doctor::facts::Facts;
use crate::doctor::facts::peer::Peer;
use crate::doctor::{Finding, Verdict};
use std::time::Duration;
use transfer_terminal::units::age;

/// The difference of clocks from which on logs are hard to compare; the validity of certificates depends on the clock,
/// too.
const MAX_CLOCK_DIFFERENCE_NS: i128 = 1_000_000_000;

/// The smallest packet of any usual network, in bytes.
const SMALL_MTU: u64 = 1500;
/// The size of a jumbo frame.
const JUMBO_MTU: u64 = 9000;

/// All findings about the other node.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let Some(peer) = &facts.peer else { return vec![] };
    let checks: [fn(&Facts, &Peer) -> Vec<Finding>; 6] = [answers, versions, clock, data_port, mtu, moved::between];
    checks.iter().flat_map(|check| check(facts, peer)).collect()
}

fn answers(facts: &Facts, peer: &Peer) -> Vec<Finding> {
    const CHECK: &str = "other node";
    let theirs = match &peer.status {
        Err(e) => return found(CHECK, Verdict::Fail, e.in_one_line(), e.advice().as_deref()),
        Ok(theirs) => theirs,
    };
    let up = age(Duration::from_nanos(theirs.uptime_ns));
    let text = format!("node {} at {}, transferd {}, up {up}", theirs.node, peer.address, theirs.version);
    match &facts.sidecar {
        Ok(ours) if ours.node == theirs.node => {
            let advice = "Give each node a name of its own with --node; and give --with the address of another one";
            let what = if ours.incarnation == theirs.incarnation { "it is this one" } else { "it has this one's name" };
            fail(CHECK, format!("{text}: {what}"), advice)
        }
        _ => ok(CHECK, text),
    }
}

fn versions(facts: &Facts, peer: &Peer) -> Vec<Finding> {
    match (&facts.sidecar, &peer.status) {
        (Ok(ours), Ok(theirs)) if ours.version != theirs.version => {
            let text = format!("transferd is {} here, and {} there", ours.version, theirs.version);
            let advice =
                "While nodes are upgraded one by one that is as it should be; else install one release everywhere";
            warn("versions", text, advice)
        }
        _ => vec![],
    }
}

fn clock(_: &Facts, peer: &Peer) -> Vec<Finding> {
    const CHECK: &str = "clocks";
    let Some(ahead) = peer.clock else { return vec![] };
    let seconds = |ns: i128| ns as f64 / 1e9;
    let text = format!(
        "the other node's is {:.3} s {}, give or take {:.3} s",
        seconds(ahead.by_ns.abs()),
        if ahead.by_ns < 0 { "behind" } else { "ahead" },
        seconds(ahead.give_or_take_ns)
    );
    match ahead.by_ns.abs() > ahead.give_or_take_ns + MAX_CLOCK_DIFFERENCE_NS {
        false => ok(CHECK, text),
        true => {
            let advice = "Let chrony or another NTP client run on both: logs are compared by the clock, and certificates judged by it";
            warn(CHECK, text, advice)
        }
    }
}

fn data_port(_: &Facts, peer: &Peer) -> Vec<Finding> {
    const CHECK: &str = "its data port";
    match &peer.data_port {
        None => vec![],
        Some((address, Ok(()))) => ok(CHECK, format!("tcp at {address}, and it answers from here")),
        Some((address, Err(why))) => {
            let advice = "Let the port through the firewall between the two, or set --data-listen and --data-advertise of that transferd to \
                          what can be reached";
            fail(CHECK, format!("tcp at {address} cannot be reached from here: {why}"), advice)
        }
    }
}

fn mtu(_: &Facts, peer: &Peer) -> Vec<Finding> {
    const CHECK: &str = "MTU";
    let Some((name, mtu)) = &peer.interface else { return vec![] };
    let text = format!("{mtu} on {name}, the way to it");
    match *mtu {
        ..SMALL_MTU => {
            let advice =
                "Small packets cost much: a tunnel or VPN may be on the way; set 1500 or more where it can carry that";
            warn(CHECK, text, advice)
        }
        SMALL_MTU..JUMBO_MTU => {
            let text = format!("{text}; 9000 on all hosts and switches of the way would cost less");
            ok(CHECK, text)
        }
        _ => ok(CHECK, text),
    }
}
