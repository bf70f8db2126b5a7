//! What clients do with sharded states.

use super::both_clients;
use crate::error::Error;
use crate::request::flow::FlowRequest;
use crate::request::{HasHandle, ToKey, to_key};
use crate::sharded::{FetchSharded, PushShards, Rank, Shard, ShardedLayout};

both_clients! {
    /// Publishes this rank's shards of a version of a sharded state. The version is *whole*, and readers see it, once all ranks have
    /// pushed theirs and the shards cover all tensors. Until then the version before is the newest one.
    ///
    /// Shards are boxes of global tensors, in any tiling, and several ranks may have the same box. The call ends when this rank has
    /// committed, or, with [`whole`](PushShards::whole), when all have. The call of the last rank fails if a part of a tensor is
    /// missing, or if ranks disagree about a type or a shape, and names it. At most `--unfinished-versions` (2) of the node whose worker
    /// was the first to commit are unfinished at a time: a rank that is further ahead waits.
    ///
    /// The shards of a version stay until a newer one is whole and nobody fetches it any more; they are freed with this rank's next
    /// push. They end with this worker. So the version before takes memory in the arena beside the one that is pushed.
    pub fn push_shards<'a>(
        &self,
        key: impl ToKey,
        version: u64,
        rank: Rank,
        shards: impl IntoIterator<Item = Shard<'a>>,
    ) -> PushShards<'a, Self> {
        PushShards::new(self.handle(), to_key(&key), (version, rank), shards)
    }

    /// Fetches the global tensors of a sharded state, or slices of them, and waits until there is a version that is whole. What
    /// several ranks have is put together in memory of this process, which the report counts as copied; a tensor or a slice that one
    /// shard has in one piece is not copied where its fabric allows.
    pub fn fetch_sharded(&self, key: impl ToKey) -> FetchSharded<Self> {
        FetchSharded::new(self.handle(), to_key(&key))
    }

    /// Fetches the layout of the newest version of a sharded state: its global tensors, and which rank holds which box of each. No
    /// elements move.
    pub fn sharded_layout(&self, key: impl ToKey) -> FlowRequest<Self, Result<ShardedLayout, Error>> {
        self.fetch_sharded(key).layout()
    }
}
