//! `transferctl sessions`: the connected workers.

use super::{Common, Show};
use serde_json::{Value, json};
use transfer_proto::v1;
use transfer_terminal::units::{bytes, count};

/// The options of `transferctl sessions`.
#[derive(Debug, Clone, clap::Args)]
pub struct Sessions {
    /// Only workers whose name has this prefix
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl Show for v1::Session {
    const WORDS: (&'static str, &'static str) = ("worker", "workers");

    fn headings() -> String {
        "worker | >session | >tenant | >arena | >leases | >operations".to_owned()
    }

    fn row(&self) -> Vec<String> {
        let numbers = [
            self.session.to_string(),
            self.tenant.clone(),
            bytes(self.arena_bytes),
            count(self.leases),
            count(self.operations),
        ];
        std::iter::once(self.worker.clone()).chain(numbers).collect()
    }

    fn json(&self) -> Value {
        json!(self)
    }
}

impl Sessions {
    pub(super) fn request(&self) -> v1::SessionsRequest {
        let (prefix, page_size) = (self.prefix.clone(), self.common.page_size);
        v1::SessionsRequest { prefix, page_size, ..Default::default() }
    }
}
