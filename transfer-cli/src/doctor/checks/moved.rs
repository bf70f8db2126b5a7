//! Transfers of real bytes: whether they arrive, by which path, and why not by a better one.

use super::{fail, found, ok, warn};
use crate::doctor::facts::Facts;
use crate::doctor::facts::moved::Moved;
use crate::doctor::facts::peer::{Direction, Peer};
use crate::doctor::{Finding, Verdict};
use crate::error::Error;
use transfer_client::FabricKind;
use transfer_terminal::units::bytes;

/// Checks a transfer between two workers of this node.
pub(super) fn here(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "bytes here";
    match &facts.moved {
        None => vec![],
        Some(Err(error)) => failed(CHECK, "from worker to worker", error),
        Some(Ok(moved)) => {
            let text = format!("from worker to worker: {}", told(moved));
            match (moved.same, moved.fabric, moved.copied) {
                (Some(false), ..) => corrupt(CHECK, text),
                (_, FabricKind::Local, 0) => ok(CHECK, text),
                _ => {
                    let advice = "On one node it should go by reference, and no byte be copied; please report this";
                    warn(CHECK, text, advice)
                }
            }
        }
    }
}

/// Checks a transfer between this node and another one.
pub(super) fn between(facts: &Facts, peer: &Peer) -> Vec<Finding> {
    const CHECK: &str = "bytes between";
    if peer.status.is_err() {
        return vec![];
    }
    if peer.moved.is_empty() {
        let (text, advice) = match facts.socket.is_open() {
            false => (
                format!("none were moved: no worker socket can be used, neither here ({}) nor there", facts.socket.path.display()),
                "Give --socket, where workers of this node connect; and --with-socket, where the other node's socket can be reached from \
                 this host",
            ),
            true => (
                "none were moved: no worker of this user is connected there that something could be pushed to, and nothing is published \
                 there"
                    .to_owned(),
                "Give --with-socket, where the other node's socket can be reached from this host; or publish something there, for \
                 instance `transferctl push KEY FILE`",
            ),
        };
        return warn(CHECK, text, advice);
    }
    let one = |(way, moved): &(Direction, Result<Moved, Error>)| {
        let way = match way {
            Direction::To => "to it".to_owned(),
            Direction::From => "from it".to_owned(),
            Direction::ToWorker(worker) => format!("to it, to its worker {worker:?}"),
            Direction::FromKey(key) => format!("from it, which was {key:?}"),
        };
        match moved {
            Err(error) => failed(CHECK, &way, error),
            Ok(moved) => {
                let mut text = format!("{way}: {}", told(moved));
                let why = peer.why_not_better.as_deref().filter(|why| !why.is_empty());
                if let Some(why) = why {
                    text = format!("{text}, because {why}");
                }
                match (moved.same, why) {
                    (Some(false), _) => corrupt(CHECK, text),
                    (_, None) => ok(CHECK, text),
                    (_, Some(_)) => {
                        let advice =
                            "What is in the way of the better one, `transferctl doctor` says on the node that lacks it";
                        warn(CHECK, text, advice)
                    }
                }
            }
        }
    };
    peer.moved.iter().flat_map(one).collect()
}

fn failed(check: &'static str, way: &str, error: &Error) -> Vec<Finding> {
    let advice = error.advice();
    found(check, Verdict::Fail, format!("{way}: {}", error.in_one_line()), advice.as_deref())
}

fn corrupt(check: &'static str, text: String) -> Vec<Finding> {
    let advice = "The bytes that arrived differ from those that were sent: take the node out of service, and check its memory and its network";
    fail(check, text, advice)
}

/// `4 MiB by tcp, copied=8388608 B, in 3.2ms (1.3 GiB/s)`
fn told(moved: &Moved) -> String {
    let Moved { fabric, bytes: moved_bytes, copied, took, .. } = moved;
    let rate = match (fabric, took.as_secs_f64()) {
        // No byte is moved, so there is no rate.
        (FabricKind::Local, _) => String::new(),
        (_, seconds) if seconds > 0.0 => format!(" ({}/s)", bytes((*moved_bytes as f64 / seconds) as u64)),
        _ => String::new(),
    };
    let how = if *fabric == FabricKind::Local { "by reference" } else { fabric.name() };
    format!("{} {how}, copied={copied} B, in {took:.1?}{rate}", bytes(*moved_bytes))
}
