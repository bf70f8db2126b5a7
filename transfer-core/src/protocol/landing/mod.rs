//! The memory into which peers write: landing pools, the slots that are opened in them, and the flows that own slots.
//!
//! # Layout
//! - `pool`: the memory of one tenant, and the requests that wait for room in it.
//! - `slots`: a range of a pool, granted to one link: how it is opened and closed.
//! - `flows`: a key that a peer pushes here, and its slots.
//! - `idle`: how much memory the idle slots take, updated before it is read.

mod flows;
mod idle;
mod pool;
mod slots;
#[cfg(test)]
mod tests;

pub(super) use flows::{Granted, InFlow, InState, Recalled};
pub(super) use pool::{Pool, Want, slot_bytes};
pub(super) use slots::{GrantTag, LandedTensor, Revoked, Slot, SlotState, SlotUser};

use super::config::NodeConfig;
use super::ids::{InFlowId, of};
use super::rules::Rules;
use super::slab::Slab;
use super::tenant::Tenant;
use crate::fabric::LinkId;
use crate::memory::SegmentId;
use hashbrown::HashMap;
use idle::Idle;
use std::collections::BTreeMap;

/// The landing memory of a node, as a state machine.
///
/// It knows links, requests, sessions and versions only by their ids. Its caller
/// - passes in **events**: a link comes or goes ([`link_up`](Landing::link_up), [`link_down`](Landing::link_down)), the
///   fabric has opened or closed a slot ([`granted`](Landing::granted), [`revoked`](Landing::revoked)), a tensor has
///   landed ([`check`](Landing::check), then [`landed`](Landing::landed)), a slot's last reader is done
///   ([`slot_read`](Landing::slot_read)), a peer has sent a message about its flows;
/// - carries out the **results**: grants and revokes go into the queue of actions that is passed with the event;
///   messages to a peer are returned;
/// - after all other work, serves the requests for room, one pool after another
///   ([`take_to_serve`](Landing::take_to_serve), [`first`](Landing::first), [`pop_first`](Landing::pop_first)).
///
/// A range goes back to its pool, or to a reader, only from states in which no write can reach it. Only this machine
/// decides that.
///
/// **Getters** return [`Pool`]s, [`Slot`]s and [`InFlow`]s to read.
#[derive(Default)]
pub(super) struct Landing {
    slots_per_flow: usize,
    speculative_percent: u64,
    pools: BTreeMap<Tenant, Pool>,
    /// Pools that may have room for the requests that wait for it.
    to_serve: Vec<Tenant>,
    links: BTreeMap<LinkId, OfLink>,
    idle: Idle,
    /// Counts the tensors that have landed in flows.
    landings: u64,
    rules: Rules,
    /// How many slots and flows were looked at. Tests use it to check what an event costs.
    #[cfg(test)]
    pub(super) steps: std::cell::Cell<u64>,
}

/// The slots and flows of one link.
#[derive(Default)]
struct OfLink {
    slots: Slab<Slot, of::Slot>,
    flows: Slab<InFlow, of::InFlow>,
    flow_of: HashMap<u32, InFlowId>,
}

impl Landing {
    /// Creates landing memory without pools.
    pub(super) fn new(config: &NodeConfig) -> Landing {
        Landing {
            slots_per_flow: config.slots_per_flow,
            speculative_percent: config.speculative_percent,
            rules: config.rules,
            ..Landing::default()
        }
    }

    /// Adds a landing pool for a tenant. The segment is registered memory.
    pub(super) fn add_pool(&mut self, domain: Tenant, segment: SegmentId, len_bytes: u64) {
        self.pools.insert(domain, Pool::new(segment, len_bytes));
    }

    /// Handles a link that came up: its peer may be granted slots.
    pub(super) fn link_up(&mut self, link: LinkId) {
        self.links.insert(link, OfLink::default());
    }

    /// Handles a link that is drained: no write can reach its slots. Returns its slots and its flows. The caller frees
    /// each slot unless a reader holds it.
    pub(super) fn link_down(&mut self, link: LinkId) -> (Slab<Slot, of::Slot>, Slab<InFlow, of::InFlow>) {
        let Some(l) = self.links.remove(&link) else { return Default::default() };
        for (flow, _) in l.flows.iter() {
            self.idle.touch((link, flow));
        }
        (l.slots, l.flows)
    }

    /// Returns the pools of all tenants.
    pub(super) fn pools(&self) -> &BTreeMap<Tenant, Pool> {
        &self.pools
    }

    /// Counts a slot or flow that was looked at.
    #[cfg(test)]
    fn step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    /// Counts nothing outside of tests.
    #[cfg(not(test))]
    #[allow(clippy::unused_self)]
    fn step(&self) {}

    /// Checks the invariants that hold whenever no action is pending; for tests.
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
