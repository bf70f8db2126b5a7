//! Where the writes of peers land: pools of memory, the slots that are opened in them, and the flows that own slots.
//!
//! # Layout
//! - `pool`: the memory of one tenant, and who waits for room in it.
//! - `slots`: one range of it, granted to one link: how it is opened and closed.
//! - `flows`: a key that a peer pushes here, and its slots.
//! - `idle`: the slots that nobody writes into, counted as they change.

mod flows;
mod idle;
mod pool;
mod slots;
#[cfg(test)]
mod tests;

pub(super) use flows::{Granted, InFlow, InState, Recalled};
pub(super) use pool::{Pool, Want, slot_bytes};
pub(super) use slots::{LandedTensor, Revoked, Slot, SlotState, SlotUser};

use super::config::NodeConfig;
use super::ids::{InFlowId, of};
use super::slab::Slab;
use super::tenant::Tenant;
use crate::fabric::LinkId;
use crate::memory::SegmentId;
use hashbrown::HashMap;
use idle::Idle;
use std::collections::BTreeMap;

/// The landing memory of a node, as a state machine.
///
/// It knows links, requests, sessions and versions by their ids, and nothing else of them. Whoever holds it
/// - hands it **events**: a link comes or goes ([`link_up`](Landing::link_up), [`link_down`](Landing::link_down)), the fabric has opened or
///   closed a slot ([`granted`](Landing::granted), [`revoked`](Landing::revoked)), something has landed ([`check`](Landing::check), then
///   [`landed`](Landing::landed)), a reader is done ([`slot_read`](Landing::slot_read)), a peer's messages about its flows;
/// - does what **comes out**: grants and revokes go into the queue of actions that is handed in with the event; what a peer is to be told is
///   returned;
/// - when nothing else is left, [settles](Landing::settle) the count of idle slots and serves those who wait for room, pool after pool
///   ([`take_to_serve`](Landing::take_to_serve), [`first`](Landing::first), [`pop_first`](Landing::pop_first)).
///
/// A range goes back to its pool, or to a reader, only from states in which no write can reach it: that is decided here and nowhere else.
///
/// **Getters** hand out [`Pool`]s, [`Slot`]s and [`InFlow`]s to read.
#[derive(Default)]
pub(super) struct Landing {
    slots_per_flow: usize,
    speculative_percent: u64,
    pools: BTreeMap<Tenant, Pool>,
    /// Pools in which there may be room for those who wait.
    to_serve: Vec<Tenant>,
    links: BTreeMap<LinkId, OfLink>,
    idle: Idle,
    /// Counts what has landed in flows.
    landings: u64,
    /// A rule to break.
    #[cfg(test)]
    broken: Option<super::broken::Broken>,
    /// How many slots and flows were looked at, for tests that hold what an event costs.
    #[cfg(test)]
    pub(super) steps: std::cell::Cell<u64>,
}

/// What one link has.
#[derive(Default)]
struct OfLink {
    slots: Slab<Slot, of::Slot>,
    /// For a mistake on purpose.
    #[cfg(test)]
    slot_by_key: HashMap<u32, super::ids::SlotId>,
    flows: Slab<InFlow, of::InFlow>,
    flow_of: HashMap<u32, InFlowId>,
}

impl Landing {
    /// Landing memory without pools.
    pub(super) fn new(config: &NodeConfig) -> Landing {
        Landing {
            slots_per_flow: config.slots_per_flow,
            speculative_percent: config.speculative_percent,
            #[cfg(test)]
            broken: config.broken,
            ..Landing::default()
        }
    }

    /// A landing pool for a trust domain; registered memory.
    pub(super) fn add_pool(&mut self, domain: Tenant, segment: SegmentId, len_bytes: u64) {
        self.pools.insert(domain, Pool::new(segment, len_bytes));
    }

    /// A link came up: its peer may be granted slots.
    pub(super) fn link_up(&mut self, link: LinkId) {
        self.links.insert(link, OfLink::default());
    }

    /// A link is drained: no write can reach its slots any more. Returns them, each to be freed unless a reader has it, and its flows.
    pub(super) fn link_down(&mut self, link: LinkId) -> (Vec<Slot>, Slab<InFlow, of::InFlow>) {
        let Some(mut l) = self.links.remove(&link) else { return Default::default() };
        for (flow, _) in l.flows.iter() {
            self.idle.touch((link, flow));
        }
        let slots = l.slots.ids(|_| true);
        (slots.into_iter().filter_map(|slot| l.slots.remove(slot)).collect(), l.flows)
    }

    /// The pools.
    pub(super) fn pools(&self) -> &BTreeMap<Tenant, Pool> {
        &self.pools
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

    /// What has to hold whenever no action is left; for tests.
    #[cfg(test)]
    pub(super) fn check_all(&self) -> Result<(), String> {
        for (link, l) in &self.links {
            for (id, flow) in l.flows.iter() {
                let own = l.slots.ids(|s| matches!(s.user, SlotUser::Flow(of, _) if of == id));
                if own.len() != flow.slots.len() || own.iter().any(|slot| !flow.slots.contains(slot)) {
                    return Err(format!("flow {id:?} of {link} has the slots {own:?}, and knows of {:?}", flow.slots));
                }
            }
        }
        self.check_idle()
    }
}
