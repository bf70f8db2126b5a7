//! `transferctl transfers`: the transfers in flight, and what they wait for.

use super::{Common, Show};
use serde_json::{Value, json};
use std::time::Duration;
use transfer_proto::v1;
use transfer_terminal::units::{bytes, nanos, short};

/// The options of `transferctl transfers`.
#[derive(Debug, Clone, clap::Args)]
pub struct Transfers {
    /// Only keys with this prefix
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Only those of the worker of this name
    #[arg(long, value_name = "WORKER", default_value = "")]
    pub worker: String,
    /// Only those in which this node takes part
    #[arg(long, value_name = "NODE", default_value = "")]
    pub peer: String,
    /// Only those that began at least this long ago: 500ms, 10s, 2min
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = transfer_terminal::units::duration)]
    pub older_than: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl Show for v1::Transfer {
    const WORDS: (&'static str, &'static str) = ("transfer in flight", "transfers in flight");

    fn headings() -> String {
        "operation | key | worker | peer | >size | >age | >left | waits for".to_owned()
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.operation.clone(),
            self.key.clone(),
            self.worker.clone(),
            self.peer.clone(),
            self.len_bytes.map(bytes).unwrap_or_default(),
            short(Duration::from_nanos(self.age_ns)),
            short(Duration::from_nanos(self.left_ns)),
            self.waits_for.clone(),
        ]
    }

    fn json(&self) -> Value {
        json!(self)
    }
}

impl Transfers {
    pub(super) fn request(&self) -> v1::TransfersRequest {
        v1::TransfersRequest {
            prefix: self.prefix.clone(),
            worker: self.worker.clone(),
            peer: self.peer.clone(),
            min_age_ns: nanos(self.older_than),
            page_size: self.common.page_size,
            page_token: String::new(),
        }
    }
}
