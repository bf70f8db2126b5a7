//! The listings: `sessions`, `peers`, `links`, `tensors`, `segments`, `transfers`, `quarantine`. Each is a call, a row of a table and
//! an object of JSON; pages are asked for one after the other, and printed as they come.

use super::{Target, dtype_name, fabric_name, tensor_name};
use crate::error::Error;
use crate::table::Table;
use crate::units::{bytes, count, short};
use serde_json::{Value, json};
use std::time::Duration;
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};

/// What every listing may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Which sidecar.
    #[command(flatten)]
    pub target: Target,
    /// How many to ask for at once
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub page_size: u32,
    /// Stop after so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// One JSON object per line: sizes in bytes, times in nanoseconds
    #[arg(long)]
    pub json: bool,
}

/// What one page brought.
type Answer<T> = Result<(Vec<T>, String), tonic::Status>;

/// A listing: how a page is asked for, and how an entry is shown.
pub(crate) trait List {
    /// What is listed.
    type Entry;

    /// One of them and several, in words.
    const WORDS: (&'static str, &'static str);

    /// The table's headings; `>` is a column of numbers.
    const HEADINGS: &'static [&'static str];

    fn common(&self) -> &Common;

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<Self::Entry>;

    fn row(entry: &Self::Entry) -> Vec<String>;

    fn json(entry: &Self::Entry) -> Value;

    /// What an entry adds to the sum below the table.
    fn bytes(_: &Self::Entry) -> Option<u64> {
        None
    }
}

/// Asks for page after page, and prints each as it comes.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Admin`].
pub(crate) async fn run<L: List>(list: &L) -> Result<(), Error> {
    let Common { target, limit, json, .. } = list.common();
    let mut admin = target.connect().await?;
    let (mut page_token, mut total, mut total_bytes, mut cut) = (String::new(), 0u64, None, false);
    loop {
        let (mut entries, next) = list.page(&mut admin, page_token).await.map_err(|e| target.answered(e))?;
        let left = usize::try_from(limit.map_or(u64::MAX, |limit| limit - total)).unwrap_or(usize::MAX);
        cut |= entries.len() > left;
        entries.truncate(left);
        total += entries.len() as u64;
        for entry_bytes in entries.iter().filter_map(L::bytes) {
            total_bytes = Some(total_bytes.unwrap_or(0) + entry_bytes);
        }
        if *json {
            entries.iter().for_each(|entry| crate::output::outln!("{}", L::json(entry)));
        } else if !entries.is_empty() {
            let mut table = Table::new(L::HEADINGS);
            entries.iter().for_each(|entry| table.row(L::row(entry)));
            crate::output::out!("{table}");
        }
        page_token = next;
        if page_token.is_empty() || total >= limit.unwrap_or(u64::MAX) {
            break;
        }
    }
    if !json {
        let (one, several) = L::WORDS;
        let sum = total_bytes.map(|n| format!(", {}", bytes(n))).unwrap_or_default();
        let more = if page_token.is_empty() && !cut { "" } else { "; there are more" };
        crate::output::outln!("{} {}{sum}{more}", count(total), if total == 1 { one } else { several });
    }
    Ok(())
}

/// What `transferctl sessions` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Sessions {
    /// Only workers whose name starts so
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl List for Sessions {
    type Entry = v1::Session;
    const WORDS: (&'static str, &'static str) = ("worker", "workers");
    const HEADINGS: &'static [&'static str] = &["worker", ">session", ">uid", ">arena", ">leases", ">operations"];

    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Session> {
        let (prefix, page_size) = (self.prefix.clone(), self.common.page_size);
        let page = admin.sessions(v1::SessionsRequest { prefix, page_size, page_token }).await?.into_inner();
        Ok((page.sessions, page.next_page_token))
    }

    fn row(s: &v1::Session) -> Vec<String> {
        let numbers =
            [s.session.to_string(), s.uid.to_string(), bytes(s.arena_bytes), count(s.leases), count(s.operations)];
        std::iter::once(s.worker.clone()).chain(numbers).collect()
    }

    fn json(s: &v1::Session) -> Value {
        json!({ "session": s.session, "worker": s.worker, "uid": s.uid, "arena_bytes": s.arena_bytes, "leases": s.leases,
                "operations": s.operations })
    }
}

/// What `transferctl peers` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Peers {
    /// Only nodes whose name starts so
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl List for Peers {
    type Entry = v1::Peer;
    const WORDS: (&'static str, &'static str) = ("peer", "peers");
    const HEADINGS: &'static [&'static str] =
        &["node", "state", ">link", "fabric", "incarnation", "wanted", ">calls", "tried in vain"];

    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Peer> {
        let (prefix, page_size) = (self.prefix.clone(), self.common.page_size);
        let page = admin.peers(v1::PeersRequest { prefix, page_size, page_token }).await?.into_inner();
        Ok((page.peers, page.next_page_token))
    }

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

fn peer_state(peer: &v1::Peer) -> &'static str {
    match peer.state() {
        v1::PeerState::Calling => "calling",
        v1::PeerState::Yielded => "awaiting its call",
        v1::PeerState::Forming => "forming",
        v1::PeerState::Up => "up",
        v1::PeerState::Unspecified => "unknown",
    }
}

/// What `transferctl links` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Links {
    /// Only links to the node of this name
    #[arg(long, value_name = "NODE", default_value = "")]
    pub peer: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl List for Links {
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

    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Link> {
        let (peer, page_size) = (self.peer.clone(), self.common.page_size);
        let page = admin.links(v1::LinksRequest { peer, page_size, page_token }).await?.into_inner();
        Ok((page.links, page.next_page_token))
    }

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

/// What `transferctl tensors` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Tensors {
    /// Only keys that start so
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Only those of the worker of this name
    #[arg(long, value_name = "WORKER", default_value = "")]
    pub owner: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl List for Tensors {
    type Entry = v1::Tensor;
    const WORDS: (&'static str, &'static str) = ("tensor", "tensors");
    const HEADINGS: &'static [&'static str] =
        &["key", "owner", ">version", "tensor", ">size", ">readers", ">older", "stays", ">segment", ">offset"];

    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Tensor> {
        let (prefix, owner, page_size) = (self.prefix.clone(), self.owner.clone(), self.common.page_size);
        let page = admin.tensors(v1::TensorsRequest { prefix, owner, page_size, page_token }).await?.into_inner();
        Ok((page.tensors, page.next_page_token))
    }

    fn row(t: &v1::Tensor) -> Vec<String> {
        vec![
            t.key.clone(),
            t.owner.clone(),
            t.version.to_string(),
            tensor_name(t.tensor.as_ref()),
            bytes(t.len_bytes),
            count(u64::from(t.readers)),
            count(u64::from(t.older)),
            t.retention.clone(),
            t.segment.to_string(),
            t.offset.to_string(),
        ]
    }

    fn json(tensor: &v1::Tensor) -> Value {
        let meta = tensor.tensor.clone().unwrap_or_default();
        json!({
            "key": tensor.key, "owner": tensor.owner, "version": tensor.version, "dtype": dtype_name(meta.dtype),
            "shape": meta.shape, "len_bytes": tensor.len_bytes, "readers": tensor.readers, "segment": tensor.segment,
            "offset": tensor.offset, "retention": tensor.retention, "older": tensor.older,
        })
    }

    fn bytes(tensor: &v1::Tensor) -> Option<u64> {
        Some(tensor.len_bytes)
    }
}

/// What memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SegmentKind {
    /// What one worker writes and publishes.
    Arena,
    /// Where tensors of peers land.
    Pool,
    /// The sidecar's headers of what it sends.
    Headers,
    /// The words of counters.
    Counters,
    /// Another sidecar's of this host, which workers of this one may read where it lies.
    Peer,
}

/// What `transferctl segments` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Segments {
    /// Only those of that kind
    #[arg(long)]
    pub kind: Option<SegmentKind>,
    /// Only those of this user id
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl List for Segments {
    type Entry = v1::Segment;
    const WORDS: (&'static str, &'static str) = ("segment", "segments");
    const HEADINGS: &'static [&'static str] =
        &[">segment", "kind", ">uid", "worker", ">size", "locked", ">page", "registered with", ">ranges", ""];

    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Segment> {
        let kind = match self.kind {
            None => v1::SegmentKind::Unspecified,
            Some(SegmentKind::Arena) => v1::SegmentKind::Arena,
            Some(SegmentKind::Pool) => v1::SegmentKind::Pool,
            Some(SegmentKind::Headers) => v1::SegmentKind::Headers,
            Some(SegmentKind::Counters) => v1::SegmentKind::Counters,
            Some(SegmentKind::Peer) => v1::SegmentKind::Peer,
        };
        let request =
            v1::SegmentsRequest { kind: kind.into(), uid: self.uid, page_size: self.common.page_size, page_token };
        let page = admin.segments(request).await?.into_inner();
        Ok((page.segments, page.next_page_token))
    }

    fn row(s: &v1::Segment) -> Vec<String> {
        let mut remarks = Vec::new();
        if s.abandoned {
            remarks.push("its worker is gone, and others read on".to_owned());
        }
        remarks.extend((!s.why_not.is_empty()).then(|| s.why_not.clone()));
        vec![
            s.segment.to_string(),
            segment_kind(s).to_owned(),
            s.uid.map(|uid| uid.to_string()).unwrap_or_default(),
            s.worker.clone(),
            bytes(s.bytes),
            if s.locked { "yes" } else { "no" }.to_owned(),
            bytes(s.page_bytes),
            registered(s).join(", "),
            some(s.ranges),
            remarks.join("; "),
        ]
    }

    fn json(s: &v1::Segment) -> Value {
        json!({ "segment": s.segment, "kind": segment_kind(s), "uid": s.uid, "worker": s.worker, "bytes": s.bytes,
                "locked": s.locked, "page_bytes": s.page_bytes, "registered": registered(s), "why_not": s.why_not,
                "abandoned": s.abandoned, "ranges": s.ranges })
    }

    fn bytes(segment: &v1::Segment) -> Option<u64> {
        Some(segment.bytes)
    }
}

fn registered(segment: &v1::Segment) -> Vec<String> {
    segment.registered.iter().map(|fabric| fabric_name(*fabric)).collect()
}

fn segment_kind(segment: &v1::Segment) -> &'static str {
    match segment.kind() {
        v1::SegmentKind::Arena => "arena",
        v1::SegmentKind::Pool => "pool",
        v1::SegmentKind::Headers => "headers",
        v1::SegmentKind::Counters => "counters",
        v1::SegmentKind::Peer => "peer",
        v1::SegmentKind::Unspecified => "unknown",
    }
}

/// What `transferctl transfers` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Transfers {
    /// Only keys that start so
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Only those of the worker of this name
    #[arg(long, value_name = "WORKER", default_value = "")]
    pub worker: String,
    /// Only those in which this node takes part
    #[arg(long, value_name = "NODE", default_value = "")]
    pub peer: String,
    /// Only those that began at least so long ago: 500ms, 10s, 2min
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = crate::units::duration)]
    pub older_than: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl List for Transfers {
    type Entry = v1::Transfer;
    const WORDS: (&'static str, &'static str) = ("transfer in flight", "transfers in flight");
    const HEADINGS: &'static [&'static str] =
        &["operation", "key", "worker", "peer", ">size", ">since", ">left", "waits for"];

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

/// What `transferctl quarantine` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Quarantine {
    /// Only slots that wait for the node of this name
    #[arg(long, value_name = "NODE", default_value = "")]
    pub peer: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl List for Quarantine {
    type Entry = v1::Quarantined;
    const WORDS: (&'static str, &'static str) = ("landing slot in quarantine", "landing slots in quarantine");
    const HEADINGS: &'static [&'static str] = &["peer", ">link", ">uid", "key", ">size", ">since", "waits for"];

    fn common(&self) -> &Common {
        &self.common
    }

    async fn page(&self, admin: &mut AdminClient<Channel>, page_token: String) -> Answer<v1::Quarantined> {
        let (peer, page_size) = (self.peer.clone(), self.common.page_size);
        let page = admin.quarantine(v1::QuarantineRequest { peer, page_size, page_token }).await?.into_inner();
        Ok((page.slots, page.next_page_token))
    }

    fn row(q: &v1::Quarantined) -> Vec<String> {
        vec![
            q.peer.clone(),
            q.link.to_string(),
            q.uid.to_string(),
            q.key.clone(),
            bytes(q.bytes),
            short(Duration::from_nanos(q.age_ns)),
            q.waits_for.clone(),
        ]
    }

    fn json(q: &v1::Quarantined) -> Value {
        json!({ "peer": q.peer, "link": q.link, "uid": q.uid, "key": q.key, "bytes": q.bytes, "age_ns": q.age_ns,
                "waits_for": q.waits_for })
    }

    fn bytes(slot: &v1::Quarantined) -> Option<u64> {
        Some(slot.bytes)
    }
}

/// A number that is nothing where it is 0.
fn some(n: u64) -> String {
    if n == 0 { String::new() } else { n.to_string() }
}

fn fabric_or_none(fabric: i32) -> String {
    if fabric == 0 { String::new() } else { fabric_name(fabric) }
}
