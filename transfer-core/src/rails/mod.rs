//! Rails: one link made of several, over one device or many.
//!
//! A [`MultiRail`] is a fabric made of inner fabrics, one for each device. Each of its links is a few links of theirs: two sockets of
//! the tcp fabric, a queue pair on each of two RDMA devices. To its user it is one link under the
//! [contract](crate::fabric): what is posted arrives in order, completes in order, and dies as a whole or not at all. A link of one
//! rail is that rail: nothing is added to it, neither bytes nor messages. Where all links have one rail, [`SingleRail`] takes the
//! place of [`MultiRail`]: [`over`] chooses.
//!
//! # How several rails carry one link
//! **The lead**, the lowest rail that lives, carries all messages, all immediates and every short write, in order. A write of at
//! least twice [`RailsConfig::stripe_bytes`] is cut by byte range ([`plan::stripe`](crate::plan::stripe)); the lead carries its
//! first share, with the immediate, and other rails the rest.
//!
//! **Fences** keep the order. A rail that carried shares gets a FENCE message behind them before the next message or immediate of the
//! link is posted, and in front of that the lead gets a WAIT that names those fences. The receiver hands on what comes on the lead in
//! order, and at a WAIT only when the fences are there. So rule 2 of the contract holds over all rails: what was posted before
//! an immediate is placed when it is reported. Only two writes *of the same bytes* with no message or immediate of either side between
//! them have no order, for their shares may go over different rails.
//!
//! **Grants** are made on every rail that lives, and are in force when all are. A revoke ends when each rail's part is
//! closed or the rail dead.
//!
//! # How a rail dies
//! One end hears [`FabricEvent::LinkDown`] of the inner link: that end is dead and drained. It tells the peer so, on a rail that
//! lives, with how many messages and immediates it received on the dead one (RAIL_DOWN). Who is told so while its own end is up ends it,
//! and confirms in the same way when it is drained. A RAIL_DOWN whose own rail dies is told again over another at once, and may come
//! twice. **Only when a side has that confirmation does it post again what the dead rail
//! had not brought over**: all that is not acknowledged and lies behind the last message or immediate that the peer received. Before,
//! a packet that is late could still land in memory that has been used again since, or a message be heard twice.
//!
//! When the lead dies, messages and immediates wait for the confirmation. Then the next rail that lives is the lead; what was not
//! received is posted there first, in its old order. When the last rail dies the link is down. A rail that died does not come back;
//! a new link has all of them. A rail that dies because somebody broke the contract takes the link with it, and so does one with an
//! operation on a word under way, which must not be done twice.
//!
//! A rail that cannot be made when the link begins is one that died before it carried anything: the link has the others.
//!
//! # What it costs
//! Each message grows by a byte, and each message or immediate behind a striped write costs a WAIT and a FENCE for each other rail.
//! They use receive slots of the inner links, so the link has fewer: see [`Capabilities::receive_slots`](crate::fabric::Capabilities::receive_slots).
//!
//! # Layout
//! - `offer`, `frame`: what the two sides tell each other.
//! - `rail`: one rail as its sender sees it; `inbound`: the receiver's order; `grants`: grants over all rails.
//! - `link`: a link of several rails; `links`: all links, and whose events are whose.
//! - `single`: a fabric of links of one rail.
//! - `fabric`: the [`Fabric`](crate::fabric::Fabric) over the inner ones; `atomics`: operations on words over it.

mod atomics;
mod broken;
mod config;
mod fabric;
mod frame;
mod grants;
mod inbound;
mod link;
mod links;
mod offer;
mod rail;
mod single;

#[cfg(test)]
pub(crate) use broken::Broken;
pub use config::{RailsConfig, RailsError, inner_slots};
pub use fabric::MultiRail;
pub use single::SingleRail;

use crate::fabric::{DownReason, Fabric, FabricEvent, LinkId, WorkId};
use crate::memory::{RailKeys, RemoteKey, RemoteSlice};
use link::WorkKind;
use std::collections::VecDeque;

/// A fabric over these ones, with the rails of the configuration.
///
/// # Errors
/// [`RailsError`] where they do not fit together.
pub fn over<M: Clone + 'static>(
    mut inner: Vec<Box<dyn Fabric<Memory = M>>>,
    config: RailsConfig,
) -> Result<Box<dyn Fabric<Memory = M>>, RailsError> {
    match inner.pop() {
        Some(only) if inner.is_empty() && config.rails == [0] => Ok(Box::new(SingleRail::new(only))),
        last => Ok(Box::new(MultiRail::new(inner.into_iter().chain(last).collect(), config)?)),
    }
}

const MAX_RAILS: usize = RailKeys::MAX_RAILS;

/// What waits to be reported.
#[derive(Debug)]
enum Report {
    Connected { link: LinkId },
    Done { link: LinkId, work: WorkId, kind: WorkKind },
    Granted { link: LinkId, tag: u64, remote: RemoteSlice },
    Revoked { link: LinkId, key: RemoteKey, tag: u64 },
    RailDown { link: LinkId, rail: usize, reason: DownReason, left: usize },
    Down { link: LinkId, reason: DownReason },
}

impl Report {
    fn event(self) -> FabricEvent<'static> {
        match self {
            Report::Connected { link } => FabricEvent::Connected { link },
            Report::Done { link, work, kind: WorkKind::Write } => FabricEvent::WriteDone { link, work },
            Report::Done { link, work, kind: WorkKind::Send } => FabricEvent::SendDone { link, work },
            Report::Done { link, work, kind: WorkKind::Atomic(old) } => FabricEvent::AtomicDone { link, work, old },
            Report::Granted { link, tag, remote } => FabricEvent::Granted { link, tag, remote },
            Report::Revoked { link, key, tag } => FabricEvent::Revoked { link, key, tag },
            Report::RailDown { link, rail, reason, left } => FabricEvent::RailDown { link, rail, reason, left },
            Report::Down { link, reason } => FabricEvent::LinkDown { link, reason },
        }
    }

    fn link(&self) -> LinkId {
        match self {
            Report::Connected { link }
            | Report::Done { link, .. }
            | Report::Granted { link, .. }
            | Report::Revoked { link, .. }
            | Report::RailDown { link, .. }
            | Report::Down { link, .. } => *link,
        }
    }
}

/// What links have for others.
#[derive(Debug, Default)]
struct Out {
    reports: VecDeque<Report>,
    /// Inner links to end: the fabric's place, and its name for it.
    disconnects: Vec<(usize, LinkId, DownReason)>,
}

/// What a message of a rail is, for people who read a trace: a message of the link's user, or a word between the rails.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn spoken(bytes: &[u8]) -> Option<Result<&[u8], String>> {
    Some(match frame::Frame::decode(bytes)? {
        frame::Frame::User(message) => Ok(message),
        word => Err(format!("{word:?}")),
    })
}
