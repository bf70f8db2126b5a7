//! The node. It combines the state machines of `protocol`, runs the exchanges that need several of them, and is where
//! events come in and actions go out.
//!
//! # Layout
//! - `session`, `ops`: how sessions and operations of workers begin and end. `waiting`: what an operation waits for, in
//!   words.
//! - `fetch`, `connect`: finding a key's owner, a worker's node, and the link to a node.
//! - `publish`, `claims`, `name_lost`: publishing, and the right to publish. `versions`: how versions answer waiters,
//!   and how they end.
//! - `boards`: versions that workers find without asking.
//! - `limits`, `tenants`: how much a worker or a tenant may have, and which tenants have access.
//! - `parents`: versions that stay with the parent of their key.
//! - `take_back`: a version whose memory its worker wants to write again. `leases`: how memory is handed to workers and
//!   returned.
//! - `slots`, `recall`: what follows a grant, a landing and freed room; slots that are called back.
//! - `inbox`, `outbox`: messages and writes from peers and to peers.
//! - `pull`, `serve`: the two sides of a fetch from another node. `references`: a fetch whose receiver reads the
//!   owner's memory. `gather`: ranges of several versions that are fetched together.
//! - `push_out`, `push_in`, `prepare`: the two sides of a push to another node, and slots for many keys at once.
//! - `copies`, `copying`: copies of tensors for workers of another tenant.
//! - `spill`: versions that are written to disk. `exchanges`: what exchanges have here, and the limit on their partitions.
//! - `counters`: events of counters and barriers, and their effects.
//! - `status`, `listing`: the state that a node shows. `events`, `ended`: events that it reports, and records of ended
//!   transfers.
//! - `endings`: ends that take more than one round.
//! - `drain`, `operator`, `ping`: draining the node, what an operator ends, and the round trips that it measures.

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
pub(super) mod endings;
mod events;
mod exchanges;
mod fetch;
mod gather;
mod inbox;
mod leases;
mod limits;
pub(super) mod listing;
mod lost_link;
mod name_lost;
pub(super) mod operator;
mod ops;
mod outbox;
mod packing;
mod parents;
pub(super) mod ping;
mod prepare;
mod publish;
mod pull;
mod push_in;
mod push_out;
mod recall;
mod references;
mod serve;
pub(super) mod session;
mod slots;
mod spill;
mod status;
mod streams;
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
use crate::protocol::exchanges::Exchanges;
use crate::protocol::ids::{CopyId, of};
use crate::protocol::keys::Keys;
use crate::protocol::landing::Landing;
use crate::protocol::links::{Before, Links};
use crate::protocol::meters::Meters;
use crate::protocol::parents::Parents;
use crate::protocol::pings::Pings;
use crate::protocol::references::References;
use crate::protocol::sessions::Sessions;
use crate::protocol::slab::{Id, Slab};
use crate::protocol::spill::Spills;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Transfers;
use crate::tensor::Name;
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;
use crate::wire::message::Message;
use copying::Copying;
use endings::Endings;
use std::collections::VecDeque;

/// One sidecar as a state machine: sessions of workers, published tensors, links to peers.
///
/// It does no I/O, starts no thread and reads no clock. Its driver
/// - hands it **events**: `session_*`, [`request`](Node::request), `link_*`, [`fabric_event`](Node::fabric_event), the
///   control plane's answers ([`directory_news`](Node::directory_news), [`connect_failed`](Node::connect_failed)) and
///   [`timeout`](Node::timeout), each with the time;
/// - then carries out all **actions** that [`take_actions`](Node::take_actions) gives it, in order;
/// - and calls [`timeout`](Node::timeout) at the time of [`next_deadline`](Node::next_deadline).
///
/// Before the driver hands in an immediate, it finds the header with [`landing_header`](Node::landing_header) and
/// copies it out of the landed memory, because the node cannot access memory.
pub struct Node {
    pub(super) config: NodeConfig,
    pub(super) sessions: Sessions,
    keys: Keys,
    pub(super) landing: Landing,
    pub(super) links: Links,
    actions: Actions,
    pub(super) transfers: Transfers,
    counters: Counters,
    pings: Pings,
    pub(super) references: References,
    pub(super) parents: Parents,
    pub(super) spills: Spills,
    pub(super) exchanges: Exchanges,
    meters: Meters,
    /// Transfers that have ended. `None` while tracing is off.
    ended: Option<Vec<EndedTransfer>>,
    /// The time of the latest event.
    latest: Time,
    /// Copies for readers of other tenants, of versions on disk, and of parts that are packed.
    copies: Slab<Copying, of::Copy>,
    /// Parts that wait for room to be packed, and until when, in this order.
    packs_waiting: VecDeque<(Time, CopyId)>,
    /// Whether the node drains: it takes nothing new.
    draining: bool,
    failures_told: FailuresTold,
    endings: Endings,
    /// How many waiters and keys were looked at. Tests bound the cost of an event by it.
    #[cfg(test)]
    pub(super) steps: std::cell::Cell<u64>,
}

/// The most receive slots of a peer that are used, even if the peer says that it has more.
const MAX_RECEIVE_SLOTS: u32 = 1 << 14;

impl Node {
    /// Creates a node. `headers` is registered memory for outgoing landing headers, with [`HEADER_BYTES`] for each
    /// transfer in flight.
    #[must_use]
    pub fn new(config: NodeConfig, headers: LocalSlice) -> Node {
        let meters = Meters::new(config.timed);
        let landing = Landing::new(&config);
        let links = Links::new(&config, headers);
        let references = References::new(&config);
        let counters = Counters::new(&config);
        let spills = Spills::new(config.spill);
        Node {
            config,
            sessions: Sessions::default(),
            keys: Keys::default(),
            landing,
            links,
            actions: Actions::default(),
            transfers: Transfers::default(),
            counters,
            pings: Pings::default(),
            references,
            parents: Parents::default(),
            spills,
            exchanges: Exchanges::default(),
            meters,
            ended: None,
            latest: Time(0),
            copies: Slab::default(),
            packs_waiting: VecDeque::new(),
            draining: false,
            failures_told: FailuresTold::default(),
            endings: Endings::default(),
            #[cfg(test)]
            steps: std::cell::Cell::new(0),
        }
    }

    /// Returns this node's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.config.name
    }

    /// Returns the peer of a link that is up.
    #[must_use]
    pub fn peer_of(&self, link: LinkId) -> Option<&PeerInfo> {
        self.links.peer_of(link)
    }

    /// Returns the links that are up.
    #[must_use]
    pub fn link_ids(&self) -> Vec<LinkId> {
        self.links.all().keys().copied().collect()
    }

    /// Moves all waiting actions into `batch`, which must be empty. Returns `false` if nothing is left until the next event.
    #[must_use]
    pub fn take_actions(&mut self, batch: &mut VecDeque<Action>) -> bool {
        if self.actions.is_empty() {
            // These were put off until all other actions are carried out.
            self.pack_parts();
            self.serve_pool_waiters();
            self.spill();
            self.flush_asks();
            self.links.flush(&mut self.actions);
        }
        self.actions.swap(batch);
        if batch.is_empty() {
            self.endings.begin_round();
        }
        !batch.is_empty()
    }

    /// Returns the latest time at which [`Node::timeout`] has to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let looks =
            self.references.look_at().into_iter().chain(self.parents.look_at()).chain(self.spills.paused_until());
        let looks = looks.chain(self.packs_due());
        let ending = self.is_ending().then_some(self.latest);
        self.sessions.next_deadline().into_iter().chain(looks).chain(ending).min()
    }

    /// Handles the passing of time: ends the operations whose deadline has passed, looks for readers of the memory that
    /// lost peers held, and for the parents with which versions stay, and goes on with what ends in several rounds.
    pub fn timeout(&mut self, now: Time) {
        self.latest = now;
        self.go_on_ending(now);
        while let Some(op) = self.sessions.take_due(now) {
            self.deadline(now, op);
        }
        self.references.look_after(now, &mut self.actions);
        self.look_for_parents(now);
        self.end_waiting_packs(now);
        self.spills.timeout(now);
    }

    /// Adds the landing pool of a tenant. The segment is registered memory.
    pub fn add_pool(&mut self, domain: Tenant, segment: SegmentId, len_bytes: u64) {
        self.landing.add_pool(domain, segment, len_bytes);
    }

    /// Handles a link that came up: [`FabricEvent::Connected`] was reported for it. `limits` are those of its fabric.
    pub fn link_up(&mut self, now: Time, link: LinkId, mut peer: PeerInfo, kind: FabricKind, limits: Capabilities) {
        // The peer may claim any number of slots, and what is posted and not yet taken is kept here.
        peer.receive_slots = peer.receive_slots.min(MAX_RECEIVE_SLOTS);
        let name = peer.name.clone();
        let path = self.meters.path(&name, kind);
        self.counters.link_up(link, peer.clone(), kind, limits.atomics);
        let before = self.links.up(link, peer, (kind, limits), path);
        self.landing.link_up(link);
        self.transfers.link_up(link);
        self.actions.push(HostAction::Control(Control::LinkUp { link, peer: name }));
        match before {
            // The peer came back before this side noticed that it had gone.
            Before::Link(old) => self.disconnect(old, DownReason::Closed("the peer connected anew".into())),
            Before::Waiting(waiting) => {
                for op in waiting {
                    self.go_on_with_link(now, op, link);
                }
            }
        }
    }

    /// Handles the end of a link that this side began and that never came up. The operations that wait for a link keep
    /// waiting: another link may be made.
    pub(crate) fn link_failed(&mut self, link: LinkId, peer: Name, why: String) {
        self.actions.push(HostAction::Control(Control::LinkFailed { link, peer, why }));
    }

    /// Fails the operations that wait for a link to a node, because no link to it can be made.
    pub fn connect_failed(&mut self, _now: Time, peer: &Name, why: &str) {
        for op in self.links.connect_failed(peer) {
            self.forget_node_of(op);
            let text = format!("node {peer:?} cannot be reached: {why}");
            self.fail_op(op, Failure::new(FailureCode::PeerUnreachable, text));
        }
    }

    /// Handles an event of a fabric. `header` goes with [`FabricEvent::Immediate`]; see [`Node::landing_header`].
    pub fn fabric_event(&mut self, now: Time, event: FabricEvent<'_>, header: Option<&[u8; HEADER_BYTES as usize]>) {
        self.latest = now;
        match event {
            // The driver handles `Connected` and calls `link_up`. `SendDone` needs nothing: the fabric owns the bytes.
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
                // The write that brings the immediate carries the header. A shorter write leaves an old header there.
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

    /// Counts one step.
    #[cfg(test)]
    fn step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    /// Does nothing outside tests.
    #[cfg(not(test))]
    #[allow(clippy::unused_self)]
    fn step(&self) {}
}
