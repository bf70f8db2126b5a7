//! Digests of shards: made at the push, compared between replicas by the last commit, and with what a fetch brings.
//!
//! A digest is of the bytes of one shard, row-major. So ranks whose bundles differ can be compared, and a reader compares a shard in the
//! tensor that it has put together, however many requests have brought it.

use super::boxes::{Extent, IndexBox};
use super::known::{KnownLayout, KnownShards};
use super::layouts::{ABSENT, fetch_record, is_absent};
use super::plan::Holder;
use super::plans::Plan;
use super::records::{DIGESTS, RankLayout, shards_key};
use super::requests::Ask;
use super::roster::Manifest;
use crate::bundle::{FetchedBundle, FetchedSlices};
use crate::digest::{Hasher, Proving, make_all};
use crate::error::{DigestError, Digested, Error, ShardedError};
use crate::gathered::copy_threads;
use crate::request::flow::Io;
use crate::session::Connection;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use transfer_core::op::CommittedRank;
use transfer_core::tensor::{Digest, Key};

/// The digests of these shards, one behind the other.
pub(super) fn digests(kind: Digest, shards: &[&[u8]]) -> Vec<u8> {
    let bytes = shards.iter().map(|shard| shard.len() as u64).sum();
    make_all(kind, (shards.len(), bytes), copy_threads(), |n, to| {
        let mut hasher = Hasher::new(kind);
        hasher.add(shards[n]);
        hasher.end(to);
    })
}

/// The digest of a shard in the list of its rank.
fn of_shard(list: &[u8], kind: Digest, shard: usize) -> Option<&[u8]> {
    list.chunks_exact(kind.len_bytes()).nth(shard)
}

/// Compares the shards that have the same box, where they have digests of the same kind. Returns how many were compared with no other one.
///
/// # Errors
/// [`ShardedError::ReplicasDiffer`].
pub(super) async fn compare_replicas(
    io: &Io,
    connection: &Arc<Connection>,
    (key, version): (&Key, u64),
    ranks: &[CommittedRank],
    known: &[KnownLayout],
) -> Result<u64, Error> {
    let layouts: Vec<_> = known.iter().map(|known| known.layout.clone()).collect();
    let global = KnownShards::of(connection).lock().global(key, &layouts)?;
    let hash = |holder: &Holder| layouts[holder.rank as usize].kinds.hash;
    let replicated = || {
        let boxes = global.tensors.iter().flat_map(|(name, of)| of.boxes().map(move |(place, of)| (name, place, of)));
        boxes.filter(|(_, _, holders)| holders.len() > 1)
    };
    let has_pair = |holders: &[Holder], holder: &Holder| {
        hash(holder).is_some() && holders.iter().any(|other| other != holder && hash(other) == hash(holder))
    };
    let mut lists: BTreeMap<u32, Option<Vec<u8>>> = BTreeMap::new();
    for (_, _, holders) in replicated() {
        let compared = holders.iter().filter(|holder| has_pair(holders, holder));
        lists.extend(compared.map(|holder| (holder.rank, None)));
    }
    let list = async |(rank, list): (&u32, &mut Option<Vec<u8>>)| {
        let CommittedRank { instance, .. } = ranks[*rank as usize];
        let fetched = fetch_record(io, shards_key(key, *rank, instance)?, version, DIGESTS, ABSENT).await;
        match fetched {
            Ok(fetched) => *list = Some(fetched),
            // Its readers are told so.
            Err(e) if is_absent(&e) && !io.left(Duration::MAX).is_zero() => {}
            Err(e) => return Err(e),
        }
        Ok(())
    };
    io.all(&mut lists, list).await.into_iter().collect::<Result<(), Error>>()?;
    let mut unproved = 0;
    for (name, place, holders) in replicated() {
        let digest = |holder: &Holder| {
            let kind = hash(holder)?;
            Some((kind, of_shard(lists.get(&holder.rank)?.as_ref()?, kind, holder.shard)?))
        };
        for (at, holder) in holders.iter().enumerate() {
            let Some((kind, own)) = digest(holder) else {
                unproved += 1;
                continue;
            };
            let others = holders.iter().enumerate().filter(|(other, _)| *other != at);
            let mut others = others.filter_map(|(_, other)| Some((other, digest(other)?))).filter(|(_, d)| d.0 == kind);
            match others.next() {
                None => unproved += 1,
                Some((_, (_, same))) if same == own => {}
                Some((other, _)) => {
                    let (name, range) = (name.as_str().to_owned(), place.to_string());
                    let (first_rank, second_rank) = (holder.rank.min(other.rank), holder.rank.max(other.rank));
                    let differ = ShardedError::ReplicasDiffer { name, range, first_rank, second_rank, digest: kind };
                    return Err(differ.into());
                }
            }
        }
    }
    Ok(unproved)
}

/// What a fetch has brought of which shard, and the digests of those.
pub(super) struct ShardProof<'a> {
    plan: &'a Plan,
    proving: Proving,
    /// By tensor of the result, rank and shard: the number of elements that came from there.
    came: HashMap<(usize, u32, usize), u64>,
    /// By rank.
    digests: HashMap<u32, Vec<u8>>,
}

impl<'a> ShardProof<'a> {
    pub(super) fn new(plan: &'a Plan, proving: Proving) -> ShardProof<'a> {
        ShardProof { plan, proving, came: HashMap::new(), digests: HashMap::new() }
    }

    pub(super) fn proving(&self) -> Proving {
        self.proving
    }

    /// Whether the digests of a rank with this layout are asked for, too.
    ///
    /// # Errors
    /// [`DigestError::ShardsWithoutDigest`].
    pub(super) fn needs(
        proving: Proving,
        layout: &RankLayout,
        (key, version, rank): (&Key, u64, u32),
    ) -> Result<bool, Error> {
        match (proving, layout.kinds.hash) {
            (Proving::Not, _) | (Proving::IfThere, None) => Ok(false),
            (Proving::IfThere | Proving::Required, Some(_)) => Ok(true),
            (Proving::Required, None) => {
                Err(DigestError::ShardsWithoutDigest { key: key.as_str().to_owned(), version, rank }.into())
            }
        }
    }

    /// Notes what has come.
    pub(super) fn take(&mut self, ask: &Ask, slices: &FetchedSlices) {
        // A copy, so that it cannot change.
        let Some(digests) = slices.get(DIGESTS).filter(|_| self.proving != Proving::Not) else { return };
        self.digests.entry(ask.rank).or_insert_with(|| digests.as_bytes().to_vec());
        for part in &ask.parts {
            *self.came.entry((part.asked.output, ask.rank, part.shard)).or_default() += part.asked.part.volume();
        }
    }

    /// Compares all shards that came whole from one rank, in the tensors of the result. Returns how many bytes they have.
    ///
    /// # Errors
    /// [`DigestError::WrongDigest`].
    pub(super) fn compare(&self, key: &Key, manifest: &Manifest, found: &FetchedBundle) -> Result<u64, Error> {
        let tensors: Vec<_> = found.iter().map(|(_, tensor)| tensor.as_bytes()).collect();
        let mut verified = 0;
        for kind in Digest::ALL {
            let whole = self.came.iter().filter_map(|(&(output, rank, shard), elements)| {
                let layout = &self.plan.layouts[rank as usize].layout;
                let place = &layout.shards[shard].place;
                let part = self.plan.outputs[output].target.within(place)?;
                (layout.kinds.hash == Some(kind) && *elements == place.volume()).then_some((output, rank, shard, part))
            });
            let whole: Vec<_> = whole.collect();
            let bytes_of = |(output, _, _, part): &(usize, u32, usize, IndexBox)| {
                let dtype = self.plan.outputs[*output].meta.dtype();
                part.volume() / dtype.elements_per_unit() * dtype.size_bytes()
            };
            let bytes = whole.iter().map(bytes_of).sum();
            let made = make_all(kind, (whole.len(), bytes), copy_threads(), |n, to| {
                let (output, _, _, part) = &whole[n];
                let of = &self.plan.outputs[*output];
                let (size, per_unit) = (of.meta.dtype().size_bytes() as usize, of.meta.dtype().elements_per_unit());
                let mut hasher = Hasher::new(kind);
                runs(&of.target.counts(), part, (size, per_unit), |run| {
                    hasher.add(tensors[*output].get(run).unwrap_or_default());
                });
                hasher.end(to);
            });
            for ((output, rank, shard, _), made) in whole.iter().zip(made.chunks_exact(kind.len_bytes())) {
                let list = self.digests.get(rank).map(Vec::as_slice).unwrap_or_default();
                if of_shard(list, kind, *shard) != Some(made) {
                    let place = &self.plan.layouts[*rank as usize].layout.shards[*shard].place;
                    let what = Digested::Shard {
                        rank: *rank,
                        node: manifest.ranks[*rank as usize].node.as_str().to_owned(),
                        name: self.plan.outputs[*output].name.as_str().to_owned(),
                        range: place.to_string(),
                    };
                    let (key, version) = (key.as_str().to_owned(), manifest.version);
                    return Err(DigestError::WrongDigest { key, version, what, digest: kind }.into());
                }
            }
            verified += bytes;
        }
        Ok(verified)
    }
}

/// Calls `each` with the ranges of bytes of a box of memory that has all of `dims` row-major, in the order of the box. `per_unit` elements of
/// the last dimension have `size` bytes.
fn runs(dims: &[u64], part: &IndexBox, (size, per_unit): (usize, u64), mut each: impl FnMut(Range<usize>)) {
    let (mut dims, mut part) = (dims.to_vec(), part.clone());
    if let (Some(last), Some(Extent { start, len })) = (dims.last_mut(), part.0.last_mut()) {
        (*last, *start, *len) = (*last / per_unit, *start / per_unit, *len / per_unit);
    }
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim];
    }
    // Behind the outer dimensions all indices are taken, so what is there lies in one piece.
    let (mut run, mut outer, mut all) = (1, dims.len(), 1);
    while let Some(dim) = outer.checked_sub(1).filter(|_| run == all) {
        (run, all, outer) = (run * part.0[dim].len, all * dims[dim], dim);
    }
    let first: u64 = part.0.iter().zip(&strides).map(|(extent, stride)| extent.start * stride).sum();
    let (mut at, mut start) = (vec![0; outer], first);
    loop {
        let start_byte = start as usize * size;
        each(start_byte..start_byte + run as usize * size);
        let mut dim = outer;
        loop {
            let Some(next) = dim.checked_sub(1) else { return };
            dim = next;
            (at[dim], start) = (at[dim] + 1, start + strides[dim]);
            if at[dim] < part.0[dim].len {
                break;
            }
            (start, at[dim]) = (start - at[dim] * strides[dim], 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(dims: &[u64], part: &IndexBox, size: usize, per_unit: u64) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        runs(dims, part, (size, per_unit), |run| found.push((run.start, run.end)));
        found
    }

    #[test]
    fn runs_of_a_box_are_its_rows_where_these_do_not_touch() {
        assert_eq!(of(&[4, 6], &IndexBox::new(&[1, 2], &[2, 3]), 2, 1), [(16, 22), (28, 34)]);
        assert_eq!(of(&[4, 6], &IndexBox::new(&[1, 0], &[2, 6]), 1, 1), [(6, 18)]);
        assert_eq!(of(&[2, 3, 4], &IndexBox::new(&[0, 1, 0], &[2, 2, 4]), 1, 1), [(4, 12), (16, 24)]);
        assert_eq!(of(&[2, 2, 2], &IndexBox::new(&[0, 0, 1], &[2, 2, 1]), 1, 1), [(1, 2), (3, 4), (5, 6), (7, 8)]);
        assert_eq!(of(&[], &IndexBox::all(&[]), 8, 1), [(0, 8)]);
        // Two elements of a byte.
        assert_eq!(of(&[2, 8], &IndexBox::new(&[0, 2], &[2, 4]), 1, 2), [(1, 3), (5, 7)]);
    }
}
