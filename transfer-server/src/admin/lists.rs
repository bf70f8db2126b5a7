//! Converts the entries of lists into messages.

use super::uid_of;
use crate::events::{nanos, unix_nanos};
use crate::peering::Kind;
use transfer_core::memory::LocalSlice;
use transfer_core::protocol::{LinkStatus, QuarantineStatus, SessionStatus, TensorStatus, TransferStatus};
use transfer_core::tensor::TensorMeta;
use transfer_fabric::engine::{Clock, SegmentRole, SegmentStatus};
use transfer_memory::segment::PageKind;
use transfer_proto::v1;

pub(super) fn session(status: SessionStatus) -> v1::Session {
    let SessionStatus { session, name, domain, tenant, arena_bytes, leases, operations } = status;
    v1::Session {
        session: session.0,
        worker: name.to_string(),
        uid: uid_of(domain),
        tenant: tenant.to_string(),
        arena_bytes,
        leases,
        operations,
    }
}

pub(super) fn link(l: LinkStatus) -> v1::Link {
    v1::Link {
        link: l.link.0,
        peer: l.peer.to_string(),
        incarnation: l.incarnation,
        fabric: v1::Fabric::from(Kind(l.fabric)).into(),
        rails: u32::try_from(l.rails).unwrap_or(u32::MAX),
        rails_live: u32::try_from(l.rails_live).unwrap_or(u32::MAX),
        credits: l.credits,
        queued: l.work.queued,
        pulls: l.work.pulls,
        serves: l.work.serves,
        flows_out: l.work.flows_out,
        flows_in: l.work.flows_in,
        why: l.passed_over.into_iter().map(|passed| passed.why).collect::<Vec<_>>().join("; "),
        transfers_out: l.outward.transfers,
        bytes_out: l.outward.bytes,
        transfers_in: l.inward.transfers,
        bytes_in: l.inward.bytes,
    }
}

pub(super) fn segment(status: SegmentStatus) -> v1::Segment {
    let SegmentStatus { segment, role, tenant, bytes, achieved, registered, reach } = status;
    let (kind, uid, worker) = match role {
        SegmentRole::Headers => (v1::SegmentKind::Headers, None, String::new()),
        SegmentRole::Counters => (v1::SegmentKind::Counters, None, String::new()),
        SegmentRole::Peer => (v1::SegmentKind::Peer, None, String::new()),
        SegmentRole::Pool(domain) => (v1::SegmentKind::Pool, Some(uid_of(domain)), String::new()),
        SegmentRole::Arena(domain, worker) => (v1::SegmentKind::Arena, Some(uid_of(domain)), worker.to_string()),
    };
    let page_bytes = match achieved.pages {
        PageKind::Huge { page_bytes } => page_bytes,
        PageKind::Base => rustix::param::page_size() as u64,
    };
    let unlocked = achieved.lock_refused.map(|why| format!("it is not locked: {why}"));
    let not_huge = achieved.huge_refused.map(|why| format!("it is not on huge pages: {why}"));
    let (ranges, abandoned) = reach.unwrap_or_default();
    v1::Segment {
        segment: segment.0,
        kind: kind.into(),
        uid,
        tenant: tenant.map(|tenant| tenant.to_string()).unwrap_or_default(),
        worker,
        bytes,
        locked: achieved.locked,
        page_bytes,
        registered: registered.into_iter().map(|kind| v1::Fabric::from(Kind(kind)).into()).collect(),
        why_not: unlocked.into_iter().chain(not_huge).collect::<Vec<_>>().join("; "),
        abandoned,
        ranges,
    }
}

pub(super) fn transfer(t: TransferStatus) -> v1::Transfer {
    v1::Transfer {
        operation: t.operation.to_owned(),
        key: t.key,
        worker: t.worker.to_string(),
        session: t.session.0,
        peer: t.peer.map(|peer| peer.to_string()).unwrap_or_default(),
        len_bytes: t.len_bytes,
        age_ns: nanos(t.age),
        left_ns: nanos(t.left),
        waits_for: t.waits_for,
    }
}

pub(super) fn quarantined(q: QuarantineStatus) -> v1::Quarantined {
    v1::Quarantined {
        peer: q.peer.to_string(),
        link: q.link.0,
        uid: uid_of(q.domain),
        tenant: q.tenant.to_string(),
        key: q.key.map(|key| key.to_string()).unwrap_or_default(),
        bytes: q.bytes,
        age_ns: nanos(q.age),
        waits_for: q.waits_for,
    }
}

pub(super) fn tensor(status: TensorStatus, clock: Clock) -> v1::Tensor {
    let TensorStatus {
        key,
        owner,
        tenant,
        version,
        meta,
        slice: LocalSlice { segment, offset, .. },
        readers,
        retention,
        older,
        published_at,
    } = status;
    v1::Tensor {
        key: key.to_string(),
        owner: owner.to_string(),
        tenant: tenant.to_string(),
        version: version.0,
        len_bytes: meta.len_bytes(),
        tensor: Some(descriptor(&meta)),
        readers,
        segment: segment.0,
        offset,
        retention: retention.to_string(),
        older,
        published_at_unix_ns: unix_nanos(clock.wall_clock(published_at)),
    }
}

fn descriptor(meta: &TensorMeta) -> v1::TensorDescriptor {
    // The numbers are the same; a test checks that.
    v1::TensorDescriptor { dtype: i32::from(meta.dtype() as u8), shape: meta.shape().dims().to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_core::tensor::DType;

    #[test]
    fn element_types_have_the_same_numbers_in_messages() {
        for dtype in DType::ALL {
            let meta = TensorMeta::of(dtype, &[3, 2]).unwrap();
            let message = descriptor(&meta).dtype();
            assert_eq!(message.as_str_name(), format!("DTYPE_{}", dtype.name().to_uppercase()));
        }
    }
}
