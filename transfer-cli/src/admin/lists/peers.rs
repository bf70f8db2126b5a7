//! `transferctl peers`: the nodes with a link, or to which one is being made.

use super::{Common, Show, fabric_or_none, some};
use crate::devices::word;
use serde_json::{Value, json};
use transfer_proto::v1;

/// The options of `transferctl peers`.
#[derive(Debug, Clone, clap::Args)]
pub struct Peers {
    /// Only nodes whose name has this prefix
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl Show for v1::Peer {
    const WORDS: (&'static str, &'static str) = ("peer", "peers");

    fn headings() -> String {
        "node | state | >link | fabric | incarnation | wanted | >calls | failed attempts".to_owned()
    }

    fn row(&self) -> Vec<String> {
        let (link, fabric, incarnation) = (some(self.link.into()), fabric_or_none(self.fabric), some(self.incarnation));
        let wanted = if self.wanted { "yes" } else { "" }.to_owned();
        vec![
            self.node.clone(),
            word(&self.state()),
            link,
            fabric,
            incarnation,
            wanted,
            some(self.tries.into()),
            self.failures.join("; "),
        ]
    }

    fn json(&self) -> Value {
        let mut object = json!(self);
        // There is no link, so it has no fabric.
        object["fabric"] = fabric_or_none(self.fabric).into();
        object
    }
}

impl Peers {
    pub(super) fn request(&self) -> v1::PeersRequest {
        let (prefix, page_size) = (self.prefix.clone(), self.common.page_size);
        v1::PeersRequest { prefix, page_size, ..Default::default() }
    }
}
