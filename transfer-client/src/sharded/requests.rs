//! The requests of a fetch: pieces of one rank that are asked for together.

use super::boxes::IndexBox;
use super::plan::{GlobalTensor, Holder, Piece, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer_core::tensor::{TensorMeta, TensorName};

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
    /// Whether each part is all of its tensor of the result, in one piece, so that it need not be copied.
    pub(super) is_direct: bool,
}

impl Ask {
    fn new(rank: u32, is_direct: bool) -> Ask {
        Ask { rank, parts: Vec::new(), bytes: 0, is_direct }
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

/// Plans what is missing, in requests of about `bucket_bytes`.
///
/// # Errors
/// The tensor, and the box of it that nobody has.
pub(super) fn asks(
    outputs: &[Output],
    missing: Vec<Asked>,
    bucket_bytes: u64,
    mut choose: impl FnMut(&[Holder], u64) -> Option<Holder>,
) -> Result<Vec<Ask>, (usize, IndexBox)> {
    // By rank, and whether it need not be copied.
    let mut open: BTreeMap<(u32, bool), Open> = BTreeMap::new();
    let mut parts = Vec::new();
    for Asked { output, part } in missing {
        let of = &outputs[output];
        let dtype = of.meta.dtype();
        let bytes_of = |part: &IndexBox| of.bytes_of(part);
        let most = bucket_bytes / dtype.size_bytes() * dtype.elements_per_unit();
        let all = of.target.all();
        let ask = |Piece { holder: Holder { rank, shard }, place, part }: Piece<'_>| {
            let is_direct = part == all && of.target.is_run(&part, place) && bytes_of(&part) <= bucket_bytes;
            match is_direct {
                true => parts.push(part),
                false => part.cut(most, dtype.elements_per_unit(), &mut parts),
            }
            let open = open.entry((rank, is_direct)).or_insert_with(|| Open::new(rank, is_direct));
            for part in parts.drain(..) {
                let bytes = bytes_of(&part);
                open.add(Part { asked: Asked { output, part }, shard }, bytes, bucket_bytes);
            }
        };
        of.tensor.plan(&of.target, part, &mut choose, ask).map_err(|hole| (output, hole))?;
    }
    let all = |Open { full, last, .. }: Open| full.into_iter().chain(Some(last).filter(|ask| !ask.parts.is_empty()));
    let mut asks: Vec<_> = open.into_values().flat_map(all).collect();
    // Requests to different ranks beside each other.
    let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
    asks.sort_by_cached_key(|ask| {
        let turn = turns.entry(ask.rank).or_default();
        *turn += 1;
        *turn
    });
    Ok(asks)
}
