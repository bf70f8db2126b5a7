//! `transferctl tensors`: the tensors that are published at a node, or at all.

use super::{Common, Show, Shown, one_node};
use crate::admin::{cluster, tensor_name};
use crate::error::Error;
use crate::files::Worker;
use serde_json::{Value, json};
use transfer_proto::v1;
use transfer_terminal::units::{bytes, count, utc};

/// The options of `transferctl tensors`.
#[derive(Debug, Clone, clap::Args)]
pub struct Tensors {
    /// Only keys with this prefix
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Only those of the worker of this name
    #[arg(long, value_name = "WORKER", default_value = "")]
    pub owner: String,
    /// List the tensors of all nodes of the directory, in the order of the nodes' names. Each node is asked at its own
    /// address; if one cannot be asked, it is named, and the exit code is 9
    #[arg(long)]
    pub cluster: bool,
    /// List the sharded states of which there are parts, each with its global tensors, its ranks and their nodes. Their layouts
    /// are fetched as a worker of the sidecar at --socket
    #[arg(long)]
    pub sharded: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub worker: Worker,
}

impl Show for v1::Tensor {
    const WORDS: (&'static str, &'static str) = ("tensor", "tensors");

    fn headings() -> String {
        "key | owner | >tenant | >version | tensor | >size | >readers | >older | stays | published at | >segment | >offset".to_owned()
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.key.clone(),
            self.owner.clone(),
            self.tenant.clone(),
            self.version.to_string(),
            tensor_name(self.tensor.as_ref()),
            bytes(self.len_bytes),
            count(u64::from(self.readers)),
            count(u64::from(self.older)),
            self.retention.clone(),
            utc(self.published_at_unix_ns),
            self.segment.to_string(),
            self.offset.to_string(),
        ]
    }

    fn json(&self) -> Value {
        let mut object = json!(self);
        if let Some(fields) = object.as_object_mut() {
            fields.remove("published_at_unix_ns");
        }
        object["published_at"] = utc(self.published_at_unix_ns).into();
        object
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.len_bytes)
    }
}

impl Tensors {
    pub(super) fn request(&self) -> v1::TensorsRequest {
        let (prefix, owner, page_size) = (self.prefix.clone(), self.owner.clone(), self.common.page_size);
        v1::TensorsRequest { prefix, owner, page_size, ..Default::default() }
    }
}

/// Lists the tensors of a node, or of all.
pub(super) async fn run(list: &Tensors) -> Result<(), Error> {
    if list.sharded {
        return super::sharded::run(list).await;
    }
    if !list.cluster {
        return one_node(&list.common, list.request()).await;
    }
    let mut shown = Shown::new(&list.common);
    let asked = cluster::list(&list.common.target, list.request(), true, |node, tensors| {
        shown.add(tensors.into_iter().map(|tensor| OfNode(node.to_owned(), tensor)))
    });
    let asked = asked.await?;
    shown.end();
    asked.complete()
}

/// A tensor of this node.
struct OfNode(String, v1::Tensor);

impl Show for OfNode {
    const WORDS: (&'static str, &'static str) = v1::Tensor::WORDS;

    fn headings() -> String {
        format!("node | {}", v1::Tensor::headings())
    }

    fn row(&self) -> Vec<String> {
        [vec![self.0.clone()], self.1.row()].concat()
    }

    fn json(&self) -> Value {
        let mut object = self.1.json();
        object["node"] = self.0.as_str().into();
        object
    }

    fn bytes(&self) -> Option<u64> {
        self.1.bytes()
    }
}
