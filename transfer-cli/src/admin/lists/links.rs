//! `transferctl links`: the links to other nodes.

use super::{Common, Show};
use crate::admin::fabric_name;
use serde_json::{Value, json};
use transfer_proto::v1;
use transfer_terminal::units::{bytes, count};

/// The options of `transferctl links`.
#[derive(Debug, Clone, clap::Args)]
pub struct Links {
    /// Only links to the node of this name
    #[arg(long, value_name = "NODE", default_value = "")]
    pub peer: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl Show for v1::Link {
    const WORDS: (&'static str, &'static str) = ("link", "links");

    fn headings() -> String {
        "peer | >link | fabric | >rails | >credits | >queued | >pulls | >serves | >flows out | >flows in | >sent | >received | because".to_owned()
    }

    fn row(&self) -> Vec<String> {
        let numbers =
            [u64::from(self.credits), self.queued, self.pulls, self.serves, self.flows_out, self.flows_in].map(count);
        let rails = match (self.rails_live, self.rails) {
            (live, all) if live == all => all.to_string(),
            (live, all) => format!("{live} of {all}"),
        };
        let who = [self.peer.clone(), self.link.to_string(), fabric_name(self.fabric), rails];
        let carried = [bytes(self.bytes_out), bytes(self.bytes_in), self.why.clone()];
        who.into_iter().chain(numbers).chain(carried).collect()
    }

    fn json(&self) -> Value {
        json!(self)
    }
}

impl Links {
    pub(super) fn request(&self) -> v1::LinksRequest {
        let (peer, page_size) = (self.peer.clone(), self.common.page_size);
        v1::LinksRequest { peer, page_size, ..Default::default() }
    }
}
