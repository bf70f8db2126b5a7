//! Plans of fetches, and those that are kept: a later version whose ranks have the same layouts is fetched by the same plan.

use super::known::KnownLayout;
use super::requests::{Ask, Output};
use crate::bundle::Wanted;
use std::collections::VecDeque;
use std::sync::Arc;
use transfer_core::op::CommittedRank;
use transfer_core::tensor::{Key, Name};

/// The most plans that are kept.
const MAX_PLANS: usize = 16;

/// The most pieces of all plans that are kept.
const MAX_PIECES: usize = 1 << 18;

/// What a fetch asks which rank for.
#[derive(Debug)]
pub(super) struct Plan {
    /// The layouts of all ranks, in order.
    pub(super) layouts: Vec<KnownLayout>,
    pub(super) outputs: Vec<Output>,
    /// The length of the memory in which all of them have a place.
    pub(super) memory_bytes: usize,
    pub(super) asks: Vec<Ask>,
}

impl Plan {
    fn pieces(&self) -> usize {
        self.asks.iter().map(|ask| ask.parts.len()).sum()
    }
}

/// What a plan follows from.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanOf<'a> {
    pub(super) key: &'a Key,
    pub(super) ranks: &'a [CommittedRank],
    pub(super) wanted: Option<&'a [Wanted]>,
    pub(super) bucket_bytes: u64,
    /// Whether what is wanted goes into memory of the caller, where no delta is applied.
    pub(super) is_into: bool,
}

#[derive(Debug)]
struct Kept {
    key: Key,
    /// The digest of the layout and the node of each rank.
    ranks: Box<[(u64, Name)]>,
    wanted: Option<Box<[Wanted]>>,
    bucket_bytes: u64,
    is_into: bool,
    plan: Arc<Plan>,
}

impl Kept {
    fn is_of(&self, of: &PlanOf<'_>) -> bool {
        let rank = |(kept, rank): (&(u64, Name), &CommittedRank)| kept.0 == rank.layout && kept.1 == rank.node;
        self.key == *of.key
            && (self.bucket_bytes, self.is_into) == (of.bucket_bytes, of.is_into)
            && self.ranks.len() == of.ranks.len()
            && self.ranks.iter().zip(of.ranks).all(rank)
            && self.wanted.as_deref() == of.wanted
    }
}

/// The plans that are kept, the latest used last.
#[derive(Debug, Default)]
pub(super) struct KeptPlans(VecDeque<Kept>);

impl KeptPlans {
    pub(super) fn get(&mut self, of: &PlanOf<'_>) -> Option<Arc<Plan>> {
        let at = self.0.iter().rposition(|kept| kept.is_of(of))?;
        let kept = self.0.remove(at)?;
        let plan = kept.plan.clone();
        self.0.push_back(kept);
        Some(plan)
    }

    pub(super) fn keep(&mut self, of: &PlanOf<'_>, plan: Arc<Plan>) {
        self.0.push_back(Kept {
            key: of.key.clone(),
            ranks: of.ranks.iter().map(|rank| (rank.layout, rank.node.clone())).collect(),
            wanted: of.wanted.map(Into::into),
            bucket_bytes: of.bucket_bytes,
            is_into: of.is_into,
            plan,
        });
        let is_too_much = |plans: &VecDeque<Kept>| {
            plans.len() > MAX_PLANS || plans.iter().map(|kept| kept.plan.pieces()).sum::<usize>() > MAX_PIECES
        };
        while is_too_much(&self.0) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s;

    fn rank(layout: u64, node: &str) -> CommittedRank {
        CommittedRank { rank: 0, instance: layout, layout, node: Name::new(node).unwrap() }
    }

    #[test]
    fn plan_is_found_again_by_all_that_it_follows_from_and_the_oldest_ends() {
        let mut kept = KeptPlans::default();
        let plan = || Arc::new(Plan { layouts: Vec::new(), outputs: Vec::new(), memory_bytes: 0, asks: Vec::new() });
        let key = Key::new("policy").unwrap();
        let wanted = [Wanted { name: "w".to_owned(), slice: Some(s![0..4]) }];
        let mut later = [rank(1, "n0"), rank(2, "n1")];
        let ranks = [rank(1, "n0"), rank(2, "n1")];
        let of = PlanOf { key: &key, ranks: &ranks, wanted: Some(&wanted), bucket_bytes: 1, is_into: false };
        kept.keep(&of, plan());
        // The shards of a later version have other keys.
        later[0].instance = 77;
        assert!(kept.get(&PlanOf { ranks: &later, ..of }).is_some());
        let other_slice = [Wanted { name: "w".to_owned(), slice: Some(s![0..5]) }];
        for other in [
            PlanOf { ranks: &[rank(1, "n0"), rank(3, "n1")], ..of },
            PlanOf { ranks: &[rank(1, "n0"), rank(2, "n0")], ..of },
            PlanOf { ranks: &later[..1], ..of },
            PlanOf { key: &Key::new("other").unwrap(), ..of },
            PlanOf { wanted: None, ..of },
            PlanOf { wanted: Some(&other_slice), ..of },
            PlanOf { bucket_bytes: 2, ..of },
            PlanOf { is_into: true, ..of },
        ] {
            assert!(kept.get(&other).is_none(), "{other:?}");
        }
        for bucket_bytes in 2..=MAX_PLANS as u64 {
            kept.keep(&PlanOf { bucket_bytes, ..of }, plan());
        }
        assert!(kept.get(&of).is_some());
        kept.keep(&PlanOf { bucket_bytes: 0, ..of }, plan());
        assert!(kept.get(&of).is_some(), "it was used later than others");
        assert!(kept.get(&PlanOf { bucket_bytes: 2, ..of }).is_none());
    }
}
