//! Versions that are kept because deltas of them may follow, or because other nodes may ask for them here. In the first case a
//! request for the key names the kept one, and its owner may answer with a delta of it.

use super::ids::BlobId;
use super::relays::Spreading;
use super::tenant::Tenant;
use super::transfers::Held;
use crate::fabric::LinkId;
use crate::tensor::Version;
use crate::time::Time;
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// The most versions that are kept. A peer says of which versions deltas may follow, and short ones need no room to speak of.
const MAX_BASES: usize = 1 << 16;

/// What a version is kept for: the keys of a [series](crate::tensor::Key::series) are one, since each version there is the base of the next.
fn kept_under((link, tenant, key): &Spreading) -> Spreading {
    (*link, *tenant, key.series().unwrap_or_else(|| key.clone()))
}

/// The version of each key, or series of keys, that a tenant's node has got last from a peer, within a limit of bytes.
///
/// It has a reference to each. Its caller releases what it gives up: the version before, those that exceed the limit, and, before
/// anybody waits for room, the ones that were not used for longest. It gives up all of a link that is lost, whose owner's
/// numbers mean nothing any more, and all of a tenant without workers.
pub(super) struct Bases {
    limit: u64,
    bytes: u64,
    kept: HashMap<Spreading, Base>,
    /// The oldest first.
    order: BTreeMap<u64, Spreading>,
    next: u64,
}

struct Base {
    held: Held,
    version: Version,
    /// When the owner was asked for it.
    asked: Time,
    deltas_follow: bool,
    /// If other nodes may be sent here for it: until when those may come back that have asked for chunks of it.
    asked_until: Option<Time>,
    bytes: u64,
    place: u64,
}

impl Bases {
    pub(super) fn new(limit: u64) -> Bases {
        Bases { limit, bytes: 0, kept: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }

    /// Returns how many bytes are kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a version of this length may be kept.
    pub(super) fn may_keep(&self, bytes: u64) -> bool {
        bytes <= self.limit
    }

    /// Returns the version that is kept of a key or its series, and whether deltas of it may follow. Its identity says which one it is.
    pub(super) fn find(&self, of: &Spreading) -> Option<(Held, bool)> {
        self.kept.get(&kept_under(of)).map(|base| (base.held, base.deltas_follow))
    }

    /// Whether a later version than this one is kept in its place. In a series the number says so. Of one key a lower number may be one of a
    /// new beginning: there `asked` says when the owner was asked, if the version may have been under way for longer than others.
    pub(super) fn has_later(&self, of: &Spreading, version: Version, asked: Option<Time>) -> bool {
        let is_series = of.2.series().is_some();
        self.kept.get(&kept_under(of)).is_some_and(|kept| match is_series {
            true => kept.version > version,
            false => asked.is_some_and(|asked| kept.asked > asked),
        })
    }

    /// Keeps a version, to which the caller has a reference for this, in place of the one before. Returns what is given up.
    pub(super) fn keep(
        &mut self,
        of: Spreading,
        version: Version,
        (held, deltas_follow): (Held, bool),
        (bytes, asked): (u64, Time),
    ) -> Vec<BlobId> {
        let of = kept_under(&of);
        let mut given_up: Vec<_> = self.give_up(&of).into_iter().collect();
        self.next += 1;
        self.bytes += bytes;
        self.order.insert(self.next, of.clone());
        self.kept.insert(of, Base { held, version, asked, deltas_follow, asked_until: None, bytes, place: self.next });
        while (self.bytes > self.limit || self.kept.len() > MAX_BASES)
            && let Some(of) = self.order.first_key_value().map(|(_, of)| of.clone())
        {
            given_up.extend(self.give_up(&of));
        }
        given_up
    }

    /// Notes until when nodes may come back for the version that is kept, to which others may be sent.
    pub(super) fn ask_until(&mut self, of: &Spreading, until: Time) {
        if let Some(base) = self.kept.get_mut(&kept_under(of)) {
            base.asked_until = base.asked_until.max(Some(until));
        }
    }

    /// Returns until when nodes may come back for the version that is kept.
    pub(super) fn asked_until(&self, of: &Spreading) -> Option<Time> {
        self.kept.get(&kept_under(of))?.asked_until
    }

    /// Returns the versions of a link to which other nodes may be sent, and whether deltas of them may follow.
    pub(super) fn spreading_of(&self, link: LinkId) -> Vec<(Tenant, Held, bool)> {
        let these = self.order.values().filter(|of| of.0 == link).filter_map(|of| Some((of.1, self.kept.get(of)?)));
        let spreads = these.filter(|(_, base)| base.asked_until.is_some());
        spreads.map(|(tenant, base)| (tenant, base.held, base.deltas_follow)).collect()
    }

    /// Gives up the version of a key or its series.
    pub(super) fn give_up(&mut self, of: &Spreading) -> Option<BlobId> {
        let base = self.kept.remove(&kept_under(of))?;
        self.order.remove(&base.place);
        self.bytes -= base.bytes;
        Some(base.held.blob)
    }

    /// Gives up the oldest version of a tenant.
    pub(super) fn give_up_oldest(&mut self, tenant: Tenant) -> Option<BlobId> {
        let of = self.order.values().find(|(_, whose, _)| *whose == tenant)?.clone();
        self.give_up(&of)
    }

    /// Returns the versions of a tenant that are kept for other nodes alone, the oldest first.
    pub(super) fn relays_of(&self, tenant: Tenant) -> Vec<(Spreading, BlobId)> {
        let these = self.order.values().filter(|of| of.1 == tenant);
        let relay = |of: &Spreading| {
            let base = self.kept.get(of).filter(|base| !base.deltas_follow)?;
            Some((of.clone(), base.held.blob))
        };
        these.filter_map(relay).collect()
    }

    /// Gives up all that this is true of: the versions of a link, or of a tenant.
    pub(super) fn give_up_all(&mut self, mut is_one: impl FnMut(LinkId, Tenant) -> bool) -> Vec<BlobId> {
        let these: Vec<_> = self.order.values().filter(|(link, tenant, _)| is_one(*link, *tenant)).cloned().collect();
        these.iter().filter_map(|of| self.give_up(of)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slab::Id;
    use crate::tensor::Key;
    use std::num::NonZeroU64;

    #[test]
    fn newest_versions_are_kept_within_the_limit() {
        let mut bases = Bases::new(100);
        let held = |n: u64| Held { blob: Id::from_u64(n), identity: NonZeroU64::new(n).unwrap() };
        let of = |link, text: &str| (LinkId(link), Tenant::User(link), Key::new(text).unwrap());
        assert_eq!(bases.keep(of(1, "a"), Version(1), (held(1), true), (40, Time(0))), []);
        assert_eq!(bases.keep(of(1, "b"), Version(2), (held(2), true), (40, Time(0))), []);
        assert_eq!(bases.keep(of(1, "a"), Version(3), (held(3), false), (40, Time(0))), [held(1).blob]);
        assert_eq!(
            bases.keep(of(2, "a"), Version(4), (held(4), true), (40, Time(0))),
            [held(2).blob],
            "the oldest is given up"
        );
        assert_eq!((bases.find(&of(1, "a")), bases.find(&of(1, "b"))), (Some((held(3), false)), None));
        assert_eq!(bases.bytes(), 80);
        // A key that has begun again, and a version that has come late from another node.
        assert!(
            !bases.has_later(&of(1, "a"), Version(1), None) && !bases.has_later(&of(1, "a"), Version(1), Some(Time(0)))
        );
        assert_eq!(bases.keep(of(1, "a"), Version(1), (held(9), false), (40, Time(0))), [held(3).blob]);
        assert_eq!(bases.keep(of(1, "a"), Version(3), (held(3), false), (40, Time(0))), [held(9).blob]);
        assert_eq!(bases.give_up_oldest(Tenant::User(2)), Some(held(4).blob));
        assert_eq!(bases.give_up_oldest(Tenant::User(2)), None);
        assert_eq!(bases.give_up_all(|link, _| link == LinkId(1)), [held(3).blob]);
        // Keys of one series, and of another rank.
        let [first, next, other] =
            ["s/rank-1/00000000000000a0", "s/rank-1/00000000000000a1", "s/rank-2/00000000000000a0"];
        assert_eq!(bases.keep(of(1, first), Version(5), (held(5), true), (10, Time(0))), []);
        assert_eq!((bases.find(&of(1, next)), bases.find(&of(1, other))), (Some((held(5), true)), None));
        assert_eq!(bases.keep(of(1, next), Version(6), (held(6), true), (10, Time(0))), [held(5).blob]);
        // One that is late does not take the place of a later one.
        assert_eq!(bases.keep(of(1, other), Version(6), (held(7), true), (10, Time(0))), []);
        assert!(bases.has_later(&of(1, first), Version(5), None) && !bases.has_later(&of(1, first), Version(6), None));
        assert_eq!((bases.find(&of(1, next)), bases.bytes()), (Some((held(6), true)), 20));
        assert_eq!(bases.give_up(&of(1, other)), Some(held(7).blob));
        assert_eq!((bases.give_up(&of(1, first)), bases.find(&of(1, next))), (Some(held(6).blob), None));
        assert_eq!((bases.bytes(), bases.order.len(), bases.may_keep(101)), (0, 0, false));
        let keep = |n: usize| bases.keep(of(1, &n.to_string()), Version(1), (held(n as u64 + 1), true), (0, Time(0)));
        let given_up: Vec<_> = (0..=MAX_BASES).flat_map(keep).collect();
        assert_eq!(
            (given_up, bases.kept.len()),
            (vec![held(1).blob], MAX_BASES),
            "empty versions, too, are not kept without end"
        );
    }
}
