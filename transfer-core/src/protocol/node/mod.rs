//! The node: the machines put together, the flows that need several of them, and the ways in and out.
//!
//! # Layout
//! - `session`, `ops`: how sessions and operations of workers end. `waiting`: what an operation waits for, in words.
//! - `fetch`, `connect`: finding a key's owner, a worker's node, the link to a node.
//! - `publish`, `claims`, `name_lost`: publishing, and who may. `versions`: who is served with a version, and what ends with it.
//! - `boards`: what workers find by looking, without asking.
//! - `limits`, `tenants`: how much each may have, and who may have to do with what.
//! - `take_back`: a version whose memory its worker wants to write again. `leases`: how memory is handed over and goes back.
//! - `slots`, `recall`: what a grant, a landing and free room lead to; slots that are called back.
//! - `inbox`, `outbox`: what comes in from a peer, and what goes out.
//! - `pull`, `serve`: the two sides of a fetch from another node. `references`: the same, where the receiver reads the owner's memory.
//! - `push_out`, `push_in`, `prepare`: the two sides of a push to another node, and slots for many keys at once.
//! - `copies`, `copying`: what workers of another tenant may read, copied for them.
//! - `counters`: what is said of counters and barriers, and what comes out of them.
//! - `status`, `listing`: what a node shows of itself. `events`, `ended`: what it tells, and transfers that have ended.
//! - `drain`, `operator`: taking nothing new, and what an operator ends.

mod boards;
#[cfg(test)]
mod broken;
#[cfg(test)]
mod checks;
mod claims;
mod connect;
mod copies;
mod copying;
mod counters;
pub(super) mod drain;
mod ended;
mod events;
mod fetch;
mod inbox;
mod leases;
mod limits;
pub(super) mod listing;
mod name_lost;
pub(super) mod operator;
mod ops;
mod outbox;
mod prepare;
mod publish;
mod pull;
mod push_in;
mod push_out;
mod recall;
mod references;
mod serve;
mod session;
mod slots;
mod status;
mod take_back;
mod tenants;
mod versions;
mod waiting;

pub(super) use crate::protocol::snapshot::EndedTransfer;

use crate::fabric::{Capabilities, DownReason, FabricEvent, FabricKind, LinkId};
use crate::memory::{LocalSlice, SegmentId};
use crate::op::{Failure, FailureCode};
use crate::protocol::action::{Action, Actions, HostAction};
use crate::protocol::config::NodeConfig;
use crate::protocol::control::{Control, PeerInfo};
use crate::protocol::counters::Counters;
use crate::protocol::events::FailuresTold;
use crate::protocol::ids::of;
use crate::protocol::keys::Keys;
use crate::protocol::landing::Landing;
use crate::protocol::links::{Before, Link, Links};
use crate::protocol::meters::Meters;
use crate::protocol::references::References;
use crate::protocol::sessions::Sessions;
use crate::protocol::slab::{Id, Slab};
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Transfers;
use crate::tensor::Name;
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;
use crate::wire::message::Message;
use copying::Copying;

/// One sidecar as a state machine: sessions of workers, published tensors, links to peers.
///
/// It does no I/O, starts no thread and reads no clock. Whoever drives it
/// - hands it **events**: `session_*`, [`request`](Node::request), `link_*`, [`fabric_event`](Node::fabric_event), the control
///   plane's answers ([`located`](Node::located), [`worker_located`](Node::worker_located), [`claimed`](Node::claimed),
///   [`connect_failed`](Node::connect_failed)) and [`timeout`](Node::timeout), each with the time;
/// - then does all **actions** that [`poll_action`](Node::poll_action) gives, in order;
/// - and calls [`timeout`](Node::timeout) when [`next_deadline`](Node::next_deadline) has come.
///
/// Before an immediate is handed in, its header is asked for with [`landing_header`](Node::landing_header) and copied out of the
/// landed memory, for the node cannot touch memory.
pub struct Node {
    pub(super) config: NodeConfig,
    pub(super) sessions: Sessions,
    keys: Keys,
    pub(super) landing: Landing,
    pub(super) links: Links,
    actions: Actions,
    pub(super) transfers: Transfers,
    counters: Counters,
    pub(super) references: References,
    meters: Meters,
    /// Transfers that have ended, where somebody traces them.
    ended: Option<Vec<EndedTransfer>>,
    /// The time of the latest event.
    latest: Time,
    /// Copies for readers of other tenants.
    copies: Slab<Copying, of::Copy>,
    /// It takes nothing new.
    draining: bool,
    failures_told: FailuresTold,
    /// How many waiters and slots were looked at, for tests that hold what an event costs.
    #[cfg(test)]
    pub(super) steps: std::cell::Cell<u64>,
}

/// The most receive slots of a peer that are used, however many it says that it has.
const MAX_RECEIVE_SLOTS: u32 = 1 << 14;

impl Node {
    /// A node. `headers` is registered memory for outgoing landing headers: one of [`HEADER_BYTES`] for each transfer in flight.
    #[must_use]
    pub fn new(config: NodeConfig, headers: LocalSlice) -> Node {
        let meters = Meters::new(config.timed);
        let landing = Landing::new(&config);
        let links = Links::new(&config, headers);
        let references = References::new(&config);
        let counters = Counters::new(&config);
        Node {
            config,
            sessions: Sessions::default(),
            keys: Keys::default(),
            landing,
            links,
            actions: Actions::default(),
            transfers: Transfers::default(),
            counters,
            references,
            meters,
            ended: None,
            latest: Time(0),
            copies: Slab::default(),
            draining: false,
            failures_told: FailuresTold::default(),
            #[cfg(test)]
            steps: std::cell::Cell::new(0),
        }
    }

    /// This node's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.config.name
    }

    /// Who is at the other end of a link that is up.
    #[must_use]
    pub fn peer_of(&self, link: LinkId) -> Option<&PeerInfo> {
        self.links.get(link).map(Link::peer)
    }

    /// The links that are up.
    #[must_use]
    pub fn link_ids(&self) -> Vec<LinkId> {
        self.links.all().keys().copied().collect()
    }

    /// The next thing to do. `None` when nothing is left until the next event.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() {
            self.landing.settle();
            self.serve_pool_waiters();
            self.landing.settle();
            self.flush_asks();
            self.links.flush(&mut self.actions);
        }
        let action = self.actions.pop();
        #[cfg(test)]
        self.forget_marks(action.as_ref());
        action
    }

    /// When [`Node::timeout`] has to be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.sessions.next_deadline().into_iter().chain(self.references.look_at()).min()
    }

    /// Time has come: ends the operations whose deadline has passed, and looks after what lost peers may still read.
    pub fn timeout(&mut self, now: Time) {
        self.latest = now;
        while let Some(op) = self.sessions.take_due(now) {
            self.deadline(now, op);
        }
        self.references.look_after(now, &mut self.actions);
    }

    /// A landing pool for a trust domain; registered memory.
    pub fn add_pool(&mut self, domain: Tenant, segment: SegmentId, len_bytes: u64) {
        self.landing.add_pool(domain, segment, len_bytes);
    }

    /// A link came up: [`FabricEvent::Connected`] was reported for it. `limits` are those of its fabric.
    pub fn link_up(&mut self, now: Time, link: LinkId, mut peer: PeerInfo, kind: FabricKind, limits: Capabilities) {
        // It may say any number, and what is posted to it and not taken is kept here.
        peer.receive_slots = peer.receive_slots.min(MAX_RECEIVE_SLOTS);
        let name = peer.name.clone();
        let path = self.meters.path(&name, kind);
        self.counters.link_up(link, peer.clone(), kind, limits.atomics);
        let before = self.links.up(link, peer, (kind, limits), path);
        self.landing.link_up(link);
        self.transfers.link_up(link);
        self.actions.push(HostAction::Control(Control::LinkUp { link, peer: name }));
        match before {
            // The peer came back before we noticed that it had gone.
            Before::Link(old) => self.disconnect(old, DownReason::Closed("the peer connected anew".into())),
            Before::Waiting(waiting) => {
                for op in waiting {
                    self.go_on_with_link(now, op, link);
                }
            }
        }
    }

    /// A link that this side began has ended before it came up. What waits for it goes on waiting: another one may be made.
    pub(crate) fn link_failed(&mut self, link: LinkId, peer: Name, why: String) {
        self.actions.push(HostAction::Control(Control::LinkFailed { link, peer, why }));
    }

    /// No link to that node can be made.
    pub fn connect_failed(&mut self, _now: Time, peer: &Name, why: &str) {
        for op in self.links.connect_failed(peer) {
            self.forget_node_of(op);
            let text = format!("node {peer:?} cannot be reached: {why}");
            self.fail_op(op, Failure::new(FailureCode::PeerUnreachable, text));
        }
    }

    /// Something happened on a fabric. `header` goes with [`FabricEvent::Immediate`]; see [`Node::landing_header`].
    pub fn fabric_event(&mut self, now: Time, event: FabricEvent<'_>, header: Option<&[u8; HEADER_BYTES as usize]>) {
        self.latest = now;
        match event {
            // Reported to whoever made the link, who then calls `link_up`. A message's bytes are the fabric's own already.
            FabricEvent::Connected { .. } | FabricEvent::SendDone { .. } => {}
            FabricEvent::AtomicDone { link, work, old } => {
                self.count(now, |counters| counters.atomic_done(link, work, old))
            }
            FabricEvent::LocalAtomicDone { work, old } => {
                self.count(now, |counters| counters.local_atomic_done(work, old));
            }
            FabricEvent::WriteDone { link, work } => self.write_done(now, link, work),
            FabricEvent::Granted { link, tag, remote } => {
                if !self.count(now, |counters| counters.granted(link, tag, remote)) {
                    self.granted(now, link, Id::from_u64(tag), remote);
                }
            }
            #[cfg(test)]
            FabricEvent::Revoked { link, key, .. } if self.names_slots_by_key() => self.revoked_by_key(now, link, key),
            FabricEvent::Revoked { link, tag, .. } => self.revoked(now, link, Id::from_u64(tag)),
            FabricEvent::Message { link, bytes } => match Message::decode(bytes) {
                Ok(message) => self.message(now, link, message),
                Err(e) => self.violation(link, &e.to_string()),
            },
            FabricEvent::Immediate { link, value, len_bytes, copied } => {
                // The write that raises it carries the header; what lies in the slot else is an old one.
                let header = header.filter(|_| len_bytes >= HEADER_BYTES);
                self.immediate(link, value, header, copied);
                #[cfg(test)]
                self.deliver_too_early(now);
            }
            FabricEvent::References { link, mark } => {
                if self.links.get(link).is_some() {
                    self.references.begin(link, mark);
                }
            }
            FabricEvent::SegmentCame { link, handle } => self.segment_came(link, handle),
            FabricEvent::SegmentKept { link, segment } => self.segment_kept(now, link, segment),
            FabricEvent::SegmentGone { link, handle } => {
                self.references.segment_gone(link, handle, &mut self.actions);
            }
            FabricEvent::RailDown { link, rail, reason, left } => self.rail_down(link, rail, &reason, left),
            FabricEvent::LinkDown { link, reason } => self.link_down(now, link, &reason),
        }
    }

    /// Counts a step.
    #[cfg(test)]
    fn step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    /// Counts nothing but in tests.
    #[cfg(not(test))]
    #[allow(clippy::unused_self)]
    fn step(&self) {}
}
