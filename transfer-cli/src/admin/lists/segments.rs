//! `transferctl segments`: the shared memory of this sidecar.

use super::{Common, Show, some};
use crate::admin::fabric_name;
use crate::devices::word;
use serde_json::{Value, json};
use transfer_proto::v1;
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

impl Show for v1::Segment {
    const WORDS: (&'static str, &'static str) = ("segment", "segments");

    fn headings() -> String {
        ">segment | kind | >tenant | worker | >size | locked | >page | registered with | >ranges | ".to_owned()
    }

    fn row(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.abandoned {
            remarks.push("its worker is gone, and others read on".to_owned());
        }
        remarks.extend((!self.why_not.is_empty()).then(|| self.why_not.clone()));
        vec![
            self.segment.to_string(),
            word(&self.kind()),
            self.tenant.clone(),
            self.worker.clone(),
            bytes(self.bytes),
            if self.locked { "yes" } else { "no" }.to_owned(),
            bytes(self.page_bytes),
            self.registered.iter().map(|fabric| fabric_name(*fabric)).collect::<Vec<_>>().join(", "),
            some(self.ranges),
            remarks.join("; "),
        ]
    }

    fn json(&self) -> Value {
        json!(self)
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.bytes)
    }
}

impl Segments {
    pub(super) fn request(&self) -> v1::SegmentsRequest {
        let kind = match self.kind {
            None => v1::SegmentKind::Unspecified,
            Some(SegmentKind::Arena) => v1::SegmentKind::Arena,
            Some(SegmentKind::Pool) => v1::SegmentKind::Pool,
            Some(SegmentKind::Headers) => v1::SegmentKind::Headers,
            Some(SegmentKind::Counters) => v1::SegmentKind::Counters,
            Some(SegmentKind::Peer) => v1::SegmentKind::Peer,
        };
        let (uid, page_size) = (self.uid, self.common.page_size);
        v1::SegmentsRequest { kind: kind.into(), uid, page_size, ..Default::default() }
    }
}
