//! The requests of a fetch: pieces of one rank that are asked for together.

use super::boxes::IndexBox;
use super::fetch::Output;
use super::plan::{Holder, Piece};
use super::records::RankLayout;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use transfer_core::tensor::{Slice, TensorName};

/// The most pieces of one request.
const MAX_PARTS: usize = 1024;

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
    pub(super) fn all(output: usize, of: &Output<'_>) -> Asked {
        Asked { output, part: IndexBox::all(&of.target.counts()) }
    }
}

/// A piece of a rank.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) asked: Asked,
    /// The shard's name in the bundle of its rank.
    pub(super) entry: TensorName,
    /// The slice of the shard. `None`: all of it.
    pub(super) slice: Option<Slice>,
}

/// A request to a rank.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) rank: u32,
    pub(super) parts: Vec<Part>,
    pub(super) bytes: u64,
    /// Whether each part is all of its tensor of the result, in one piece, so that it need not be copied.
    pub(super) is_direct: bool,
}

impl Ask {
    fn new(rank: u32, is_direct: bool) -> Ask {
        Ask { rank, parts: Vec::new(), bytes: 0, is_direct }
    }

    /// What it asked for.
    pub(super) fn into_asked(self) -> impl Iterator<Item = Asked> {
        self.parts.into_iter().map(|part| part.asked)
    }
}

/// Whether the elements of a part lie one behind the other in a shard of this shape.
fn is_run(slice: Option<&Slice>, part: &IndexBox, place: &IndexBox) -> bool {
    let Some(slice) = slice else { return true };
    let has_steps = slice.dims().iter().any(|dim| matches!(dim, crate::SliceDim::Range(range) if range.step != 1));
    // Behind the first dimension with several indices, all others are whole.
    let mut inner = part.0.iter().zip(&place.0).skip_while(|(part, _)| part.len == 1).skip(1);
    !has_steps && inner.all(|(part, place)| part.len == place.len)
}

/// Plans what is missing, in requests of about `bucket_bytes`.
///
/// # Errors
/// The tensor, and the box of it that nobody has.
pub(super) fn asks(
    outputs: &[Output<'_>],
    layouts: &[Arc<RankLayout>],
    missing: Vec<Asked>,
    bucket_bytes: u64,
    mut choose: impl FnMut(&[Holder], u64) -> Option<Holder>,
) -> Result<Vec<Ask>, (usize, IndexBox)> {
    // By rank, and whether it need not be copied.
    let mut open: BTreeMap<(u32, bool), (Ask, HashSet<TensorName>)> = BTreeMap::new();
    let mut full = Vec::new();
    for Asked { output, part } in missing {
        let of = &outputs[output];
        let pieces = of.tensor.plan_part(&of.target, part, &mut choose).map_err(|hole| (output, hole))?;
        let dtype = of.meta.dtype();
        let bytes_of = |part: &IndexBox| part.volume() / dtype.elements_per_unit() * dtype.size_bytes();
        let is_all = |part: &IndexBox| *part == IndexBox::all(&of.target.counts());
        for Piece { holder: Holder { rank, shard }, place, part } in pieces {
            let entry = &layouts[rank as usize].shards[shard].entry;
            let slice = of.target.local(&part, &place);
            let is_direct = is_all(&part) && is_run(slice.as_ref(), &part, &place) && bytes_of(&part) <= bucket_bytes;
            let mut parts = Vec::new();
            let most = bucket_bytes / dtype.size_bytes() * dtype.elements_per_unit();
            match is_direct {
                true => parts.push(part),
                false => part.cut(most, dtype.elements_per_unit(), &mut parts),
            }
            for part in parts {
                let (ask, names) =
                    open.entry((rank, is_direct)).or_insert_with(|| (Ask::new(rank, is_direct), HashSet::new()));
                let bytes = bytes_of(&part);
                // A request names each shard once.
                if ask.bytes + bytes > bucket_bytes && !ask.parts.is_empty()
                    || ask.parts.len() == MAX_PARTS
                    || names.contains(entry)
                {
                    full.push(std::mem::replace(ask, Ask::new(rank, is_direct)));
                    names.clear();
                }
                names.insert(entry.clone());
                ask.bytes += bytes;
                let slice = of.target.local(&part, &place);
                ask.parts.push(Part { asked: Asked { output, part }, entry: entry.clone(), slice });
            }
        }
    }
    full.extend(open.into_values().map(|(ask, _)| ask).filter(|ask| !ask.parts.is_empty()));
    // Requests to different ranks beside each other.
    let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
    full.sort_by_cached_key(|ask| {
        let turn = turns.entry(ask.rank).or_default();
        *turn += 1;
        *turn
    });
    Ok(full)
}
