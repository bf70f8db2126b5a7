//! Checks of the sidecar: whether it answers, its addresses for workers and peers, and its links.

use super::found;
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
            found("sidecar", Verdict::Ok, format!("node {}, transferd {}, up {up}", status.node, status.version), None)
        }
        Err(e) => found("sidecar", Verdict::Fail, e.to_string(), e.advice().as_deref()),
    }
}

pub(super) fn directory(facts: &Facts) -> Vec<Finding> {
    let Some(directory) = facts.sidecar.as_ref().ok().and_then(|status| status.directory.as_ref()) else {
        return vec![];
    };
    match directory.attached {
        true => found("directory", Verdict::Ok, format!("{}, attached", directory.location), None),
        false => {
            let text = format!("not attached to {}: {}", directory.location, directory.why_not);
            let advice = "Start the node that hosts it, or give the right URL with --directory";
            found("directory", Verdict::Fail, text, Some(advice))
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
        true => found("peers", Verdict::Fail, format!("it believes {believes}"), Some(advice)),
        false => found("peers", Verdict::Ok, format!("it believes {believes}"), None),
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
            found(CHECK, Verdict::Fail, text, Some(advice))
        }
    }
}

/// Checks the versions: a tool of another version may not show everything.
pub(super) fn version(facts: &Facts) -> Vec<Finding> {
    match &facts.sidecar {
        Ok(status) if status.version != facts.version => {
            let text = format!("transferctl is {}, and transferd {}", facts.version, status.version);
            found("version", Verdict::Warn, text, Some("Install both from one release"))
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
            found(CHECK, Verdict::Warn, format!("nothing is at {path}"), Some(advice))
        }
        State::Missing => {
            let advice = "Start transferd with this --socket, or give the path that its first line names";
            found(CHECK, Verdict::Fail, format!("nothing is at {path}"), Some(advice))
        }
        State::Another { node } => {
            let text = format!("{path} is that of another sidecar, of node {node}: no bytes are moved through it");
            let advice = "Give --socket, as the first line of the sidecar that is asked names it: socket=PATH";
            let verdict = if facts.socket.named { Verdict::Fail } else { Verdict::Warn };
            found(CHECK, verdict, text, Some(advice))
        }
        State::NoSocket => {
            let advice = "Give the path that transferd's first line names as socket=PATH";
            found(CHECK, Verdict::Fail, format!("{path} is no socket"), Some(advice))
        }
        State::Closed { mode, why, denied: true } => {
            let advice =
                "Run as its owner or in its group, or give transferd another --socket-mode; its directory counts too";
            found(
                CHECK,
                Verdict::Fail,
                format!("{path} has mode {mode:03o}, and does not let you in: {why}"),
                Some(advice),
            )
        }
        State::Closed { why, .. } => {
            let advice = "Nobody listens there any more: start transferd";
            found(CHECK, Verdict::Fail, format!("{path} cannot be used: {why}"), Some(advice))
        }
        State::Open { mode, uid, .. } => {
            let who = match mode {
                _ if mode & 0o002 != 0 => "everybody",
                _ if mode & 0o020 != 0 => "its owner and group",
                _ => "its owner",
            };
            found(
                CHECK,
                Verdict::Ok,
                format!("{path}, mode {mode:03o}: {who} may connect, and its owner is {uid}"),
                None,
            )
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
            found(CHECK, Verdict::Ok, text, None)
        }
        (Ok(_), None) => vec![],
        (Ok(_), Some((address, Ok(())))) => {
            found(CHECK, Verdict::Ok, format!("tcp at {address}, and it answers"), None)
        }
        (Ok(_), Some((address, Err(why)))) => {
            let advice = "Let the port through the firewall, or set --data-listen and --data-advertise of transferd";
            found(CHECK, Verdict::Fail, format!("tcp at {address} cannot be reached from here: {why}"), Some(advice))
        }
    }
}

/// Finds links that could be better.
pub(super) fn links(facts: &Facts) -> Vec<Finding> {
    let one = |link: &transfer_proto::v1::Link| {
        let fabric = crate::admin::fabric_name(link.fabric);
        // The lack of shared memory is no fault if RDMA carries the link.
        match link.why.is_empty() || link.fabric() == Fabric::Verbs {
            true => found("link", Verdict::Ok, format!("to node {} is {fabric}", link.peer), None),
            false => {
                found("link", Verdict::Warn, format!("to node {} is {fabric}, because {}", link.peer, link.why), None)
            }
        }
    };
    facts.links.iter().flat_map(one).collect()
}
