//! Listings in pages of tables that may be long. One call looks at a bounded number of places, however long the table
//! is and whatever the filter asks for. So a page has the order of the table, and a filter may leave a page short or
//! empty although more pages follow.

use crate::fabric::LinkId;
use crate::protocol::ids::{RecordId, SessionId};
use crate::protocol::keys::Record;
use crate::protocol::landing::{InState, Slot, SlotState, SlotUser};
use crate::protocol::links::Link;
use crate::protocol::node::flows::NodeState;
use crate::protocol::node::kinds::Waiting;
use crate::protocol::sessions::Session;
use crate::protocol::slab::{Id, Slab};
use crate::protocol::snapshot::{
    ExchangeStatus, LinkStatus, LinkWork, Page, QuarantineStatus, SessionStatus, TensorStatus, TransferStatus,
};
use crate::protocol::transfers::PullState;
use crate::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Selects the tensors to list. An empty text selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TensorFilter {
    /// The prefix of the key.
    pub prefix: String,
    /// The owner's name.
    pub owner: String,
}

/// Selects the transfers in flight to list. An empty text selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TransferFilter {
    /// The prefix of the key.
    pub prefix: String,
    /// The worker's name.
    pub worker: String,
    /// The other node's name.
    pub peer: String,
    /// The least age: how long ago the transfer began.
    pub older_than: Duration,
}

/// Returns one page of a table: the entries from place `from` on that `show` accepts.
fn page_of<T, K, S>(
    table: &Slab<T, K>,
    from: u64,
    limit: usize,
    mut show: impl FnMut(Id<K>, &T) -> Option<S>,
) -> Page<S> {
    let limit = limit.clamp(1, Page::<S>::MAX_ENTRIES);
    let mut entries = Vec::new();
    let begin = usize::try_from(from).unwrap_or(usize::MAX);
    for (place, found) in table.places(begin).take(Page::<S>::MAX_STEPS) {
        if entries.len() == limit {
            return Page { entries, next: Some(place as u64) };
        }
        entries.extend(found.and_then(|(id, entry)| show(id, entry)));
    }
    let end = begin.saturating_add(Page::<S>::MAX_STEPS);
    Page { entries, next: (end < table.end()).then_some(end as u64) }
}

/// Returns one page of a map: the entries from key `from` on that `show` accepts. `number` turns a key into
/// the number of a place.
fn page_of_map<K: Ord, T, S>(
    map: &BTreeMap<K, T>,
    from: K,
    limit: usize,
    number: impl Fn(&K) -> u64,
    mut show: impl FnMut(&K, &T) -> Option<S>,
) -> Page<S> {
    let limit = limit.clamp(1, Page::<S>::MAX_ENTRIES);
    let mut entries = Vec::new();
    for (steps, (key, entry)) in map.range(from..).enumerate() {
        if entries.len() == limit || steps == Page::<S>::MAX_STEPS {
            return Page { entries, next: Some(number(key)) };
        }
        entries.extend(show(key, entry));
    }
    Page { entries, next: None }
}

impl NodeState<'_> {
    /// Lists the connected workers whose name begins with `prefix`, in the order in which they connected.
    #[must_use]
    pub fn sessions(&self, prefix: &str, from: u64, limit: usize) -> Page<SessionStatus> {
        let show = |id: &SessionId, s: &Session| {
            s.name().as_str().starts_with(prefix).then(|| SessionStatus {
                session: *id,
                name: s.name().clone(),
                domain: s.tenant(),
                tenant: self.config.tenants.name(s.tenant()),
                arena_bytes: s.arena().1,
                leases: s.lent(),
                operations: s.waiting() as u64,
            })
        };
        page_of_map(self.sessions.all(), SessionId(from), limit, |id| id.0, show)
    }

    /// Lists the links to the peer of this name, or all links if it is empty, in the order in which they were made.
    /// Only [`crate::drive::Driver::links`] knows their rails; here each has one.
    #[must_use]
    pub fn links(&self, peer: &str, from: u64, limit: usize) -> Page<LinkStatus> {
        let show = |id: &LinkId, l: &Link| {
            let (of, (outward, inward)) = (l.peer(), l.carried());
            (peer.is_empty() || of.name.as_str() == peer).then(|| LinkStatus {
                link: *id,
                peer: of.name.clone(),
                incarnation: of.incarnation,
                fabric: l.kind(),
                passed_over: of.passed_over.clone(),
                rails: 1,
                rails_live: 1,
                credits: l.credits(),
                work: self.work_of(*id, l),
                outward,
                inward,
            })
        };
        let from = LinkId(u32::try_from(from).unwrap_or(u32::MAX));
        page_of_map(self.links.all(), from, limit, |id| id.0.into(), show)
    }

    /// Lists the published tensors.
    #[must_use]
    pub fn tensors(&self, filter: &TensorFilter, from: u64, limit: usize) -> Page<TensorStatus> {
        page_of(self.keys.records(), from, limit, |at, record| {
            let wanted = record.newest().is_some() && record.key().as_str().starts_with(&filter.prefix);
            if !wanted { None } else { self.tensor((at, record), &filter.owner) }
        })
    }

    fn tensor(&self, (at, record): (RecordId, &Record), owner: &str) -> Option<TensorStatus> {
        let id = record.newest()?;
        let blob = self.keys.blob(id)?;
        let name = self.sessions.owner_name(record.owner())?;
        (owner.is_empty() || name.as_str() == owner).then(|| TensorStatus {
            key: record.key().clone(),
            owner: name.clone(),
            tenant: self.config.tenants.name(blob.domain),
            version: blob.version,
            meta: blob.meta.clone(),
            slice: blob.slice(),
            readers: self.keys.readers_of(at, id),
            retention: blob.retention(),
            older: record.count() - 1,
            published_at: blob.published_at(),
        })
    }

    /// Lists the operations of workers that have not ended.
    #[must_use]
    pub fn transfers(&self, now: Time, filter: &TransferFilter, from: u64, limit: usize) -> Page<TransferStatus> {
        page_of(self.sessions.operations(), from, limit, |id, op| {
            let age = now.since(op.since);
            let at = Waiting { id, op, state: self };
            let (operation, key) =
                (op.words().name(op), op.key.reserved_for().map_or(op.key.as_str(), |(_, name)| name));
            let session = self.sessions.get(op.session)?;
            let worker = session.name();
            let peer = op.words().other_node(at);
            let wanted = key.starts_with(&filter.prefix)
                && (filter.worker.is_empty() || worker.as_str() == filter.worker)
                && (filter.peer.is_empty() || peer.is_some_and(|peer| peer.as_str() == filter.peer))
                && age >= filter.older_than;
            wanted.then(|| TransferStatus {
                operation,
                key: key.to_owned(),
                worker: worker.clone(),
                tenant: self.config.tenants.name(session.tenant()),
                session: op.session,
                peer: peer.cloned(),
                len_bytes: op.words().len_bytes(at),
                age,
                left: op.deadline.since(now),
                waits_for: op.words().waits_for(at),
            })
        })
    }

    /// Lists the exchanges of which something is here and whose name begins with `prefix`, in the order in which they
    /// came. At most [`ExchangeStatus::MAX_ENTRIES`] are listed at once.
    #[must_use]
    pub fn exchanges(&self, now: Time, prefix: &str, from: u64, limit: usize) -> Page<ExchangeStatus> {
        let limits = (limit.clamp(1, ExchangeStatus::MAX_ENTRIES), Page::<ExchangeStatus>::MAX_STEPS);
        let (entries, next) = self.exchanges.page(now, prefix, from, limits, |tenant| self.config.tenants.name(tenant));
        Page { entries, next }
    }

    /// Lists the landing slots in quarantine: they wait until no write can reach them. `peer` is the name of the peer
    /// to list them for; if it is empty, the slots of all peers are listed.
    #[must_use]
    pub fn quarantine(&self, now: Time, peer: &str, from: u64, limit: usize) -> Page<QuarantineStatus> {
        let (mut entries, mut steps) = (Vec::new(), 0);
        let limit = limit.clamp(1, Page::<QuarantineStatus>::MAX_ENTRIES);
        let place_of = |link: LinkId, place: usize| u64::from(link.0) << 32 | place as u64;
        let (first, mut begin) = (from >> 32, from as u32 as usize);
        for (link, l) in self.links.all().range(LinkId(u32::try_from(first).unwrap_or(u32::MAX))..) {
            let Some(slots) = self.landing.slots_of(*link) else { continue };
            if u64::from(link.0) != first {
                begin = 0;
            }
            // A link counts as a step, because thousands of links may have no slot.
            steps += 1;
            if !peer.is_empty() && l.peer().name.as_str() != peer {
                if steps > Page::<QuarantineStatus>::MAX_STEPS {
                    return Page { entries, next: Some(place_of(*link, begin)) };
                }
                continue;
            }
            for (place, found) in slots.places(begin) {
                if entries.len() == limit || steps > Page::<QuarantineStatus>::MAX_STEPS {
                    return Page { entries, next: Some(place_of(*link, place)) };
                }
                steps += 1;
                entries.extend(found.and_then(|(_, slot)| self.quarantined(now, *link, l, slot)));
            }
        }
        Page { entries, next: None }
    }

    /// Returns how much is queued or in flight on a link.
    pub(in crate::protocol::node) fn work_of(&self, link: LinkId, l: &Link) -> LinkWork {
        let transfers = self.transfers.of(link);
        LinkWork {
            queued: l.queued() as u64,
            pulls: transfers.map_or(0, |l| l.pulls().len() as u64),
            serves: transfers.map_or(0, |l| l.serves().len() as u64),
            flows_out: transfers.map_or(0, |l| l.flows().len() as u64),
            flows_in: self.landing.flow_count(link) as u64,
        }
    }

    /// Returns the status of a slot that is in quarantine, `None` for another slot.
    fn quarantined(&self, now: Time, link: LinkId, l: &Link, slot: &Slot) -> Option<QuarantineStatus> {
        let peer = &l.peer().name;
        let (key, since, waits_for) = match (&slot.user, &slot.state) {
            (_, SlotState::Held(_) | SlotState::Closed(_) | SlotState::Revoking(Some(_))) => return None,
            (_, SlotState::Revoking(None)) => {
                (None, slot.since, format!("the {} fabric to close it to node {peer:?}", l.kind()))
            }
            (SlotUser::Nobody, SlotState::Granting) => {
                (None, slot.since, format!("the {} fabric to open it", l.kind()))
            }
            (SlotUser::Pull(id), SlotState::Granted(_)) => {
                let pull = self.transfers.pull(link, *id).filter(|p| p.state == PullState::Cancelling)?;
                let what =
                    format!("node {peer:?} to confirm that a fetch was given up, behind whatever it has sent for it");
                (Some(&pull.key), pull.asked, what)
            }
            (SlotUser::Flow(id, _), SlotState::Granted(_)) => {
                let flow = self.landing.flow((link, *id))?;
                let what = match flow.state {
                    InState::Recalling => format!("node {peer:?} to confirm that it pushes the key here no more"),
                    InState::Reclaiming => format!("node {peer:?} to give it back, for others wait for the room"),
                    _ => return None,
                };
                (Some(&flow.key), flow.recalled, what)
            }
            (SlotUser::Nobody, SlotState::Granted(_))
            | (SlotUser::Pull(_) | SlotUser::Flow(..), SlotState::Granting) => {
                return None;
            }
        };
        Some(QuarantineStatus {
            link,
            peer: peer.clone(),
            domain: slot.domain,
            tenant: self.config.tenants.name(slot.domain),
            key: key.cloned(),
            bytes: slot.range.len(),
            age: now.since(since),
            waits_for,
        })
    }
}
