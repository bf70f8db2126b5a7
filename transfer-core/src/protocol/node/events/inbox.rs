//! Events of links: messages from peers, and the end of a rail.

use crate::fabric::{DownReason, LinkId};
use crate::protocol::action::HostAction;
use crate::protocol::control::Control;
use crate::protocol::counters::Request;
use crate::protocol::node::Node;
use crate::protocol::references::Referred;
use crate::time::Time;
use crate::wire::message::{Body, Message, Role};

impl Node {
    pub(in crate::protocol::node) fn message(&mut self, now: Time, link: LinkId, message: Message) {
        let Node { links, actions, .. } = self;
        if !links.slot_used(link, actions) || !links.given_back(link, message.credits, actions) {
            return;
        }
        let (role, index) = (message.role, message.index);
        match message.body {
            Body::Name { name, text } => {
                if let Err(what) = self.links.name_told(link, name, text) {
                    sending!(self).violation(link, &what);
                }
            }
            Body::TensorRequest { key, tenant, select, metadata_id, excerpt, slot, held, direct, trace } => {
                answering!(self).tensor_request(
                    now,
                    link,
                    index,
                    key,
                    tenant,
                    select,
                    metadata_id,
                    excerpt,
                    (slot, held, direct),
                    trace,
                );
            }
            Body::GatherRequest { stem, tenant, parts, trace } => {
                fetching!(self).gather_request(now, link, index, stem, tenant, parts, trace);
            }
            Body::ByReference { lease, segment, offset, ranges, version, waited_us, meta } => {
                let referred = Referred { lease, segment, offset, ranges };
                fetching!(self).pull_referred(now, link, index, referred, version, waited_us, meta);
            }
            Body::ReleaseReference { lease } => self.reference_released(link, lease),
            Body::TensorReRequest { slot } => answering!(self).tensor_re_request(link, index, slot),
            Body::MetaDataUpdate { version, metadata_id, meta } => match role {
                Role::Pull => fetching!(self).pull_described(now, link, index, version, metadata_id, meta),
                Role::Push => receiving!(self).flow_described(link, index, metadata_id, meta),
                Role::Counter => sending!(self).violation(link, "META_DATA_UPDATE about a counter"),
            },
            Body::Trace { version, context } => match role {
                Role::Pull => pull_slots!(self).pull_traced(link, index, version, context),
                Role::Push => receiving!(self).flow_traced(now, link, index, version, context),
                Role::Counter => sending!(self).violation(link, "TRACE about a counter"),
            },
            Body::ErrorStatus(failure) => match role {
                Role::Pull => match self.transfers.chunk_named(link, index) {
                    Some(id) => fetching!(self).chunk_failed(now, link, id, &failure),
                    None => fetching!(self).pull_failed(now, link, index, failure),
                },
                Role::Push => pushing!(self).flow_refused(link, index, &failure),
                Role::Counter => counting!(self).count(now, |counters| counters.refused(now, link, index, failure)),
            },
            Body::BufferRequest { key, target, owner, tenant, metadata_id, meta } => {
                receiving!(self).buffer_request(link, index, [key, target, owner, tenant], metadata_id, meta);
            }
            Body::BufferResponse { slots } => pushing!(self).buffer_response(now, link, index, slots),
            Body::BufferIdle { slot } => pushing!(self).buffer_idle(now, link, index, slot),
            Body::BufferRecall { why, round } => pushing!(self).buffer_recall(now, link, index, why, round),
            Body::Recalled { why, round } => receiving!(self).recalled(now, link, index, why, round),
            Body::BufferRelease => receiving!(self).flow_ended(now, link, index),
            Body::Cancel if role == Role::Counter => {
                counting!(self).count(now, |counters| counters.cancel(link, index))
            }
            Body::Cancelled if role == Role::Counter => {
                counting!(self).count(now, |counters| counters.cancelled(link, index))
            }
            Body::Cancel => answering!(self).cancel_serve(now, link, index, false),
            Body::Taken => answering!(self).cancel_serve(now, link, index, true),
            Body::SourceFailed { source } => answering!(self).source_failed(link, index, source.into()),
            Body::Cancelled => pull_slots!(self).pull_cancelled(link, index),
            Body::CounterOpen { name, tenant, wants_grant } => {
                counting!(self).counter_asked(now, link, index, (name, tenant), Request::Open { wants_grant });
            }
            Body::BarrierWait { name, tenant, members } => {
                counting!(self).counter_asked(now, link, index, (name, tenant), Request::Wait { members });
            }
            Body::RosterAsk { name, tenant, ask } => {
                counting!(self).counter_asked(now, link, index, (name, tenant), Request::Roster(ask));
            }
            Body::RosterAnswer(answer) => {
                counting!(self).count(now, |counters| counters.roster_answered(link, index, answer));
            }
            Body::CounterOp { name, tenant, identity, op } => {
                counting!(self).counter_op(now, link, index, (name, tenant), (identity, op));
            }
            Body::CounterOpened { identity, word } => {
                counting!(self).count(now, |counters| counters.opened(now, link, index, identity, word));
            }
            Body::CounterResult { old } => counting!(self).count(now, |counters| counters.result(link, index, old)),
            Body::BarrierReleased { round, leader } => {
                counting!(self).count(now, |counters| counters.released(link, index, round, leader));
            }
            Body::CounterEnded { name } => counting!(self).counter_ended_there(now, link, name),
            Body::Ping => sending!(self).send(link, role, index, Body::Pong),
            Body::Pong => match role {
                Role::Push => calls!(self).pong(link, index),
                Role::Pull => self.operator_pong(link, index),
                // A node that was asked for a version has shown a sign of life.
                Role::Counter => {}
            },
            Body::Ack => {}
            Body::Unchanged { version } => fetching!(self).pull_unchanged(now, link, index, version),
            Body::Delta { version, metadata_id, len, meta } => {
                fetching!(self).delta_described(now, link, index, version, metadata_id, len, meta);
            }
            Body::Redirect { version, identity, metadata_id, chunk_bytes, sources, meta } => {
                let which = (version, identity, metadata_id);
                fetching!(self).pull_redirected(now, link, index, which, chunk_bytes, sources, meta);
            }
            Body::ChunkRequest { key, tenant, owner, incarnation, version, identity, offset, slot, trace } => {
                let (names, which) = ([key, tenant, owner], (version, identity, offset));
                answering!(self).chunk_request(now, link, index, names, incarnation, which, (slot, trace));
            }
            Body::Digests { first, digests } => fetching!(self).digests_came(now, link, index, (first, &digests)),
            Body::Behind { newest } => pull_slots!(self).pull_behind(link, index, newest),
        }
    }

    /// Reports the loss of a rail. The fabric recovers what was in flight on it.
    pub(in crate::protocol::node) fn rail_down(&mut self, link: LinkId, rail: usize, reason: &DownReason, left: usize) {
        if let Some(l) = self.links.get(link) {
            let (peer, why) = (l.peer().name.clone(), reason.to_string());
            self.actions.push(HostAction::Control(Control::RailDown { link, peer, rail, left, why }));
        }
    }
}
