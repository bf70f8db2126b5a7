//! `transferctl links`: the links to other nodes.

use super::{Answer, Common, List, Show};
use crate::admin::fabric_name;
use serde_json::{Value, json};
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};
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

impl Show for Links {
    type Entry = v1::Link;
    const WORDS: (&'static str, &'static str) = ("link", "links");
    const HEADINGS: &'static [&'static str] = &[
        "peer",
        ">link",
        "fabric",
        ">rails",
        ">credits",
        ">queued",
        ">pulls",
        ">serves",
        ">flows out",
        ">flows in",
        ">sent",
        ">received",
        "because",
    ];

    fn row(l: &v1::Link) -> Vec<String> {
        let numbers = [u64::from(l.credits), l.queued, l.pulls, l.serves, l.flows_out, l.flows_in].map(count);
        let rails = match (l.rails_live, l.rails) {
            (live, all) if live == all => all.to_string(),
            (live, all) => format!("{live} of {all}"),
        };
        let who = [l.peer.clone(), l.link.to_string(), fabric_name(l.fabric), rails];
        let carried = [bytes(l.bytes_out), bytes(l.bytes_in), l.why.clone()];
        who.into_iter().chain(numbers).chain(carried).collect()
    }

    fn json(l: &v1::Link) -> Value {
        json!({ "link": l.link, "peer": l.peer, "incarnation": l.incarnation.to_string(), "fabric": fabric_name(l.fabric),
                "rails": l.rails, "rails_live": l.rails_live, "credits": l.credits, "queued": l.queued, "pulls": l.pulls,
                "serves": l.serves, "flows_out": l.flows_out, "flows_in": l.flows_in, "transfers_out": l.transfers_out,
                "bytes_out": l.bytes_out, "transfers_in": l.transfers_in, "bytes_in": l.bytes_in, "why": l.why })
    }
}

impl List for Links {
    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Link> {
        let (peer, page_size) = (self.peer.clone(), self.common.page_size);
        let page = admin.links(v1::LinksRequest { peer, page_size, page_token }).await?.into_inner();
        Ok((page.links, page.next_page_token))
    }
}
