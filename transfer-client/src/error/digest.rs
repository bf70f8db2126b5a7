//! Errors of versions that are proved.

use std::fmt;
use transfer_core::tensor::Digest;

/// The reason why a version is not proved. None of its bytes are returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// The bytes that came are not those of which the push made its digests: they were damaged in memory, on a disk or on the way,
    /// or the pusher has changed them since.
    #[error(
        "{what} of version {version} of key {key:?} does not have the {digest} digest of its push: the bytes were damaged, or its pusher \
         has changed them since; none is returned"
    )]
    WrongDigest {
        /// The key.
        key: String,
        /// The version.
        version: u64,
        /// What is wrong.
        what: Digested,
        /// The hash function.
        digest: Digest,
    },
    /// The version has no digests, and the fetch requires them.
    #[error(
        "version {version} of key {key:?} has no digests, and this fetch requires them: its pusher has to make them, with digest() at \
         the push, digest= in Python, or --digest of transferctl"
    )]
    NoDigest {
        /// The key.
        key: String,
        /// The version.
        version: u64,
    },
    /// The shards of a rank have no digests, and the fetch requires them.
    #[error(
        "the shards of rank {rank} of version {version} of state {key:?} have no digests, and this fetch requires them: each rank has to \
         make them, with digest() at the push, or digest= in Python"
    )]
    ShardsWithoutDigest {
        /// The state's key.
        key: String,
        /// The version.
        version: u64,
        /// The rank.
        rank: u32,
    },
    /// Digests cannot be made of what is pushed, or not be compared with what is fetched.
    #[error("key {key:?}: {what}")]
    NotProvable {
        /// The key.
        key: String,
        /// What cannot be proved, and what can.
        what: &'static str,
    },
    /// The digests in front of a version are malformed.
    #[error("the digests of version {version} of key {key:?} are wrong: {reason}")]
    Malformed {
        /// The key.
        key: String,
        /// The version.
        version: u64,
        /// What is wrong.
        reason: String,
    },
    /// Chunks cannot have this length.
    #[error("a chunk cannot have {found} bytes: a multiple of 64 from 65536 to 1073741824 is right")]
    ChunkLength {
        /// The length, in bytes.
        found: u32,
    },
}

/// What a digest is over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Digested {
    /// What is in front of the body: the description of the version, its table, and the digests of its chunks.
    Head,
    /// A chunk of the body.
    Chunk {
        /// Its number, from 0.
        index: u64,
        /// Where it begins in the body, in bytes.
        start: u64,
        /// Where it ends.
        end: u64,
    },
    /// A shard of a sharded state.
    Shard {
        /// The rank that it came from.
        rank: u32,
        /// The node of that rank.
        node: String,
        /// The global tensor.
        name: String,
        /// Where the shard lies in it, as numpy writes a slice.
        range: String,
    },
}

impl fmt::Display for Digested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Digested::Head => f.write_str("the description or the table"),
            Digested::Chunk { index, start, end } => write!(f, "chunk {index}, bytes {start} to {end},"),
            Digested::Shard { rank, node, name, range } => {
                write!(f, "{range} of tensor {name:?}, from rank {rank} at node {node:?},")
            }
        }
    }
}
