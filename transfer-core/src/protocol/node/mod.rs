//! The node. It holds the state machines of `protocol`, takes events in and gives actions out.
//!
//! What needs one machine alone is a method of that machine. What needs several is a flow, in one of the folders here:
//! `flows` says which machines each of them borrows. Calls go down this list, never up, and a flow never calls the node:
//!
//! # Layout
//! - `events`: events of workers, peers, devices and the directory. They call the flows.
//! - `ownership`: who owns a key, and everything that ends: keys, workers, names, links.
//!   `receiving`: pushes of other nodes, whose end is the end of a key. These two call each other.
//! - `pushing`: pushes of workers, here and to other nodes. `fetching`: their fetches.
//! - `answering`: versions, and the workers and peers that wait for them.
//! - `counters`: counters and barriers.
//! - `room`: room in the landing pools.
//! - `memory`: references to versions.
//! - `replies`: what workers are told. `sending`: messages to peers.
//! - `rules`: what may happen. `state`: what the node shows. `kinds`: what operations wait for. They read, and count refusals.
//!
//! Where the host hands an event to one flow alone, the node's method for it is in that flow's file.

#[macro_use]
mod flows;

mod answering;
mod events;
mod fetching;
mod kinds;
mod memory;
mod ownership;
mod pushing;
mod receiving;
mod room;
mod rules;
mod state;

#[cfg(test)]
mod checks;
mod counters;
mod replies;
mod sending;

pub use events::{NotPinged, PushRead, WorkerMemory};
pub use flows::NodeState;
#[cfg(test)]
pub(super) use ownership::ENDS_PER_ROUND;
pub use ownership::{Deleted, NotDeleted};
pub use state::{TensorFilter, TransferFilter, Unfinished};

pub(super) use crate::protocol::snapshot::EndedTransfer;

use crate::fabric::{Capabilities, DownReason, FabricEvent, FabricKind, LinkId, WorkId};
use crate::memory::{LocalSlice, SegmentId};
use crate::op::{Failure, FailureCode};
use crate::protocol::action::{Action, Actions, HostAction};
use crate::protocol::bases::Bases;
use crate::protocol::config::NodeConfig;
use crate::protocol::control::{Control, PeerInfo};
use crate::protocol::counters::Counters;
use crate::protocol::events::FailureRateLimit;
use crate::protocol::exchanges::Exchanges;
use crate::protocol::ids::{CopyId, OperationId, of};
use crate::protocol::keys::Keys;
use crate::protocol::landing::{GrantTag, Landing};
use crate::protocol::links::{Before, Links, Purpose};
use crate::protocol::meters::Meters;
use crate::protocol::parents::Parents;
use crate::protocol::pings::Pings;
use crate::protocol::references::References;
use crate::protocol::relays::{Proof, Relays};
use crate::protocol::sessions::{FetchOp, FetchStage, OpKind, PushOp, PushStage, ReserveOp, Sessions};
use crate::protocol::slab::Slab;
use crate::protocol::spill::Spills;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Transfers;
use crate::tensor::Name;
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;
use crate::wire::message::Message;
use answering::Copying;
use ownership::Endings;
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
    pub(super) common: Common,
    pub(super) config: NodeConfig,
    pub(super) sessions: Sessions,
    keys: Keys,
    bases: Bases,
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
    /// Copies for readers of other tenants, of versions on disk, and of parts that are packed.
    copies: Slab<Copying, of::Copy>,
    /// Parts that wait for room to be packed, and until when, in this order.
    packs_waiting: VecDeque<(Time, CopyId)>,
    /// Digests that are being made.
    proofs: Slab<Proof, of::Proof>,
    relays: Relays,
    failure_rate: FailureRateLimit,
    endings: Endings,
}

/// What every flow may read.
#[derive(Default)]
pub(super) struct Common {
    /// The time of the latest event.
    latest: Time,
    /// Whether the node drains: it takes nothing new.
    draining: bool,
    /// How many waiters and keys were looked at. Tests bound the cost of an event by it.
    #[cfg(test)]
    pub(super) steps: std::cell::Cell<u64>,
}

impl Common {
    /// Counts one step. Does nothing outside tests.
    #[allow(clippy::unused_self)]
    fn step(&self) {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
    }
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
        let keys = Keys::new(&config);
        let bases = Bases::new(config.base_bytes);
        Node {
            config,
            sessions: Sessions::default(),
            keys,
            bases,
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
            common: Common::default(),
            copies: Slab::default(),
            packs_waiting: VecDeque::new(),
            proofs: Slab::default(),
            relays: Relays::default(),
            failure_rate: FailureRateLimit::default(),
            endings: Endings::default(),
        }
    }

    /// Returns what the node shows of its state.
    #[must_use]
    pub fn state(&self) -> NodeState<'_> {
        state!(self)
    }

    /// Moves all waiting actions into `batch`, which must be empty. Returns `false` if nothing is left until the next event.
    #[must_use]
    pub fn take_actions(&mut self, batch: &mut VecDeque<Action>) -> bool {
        if self.actions.is_empty() {
            if has_put_off(self) {
                answering!(self).look_at_relays();
                answering!(self).pack_parts();
                fetching!(self).serve_pool_waiters();
                memory!(self).spill();
                calls!(self).flush_asks();
            }
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
        let looks = looks.chain(self.packs_waiting.front().map(|(at, _)| *at));
        let looks = looks.chain(self.transfers.stalls_at()).chain(self.relays.passing.ends_at());
        let ending = self.is_ending().then_some(self.common.latest);
        let looks = looks.chain(self.counters.wake_at());
        self.sessions.next_deadline().into_iter().chain(looks).chain(ending).min()
    }

    /// Whether something that has ended is not done.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        !self.endings.is_empty()
    }

    /// Handles the passing of time: ends the operations whose deadline has passed, looks for readers of the memory that
    /// lost peers held, and for the parents with which versions stay, and goes on with what ends in several rounds.
    pub fn timeout(&mut self, now: Time) {
        self.common.latest = now;
        ownership!(self).go_on_ending(now);
        while let Some(op) = self.sessions.take_due(now) {
            answering!(self).deadline(now, op);
        }
        self.references.look_after(now, &mut self.actions);
        ownership!(self).look_for_parents(now);
        answering!(self).end_waiting_packs(now);
        fetching!(self).end_stalled(now);
        fetching!(self).end_passing(now);
        self.spills.timeout(now);
        counting!(self).count(now, |counters| counters.timeout(now));
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
        self.actions.push(HostAction::Control(Control::LinkUp { link, peer: name.clone() }));
        counting!(self).count(now, |counters| counters.reached(link));
        match before {
            // The peer came back before this side noticed that it had gone.
            Before::Link(old) => sending!(self).disconnect(old, DownReason::Closed("the peer connected anew".into())),
            Before::Waiting(waiting) => {
                for op in waiting {
                    self.go_on_with_link(now, op, link);
                }
                fetching!(self).named_node_up(now, &name, link);
            }
        }
    }

    /// Goes on with an operation that waited for this link.
    pub(super) fn go_on_with_link(&mut self, now: Time, id: OperationId, link: LinkId) {
        match self.sessions.op(id).map(|op| &op.kind) {
            Some(OpKind::Fetch(FetchOp { stage: FetchStage::Connecting(_), .. })) => {
                fetching!(self).start_pull(now, id, link)
            }
            Some(
                OpKind::Push(PushOp { stage: PushStage::Connecting(_), .. })
                | OpKind::Reserve(ReserveOp { stage: PushStage::Connecting(_), .. }),
            ) => pushing!(self).enqueue_push(now, id, link),
            Some(OpKind::Counter(_)) => counting!(self).count(now, |counters| counters.connected(now, id, link)),
            _ => {}
        }
    }

    /// Handles the end of a link that this side began and that never came up. The operations that wait for a link keep
    /// waiting: another link may be made.
    pub(crate) fn link_failed(&mut self, link: LinkId, peer: Name, why: String) {
        self.actions.push(HostAction::Control(Control::LinkFailed { link, peer, why }));
    }

    /// Fails the operations that wait for a link to a node, because no link to it can be made.
    pub fn connect_failed(&mut self, now: Time, peer: &Name, why: &str) {
        for op in self.links.connect_failed(peer) {
            counting!(self).forget_node_of(op);
            let text = format!("node {peer:?} cannot be reached: {why}");
            answering!(self).fail_op(op, Failure::new(FailureCode::PeerUnreachable, text));
        }
        fetching!(self).named_node_not_reached(now, peer);
    }

    /// Handles an event of a fabric. `header` goes with [`FabricEvent::Immediate`]; see [`Node::landing_header`].
    pub fn fabric_event(&mut self, now: Time, event: FabricEvent<'_>, header: Option<&[u8; HEADER_BYTES as usize]>) {
        self.common.latest = now;
        match event {
            // The driver handles `Connected` and calls `link_up`. `SendDone` needs nothing: the fabric owns the bytes.
            FabricEvent::Connected { .. } | FabricEvent::SendDone { .. } => {}
            FabricEvent::AtomicDone { link, work, old } => {
                counting!(self).count(now, |counters| counters.atomic_done(link, work, old))
            }
            FabricEvent::LocalAtomicDone { work, old } => {
                counting!(self).count(now, |counters| counters.local_atomic_done(work, old));
            }
            FabricEvent::WriteDone { link, work } => self.write_done(now, link, work),
            FabricEvent::Granted { link, tag, remote } => {
                if !counting!(self).count(now, |counters| counters.granted(link, tag, remote)) {
                    self.granted(now, link, GrantTag::from_u64(tag), remote);
                }
            }
            FabricEvent::Revoked { link, tag, .. } => self.revoked(now, link, GrantTag::from_u64(tag)),
            FabricEvent::Message { link, bytes } => match Message::decode(bytes) {
                Ok(message) => self.message(now, link, message),
                Err(e) => sending!(self).violation(link, &e.to_string()),
            },
            FabricEvent::Immediate { link, value, len_bytes, copied } => {
                // The write that brings the immediate carries the header. A shorter write leaves an old header there.
                let header = header.filter(|_| len_bytes >= HEADER_BYTES);
                self.immediate(link, value, header, copied);
            }
            FabricEvent::References { link, mark } => {
                if self.links.get(link).is_some() {
                    self.references.begin(link, mark);
                }
            }
            FabricEvent::SegmentCame { link, handle } => self.segment_came(link, handle),
            FabricEvent::SegmentKept { link, segment } => answering!(self).segment_kept(now, link, segment),
            FabricEvent::SegmentGone { link, handle } => {
                self.references.segment_gone(link, handle, &mut self.actions);
            }
            FabricEvent::RailDown { link, rail, reason, left } => self.rail_down(link, rail, &reason, left),
            FabricEvent::LinkDown { link, reason } => ownership!(self).link_down(now, link, &reason),
        }
    }

    pub(super) fn write_done(&mut self, now: Time, link: LinkId, work: WorkId) {
        match self.links.write_done(link, work) {
            Some((blob, Purpose::Serve(index))) => {
                answering!(self).serve_written(now, link, index);
                memory!(self).release(blob);
            }
            Some((blob, Purpose::Push(op))) => pushing!(self).push_landed(now, link, op, blob),
            None => {}
        }
    }
}

/// Whether a node has something to do that was put off until all other actions are carried out.
fn has_put_off(node: &Node) -> bool {
    let Node { transfers, landing, spills, .. } = node;
    transfers.has_put_off() || landing.is_to_serve() || spills.is_due()
}
