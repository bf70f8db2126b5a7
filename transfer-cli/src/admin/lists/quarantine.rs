//! `transferctl quarantine`: landing slots that a peer may still write into.

use super::{Answer, Common, List, Show};
use serde_json::{Value, json};
use std::time::Duration;
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};
use transfer_terminal::units::{bytes, short};

/// The options of `transferctl quarantine`.
#[derive(Debug, Clone, clap::Args)]
pub struct Quarantine {
    /// Only slots that wait for the node of this name
    #[arg(long, value_name = "NODE", default_value = "")]
    pub peer: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl Show for Quarantine {
    type Entry = v1::Quarantined;
    const WORDS: (&'static str, &'static str) = ("landing slot in quarantine", "landing slots in quarantine");
    const HEADINGS: &'static [&'static str] = &["peer", ">link", ">tenant", "key", ">size", ">age", "waits for"];

    fn row(q: &v1::Quarantined) -> Vec<String> {
        vec![
            q.peer.clone(),
            q.link.to_string(),
            q.tenant.clone(),
            q.key.clone(),
            bytes(q.bytes),
            short(Duration::from_nanos(q.age_ns)),
            q.waits_for.clone(),
        ]
    }

    fn json(q: &v1::Quarantined) -> Value {
        json!({ "peer": q.peer, "link": q.link, "uid": q.uid, "tenant": q.tenant, "key": q.key, "bytes": q.bytes, "age_ns": q.age_ns,
                "waits_for": q.waits_for })
    }

    fn bytes(slot: &v1::Quarantined) -> Option<u64> {
        Some(slot.bytes)
    }
}

impl List for Quarantine {
    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Quarantined> {
        let (peer, page_size) = (self.peer.clone(), self.common.page_size);
        let page = admin.quarantine(v1::QuarantineRequest { peer, page_size, page_token }).await?.into_inner();
        Ok((page.slots, page.next_page_token))
    }
}
