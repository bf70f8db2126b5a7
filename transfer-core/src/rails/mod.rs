//! Rails: one link made of several connections, over one device or many.
//!
//! A [`MultiRail`] is a fabric made of inner fabrics, one for each device. Each of its links consists of a few of their
//! links: two sockets of the tcp fabric, or a queue pair on each of two RDMA devices. To its user it is one link under
//! the [contract](crate::fabric): posts arrive in order, complete in order, and the link dies as a whole or not at all.
//! A link with one rail passes everything through and adds neither bytes nor messages. If all links have one rail,
//! [`SingleRail`] replaces [`MultiRail`]. [`over`] chooses between them.
//!
//! # How several rails carry one link
//! **The lead** is the lowest live rail. It carries all messages, all immediates and every short write, in order. A
//! write of at least twice [`RailsConfig::stripe_bytes`] is cut by byte range ([`plan::stripe`](crate::plan::stripe)).
//! The lead carries the first share, with the immediate, and other rails carry the rest.
//!
//! **Fences** keep the order. Before the next message or immediate of the link is posted, each rail that carried shares
//! gets a FENCE message behind them, and the lead gets a WAIT that names these fences. The receiver delivers arrivals
//! on the lead in order, and passes a WAIT only when its fences have arrived. So rule 2 of the contract holds over all
//! rails: when an immediate is reported, everything posted before it is placed. Two writes *of the same bytes* have no
//! order if no message or immediate of either side lies between them, because their shares may use different rails.
//!
//! **Grants** are made on every live rail. A grant is in force when it is in force on all of them. A revoke ends when
//! each rail has closed its part or is dead.
//!
//! # How a rail dies
//! One end gets [`FabricEvent::LinkDown`] of the inner link: that end is dead and drained. It tells the peer on a live
//! rail, with the number of messages and immediates that it received on the dead one (RAIL_DOWN). A side that gets a
//! RAIL_DOWN while its own end is up ends that end, and confirms in the same way when it is drained. If the rail that
//! carried a RAIL_DOWN dies, the message is sent again over another rail at once, so it may arrive twice.
//!
//! **Only after this confirmation does a side post again what the dead rail did not deliver**: everything that is not
//! acknowledged and lies behind the last message or immediate that the peer received. Before the confirmation, a late
//! packet could still land in memory that is reused by then, or a message could arrive twice.
//!
//! When the lead dies, messages and immediates wait for the confirmation. Then the next live rail becomes the lead, and
//! the posts that were not received are posted there first, in their old order. When the last rail dies, the link is
//! down. A dead rail does not come back; a new link has all rails. A rail that dies because of a broken contract takes
//! the link with it. So does a rail with an atomic operation in flight, because that operation must not be done twice.
//!
//! A rail that cannot be made when the link begins counts as one that died before it carried anything. The link has the
//! others.
//!
//! # What it costs
//! Each message grows by one byte. Each message or immediate behind a striped write costs a WAIT, and a FENCE for each
//! other rail. These use receive slots of the inner links, so the link has fewer slots: see
//! [`Capabilities::receive_slots`](crate::fabric::Capabilities::receive_slots).
//!
//! # Layout
//! - `offer`, `frame`: the bytes that the two sides exchange.
//! - `rail`: one rail as its sender sees it; `inbound`: the receiver's order; `grants`: grants over all rails.
//! - `link`: a link with several rails; `links`: all links, and the dispatch of events to them.
//! - `single`: a fabric whose links have one rail.
//! - `fabric`: the [`Fabric`] over the inner ones; `atomics`: its atomic operations on words.

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

/// Makes a fabric over these inner fabrics, with the rails of the configuration.
///
/// # Errors
/// [`RailsError`] if the fabrics and the configuration do not fit together.
pub fn over<M: Clone + 'static>(
    mut inner: Vec<Box<dyn Fabric<Memory = M>>>,
    config: RailsConfig,
) -> Result<Box<dyn Fabric<Memory = M>>, RailsError> {
    if inner.len() == 1
        && config.rails == [0]
        && let Some(only) = inner.pop()
    {
        return Ok(Box::new(SingleRail::new(only)));
    }
    Ok(Box::new(MultiRail::new(inner, config)?))
}

const MAX_RAILS: usize = RailKeys::MAX_RAILS;

/// An event that waits to be reported.
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

/// The output of links: events to report, and inner links to end.
#[derive(Debug, Default)]
struct Out {
    reports: VecDeque<Report>,
    /// The inner links to end: the index of the fabric, and the inner link's id.
    disconnects: Vec<(usize, LinkId, DownReason)>,
}

/// Decodes a rail's message for a trace: `Ok` with a message of the link's user, or `Err` with the text of a control
/// frame.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn spoken(bytes: &[u8]) -> Option<Result<&[u8], String>> {
    Some(match frame::Frame::decode(bytes)? {
        frame::Frame::User(message) => Ok(message),
        word => Err(format!("{word:?}")),
    })
}
