//! Sharded states: each rank publishes its shards of global tensors, and anyone fetches them in any layout.
//!
//! A rank publishes its shards as a bundle under a key of its own, and commits them at the *roster* of the state, which lives at one
//! node of the job as a counter does. The worker whose commit is the last checks that the shards cover all tensors, and publishes the
//! *manifest* under the state's key. So readers see a version when it is whole, and not before. A reader plans by the layouts of the
//! ranks which rank it asks for what, and asks each of them for slices of its bundle.
//!
//! # Layout
//! - `push`: a rank's push, and the end of a version's beginning. `fetch`: fetches; `requests`: what they ask whom for; `plans`: what of that is
//!   kept for later versions; `absent`: ranks that do not answer; `assembly`: what comes. `into`: fetches into the caller's memory. `held`: who holds
//!   what, for people.
//! - `boxes`, `plan`: boxes of indices, and who has which of them. `copy`: from shards into tensors.
//! - `proof`: digests of shards.
//! - `records`: the bytes that ranks publish. `layouts`: fetching them; `known`: what is remembered of them. `roster`: questions to
//!   it.

mod absent;
mod assembly;
mod boxes;
mod copy;
mod fetch;
mod held;
mod into;
mod known;
mod layouts;
mod plan;
mod plans;
mod proof;
mod push;
mod records;
mod requests;
mod roster;

pub use fetch::FetchSharded;
pub use held::{GlobalLayout, HeldBox, ShardedLayout};
pub use into::FetchShardedInto;
pub use push::{PushShards, PushedShards, Rank, Shard};
