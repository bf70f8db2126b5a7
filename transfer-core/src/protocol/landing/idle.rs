//! The idle landing slots: they are granted to a flow, and no tensor has landed in them.
//!
//! A request for room needs to know how much memory could be called back. That is kept as sums, because one peer may have thousands of slots and thousands of requests. An event that changes a flow *touches* it.
//! Before the sums are read, the slots of touched flows are counted again. While nobody asks for room, they are not read.

use super::{InState, Landing, OfLink, SlotState};
use crate::fabric::LinkId;
use crate::protocol::ids::{FlowAt, InFlowId};
use crate::protocol::tenant::Tenant;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};

/// The idle slots of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Share {
    domain: Tenant,
    bytes: u64,
    /// When the flow was used last. The flow that was used longest ago is asked first.
    used: u64,
    /// Its slots are being called back, because other requests wait for room.
    reclaiming: bool,
}

#[derive(Default, PartialEq, Eq, Debug)]
struct Spare {
    spare: BTreeSet<(u64, InFlowId)>,
    reclaiming: u32,
}

#[derive(Default, PartialEq, Eq, Debug)]
struct OfPool {
    bytes: u64,
    links: BTreeMap<LinkId, Spare>,
}

/// The most touched flows that are kept for later.
const MAX_TOUCHED: usize = 64;

#[derive(Default)]
pub(super) struct Idle {
    touched: Vec<FlowAt>,
    shares: HashMap<FlowAt, Share>,
    pools: BTreeMap<Tenant, OfPool>,
}

impl Idle {
    /// Notes that an event has changed a flow or one of its slots.
    pub(super) fn touch(&mut self, flow: FlowAt) {
        if self.touched.last() != Some(&flow) {
            self.touched.push(flow);
        }
    }

    /// Returns how many bytes of a pool are idle, without those of the flow `but`.
    pub(super) fn bytes(&self, domain: Tenant, but: Option<FlowAt>) -> u64 {
        let own = but.and_then(|flow| self.shares.get(&flow)).filter(|share| share.domain == domain);
        self.pools.get(&domain).map_or(0, |pool| pool.bytes) - own.map_or(0, |share| share.bytes)
    }

    /// Returns, for each link without a flow that is being asked for room, the flow that was used longest ago. The flow
    /// `but` is left out.
    pub(super) fn to_ask(&self, domain: Tenant, but: Option<FlowAt>) -> Vec<FlowAt> {
        let links = self.pools.get(&domain).into_iter().flat_map(|pool| &pool.links);
        let first = |(link, of): (&LinkId, &Spare)| {
            of.spare.iter().map(|(_, flow)| (*link, *flow)).find(|flow| Some(*flow) != but)
        };
        links.filter(|(_, of)| of.reclaiming == 0).filter_map(first).collect()
    }

    fn set(&mut self, flow: FlowAt, now: Option<Share>) {
        let before = match now {
            Some(share) => self.shares.insert(flow, share),
            None => self.shares.remove(&flow),
        };
        if before == now {
            return;
        }
        let (link, id) = flow;
        if let Some(Share { domain, bytes, used, reclaiming }) = before
            && let Some(pool) = self.pools.get_mut(&domain)
        {
            pool.bytes -= bytes;
            if let Some(of) = pool.links.get_mut(&link) {
                of.spare.remove(&(used, id));
                of.reclaiming -= u32::from(reclaiming);
                if *of == Spare::default() {
                    pool.links.remove(&link);
                }
            }
            if *pool == OfPool::default() {
                self.pools.remove(&domain);
            }
        }
        if let Some(Share { domain, bytes, used, reclaiming }) = now {
            let pool = self.pools.entry(domain).or_default();
            pool.bytes += bytes;
            let of = pool.links.entry(link).or_default();
            of.reclaiming += u32::from(reclaiming);
            if !reclaiming && bytes > 0 {
                of.spare.insert((used, id));
            }
        }
    }
}

impl OfLink {
    /// Returns the idle slots of a flow. `None` if it has none, and is not being asked for them either.
    fn idle_share(&self, id: InFlowId) -> Option<Share> {
        let flow = self.flows.get(id)?;
        let reclaiming = match flow.state {
            InState::Ready => false,
            InState::Reclaiming => true,
            InState::Claiming | InState::WaitingForRoom | InState::Granting | InState::Without | InState::Recalling => {
                return None;
            }
        };
        let slots = flow.slots.iter().filter_map(|slot| self.slots.get(*slot));
        let granted = slots.filter(|slot| matches!(slot.state, SlotState::Granted(_)) && slot.domain == flow.domain);
        let bytes = granted.map(|slot| slot.range.len()).sum();
        (bytes > 0 || reclaiming).then_some(Share { domain: flow.domain, bytes, used: flow.used, reclaiming })
    }
}

impl Landing {
    /// Whether many flows are touched: the list of them is to stay short.
    pub(super) fn is_to_settle(&self) -> bool {
        self.idle.touched.len() > MAX_TOUCHED
    }

    /// Counts the idle slots of all touched flows again.
    pub(crate) fn settle(&mut self) {
        while let Some(flow) = self.idle.touched.pop() {
            self.step();
            let share = self.links.get(&flow.0).and_then(|l| l.idle_share(flow.1));
            self.idle.set(flow, share);
        }
    }

    /// Returns, for each link without a flow that is being asked for room, the flow that was used longest ago. The flow
    /// `but` is left out.
    pub(crate) fn to_ask(&self, domain: Tenant, but: Option<FlowAt>) -> Vec<FlowAt> {
        self.idle.to_ask(domain, but)
    }

    /// Checks that the sums match the flows; for tests.
    #[cfg(test)]
    pub(super) fn check_idle(&self) -> Result<(), String> {
        let mut anew = Idle::default();
        for (link, l) in &self.links {
            for (id, _) in l.flows.iter() {
                anew.set((*link, id), l.idle_share(id));
            }
        }
        match self.idle.touched.is_empty() && anew.shares == self.idle.shares && anew.pools == self.idle.pools {
            true => Ok(()),
            false => Err(format!("{:?} lies idle, and {:?} is counted", anew.pools, self.idle.pools)),
        }
    }
}
