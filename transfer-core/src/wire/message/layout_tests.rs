//! Tests of the bytes of control messages.

use super::*;
use crate::memory::{RailKeys, RemoteKey, RemoteSlice};
use crate::op::MAX_LANDING_RANGES;
use crate::tensor::{
    BodyBox, BodyRange, DType, Excerpt, GatheredPart, MAX_GATHERED_BYTES, MAX_RANK, Repeat, Rows, Select, Slice,
    SliceDim, SliceRange, TensorMeta,
};
use crate::wire::landing::SlotNumber;
use proptest::prelude::*;

fn slot(rails: usize) -> SlotGrant {
    let keys = RailKeys::new(&vec![Some(RemoteKey(9)); rails]).unwrap();
    let remote = RemoteSlice { address: 1 << 40, len: 4096 + 64, keys };
    SlotGrant { number: SlotNumber::new(5, 1), capacity: 4096, remote, body: Vec::new() }
}

/// A slot whose body lands in ranges of these lengths.
fn apart(rails: usize, lens: &[u64]) -> SlotGrant {
    let whole = slot(rails);
    let range = |(n, len): (u64, &u64)| RemoteSlice { address: n << 40, len: *len, ..whole.remote };
    let body = (2..).zip(lens).map(range).collect();
    SlotGrant { remote: RemoteSlice { len: 64, ..whole.remote }, body, ..whole }
}

fn most_ranges() -> Vec<u64> {
    let mut lens = vec![64; MAX_LANDING_RANGES];
    lens[3] = 4096 - 64 * (MAX_LANDING_RANGES as u64 - 1);
    lens
}

// Promise: bytes-from-outside
#[test]
fn slot_whose_ranges_are_not_its_capacity_is_an_error() {
    let read = |slot: SlotGrant| {
        let bytes = Message::new(Role::Pull, 1, Body::TensorReRequest { slot }).encode();
        Message::decode(&bytes).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(read(apart(1, &[4000, 96])), Ok(()));
    for (lens, says) in [(&[4000, 95][..], "is 1"), (&[4000, 97], "is 97"), (&[u64::MAX], "is 18446744073709551615")] {
        let error = read(apart(1, lens)).unwrap_err();
        assert!(error.contains(says) || error.contains("address"), "{lens:?}: {error}");
    }
    let error = read(apart(1, &[1; MAX_LANDING_RANGES + 1])).unwrap_err();
    assert!(error.contains("25") && error.contains("1 to 24"), "{error}");
    // A slot that says that its body lies apart, and names no range.
    let mut bytes = Message::new(Role::Pull, 1, Body::TensorReRequest { slot: apart(1, &[4096]) }).encode();
    let count_at = 16 + 4 + 4 + 8 + 8 + 4;
    assert_eq!(bytes[count_at], 1);
    bytes.truncate(count_at + 1);
    bytes[count_at] = 0;
    bytes[2] = u8::try_from(bytes.len()).unwrap();
    bytes[12..16].fill(0);
    let sum = crc32c(&bytes);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    let error = Message::decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("1 to 24"), "{error}");
}

fn widest_excerpts() -> [Excerpt; 7] {
    let ranges = (0..48).map(|n| BodyRange { offset: n << 40, len: 64 << n.min(20) });
    let repeat = |n: usize| Repeat { count: 2, stride: 3 << (32 - n) };
    let deep = |n: u64| BodyBox::new(n << 50, 1, (0..23).map(repeat).collect()).unwrap();
    let range = SliceRange { start: Some(i64::MIN), stop: Some(i64::MAX), step: i64::MIN };
    let some = [SliceDim::Index(-1), (..).into(), (3..).into(), (..-4).into(), SliceRange::ALL.step(2).into()];
    [
        Excerpt::of_ranges(true, ranges).unwrap(),
        Excerpt::new(false, vec![deep(0), deep(1)]).unwrap(),
        Excerpt::slice(Slice::new(vec![range.into(); MAX_RANK])).unwrap(),
        Excerpt::slice(Slice::new(some)).unwrap(),
        Excerpt::rows(Rows::new((0..807).collect()).unwrap()),
        Excerpt::rows(Rows::new(vec![i64::MIN, -1, 126, 127, 255, i64::MAX]).unwrap()),
        Excerpt::rows(Rows::new(vec![]).unwrap()),
    ]
}

/// As many parts as a request may have.
fn most_parts() -> Vec<GatheredPart> {
    let range = BodyRange { offset: 64 << 20, len: 64 };
    let part = |n: usize| GatheredPart::new(&format!("{n:06}"), range).unwrap();
    (0..MAX_GATHERED_BYTES / part(0).wire_bytes()).map(part).collect()
}

fn bodies() -> Vec<Body> {
    let name = NameRef { id: 1, generation: 2 };
    let meta = TensorMeta::of(DType::U8, &[1; 32]).unwrap().with_metadata(1 << 20).unwrap();
    let excerpts = widest_excerpts().map(|excerpt| Body::TensorRequest {
        key: name,
        select: Select::After(Version(5)),
        metadata_id: 0,
        tenant: name,
        excerpt: Some(Box::new(excerpt)),
        slot: Some(slot(4)),
        held: NonZeroU64::new(6),
        direct: true,
        trace: TraceContext::new([7; 16], [8; 8], 1).ok(),
    });
    let others = vec![
        Body::Name { name, text: Name::new(&"n".repeat(512)).unwrap() },
        Body::TensorRequest {
            key: name,
            select: Select::Exactly(Version(4)),
            metadata_id: 3,
            tenant: name,
            excerpt: None,
            slot: Some(slot(4)),
            held: None,
            direct: false,
            trace: None,
        },
        Body::MetaDataUpdate { version: Version(1), metadata_id: 2, meta: meta.clone() },
        Body::Redirect {
            version: Version(904),
            identity: NonZeroU64::MAX,
            metadata_id: 9,
            chunk_bytes: 4 << 20,
            sources: [name; MAX_SOURCES],
            meta: meta.clone(),
        },
        Body::ChunkRequest {
            key: name,
            tenant: name,
            owner: name,
            incarnation: 6,
            version: Version(905),
            identity: NonZeroU64::MIN,
            offset: 8 << 20,
            slot: apart(4, &[4096]),
            trace: TraceContext::new([7; 16], [8; 8], 1).ok(),
        },
        Body::Digests { first: 7, digests: vec![[3; 16]; MAX_DIGESTS_PER_MESSAGE] },
        Body::Delta { version: Version(903), metadata_id: 4, len: 5, meta: meta.clone() },
        Body::TensorReRequest { slot: slot(1) },
        Body::TensorReRequest { slot: apart(1, &[4096]) },
        Body::TensorReRequest { slot: apart(4, &most_ranges()) },
        Body::ErrorStatus(Failure::new(FailureCode::TooLarge, "x".repeat(900))),
        Body::BufferRequest { key: name, target: name, owner: name, tenant: name, metadata_id: 1, meta },
        Body::BufferResponse { slots: vec![slot(4); MAX_SLOTS_PER_MESSAGE] },
        Body::BufferIdle { slot: slot(2) },
        Body::BufferRecall { why: Recall::Ends, round: 0 },
        Body::Recalled { why: Recall::Room, round: 5 },
        Body::BufferRelease,
        Body::Cancel,
        Body::Taken,
        Body::SourceFailed { source: 2 },
        Body::Cancelled,
        Body::Ack,
        Body::Ping,
        Body::Pong,
        Body::Behind { newest: Version(901) },
        Body::Unchanged { version: Version(902) },
        Body::CounterOpen { name, tenant: name, wants_grant: true },
        Body::CounterOpened { identity: 3, word: None },
        Body::CounterOpened { identity: 3, word: Some(RemoteSlice { len: 8, ..slot(4).remote }) },
        Body::CounterOp { name, tenant: name, identity: 4, op: AtomicOp::Load },
        Body::CounterOp { name, tenant: name, identity: 4, op: AtomicOp::FetchAdd(5) },
        Body::CounterOp { name, tenant: name, identity: 4, op: AtomicOp::CompareSwap { expected: 6, new: 7 } },
        Body::CounterResult { old: 8 },
        Body::CounterEnded { name },
        Body::BarrierWait { name, tenant: name, members: 9 },
        Body::BarrierReleased { round: 10, leader: true },
        Body::Trace { version: Version(11), context: TraceContext::new([1; 16], [2; 8], 0).unwrap() },
        Body::ByReference {
            lease: 11,
            segment: 12,
            offset: 13 << 6,
            ranges: 16,
            version: Version(14),
            waited_us: 15,
            meta: TensorMeta::of(DType::U8, &[1; 32]).unwrap().with_metadata(1 << 20).unwrap(),
        },
        Body::ReleaseReference { lease: u32::MAX },
        Body::GatherRequest {
            stem: name,
            tenant: name,
            parts: most_parts(),
            trace: TraceContext::new([7; 16], [8; 8], 1).ok(),
        },
        Body::GatherRequest { stem: name, tenant: name, parts: most_parts()[..2].to_vec(), trace: None },
    ];
    others.into_iter().chain(excerpts).collect()
}

#[test]
fn every_message_reads_back_and_fits() {
    for body in bodies() {
        for role in [Role::Pull, Role::Push, Role::Counter] {
            let m = Message { credits: 7, index: 0xdead_beef, role, body: body.clone() };
            let bytes = m.encode();
            assert!(bytes.len() <= MAX_MESSAGE_BYTES, "{} has {} bytes", body.name(), bytes.len());
            assert_eq!(Message::decode(&bytes), Ok(m));
        }
    }
}

#[test]
fn damaged_byte_is_an_error() {
    for body in bodies() {
        let bytes = Message::new(Role::Pull, 1, body).encode();
        for at in 0..bytes.len() {
            let mut b = bytes.clone();
            b[at] ^= 0x40;
            assert!(Message::decode(&b).is_err());
        }
    }
}

// Promise: bytes-from-outside, seen to fail
#[test]
fn fuzz_control_message() {
    let examples = bodies().into_iter().enumerate().map(|(i, body)| {
        let role = [Role::Pull, Role::Push, Role::Counter][i % 3];
        Message { credits: i as u16, index: i as u32, role, body }.encode()
    });
    let repair = |bytes: &mut Vec<u8>| {
        bytes.resize(bytes.len().clamp(16, MAX_MESSAGE_BYTES), 0);
        let len = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&len.to_le_bytes());
        bytes[12..16].fill(0);
        let sum = crc32c(bytes);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    };
    transfer_fuzz::Target::new("control-message", examples).repair(repair).run(|bytes| {
        match Message::decode(bytes) {
            Ok(message) => {
                // An error text may be cut, and a code that is not known here becomes "unknown".
                if !matches!(message.body, Body::ErrorStatus(_)) {
                    assert_eq!(message.encode(), bytes);
                }
                message.body.name().to_owned()
            }
            Err(e) => e.to_string(),
        }
    });
}

proptest! {
    #[test]
    fn garbage_with_a_good_checksum_never_panics(kind in 0u8..32, body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut w = Writer::new();
        w.u8(LAYOUT_VERSION).u8(kind).u16(u16::try_from(16 + body.len()).unwrap()).u16(0).u16(0).u32(0).u32(0).raw(&body);
        let sum = crc32c(w.as_slice());
        w.patch_u32(12, sum);
        let _ = Message::decode(w.as_slice());
    }
}
