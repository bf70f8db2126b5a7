//! Landing slots: opening and closing them, and what lands in them.

use super::ids::SlotId;
use super::link::{AfterRevoke, Landing, Slot, SlotState, SlotUser};
use super::node::Node;
use super::pool::{TIDY_AT, Want};
use super::pull::Pull;
use super::{Post, Tenant};
use crate::fabric::{GrantAccess, LinkId};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice};
use crate::tensor::TensorMeta;
use crate::time::Time;
#[cfg(test)]
use crate::wire::landing::SlotNumber;
use crate::wire::landing::{HEADER_BYTES, Header};

/// A slot, its key, and what has landed in it unless nobody wants it any more.
type CheckedLanding = (SlotId, RemoteKey, Option<(Header, TensorMeta)>);

impl Node {
    /// Where the header of a slot lies, to be copied out before [`Node::fabric_event`] gets the immediate. `None` where no such slot
    /// is open to that link.
    #[must_use]
    pub fn landing_header(&self, link: LinkId, immediate: u32) -> Option<LocalSlice> {
        let l = self.links.get(&link)?;
        let slot = l.slots.get(l.slots.lengthen(immediate)?)?;
        let SlotState::Granted(_) = slot.state else { return None };
        self.pools.get(&slot.domain)?.slice(&slot.range).sub(0, HEADER_BYTES)
    }

    pub(super) fn immediate(
        &mut self,
        link: LinkId,
        value: u32,
        header: Option<&[u8; HEADER_BYTES as usize]>,
        copied: u64,
    ) {
        if !self.consume_receive_slot(link) {
            return;
        }
        let checked = self.check_landing(link, value, header);
        match checked {
            Ok((slot, key, landing)) => {
                let Some(l) = self.links.get_mut(&link) else { return };
                let Some(s) = l.slots.get_mut(slot) else { return };
                let mut after = match landing {
                    None => AfterRevoke::Free,
                    Some((header, meta)) => {
                        AfterRevoke::Deliver(Box::new(Landing { header, meta, copied, trace: None }))
                    }
                };
                if let (SlotUser::Flow(flow, _), AfterRevoke::Deliver(landing)) = (s.user, &mut after)
                    && let Some(flow) = l.flows_in.get_mut(flow)
                {
                    self.landings += 1;
                    flow.used = self.landings;
                    landing.trace = flow.has_landed(slot, landing.header.version);
                }
                if let SlotUser::Flow(flow, _) = s.user {
                    self.idle.touch(link, flow);
                }
                s.since = self.latest;
                s.state = SlotState::Revoking(after);
                self.actions.push(Post::Revoke { link, key, tag: slot.to_u64() });
            }
            Err(what) => self.violation(link, &what),
        }
    }

    /// Holds a landed header against what was granted. Nothing in it is believed before.
    pub(super) fn check_landing(
        &self,
        link: LinkId,
        value: u32,
        header: Option<&[u8; HEADER_BYTES as usize]>,
    ) -> Result<CheckedLanding, String> {
        let l = self.links.get(&link).ok_or("the link is gone")?;
        let id = l.slots.lengthen(value);
        let slot = id.and_then(|id| Some((id, l.slots.get(id)?)));
        let Some((id, slot)) = slot else {
            return Err(format!("immediate {value:#x} names no slot that is open to it"));
        };
        let Some(bytes) = header else {
            return Err(format!("immediate {value:#x} came without a header"));
        };
        let SlotState::Granted(remote) = &slot.state else {
            return Err(format!("immediate {value:#x} names a slot that is not open to it"));
        };
        let header = Header::decode(bytes).map_err(|e| e.to_string())?;
        #[cfg(test)]
        let header = match self.config.broken {
            Some(super::Broken::BelievesHeaders) => {
                Header { slot: SlotNumber(value), body_len: header.body_len % (1 << 40), ..header }
            }
            _ => header,
        };
        if header.slot.0 != value {
            return Err(format!("the header names {}, the immediate {value:#x}", header.slot));
        }
        if header.body_len > slot.capacity {
            return Err(format!("the header says {} bytes, the slot has {}", header.body_len, slot.capacity));
        }
        let meta = match slot.user {
            SlotUser::Pull(pull) => self.check_pull_landing(l, pull, &header)?,
            SlotUser::Flow(flow, _) => self.check_flow_landing(l, flow, &header)?,
            SlotUser::Nobody => None,
        };
        Ok((id, remote.key(), meta.map(|meta| (header, meta))))
    }

    /// Opens a range to a peer.
    pub(super) fn open_slot(
        &mut self,
        link: LinkId,
        domain: Tenant,
        capacity: u64,
        range: crate::alloc::Allocation,
        user: SlotUser,
    ) -> Option<SlotId> {
        let slice = self.pools.get(&domain)?.slice(&range);
        let l = self.links.get_mut(&link)?;
        let id = l.slots.insert(Slot { range, domain, capacity, state: SlotState::Granting, user, since: self.latest });
        if let SlotUser::Flow(flow, _) = user
            && let Some(flow) = l.flows_in.get_mut(flow)
        {
            flow.slots.insert(id);
        }
        self.actions.push(Post::Grant { link, range: slice, access: GrantAccess::Write, tag: id.to_u64() });
        Some(id)
    }

    pub(super) fn granted(&mut self, now: Time, link: LinkId, id: SlotId, remote: RemoteSlice) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(slot) = l.slots.get_mut(id) else { return };
        #[cfg(test)]
        l.slot_by_key.insert(remote.key().0, id);
        slot.state = SlotState::Granted(remote);
        match slot.user {
            SlotUser::Pull(pull) => self.pull_granted(now, link, pull, id),
            SlotUser::Flow(flow, round) => {
                self.idle.touch(link, flow);
                self.flow_granted(link, flow, round, id);
            }
            SlotUser::Nobody => self.drop_slot(link, id),
        }
    }

    /// The slot is not wanted any more, and the peer will not write to it (it was never told of it, or has said so, or has
    /// written). Its range goes back to the pool once that is certain.
    pub(super) fn drop_slot(&mut self, link: LinkId, id: SlotId) {
        let Some(l) = self.links.get_mut(&link) else { return };
        l.disown_slot(id);
        let Some(slot) = l.slots.get_mut(id) else { return };
        if let SlotUser::Flow(flow, _) = slot.user {
            self.idle.touch(link, flow);
        }
        slot.user = SlotUser::Nobody;
        slot.since = self.latest;
        match &mut slot.state {
            SlotState::Granted(remote) => {
                let key = remote.key();
                slot.state = SlotState::Revoking(AfterRevoke::Free);
                self.actions.push(Post::Revoke { link, key, tag: id.to_u64() });
            }
            SlotState::Revoking(after) => *after = AfterRevoke::Free,
            // `granted` comes back here; a reader's end frees it.
            SlotState::Granting | SlotState::Held(_) => {}
            SlotState::Closed(_) => {
                if let Some(slot) = self.links.get_mut(&link).and_then(|l| l.remove_slot(id)) {
                    self.free_range(slot.domain, slot.range);
                }
            }
        }
    }

    pub(super) fn revoked(&mut self, now: Time, link: LinkId, id: SlotId) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(slot) = l.slots.get_mut(id) else { return };
        let SlotState::Revoking(after) = &mut slot.state else { return };
        match (std::mem::replace(after, AfterRevoke::Free), slot.user) {
            (AfterRevoke::Deliver(landing), SlotUser::Pull(pull)) => self.pull_landed(now, link, pull, id, *landing),
            (AfterRevoke::Deliver(landing), SlotUser::Flow(flow, _)) if l.flows_in.get(flow).is_some() => {
                slot.state = SlotState::Closed(landing);
                self.deliver_flow(now, link, flow, id);
            }
            _ => {
                if let Some(slot) = l.remove_slot(id) {
                    self.free_range(slot.domain, slot.range);
                }
            }
        }
    }

    pub(super) fn free_range(&mut self, domain: Tenant, range: crate::alloc::Allocation) {
        if let Some(pool) = self.pools.get_mut(&domain) {
            // The allocator lent it, so it takes it back.
            let _ = pool.alloc.free(range);
        }
        self.serve_pool_later(domain);
    }

    /// There may be room for those who wait for it, or the first of them does not want it any more.
    pub(super) fn serve_pool_later(&mut self, domain: Tenant) {
        if self.pools.get(&domain).is_some_and(|p| !p.wants.is_empty()) && !self.pools_to_serve.contains(&domain) {
            self.pools_to_serve.push(domain);
        }
    }

    /// Stands in line for room.
    pub(super) fn want(&mut self, domain: Tenant, want: Want) {
        let Node { pools, links, copies, .. } = self;
        if let Some(pool) = pools.get_mut(&domain) {
            if pool.wants.len() >= pool.tidy_at {
                // While the first waits, those behind it may come and go.
                pool.wants.retain(|want| match *want {
                    Want::Pull(link, id) => {
                        links.get(&link).and_then(|l| l.pulls.get(id)).is_some_and(Pull::wants_room)
                    }
                    Want::Flow(link, id) => {
                        links.get(&link).and_then(|l| l.flows_in.get(id)).is_some_and(|f| f.wants_room(domain))
                    }
                    Want::Copy(id) => copies.get(id).is_some_and(|copying| copying.needs().is_some()),
                });
                pool.tidy_at = (2 * pool.wants.len()).max(TIDY_AT);
            }
            pool.wants.push_back(want);
            self.pool_waits(domain);
            // Those before may not want it any more, and others may hold room that they do not use.
            self.serve_pool_later(domain);
        }
    }

    /// Gives the room that became free to those who wait for it, in order.
    pub(super) fn serve_pool_waiters(&mut self) {
        for domain in std::mem::take(&mut self.pools_to_serve) {
            while let Some(want) = self.pools.get(&domain).and_then(|p| p.wants.front().copied()) {
                if !self.feed(domain, want) {
                    self.reclaim(domain, want);
                    break;
                }
                if let Some(pool) = self.pools.get_mut(&domain) {
                    pool.wants.pop_front();
                }
            }
            self.pool_served(domain);
        }
    }

    pub(super) fn feed(&mut self, domain: Tenant, want: Want) -> bool {
        match want {
            Want::Pull(link, pull) => self.try_pull_slot(domain, link, pull),
            Want::Flow(link, flow) => self.try_flow_slots(domain, link, flow),
            Want::Copy(copying) => self.try_copy(domain, copying),
        }
    }
}
