//! `transferctl tensors`: the tensors that are published at a node, or at all.

use super::{Answer, Common, List, Show, Shown};
use crate::admin::{cluster, dtype_name, tensor_name};
use crate::error::Error;
use crate::files::Worker;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};
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

impl Show for Tensors {
    type Entry = v1::Tensor;
    const WORDS: (&'static str, &'static str) = ("tensor", "tensors");
    const HEADINGS: &'static [&'static str] = &[
        "key",
        "owner",
        ">tenant",
        ">version",
        "tensor",
        ">size",
        ">readers",
        ">older",
        "stays",
        "published at",
        ">segment",
        ">offset",
    ];

    fn row(t: &v1::Tensor) -> Vec<String> {
        vec![
            t.key.clone(),
            t.owner.clone(),
            t.tenant.clone(),
            t.version.to_string(),
            tensor_name(t.tensor.as_ref()),
            bytes(t.len_bytes),
            count(u64::from(t.readers)),
            count(u64::from(t.older)),
            t.retention.clone(),
            utc(t.published_at_unix_ns),
            t.segment.to_string(),
            t.offset.to_string(),
        ]
    }

    fn json(tensor: &v1::Tensor) -> Value {
        let meta = tensor.tensor.clone().unwrap_or_default();
        json!({
            "key": tensor.key, "owner": tensor.owner, "tenant": tensor.tenant, "version": tensor.version, "dtype": dtype_name(meta.dtype),
            "shape": meta.shape, "len_bytes": tensor.len_bytes, "readers": tensor.readers, "segment": tensor.segment,
            "offset": tensor.offset, "retention": tensor.retention, "older": tensor.older,
            "published_at": utc(tensor.published_at_unix_ns),
        })
    }

    fn bytes(tensor: &v1::Tensor) -> Option<u64> {
        Some(tensor.len_bytes)
    }
}

impl List for Tensors {
    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Tensor> {
        let (prefix, owner, page_size) = (self.prefix.clone(), self.owner.clone(), self.common.page_size);
        let page = admin.tensors(v1::TensorsRequest { prefix, owner, page_size, page_token }).await?.into_inner();
        Ok((page.tensors, page.next_page_token))
    }
}

/// Lists the tensors of a node, or of all.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`]; with --cluster [`Error::NotAllNodes`].
pub(crate) async fn run(list: &Tensors) -> Result<(), Error> {
    if list.sharded {
        return super::sharded::run(list).await;
    }
    if !list.cluster {
        return super::run(list).await;
    }
    let Tensors { prefix, owner, common, .. } = list.clone();
    let request = v1::TensorsRequest { prefix, owner, page_size: common.page_size, page_token: String::new() };
    let mut shown = Shown::<OfNode>::new(&common);
    let asked = cluster::list(&common.target, &request, |node, tensors| {
        let entries = tensors.into_iter().map(|tensor| (node.to_owned(), tensor)).collect();
        // One more than the limit shows that there are more.
        shown.add(entries);
        if shown.cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .await?;
    shown.end();
    asked.complete()
}

/// A tensor, and its node.
struct OfNode;

impl Show for OfNode {
    type Entry = (String, v1::Tensor);
    const WORDS: (&'static str, &'static str) = <Tensors as Show>::WORDS;
    const HEADINGS: &'static [&'static str] = &[
        "node",
        "key",
        "owner",
        ">tenant",
        ">version",
        "tensor",
        ">size",
        ">readers",
        ">older",
        "stays",
        "published at",
        ">segment",
        ">offset",
    ];

    fn row((node, tensor): &Self::Entry) -> Vec<String> {
        let mut row = vec![node.clone()];
        row.extend(<Tensors as Show>::row(tensor));
        row
    }

    fn json((node, tensor): &Self::Entry) -> Value {
        let mut object = <Tensors as Show>::json(tensor);
        object["node"] = node.as_str().into();
        object
    }

    fn bytes((_, tensor): &Self::Entry) -> Option<u64> {
        <Tensors as Show>::bytes(tensor)
    }
}
