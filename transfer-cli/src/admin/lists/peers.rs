//! `transferctl peers`: the nodes with a link, or to which one is being made.

use super::{Answer, Common, List, Show, fabric_or_none, some};
use serde_json::{Value, json};
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};

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

impl Show for Peers {
    type Entry = v1::Peer;
    const WORDS: (&'static str, &'static str) = ("peer", "peers");
    const HEADINGS: &'static [&'static str] =
        &["node", "state", ">link", "fabric", "incarnation", "wanted", ">calls", "failed attempts"];

    fn row(p: &v1::Peer) -> Vec<String> {
        let (link, fabric, incarnation) = (some(p.link.into()), fabric_or_none(p.fabric), some(p.incarnation));
        let wanted = if p.wanted { "yes" } else { "" }.to_owned();
        let state = peer_state(p).to_owned();
        vec![p.node.clone(), state, link, fabric, incarnation, wanted, some(p.tries.into()), p.failures.join("; ")]
    }

    fn json(p: &v1::Peer) -> Value {
        json!({ "node": p.node, "state": peer_state(p), "link": p.link, "incarnation": p.incarnation.to_string(),
                "wanted": p.wanted, "tries": p.tries, "fabric": fabric_or_none(p.fabric), "failures": p.failures })
    }
}

impl List for Peers {
    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Peer> {
        let (prefix, page_size) = (self.prefix.clone(), self.common.page_size);
        let page = admin.peers(v1::PeersRequest { prefix, page_size, page_token }).await?.into_inner();
        Ok((page.peers, page.next_page_token))
    }
}

fn peer_state(peer: &v1::Peer) -> &'static str {
    match peer.state() {
        v1::PeerState::Calling => "calling",
        v1::PeerState::Yielded => "awaiting its call",
        v1::PeerState::Forming => "forming",
        v1::PeerState::Up => "up",
        v1::PeerState::Unspecified => "unknown",
    }
}
