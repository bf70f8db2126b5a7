//! Errors of sharded states.

use transfer_core::tensor::{Digest, TensorMeta};

/// An error of a sharded state, or of data that claims to be a part of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardedError {
    /// A shard does not fit its tensor.
    #[error("a shard of tensor {name:?}, {shard} at {offset:?} of {global_shape:?}: {why}")]
    BadShard {
        /// The tensor.
        name: String,
        /// The shard's description.
        shard: TensorMeta,
        /// Its offset in the tensor, in elements of each dimension.
        offset: Vec<u64>,
        /// The shape of the tensor.
        global_shape: Vec<u64>,
        /// What does not fit.
        why: &'static str,
    },
    /// Two ranks have the same tensor in two ways.
    #[error("tensor {name:?} is {first} at rank {first_rank}, and {second} at rank {second_rank}")]
    Conflict {
        /// The tensor.
        name: String,
        /// The one rank.
        first_rank: u32,
        /// Element type and global shape there.
        first: TensorMeta,
        /// The other rank.
        second_rank: u32,
        /// Element type and global shape there.
        second: TensorMeta,
    },
    /// Two ranks have different bytes of one box, by the digests of their pushes.
    #[error(
        "ranks {first_rank} and {second_rank} have different bytes of {range} of tensor {name:?}, by their {digest} digests"
    )]
    ReplicasDiffer {
        /// The tensor.
        name: String,
        /// The box, as numpy writes a slice.
        range: String,
        /// The one rank.
        first_rank: u32,
        /// The other rank.
        second_rank: u32,
        /// The hash function.
        digest: Digest,
    },
    /// No rank has this part of a tensor.
    #[error("no rank has {range} of tensor {name:?}, {meta}")]
    Hole {
        /// The tensor.
        name: String,
        /// Element type and global shape.
        meta: TensorMeta,
        /// The first part that is missing, as numpy writes a slice.
        range: String,
    },
    /// A rank has died, or has lost its shards, and no other one has a part of a tensor.
    #[error(transparent)]
    RankGone(#[from] Box<LostRank>),
    /// The version is not whole: these ranks have not committed it.
    #[error("version {version} of state {key:?} is not whole after {waited:?}: {}", missing_ranks(*world_size, *count, first))]
    NotWhole {
        /// The state's key.
        key: String,
        /// The version.
        version: u64,
        /// How long it was waited for.
        waited: std::time::Duration,
        /// The number of ranks; 0 if no rank has committed it.
        world_size: u32,
        /// How many have not committed.
        count: u32,
        /// The first of them.
        first: Vec<u32>,
    },
    /// What is published under the key is no sharded state.
    #[error("what key {key:?} has is no sharded state: fetch it with fetch(), fetch_bundle() or fetch_table()")]
    NotSharded {
        /// The key.
        key: String,
    },
    /// The record of a rank, or of all of them, is not valid.
    #[error("the record of rank {rank} of state {key:?} is invalid: {why}")]
    InvalidRecord {
        /// The state's key.
        key: String,
        /// The rank.
        rank: u32,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Another push of this rank is under way in this process.
    #[error("a push of rank {rank} of state {key:?} is under way in this process: wait for it first")]
    UnderWay {
        /// The state's key.
        key: String,
        /// The rank.
        rank: u32,
    },
    /// Too many versions of this rank are kept.
    #[error(
        "rank {rank} of state {key:?} keeps versions {versions:?}, which are not whole, or are being read; as many as can be"
    )]
    TooManyVersions {
        /// The state's key.
        key: String,
        /// The rank.
        rank: u32,
        /// The versions.
        versions: Vec<u64>,
    },
}

/// A rank that is gone, and what is missing for that; see [`ShardedError::RankGone`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} of version {version} of state {key:?}, at node {node:?}, is gone, and nobody else has {range} of tensor {name:?}: {why}"
)]
pub struct LostRank {
    /// The state's key.
    pub key: String,
    /// The version.
    pub version: u64,
    /// The rank.
    pub rank: u32,
    /// Its node.
    pub node: String,
    /// The tensor.
    pub name: String,
    /// The part that only this rank has, as numpy writes a slice.
    pub range: String,
    /// How the fetch from it failed.
    pub why: String,
}

fn missing_ranks(world_size: u32, count: u32, first: &[u32]) -> String {
    match (world_size, count) {
        (0, _) => "no rank has committed it".to_owned(),
        (_, 0) => format!("all {world_size} ranks have committed it, and its manifest is not published"),
        _ => {
            let more = if first.len() < count as usize { " and more" } else { "" };
            format!("{count} of {world_size} ranks have not committed it: {first:?}{more}")
        }
    }
}
