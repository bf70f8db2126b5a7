//! `transferctl segments`: the shared memory of this sidecar.

use super::{Answer, Common, List, Show, some};
use crate::admin::fabric_name;
use serde_json::{Value, json};
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};
use transfer_terminal::units::bytes;

/// The kinds of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SegmentKind {
    /// The memory that one worker writes and publishes.
    Arena,
    /// The memory where tensors of peers land.
    Pool,
    /// The headers of the sidecar's outgoing transfers.
    Headers,
    /// The words of counters.
    Counters,
    /// The memory of another sidecar on this host, which workers of this one may read in place.
    Peer,
}

/// The options of `transferctl segments`.
#[derive(Debug, Clone, clap::Args)]
pub struct Segments {
    /// Only those of this kind
    #[arg(long)]
    pub kind: Option<SegmentKind>,
    /// Only those of this user id
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl Show for Segments {
    type Entry = v1::Segment;
    const WORDS: (&'static str, &'static str) = ("segment", "segments");
    const HEADINGS: &'static [&'static str] =
        &[">segment", "kind", ">tenant", "worker", ">size", "locked", ">page", "registered with", ">ranges", ""];

    fn row(s: &v1::Segment) -> Vec<String> {
        let mut remarks = Vec::new();
        if s.abandoned {
            remarks.push("its worker is gone, and others read on".to_owned());
        }
        remarks.extend((!s.why_not.is_empty()).then(|| s.why_not.clone()));
        vec![
            s.segment.to_string(),
            segment_kind(s).to_owned(),
            s.tenant.clone(),
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
        json!({ "segment": s.segment, "kind": segment_kind(s), "uid": s.uid, "tenant": s.tenant, "worker": s.worker, "bytes": s.bytes,
                "locked": s.locked, "page_bytes": s.page_bytes, "registered": registered(s), "why_not": s.why_not,
                "abandoned": s.abandoned, "ranges": s.ranges })
    }

    fn bytes(segment: &v1::Segment) -> Option<u64> {
        Some(segment.bytes)
    }
}

impl List for Segments {
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
