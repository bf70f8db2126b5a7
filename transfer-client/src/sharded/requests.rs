//! The requests of a fetch: pieces of one rank that are asked for together.

use super::absent::Absent;
use super::boxes::IndexBox;
use super::plan::{GlobalTensor, Holder, Piece, Target};
use super::records::{RankLayout, RankShard};
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer_core::op::CommittedRank;
use transfer_core::tensor::{Name, TensorMeta, TensorName};

/// The most pieces of one request.
const MAX_PARTS: usize = 1024;

/// A tensor of the result.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) name: TensorName,
    pub(super) tensor: Arc<GlobalTensor>,
    pub(super) target: Target,
    /// Element type and shape of the result.
    pub(super) meta: TensorMeta,
    /// Where it lies in the memory of this process.
    pub(super) at: usize,
}

impl Output {
    /// The length of a part of it.
    pub(super) fn bytes_of(&self, part: &IndexBox) -> u64 {
        let dtype = self.meta.dtype();
        part.volume() / dtype.elements_per_unit() * dtype.size_bytes()
    }
}

/// A part of a tensor of the result that is not there yet.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// The number of the tensor.
    pub(super) output: usize,
    /// Its indices.
    pub(super) part: IndexBox,
}

impl Asked {
    /// All of a tensor of the result.
    pub(super) fn all(output: usize, of: &Output) -> Asked {
        Asked { output, part: of.target.all() }
    }
}

/// A piece of a rank.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) asked: Asked,
    /// The shard's place among those of its rank.
    pub(super) shard: usize,
}

/// A request to a rank.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) rank: u32,
    pub(super) parts: Vec<Part>,
    pub(super) bytes: u64,
    /// Whether each part is all of its tensor of the result, in one piece, and no longer than a bucket, so that it need not be copied.
    pub(super) is_direct: bool,
    /// Whether all shards of the rank are asked for together, so that they may come as a delta.
    pub(super) is_whole: bool,
}

impl Ask {
    fn new(rank: u32, is_direct: bool) -> Ask {
        Ask { rank, parts: Vec::new(), bytes: 0, is_direct, is_whole: false }
    }

    /// A request to the same rank, for nothing yet.
    pub(super) fn empty(&self) -> Ask {
        Ask::new(self.rank, self.is_direct)
    }
}

/// The requests to a rank, of which the last one is not full.
struct Open {
    last: Ask,
    full: Vec<Ask>,
    /// Of each shard of the rank the number of the requests that were full when it was last named, plus 1.
    named: Vec<usize>,
}

impl Open {
    fn new(rank: u32, is_direct: bool) -> Open {
        Open { last: Ask::new(rank, is_direct), full: Vec::new(), named: Vec::new() }
    }

    fn add(&mut self, part: Part, bytes: u64, bucket_bytes: u64) {
        let shard = part.shard;
        if self.named.len() <= shard {
            self.named.resize(shard + 1, 0);
        }
        let Ask { rank, is_direct, .. } = self.last;
        // A request names each shard once.
        if self.last.bytes + bytes > bucket_bytes && !self.last.parts.is_empty()
            || self.last.parts.len() == MAX_PARTS
            || self.named[shard] == self.full.len() + 1
        {
            // Requests of one plan are about as long as each other.
            let next = Ask { parts: Vec::with_capacity(self.last.parts.len()), ..Ask::new(rank, is_direct) };
            self.full.push(std::mem::replace(&mut self.last, next));
        }
        self.named[shard] = self.full.len() + 1;
        self.last.bytes += bytes;
        self.last.parts.push(part);
    }
}

/// Of the bytes of a rank that is asked for all of its shards, at most this part may be unwanted, because other ranks are asked for it.
const UNWANTED_FRACTION: u64 = 8;

/// Whether parts are as good as all shards of a rank, each of them once and as it is.
fn are_all(layout: &RankLayout, parts: &[Part]) -> bool {
    let mut wanted = vec![false; layout.shards.len()];
    for Part { asked, shard } in parts {
        if std::mem::replace(&mut wanted[*shard], true) || asked.part.volume() != layout.shards[*shard].place.volume() {
            return false;
        }
    }
    let bytes = |(wanted, shard): (&bool, &RankShard)| {
        let dtype = shard.global.dtype();
        let all = shard.place.volume() / dtype.elements_per_unit() * dtype.size_bytes();
        (if *wanted { 0 } else { all }, all)
    };
    let bytes = wanted.iter().zip(&layout.shards).map(bytes);
    let (unwanted, all) = bytes.fold((0, 0), |(unwanted, all), (one, of)| (unwanted + one, all + of));
    unwanted <= all / UNWANTED_FRACTION
}

/// Which rank is asked for what several have: the nearest, and among those the one that is asked for the least.
pub(super) struct Choice<'a> {
    ranks: &'a [CommittedRank],
    node: &'a Name,
    absent: &'a Absent,
    /// The elements that each rank is asked for.
    load: Vec<u64>,
}

impl<'a> Choice<'a> {
    pub(super) fn new(ranks: &'a [CommittedRank], node: &'a Name, absent: &'a Absent) -> Choice<'a> {
        Choice { ranks, node, absent, load: vec![0; ranks.len()] }
    }

    /// Chooses a rank for so many elements. Of those that may be asked for all of their shards `together` it is the first: so fewer of
    /// them are asked.
    fn choose(&mut self, holders: &[Holder], elements: u64, together: &[Arc<RankLayout>]) -> Option<Holder> {
        let best = |holder: &&Holder| {
            let Holder { rank, .. } = holder;
            let node = &self.ranks[*rank as usize].node;
            (self.absent.silent.contains(rank), node != self.node, self.load[*rank as usize])
        };
        let holder = holders.iter().filter(|holder| !self.absent.gone.contains_key(&holder.rank)).min_by_key(best)?;
        if !together.get(holder.rank as usize).is_some_and(|layout| layout.kinds.has_deltas) {
            self.load[holder.rank as usize] += elements;
        }
        Some(*holder)
    }
}

/// Plans what is missing, in requests of about `bucket_bytes`, but in one for all shards of a rank if deltas of them may follow. `layouts` are
/// those of the ranks that may be asked for all of them.
///
/// # Errors
/// The tensor, and the box of it that nobody has.
pub(super) fn asks(
    outputs: &[Output],
    mut missing: Vec<Asked>,
    bucket_bytes: u64,
    layouts: &[Arc<RankLayout>],
    mut choice: Choice<'_>,
) -> Result<Vec<Ask>, (usize, IndexBox)> {
    let mut asks = Vec::new();
    if layouts.iter().any(|layout| layout.kinds.has_deltas) {
        missing = whole(outputs, missing, bucket_bytes, layouts, (&mut choice, &mut asks))?;
    }
    // By rank, and whether it need not be copied.
    let mut open: BTreeMap<(u32, bool), Open> = BTreeMap::new();
    let mut cut = Vec::new();
    for Asked { output, part } in missing {
        let of = &outputs[output];
        let all = of.target.all();
        let dtype = of.meta.dtype();
        let most = bucket_bytes / dtype.size_bytes() * dtype.elements_per_unit();
        let ask = |Piece { holder: Holder { rank, shard }, place, part }: Piece<'_>| {
            let is_direct = part == all && of.target.is_run(&part, place) && of.bytes_of(&part) <= bucket_bytes;
            match is_direct {
                true => cut.push(part),
                false => part.cut(most, dtype.elements_per_unit(), &mut cut),
            }
            let open = open.entry((rank, is_direct)).or_insert_with(|| Open::new(rank, is_direct));
            for part in cut.drain(..) {
                let bytes = of.bytes_of(&part);
                open.add(Part { asked: Asked { output, part }, shard }, bytes, bucket_bytes);
            }
        };
        let choose = |holders: &[Holder], elements| choice.choose(holders, elements, &[]);
        of.tensor.plan(&of.target, part, choose, ask).map_err(|hole| (output, hole))?;
    }
    let all = |Open { full, last, .. }: Open| full.into_iter().chain(Some(last).filter(|ask| !ask.parts.is_empty()));
    asks.extend(open.into_values().flat_map(all));
    // Requests to different ranks beside each other.
    let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
    asks.sort_by_cached_key(|ask| {
        let turn = turns.entry(ask.rank).or_default();
        *turn += 1;
        *turn
    });
    Ok(asks)
}

/// Plans requests for all shards of ranks of which deltas may follow. Returns what is missing still: if there are none, all as it was.
fn whole(
    outputs: &[Output],
    missing: Vec<Asked>,
    bucket_bytes: u64,
    layouts: &[Arc<RankLayout>],
    (choice, asks): (&mut Choice<'_>, &mut Vec<Ask>),
) -> Result<Vec<Asked>, (usize, IndexBox)> {
    // Of each rank what it would be asked for, and whether that need not be copied.
    let mut ranks: BTreeMap<u32, (Vec<Part>, bool)> = BTreeMap::new();
    for Asked { output, part } in &missing {
        let of = &outputs[*output];
        let all = of.target.all();
        let ask = |Piece { holder: Holder { rank, shard }, place, part }: Piece<'_>| {
            let (parts, is_direct) = ranks.entry(rank).or_insert_with(|| (Vec::new(), true));
            *is_direct &= part == all && of.target.is_run(&part, place) && of.bytes_of(&part) <= bucket_bytes;
            parts.push(Part { asked: Asked { output: *output, part }, shard });
        };
        let choose = |holders: &[Holder], elements| choice.choose(holders, elements, layouts);
        of.tensor.plan(&of.target, part.clone(), choose, ask).map_err(|hole| (*output, hole))?;
    }
    choice.load.fill(0);
    let mut rest = Vec::new();
    for (rank, (parts, is_direct)) in ranks {
        if layouts.get(rank as usize).is_some_and(|layout| layout.kinds.has_deltas && are_all(layout, &parts)) {
            choice.load[rank as usize] = parts.iter().map(|part| part.asked.part.volume()).sum();
            let bytes = parts.iter().map(|part| outputs[part.asked.output].bytes_of(&part.asked.part)).sum();
            asks.push(Ask { rank, parts, bytes, is_direct, is_whole: true });
        } else {
            rest.extend(parts.into_iter().map(|part| part.asked));
        }
    }
    Ok(if asks.is_empty() { missing } else { rest })
}
