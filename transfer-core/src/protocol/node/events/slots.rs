//! Landing slots: what follows a grant, a landing and freed room.

use crate::fabric::LinkId;
use crate::memory::{LocalSlice, RemoteSlice};
use crate::protocol::ids::PullId;
use crate::protocol::landing::{GrantTag, Granted, LandedTensor, Revoked, SlotUser};
use crate::protocol::node::Node;
use crate::protocol::rules::Broken;
use crate::protocol::transfers::Pull;
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;
use crate::wire::message::{Body, Role};

impl Node {
    /// Returns where the header of a slot lies. The caller copies the header out before [`Node::fabric_event`] gets the
    /// immediate. `None` if no such slot is open to that link.
    #[must_use]
    pub fn landing_header(&self, link: LinkId, immediate: u32) -> Option<LocalSlice> {
        self.landing.header_of(link, immediate)
    }

    pub(in crate::protocol::node) fn immediate(
        &mut self,
        link: LinkId,
        value: u32,
        header: Option<&[u8; HEADER_BYTES as usize]>,
        copied: u64,
    ) {
        if !self.links.slot_used(link, &mut self.actions) {
            return;
        }
        let checked = self.landing.check(link, value, header).and_then(|(slot, key, user, header)| {
            let is_early = self.config.rules.breaks(Broken::RelaysBeforeRevoke);
            let is_chunk = |id: PullId| self.transfers.pull(link, id).is_some_and(|pull| pull.chunk().is_some());
            let is_early = is_early && matches!(user, SlotUser::Pull(id) if is_chunk(id));
            let meta = match user {
                SlotUser::Pull(id) => {
                    let pull = self.transfers.pull(link, id).ok_or("the slot's request is gone")?;
                    pull.check_landing(id, &header)?
                }
                SlotUser::Flow(flow, _) => self.landing.check_flow((link, flow), &header)?,
                SlotUser::Nobody => None,
            };
            Ok(((slot, key), meta.map(|meta| LandedTensor { header, meta, copied, trace: None }), is_early))
        });
        match checked {
            Ok((slot, landed, is_early)) => {
                self.landing.landed(self.common.latest, link, slot, landed, &mut self.actions);
                if is_early {
                    for tag in GrantTag::of_apart(slot.0) {
                        self.revoked(self.common.latest, link, tag);
                    }
                }
            }
            Err(what) => sending!(self).violation(link, &what),
        }
    }

    pub(in crate::protocol::node) fn granted(&mut self, now: Time, link: LinkId, tag: GrantTag, remote: RemoteSlice) {
        let Some((id, user)) = self.landing.granted(link, tag, remote, &mut self.actions) else { return };
        match user {
            SlotUser::Pull(pull) => pull_slots!(self).pull_granted(now, link, pull, id),
            SlotUser::Flow(flow, round) => {
                match self.landing.flow_granted(self.common.latest, (link, flow), round, id, &mut self.actions) {
                    Granted::Nothing => {}
                    Granted::All(index, slots) => calls!(self).answer_flow(link, index, Ok(slots)),
                    Granted::Idle(index, slot) => {
                        sending!(self).send(link, Role::Push, index, Body::BufferIdle { slot })
                    }
                }
            }
            SlotUser::Nobody => room!(self).drop_slot(link, id),
        }
    }

    pub(in crate::protocol::node) fn revoked(&mut self, now: Time, link: LinkId, tag: GrantTag) {
        match self.landing.revoked(link, tag, &mut self.actions) {
            Revoked::Nothing => {}
            Revoked::Pull(pull, landed) => match self.transfers.pull(link, pull).and_then(Pull::chunk) {
                Some(_) => fetching!(self).chunk_landed(now, link, pull, tag.slot(), landed),
                None => fetching!(self).pull_landed(now, link, pull, tag.slot(), landed),
            },
            Revoked::Flow(flow) => receiving!(self).deliver_flow(now, (link, flow), tag.slot()),
            Revoked::Destination(pull) => match self.transfers.pull(link, pull).and_then(Pull::chunk) {
                Some(_) => fetching!(self).chunk_closed(now, link, pull),
                None => answering!(self).destination_closed(link, pull),
            },
        }
    }
}
