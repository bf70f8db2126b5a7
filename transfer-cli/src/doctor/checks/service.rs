//! Checks of the sidecar: whether it answers, its addresses for workers and peers, and its links.

use super::{fail, found, ok, warn};
use crate::doctor::facts::Facts;
use crate::doctor::facts::socket::State;
use crate::doctor::{Finding, Verdict};
use std::time::Duration;
use transfer_proto::v1::Fabric;
use transfer_terminal::units::{age, counted};

pub(super) fn sidecar(facts: &Facts) -> Vec<Finding> {
    match &facts.sidecar {
        Ok(status) => {
            let up = age(Duration::from_nanos(status.uptime_ns));
            ok("sidecar", format!("node {}, transferd {}, up {up}", status.node, status.version))
        }
        Err(e) => found("sidecar", Verdict::Fail, e.to_string(), e.advice().as_deref()),
    }
}

pub(super) fn directory(facts: &Facts) -> Vec<Finding> {
    let Some(directory) = facts.sidecar.as_ref().ok().and_then(|status| status.directory.as_ref()) else {
        return vec![];
    };
    if !directory.coordinator_why_not.is_empty() {
        let text = format!("{} does not answer: {}", directory.coordinator, directory.coordinator_why_not);
        let advice = "Everything goes on while the host that leads the directory can renew its lease there; no other one can take over. \
                      Look after it, and at --directory and the settings that begin with --etcd- or --kubernetes-";
        let verdict = if directory.attached { Verdict::Warn } else { Verdict::Fail };
        return found("directory", verdict, text, Some(advice));
    }
    match directory.attached {
        true => ok("directory", format!("{}, attached", directory.location)),
        false => {
            let text = format!("not attached to {}: {}", directory.location, directory.why_not);
            let advice = "Start the node that hosts it, or give the right URL with --directory";
            fail("directory", text, advice)
        }
    }
}

/// Checks the rule of trust for the tenants of other sidecars' requests.
pub(super) fn believes(facts: &Facts) -> Vec<Finding> {
    let Some(believes) = facts.sidecar.as_ref().ok().map(|status| &status.believes).filter(|text| !text.is_empty())
    else {
        return vec![];
    };
    let advice =
        "Give all nodes certificates (--tls-cert), or put --socket into a folder where a socket can be made beside it";
    match believes.starts_with("nobody") {
        true => fail("peers", format!("it believes {believes}"), advice),
        false => ok("peers", format!("it believes {believes}")),
    }
}

/// Checks that no worker of the node has fetched wrong bytes.
pub(super) fn digests(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "digests";
    let wrong = facts.sidecar.as_ref().ok().and_then(|status| Some(status.counters.as_ref()?.wrong_digests));
    match wrong.unwrap_or(0) {
        0 => vec![],
        n => {
            let times = counted(n, "fetch", "fetches");
            let text = format!(
                "since the start {times} of workers here brought bytes that do not have the digest of their push"
            );
            let advice = "`transferctl events --after 0` says which chunk or shard of which version: a memory, a device or a disk between \
                          its pusher and here damages bytes, or the pusher writes what it has published";
            fail(CHECK, text, advice)
        }
    }
}

/// Checks the versions: a tool of another version may not show everything.
pub(super) fn version(facts: &Facts) -> Vec<Finding> {
    match &facts.sidecar {
        Ok(status) if status.version != facts.version => {
            let text = format!("transferctl is {}, and transferd {}", facts.version, status.version);
            warn("version", text, "Install both from one release")
        }
        _ => vec![],
    }
}

/// Checks the workers' socket.
pub(super) fn socket(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "worker socket";
    let path = facts.socket.path.display();
    match &facts.socket.state {
        State::Missing if !facts.socket.named => {
            let advice = "Give --socket, as transferd has it, to look at it and to move bytes through it";
            warn(CHECK, format!("nothing is at {path}"), advice)
        }
        State::Missing => {
            let advice = "Start transferd with this --socket, or give the path that its first line names";
            fail(CHECK, format!("nothing is at {path}"), advice)
        }
        State::Another { node } => {
            let text = format!("{path} is that of another sidecar, of node {node}: no bytes are moved through it");
            let advice = "Give --socket, as the first line of the sidecar that is asked names it: socket=PATH";
            let verdict = if facts.socket.named { Verdict::Fail } else { Verdict::Warn };
            found(CHECK, verdict, text, Some(advice))
        }
        State::NoSocket => {
            let advice = "Give the path that transferd's first line names as socket=PATH";
            fail(CHECK, format!("{path} is no socket"), advice)
        }
        State::Closed { mode, why, denied: true } => {
            let advice =
                "Run as its owner or in its group, or give transferd another --socket-mode; its directory counts too";
            fail(CHECK, format!("{path} has mode {mode:03o}, and does not let you in: {why}"), advice)
        }
        State::Closed { why, .. } => {
            let advice = "Nobody listens there any more: start transferd";
            fail(CHECK, format!("{path} cannot be used: {why}"), advice)
        }
        State::Open { mode, uid, .. } => {
            let who = match mode {
                _ if mode & 0o002 != 0 => "everybody",
                _ if mode & 0o020 != 0 => "its owner and group",
                _ => "its owner",
            };
            ok(CHECK, format!("{path}, mode {mode:03o}: {who} may connect, and its owner is {uid}"))
        }
    }
}

/// Checks the data port.
pub(super) fn data_port(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "data port";
    match (&facts.sidecar, &facts.data_port) {
        (Err(_), _) => vec![],
        (Ok(status), None) if status.fabric_states.iter().all(|state| !state.available) => {
            let text = "there is none: tensors stay on this node";
            ok(CHECK, text)
        }
        (Ok(_), None) => vec![],
        (Ok(_), Some((address, Ok(())))) => ok(CHECK, format!("tcp at {address}, and it answers")),
        (Ok(_), Some((address, Err(why)))) => {
            let advice = "Let the port through the firewall, or set --data-listen and --data-advertise of transferd";
            fail(CHECK, format!("tcp at {address} cannot be reached from here: {why}"), advice)
        }
    }
}

/// Finds links that could be better.
pub(super) fn links(facts: &Facts) -> Vec<Finding> {
    let one = |link: &transfer_proto::v1::Link| {
        let fabric = crate::admin::fabric_name(link.fabric);
        // The lack of shared memory is no fault if RDMA carries the link.
        match link.why.is_empty() || link.fabric() == Fabric::Verbs {
            true => ok("link", format!("to node {} is {fabric}", link.peer)),
            false => {
                found("link", Verdict::Warn, format!("to node {} is {fabric}, because {}", link.peer, link.why), None)
            }
        }
    };
    facts.links.iter().flat_map(one).collect()
}
