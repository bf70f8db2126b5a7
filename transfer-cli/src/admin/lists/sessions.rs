//! `transferctl sessions`: the connected workers.

use super::{Answer, Common, List, Show};
use serde_json::{Value, json};
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};
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

impl Show for Sessions {
    type Entry = v1::Session;
    const WORDS: (&'static str, &'static str) = ("worker", "workers");
    const HEADINGS: &'static [&'static str] = &["worker", ">session", ">tenant", ">arena", ">leases", ">operations"];

    fn row(s: &v1::Session) -> Vec<String> {
        let numbers =
            [s.session.to_string(), s.tenant.clone(), bytes(s.arena_bytes), count(s.leases), count(s.operations)];
        std::iter::once(s.worker.clone()).chain(numbers).collect()
    }

    fn json(s: &v1::Session) -> Value {
        json!({ "session": s.session, "worker": s.worker, "uid": s.uid, "tenant": s.tenant, "arena_bytes": s.arena_bytes, "leases": s.leases,
                "operations": s.operations })
    }
}

impl List for Sessions {
    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Session> {
        let (prefix, page_size) = (self.prefix.clone(), self.common.page_size);
        let page = admin.sessions(v1::SessionsRequest { prefix, page_size, page_token }).await?.into_inner();
        Ok((page.sessions, page.next_page_token))
    }
}
