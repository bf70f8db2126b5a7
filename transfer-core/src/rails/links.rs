//! All links of a [`MultiRail`](super::MultiRail), and the dispatch of the inner fabrics' events to them.

use super::broken::Broken;
use super::link::{Link, Phase};
use super::rail::Rail;
use super::{Out, Report};
use crate::fabric::{DownReason, FabricError, FabricEvent, LinkId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) links: BTreeMap<LinkId, Link>,
    /// For each inner link: the link that it belongs to, and the number of its rail.
    pub(super) inner: BTreeMap<LinkId, (LinkId, usize)>,
    pub(super) next_inner: u32,
    /// The links that may have something to post.
    pub(super) busy: BTreeSet<LinkId>,
    pub(super) out: Out,
    /// For each inner fabric: how many times a processor copies each byte that arrives over it.
    pub(super) copies: Vec<u64>,
    /// The largest number of messages that can be in flight to this side on one link.
    pub(super) bound: usize,
    pub(super) broken: Option<Broken>,
}

impl Links {
    /// Returns a new id for an inner link.
    pub(super) fn new_inner(&mut self) -> LinkId {
        self.next_inner += 1;
        LinkId(self.next_inner)
    }

    /// Adds a link that consists of these inner links. Each entry has the index of the inner fabric and the id of the
    /// inner link.
    pub(super) fn add(&mut self, id: LinkId, offered: bool, rails: &[(usize, LinkId)]) {
        for (rail, (_, inner)) in rails.iter().enumerate() {
            self.inner.insert(*inner, (id, rail));
        }
        let rails = rails.iter().map(|(fabric, inner)| Rail::new(*fabric, *inner)).collect();
        self.links.insert(id, Link::new(id, offered, rails, self.bound, self.broken));
    }

    /// Removes a link and ends its inner links. No event is reported.
    pub(super) fn remove(&mut self, id: LinkId, why: &str) {
        let Some(link) = self.links.remove(&id) else { return };
        for rail in link.rails {
            self.drop_rail(&rail, why);
        }
    }

    /// Forgets a rail and ends its inner link.
    pub(super) fn drop_rail(&mut self, rail: &Rail, why: &str) {
        self.inner.remove(&rail.inner);
        self.out.disconnects.push((rail.fabric, rail.inner, DownReason::Closed(why.to_owned())));
    }

    /// Handles a rail that could not be made. It is down from the beginning.
    pub(super) fn not_made(&mut self, id: LinkId, rail: usize, why: &FabricError) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let reason = DownReason::NotConnected(why.to_string());
        let (fabric, inner) = (link.rails[rail].fabric, link.rails[rail].inner);
        self.inner.remove(&inner);
        // End the part of the inner link that was made.
        self.out.disconnects.push((fabric, inner, reason.clone()));
        link.down(rail, &reason, &mut self.out);
    }

    /// Reports the queued events. Returns whether there were any.
    pub(super) fn report(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        let any = !self.out.reports.is_empty();
        for report in self.out.reports.drain(..) {
            sink(report.event());
        }
        any
    }

    /// Handles an event of an inner link.
    pub(super) fn hear(&mut self, event: FabricEvent<'_>, sink: &mut dyn FnMut(FabricEvent<'_>)) {
        let inner = match &event {
            FabricEvent::Connected { link }
            | FabricEvent::WriteDone { link, .. }
            | FabricEvent::SendDone { link, .. }
            | FabricEvent::Granted { link, .. }
            | FabricEvent::Revoked { link, .. }
            | FabricEvent::Message { link, .. }
            | FabricEvent::Immediate { link, .. }
            | FabricEvent::AtomicDone { link, .. }
            | FabricEvent::RailDown { link, .. }
            | FabricEvent::LinkDown { link, .. } => *link,
            FabricEvent::LocalAtomicDone { .. } => return sink(event),
            // Inner fabrics under several rails do not share memory by reference.
            FabricEvent::References { .. }
            | FabricEvent::SegmentCame { .. }
            | FabricEvent::SegmentKept { .. }
            | FabricEvent::SegmentGone { .. } => return,
        };
        // Events of an abandoned rail are dropped.
        let Some((id, rail)) = self.inner.get(&inner).copied() else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.is_single() {
            return self.pass_on(id, event, sink);
        }
        // Report queued events before the ones that this event causes.
        for report in self.out.reports.drain(..) {
            sink(report.event());
        }
        if let FabricEvent::LinkDown { reason, .. } = &event {
            self.inner.remove(&inner);
            link.down(rail, reason, &mut self.out);
        } else if !matches!(link.phase, Phase::Ending(_)) {
            let copies = self.copies.get(link.rails[rail].fabric).copied().unwrap_or(0);
            if let Err(why) = several(link, rail, event, copies, &mut self.out, sink) {
                link.end(DownReason::Violation(why), &mut self.out);
            }
        }
        if link.is_dead() {
            if let Some(Link { phase: Phase::Ending(reason), .. }) = self.links.remove(&id) {
                self.out.reports.retain(|report| report.link() != id);
                self.out.reports.push_back(Report::Down { link: id, reason });
            }
            self.busy.remove(&id);
        } else {
            self.busy.insert(id);
            for report in self.out.reports.drain(..) {
                sink(report.event());
            }
            link.deliver(sink);
        }
    }

    /// Reports an event of a link with one rail under the link's own id.
    fn pass_on(&mut self, link: LinkId, event: FabricEvent<'_>, sink: &mut dyn FnMut(FabricEvent<'_>)) {
        sink(match event {
            FabricEvent::Connected { .. } => {
                if let Some(link) = self.links.get_mut(&link) {
                    link.phase = Phase::Up;
                }
                FabricEvent::Connected { link }
            }
            FabricEvent::WriteDone { work, .. } => FabricEvent::WriteDone { link, work },
            FabricEvent::SendDone { work, .. } => FabricEvent::SendDone { link, work },
            FabricEvent::Granted { tag, remote, .. } => FabricEvent::Granted { link, tag, remote },
            FabricEvent::Revoked { key, tag, .. } => FabricEvent::Revoked { link, key, tag },
            FabricEvent::Message { bytes, .. } => FabricEvent::Message { link, bytes },
            FabricEvent::Immediate { value, len_bytes, copied, .. } => {
                FabricEvent::Immediate { link, value, len_bytes, copied }
            }
            FabricEvent::AtomicDone { work, old, .. } => FabricEvent::AtomicDone { link, work, old },
            FabricEvent::RailDown { rail, reason, left, .. } => FabricEvent::RailDown { link, rail, reason, left },
            FabricEvent::LinkDown { link: inner, reason } => {
                self.inner.remove(&inner);
                self.links.remove(&link);
                FabricEvent::LinkDown { link, reason }
            }
            FabricEvent::LocalAtomicDone { work, old } => FabricEvent::LocalAtomicDone { work, old },
            FabricEvent::References { .. }
            | FabricEvent::SegmentCame { .. }
            | FabricEvent::SegmentKept { .. }
            | FabricEvent::SegmentGone { .. } => return,
        });
    }
}

/// Handles an event of one of several rails. The error says how the peer broke the rules.
fn several(
    link: &mut Link,
    rail: usize,
    event: FabricEvent<'_>,
    copies: u64,
    out: &mut Out,
    sink: &mut dyn FnMut(FabricEvent<'_>),
) -> Result<(), String> {
    let mut asks = Vec::new();
    let outcome = match event {
        FabricEvent::Message { bytes, .. } => return link.message(rail, bytes, copies, out, sink),
        FabricEvent::Immediate { value, len_bytes, copied, .. } => {
            return link.immediate(rail, (value, len_bytes, copied), sink);
        }
        FabricEvent::WriteDone { .. } | FabricEvent::SendDone { .. } => {
            link.acknowledged(rail, None, out);
            None
        }
        FabricEvent::AtomicDone { old, .. } => {
            link.acknowledged(rail, Some(old), out);
            None
        }
        FabricEvent::Connected { .. } => {
            link.connected(rail, out);
            None
        }
        FabricEvent::Granted { tag, remote, .. } => link.grants.answered(rail, tag, Some(remote), &mut asks),
        FabricEvent::Revoked { tag, .. } => link.grants.revoked(rail, tag),
        FabricEvent::LinkDown { .. }
        | FabricEvent::RailDown { .. }
        | FabricEvent::LocalAtomicDone { .. }
        | FabricEvent::References { .. }
        | FabricEvent::SegmentCame { .. }
        | FabricEvent::SegmentKept { .. }
        | FabricEvent::SegmentGone { .. } => None,
    };
    link.ask(asks);
    if let Some(outcome) = outcome {
        link.grant_outcome(outcome, out);
    }
    Ok(())
}
