//! `transferctl quarantine`: landing slots that a peer may still write into.

use super::{Common, Show};
use serde_json::{Value, json};
use std::time::Duration;
use transfer_proto::v1;
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

impl Show for v1::Quarantined {
    const WORDS: (&'static str, &'static str) = ("landing slot in quarantine", "landing slots in quarantine");

    fn headings() -> String {
        "peer | >link | >tenant | key | >size | >age | waits for".to_owned()
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.peer.clone(),
            self.link.to_string(),
            self.tenant.clone(),
            self.key.clone(),
            bytes(self.bytes),
            short(Duration::from_nanos(self.age_ns)),
            self.waits_for.clone(),
        ]
    }

    fn json(&self) -> Value {
        json!(self)
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.bytes)
    }
}

impl Quarantine {
    pub(super) fn request(&self) -> v1::QuarantineRequest {
        let (peer, page_size) = (self.peer.clone(), self.common.page_size);
        v1::QuarantineRequest { peer, page_size, ..Default::default() }
    }
}
