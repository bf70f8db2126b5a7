//! `transferctl tensors`: what is published at this node.

use super::{Answer, Common, List};
use crate::admin::{dtype_name, tensor_name};
use crate::units::{bytes, count};
use serde_json::{Value, json};
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};

/// What `transferctl tensors` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Tensors {
    /// Only keys that start so
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Only those of the worker of this name
    #[arg(long, value_name = "WORKER", default_value = "")]
    pub owner: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl List for Tensors {
    type Entry = v1::Tensor;
    const WORDS: (&'static str, &'static str) = ("tensor", "tensors");
    const HEADINGS: &'static [&'static str] = &[
        "key", "owner", ">tenant", ">version", "tensor", ">size", ">readers", ">older", "stays", ">segment", ">offset",
    ];

    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Tensor> {
        let (prefix, owner, page_size) = (self.prefix.clone(), self.owner.clone(), self.common.page_size);
        let page = admin.tensors(v1::TensorsRequest { prefix, owner, page_size, page_token }).await?.into_inner();
        Ok((page.tensors, page.next_page_token))
    }

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
        })
    }

    fn bytes(tensor: &v1::Tensor) -> Option<u64> {
        Some(tensor.len_bytes)
    }
}
