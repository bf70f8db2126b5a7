//! Rosters: which ranks have committed each version of a sharded state.

use crate::tensor::{Name, Version};

/// The most ranks of a sharded state.
pub const MAX_WORLD_SIZE: u32 = 16_384;

/// The most ranks that one [`RosterAnswer::Ranks`] or [`RosterAnswer::Missing`] lists.
pub const MAX_LISTED_RANKS: usize = 64;

/// What is asked of the roster of a sharded state. `Commit`, `Withdraw`, `Published`, `Forget` and `Recite` change it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RosterAsk {
    /// Commit a rank's shards of a version. Waits while as many versions as may be are unfinished. The same
    /// commit again has the same answer. Answered by [`RosterAnswer::Committed`].
    Commit(RankCommit),
    /// Take a commit back, unless its version is whole. Answered by [`RosterAnswer::State`].
    Withdraw {
        /// The version.
        version: Version,
        /// The rank.
        rank: u32,
        /// The instance that has committed it.
        instance: u64,
    },
    /// The manifest of this version is published: it is whole. Earlier versions that are not whole end. Answered by
    /// [`RosterAnswer::State`].
    Published {
        /// The version.
        version: Version,
        /// The [digest](digest_of_ranks) of the ranks that its manifest has. Those of the roster may have changed since, or its home.
        ranks: u64,
    },
    /// List the ranks that have committed a version, in order, from this one on. Answered by [`RosterAnswer::Ranks`].
    Ranks {
        /// The version.
        version: Version,
        /// The first rank to list.
        from: u32,
    },
    /// List the ranks that have not committed a version, in order. Answered by [`RosterAnswer::Missing`].
    Missing {
        /// The version.
        version: Version,
    },
    /// Look which version is whole, and which ones are held. Answered by [`RosterAnswer::State`].
    Look,
    /// Forget that this version is whole, because nobody publishes it any more. Versions that are not whole stay. Answered by
    /// [`RosterAnswer::State`].
    Forget {
        /// See [`RankCommit::restart`].
        restart: u64,
        /// The version.
        version: Version,
    },
    /// Hold a version: its shards stay until this is given up. It is never answered with success. A later
    /// [`Look`](RosterAsk::Look) of the same worker comes behind it.
    Hold {
        /// The version.
        version: Version,
    },
    /// Wait until this version, or a later one, is whole. Answered by [`RosterAnswer::State`]; or by [`RosterAnswer::Committed`], if all ranks
    /// have committed it and the worker that had to publish the manifest was lost with the roster's last home. Then this worker has to.
    UntilWhole {
        /// See [`RankCommit::restart`].
        restart: u64,
        /// The version.
        version: Version,
        /// The rank of the worker that asks, if it has committed the version.
        rank: Option<u32>,
    },
    /// Says what a node knows of a state to its next home. Nodes say so, and workers cannot. It has no answer.
    Recite {
        /// See [`RankCommit::restart`].
        restart: u64,
        /// The newest version that the node knows to be whole.
        whole: Option<Version>,
        /// A commit of a worker of the node.
        commit: Option<RankCommit>,
    },
}

impl RosterAsk {
    /// The restart with which the versions begin that it is about, if it says so.
    pub(crate) fn restart(&self) -> Option<u64> {
        match self {
            RosterAsk::Commit(commit) => Some(commit.restart),
            RosterAsk::UntilWhole { restart, .. } => Some(*restart),
            _ => None,
        }
    }
}

/// A rank's commit of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankCommit {
    /// The version.
    pub version: Version,
    /// The rank, below the world size.
    pub rank: u32,
    /// The number of ranks, at most [`MAX_WORLD_SIZE`].
    pub world_size: u32,
    /// The number of the job's attempt. A higher one than before begins the versions again, and a lower one is refused.
    pub restart: u64,
    /// Tells these shards from others of this rank. The key under which they are published contains it.
    pub instance: u64,
    /// A digest of names, element types, global shapes and boxes of its shards.
    pub layout: u64,
    /// The worker that commits. The sidecar fills it in.
    pub worker: Option<Name>,
}

/// A rank that has committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedRank {
    /// The rank.
    pub rank: u32,
    /// See [`RankCommit::instance`].
    pub instance: u64,
    /// See [`RankCommit::layout`].
    pub layout: u64,
    /// The node where its shards lie.
    pub node: Name,
}

/// Returns the digest of all ranks of a version, in their order: FNV-1a of their numbers, instances, layouts and nodes.
#[must_use]
pub fn digest_of_ranks<'a>(ranks: impl IntoIterator<Item = (u32, u64, u64, &'a Name)>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (rank, instance, layout, node) in ranks {
        let numbers = rank.to_le_bytes().into_iter().chain(instance.to_le_bytes()).chain(layout.to_le_bytes());
        for byte in numbers.chain(node.as_str().bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}

impl CommittedRank {
    /// Returns what [`digest_of_ranks`] takes.
    #[must_use]
    pub fn digested(&self) -> (u32, u64, u64, &Name) {
        (self.rank, self.instance, self.layout, &self.node)
    }
}

/// What a roster answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RosterAnswer {
    /// The rank has committed.
    Committed {
        /// Whether all ranks have committed with this one. Then this worker has to check the version and to publish its manifest.
        is_last: bool,
        /// The newest version that is whole.
        whole: Option<Version>,
        /// A digest of all ranks that have committed this version, with their instances, layouts and nodes; 0 unless all have.
        ranks: u64,
    },
    /// Ranks that have committed.
    Ranks {
        /// The number of ranks of the version; 0 if nobody has committed it.
        world_size: u32,
        /// The rank at which to go on. `None`: there are no more.
        next: Option<u32>,
        /// The ranks.
        ranks: Vec<CommittedRank>,
    },
    /// Ranks that have not committed.
    Missing {
        /// The number of ranks of the version; 0 if nobody has committed it.
        world_size: u32,
        /// How many have not committed.
        count: u32,
        /// The first of them, at most [`MAX_LISTED_RANKS`].
        first: Vec<u32>,
    },
    /// The state of the versions.
    State {
        /// The number with which the versions have begun, see [`RankCommit::restart`].
        restart: u64,
        /// The newest version that is whole.
        whole: Option<Version>,
        /// Whether the home knows which versions are whole and held. One that has just taken the place of another may not.
        settled: bool,
        /// The versions that somebody holds, at most [`MAX_LISTED_RANKS`], the newest first.
        held: Vec<Version>,
    },
}
