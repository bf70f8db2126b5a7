//! Who holds what of a sharded state.

use super::boxes::IndexBox;
use super::fetch::FetchSharded;
use super::known::KnownShards;
use super::layouts::of_manifest;
use super::plan::{Global, Holder};
use super::records::state_of;
use super::roster::{self, Manifest};
use crate::error::Error;
use crate::request::flow::{Flow, FlowRequest, Io};
use crate::request::{AnyClient, Request, RequestCall};
use transfer_core::tensor::TensorMeta;

/// The layout of a version of a sharded state.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardedLayout {
    /// The version.
    pub version: u64,
    /// The number of shards whose box other ranks have, too, and that were compared with none of those: they, or the others, have no
    /// [digests](crate::PushShards::digest).
    pub unproved: u64,
    /// The node of each rank, as it was when the rank committed.
    pub nodes: Vec<String>,
    /// The global tensors, by name.
    pub tensors: Vec<GlobalLayout>,
}

/// The layout of a global tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GlobalLayout {
    /// Its name.
    pub name: String,
    /// Element type and global shape.
    pub meta: TensorMeta,
    /// The boxes that differ, in the order in which they begin.
    pub boxes: Vec<HeldBox>,
}

/// A box of a global tensor, and the ranks that hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldBox {
    /// Its first index in each dimension.
    pub offset: Vec<u64>,
    /// Its length in each dimension.
    pub shape: Vec<u64>,
    /// The ranks that hold it, in order.
    pub ranks: Vec<u32>,
}

impl ShardedLayout {
    /// The key of a sharded state, if this is the key under which a rank publishes its shards of it.
    #[must_use]
    pub fn state_of(shards_key: &str) -> Option<&str> {
        state_of(shards_key)
    }

    fn new(manifest: &Manifest, global: &Global) -> ShardedLayout {
        let nodes = manifest.ranks.iter().map(|rank| rank.node.as_str().to_owned()).collect();
        let tensors = global.tensors.iter().map(|(name, tensor)| {
            let mut boxes: Vec<_> = tensor.boxes().collect();
            boxes.sort_unstable_by_key(|(place, _)| *place);
            let held = |(place, holders): (&IndexBox, &[Holder])| HeldBox {
                offset: place.0.iter().map(|extent| extent.start).collect(),
                shape: place.shape(),
                ranks: holders.iter().map(|holder| holder.rank).collect(),
            };
            let boxes = boxes.into_iter().map(held).collect();
            GlobalLayout { name: name.as_str().to_owned(), meta: tensor.meta.clone(), boxes }
        });
        ShardedLayout { version: manifest.version, unproved: manifest.unproved, nodes, tensors: tensors.collect() }
    }
}

impl<C: AnyClient> FetchSharded<C> {
    /// Fetches the layout of the version in place of its elements; see [`Client::sharded_layout`](crate::Client::sharded_layout).
    /// It is the layout of all of the state: what was chosen of it is ignored, and so is that it be verified.
    pub fn layout(self) -> FlowRequest<C, Result<ShardedLayout, Error>> {
        let (client, timeout, parts) = (self.call.client.clone(), self.call.timeout(), self.call.into_parts());
        let mut flow = Flow::new(&client, async move |io: Io| {
            let (of, first, _, options, _) = parts?;
            let (key, connection) = (of.key(), &of.connection);
            let manifest = match first {
                Some(manifest) => *manifest,
                None => roster::manifest(&io, key, options).await?,
            };
            let layouts = of_manifest(&io, connection, key, &manifest).await?;
            let layouts: Vec<_> = layouts.into_iter().map(|known| known.layout).collect();
            let global = KnownShards::of(connection).lock().global(key, &layouts)?;
            Ok(ShardedLayout::new(&manifest, &global))
        });
        flow.set_timeout(timeout);
        Request::from_call(flow)
    }
}
