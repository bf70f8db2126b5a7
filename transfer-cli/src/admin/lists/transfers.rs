//! `transferctl transfers`: the transfers in flight, and what they wait for.

use super::{Answer, Common, List, Show};
use serde_json::{Value, json};
use std::time::Duration;
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};
use transfer_terminal::units::{bytes, short};

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

impl Show for Transfers {
    type Entry = v1::Transfer;
    const WORDS: (&'static str, &'static str) = ("transfer in flight", "transfers in flight");
    const HEADINGS: &'static [&'static str] =
        &["operation", "key", "worker", "peer", ">size", ">age", ">left", "waits for"];

    fn row(t: &v1::Transfer) -> Vec<String> {
        vec![
            t.operation.clone(),
            t.key.clone(),
            t.worker.clone(),
            t.peer.clone(),
            t.len_bytes.map(bytes).unwrap_or_default(),
            short(Duration::from_nanos(t.age_ns)),
            short(Duration::from_nanos(t.left_ns)),
            t.waits_for.clone(),
        ]
    }

    fn json(t: &v1::Transfer) -> Value {
        json!({ "operation": t.operation, "key": t.key, "worker": t.worker, "session": t.session, "peer": t.peer,
                "len_bytes": t.len_bytes, "age_ns": t.age_ns, "left_ns": t.left_ns, "waits_for": t.waits_for })
    }
}

impl List for Transfers {
    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Transfer> {
        let request = v1::TransfersRequest {
            prefix: self.prefix.clone(),
            worker: self.worker.clone(),
            peer: self.peer.clone(),
            min_age_ns: u64::try_from(self.older_than.as_nanos()).unwrap_or(u64::MAX),
            page_size: self.common.page_size,
            page_token,
        };
        let page = admin.transfers(request).await?.into_inner();
        Ok((page.transfers, page.next_page_token))
    }
}
