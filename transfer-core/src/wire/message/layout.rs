//! The bytes of a control message.
//!
//! ```text
//! offset  0  layout version  u8    16
//!         1  kind            u8
//!         2  length          u16   of the whole message
//!         4  credits         u16   receive slots that the sender of this message gives back
//!         6  flags           u16   the kind of index: 0 a pull request, 1 a push flow, 2 a counter request
//!         8  index           u32
//!        12  checksum        u32   CRC32C of the message with this field zero
//!        16  body            the layout depends on the kind
//! ```

use super::{
    Body, LAYOUT_VERSION, MAX_MESSAGE_BYTES, MAX_SLOTS_PER_MESSAGE, MAX_SOURCES, Message, NameRef, Recall, Role,
};
use crate::fabric::AtomicOp;
use crate::memory::RemoteSlice;
use crate::op::{Failure, FailureCode};
use crate::tensor::{Name, Version};
use crate::trace::TraceContext;
use crate::wire::landing::{SlotGrant, rails_of, read_keys, write_keys};
use crate::wire::session::{cut, select, select_parts};
use crate::wire::{Reader, WireError, Writer, crc32c, excerpt, gathered, roster};
use std::num::NonZeroU64;

const LOAD: u8 = 0;
const FETCH_ADD: u8 = 1;
const COMPARE_SWAP: u8 = 2;

/// Writes the operation's kind and two numbers. Numbers that the kind does not use are zero.
pub(in crate::wire) fn write_atomic(w: &mut Writer, op: AtomicOp) {
    let (kind, a, b) = match op {
        AtomicOp::Load => (LOAD, 0, 0),
        AtomicOp::FetchAdd(n) => (FETCH_ADD, n, 0),
        AtomicOp::CompareSwap { expected, new } => (COMPARE_SWAP, expected, new),
    };
    w.u8(kind).u64(a).u64(b);
}

pub(in crate::wire) fn read_atomic(r: &mut Reader<'_>) -> Result<AtomicOp, WireError> {
    let (kind, a, b) = (r.u8()?, r.u64()?, r.u64()?);
    match kind {
        LOAD => {
            Reader::zero("numbers of a load", a | b)?;
            Ok(AtomicOp::Load)
        }
        FETCH_ADD => {
            Reader::zero("second number of an addition", b)?;
            Ok(AtomicOp::FetchAdd(a))
        }
        COMPARE_SWAP => Ok(AtomicOp::CompareSwap { expected: a, new: b }),
        n => Err(WireError::Value { what: "operation on a counter", value: u64::from(n), expected: "0 to 2" }),
    }
}

fn write_name(w: &mut Writer, n: NameRef) {
    w.u32(n.id).u32(n.generation);
}

fn read_name(r: &mut Reader<'_>) -> Result<NameRef, WireError> {
    Ok(NameRef { id: r.u32()?, generation: r.u32()? })
}

fn read_identity(r: &mut Reader<'_>) -> Result<NonZeroU64, WireError> {
    let wrong = WireError::Value { what: "identity of a version", value: 0, expected: "another number than 0" };
    NonZeroU64::new(r.u64()?).ok_or(wrong)
}

impl Message {
    /// Returns the message's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::reusing(Vec::with_capacity(128));
        w.u8(LAYOUT_VERSION).u8(self.body.kind()).u16(0).u16(self.credits);
        w.u16(self.role.flags()).u32(self.index).u32(0);
        match &self.body {
            Body::Name { name, text } => {
                write_name(&mut w, *name);
                w.text(text.as_str());
            }
            Body::TensorRequest { key, tenant, select, metadata_id, excerpt, slot, held, direct, trace } => {
                write_name(&mut w, *key);
                write_name(&mut w, *tenant);
                let (kind, version) = select_parts(*select);
                w.u8(kind).u8(u8::from(slot.is_some()) | u8::from(held.is_some()) << 1 | u8::from(*direct) << 2);
                excerpt::write_head(&mut w, excerpt.as_deref());
                w.u32(*metadata_id).u64(version);
                if let Some(slot) = slot {
                    slot.write(&mut w);
                }
                if let Some(held) = held {
                    w.u64(held.get());
                }
                excerpt::write_part(&mut w, excerpt.as_deref());
                TraceContext::write_last(*trace, &mut w);
            }
            Body::MetaDataUpdate { version, metadata_id, meta } => {
                w.u64(version.0).u32(*metadata_id).meta(meta);
            }
            Body::Delta { version, metadata_id, len, meta } => {
                w.u64(version.0).u32(*metadata_id).u64(*len).meta(meta);
            }
            Body::Redirect { version, identity, digest, sources, meta } => {
                w.u64(version.0).u64(identity.get()).raw(digest);
                sources.iter().for_each(|source| write_name(&mut w, *source));
                w.meta(meta);
            }
            Body::RelayRequest { key, tenant, owner, incarnation, identity, trace } => {
                for n in [key, tenant, owner] {
                    write_name(&mut w, *n);
                }
                w.u64(*incarnation).u64(identity.get());
                TraceContext::write_last(*trace, &mut w);
            }
            Body::TensorReRequest { slot } | Body::BufferIdle { slot } => slot.write(&mut w),
            Body::ErrorStatus(failure) => {
                w.u16(failure.code as u16).text(cut(&failure.text));
            }
            Body::BufferRequest { key, target, owner, tenant, metadata_id, meta } => {
                for n in [key, target, owner, tenant] {
                    write_name(&mut w, *n);
                }
                w.u32(*metadata_id).meta(meta);
            }
            Body::BufferResponse { slots } => {
                w.u32(u32::try_from(slots.len()).unwrap_or(0));
                for slot in slots {
                    slot.write(&mut w);
                }
            }
            Body::Behind { newest: version } | Body::Unchanged { version } => {
                w.u64(version.0);
            }
            Body::CounterOpen { name, tenant, wants_grant } => {
                write_name(&mut w, *name);
                write_name(&mut w, *tenant);
                w.u8(u8::from(*wants_grant));
            }
            Body::CounterOpened { identity, word } => {
                w.u64(*identity).u32(word.as_ref().map_or(0, |word| rails_of(&word.keys)));
                if let Some(word) = word {
                    w.u64(word.address);
                    write_keys(&mut w, &word.keys);
                }
            }
            Body::CounterOp { name, tenant, identity, op } => {
                write_name(&mut w, *name);
                write_name(&mut w, *tenant);
                w.u64(*identity);
                write_atomic(&mut w, *op);
            }
            Body::CounterResult { old } => {
                w.u64(*old);
            }
            Body::CounterEnded { name } => write_name(&mut w, *name),
            Body::BarrierWait { name, tenant, members } => {
                write_name(&mut w, *name);
                write_name(&mut w, *tenant);
                w.u32(*members);
            }
            Body::BarrierReleased { round, leader } => {
                w.u64(*round).u8(u8::from(*leader));
            }
            Body::RosterAsk { name, tenant, ask } => {
                write_name(&mut w, *name);
                write_name(&mut w, *tenant);
                roster::write_ask(&mut w, ask);
            }
            Body::RosterAnswer(answer) => roster::write_answer(&mut w, answer),
            Body::Trace { version, context } => {
                w.u64(version.0);
                context.write(&mut w);
            }
            Body::ByReference { lease, segment, offset, ranges, version, waited_us, meta } => {
                w.u32(*lease).u32(*segment).u64(*offset).u32(*ranges).u64(version.0).u32(*waited_us).meta(meta);
            }
            Body::ReleaseReference { lease } => {
                w.u32(*lease);
            }
            Body::GatherRequest { stem, tenant, parts, trace } => {
                write_name(&mut w, *stem);
                write_name(&mut w, *tenant);
                gathered::write_parts(&mut w, parts);
                TraceContext::write_last(*trace, &mut w);
            }
            Body::BufferRecall { why, round } | Body::Recalled { why, round } => {
                w.u8(u8::from(*why == Recall::Room)).u32(*round);
            }
            Body::BufferRelease | Body::Cancel | Body::Cancelled | Body::Ack | Body::Ping | Body::Pong => {}
        }
        let len = u16::try_from(w.as_slice().len()).unwrap_or(u16::MAX);
        w.patch_u16(2, len);
        let sum = crc32c(w.as_slice());
        w.patch_u32(12, sum);
        w.into_vec()
    }

    /// Reads a message that a peer sent.
    ///
    /// # Errors
    /// [`WireError`] for bytes that [`Message::encode`] cannot have written.
    pub fn decode(bytes: &[u8]) -> Result<Message, WireError> {
        const WHAT: &str = "a control message";
        let mut r = Reader::new(WHAT, bytes);
        let version = r.u8()?;
        if version != LAYOUT_VERSION {
            return Err(WireError::Value {
                what: "layout version of a control message",
                value: u64::from(version),
                expected: "16",
            });
        }
        let kind = r.u8()?;
        let len = usize::from(r.u16()?);
        if len != bytes.len() || len > MAX_MESSAGE_BYTES {
            return Err(WireError::Value {
                what: "length of a control message",
                value: len as u64,
                expected: "the number of bytes that came, at most 1024",
            });
        }
        let credits = r.u16()?;
        let role = Role::from_flags(r.u16()?)?;
        let index = r.u32()?;
        let found = r.u32()?;
        let mut copy = [0; MAX_MESSAGE_BYTES];
        copy[..len].copy_from_slice(bytes);
        copy[12..16].fill(0);
        let computed = crc32c(&copy[..len]);
        if found != computed {
            return Err(WireError::Checksum { what: WHAT, found, computed });
        }
        let body = Message::decode_body(kind, &mut r)?;
        r.end()?;
        Ok(Message { credits, index, role, body })
    }

    fn decode_body(kind: u8, r: &mut Reader<'_>) -> Result<Body, WireError> {
        Ok(match kind {
            1 => Body::Name { name: read_name(r)?, text: Name::from_bytes(r.text()?)? },
            2 => {
                let (key, tenant) = (read_name(r)?, read_name(r)?);
                let (kind, follows) = (r.u8()?, r.u8()?);
                if follows > 7 {
                    return Err(WireError::Value {
                        what: "what follows a TENSOR_REQUEST",
                        value: u64::from(follows),
                        expected: "0 to 7: 1 for a slot, 2 for an identity, 4 if the owner has to answer itself",
                    });
                }
                let head = excerpt::read_head(r)?;
                let metadata_id = r.u32()?;
                let select = select(kind, r.u64()?)?;
                let slot = if follows & 1 != 0 { Some(SlotGrant::read(r)?) } else { None };
                let held = if follows & 2 != 0 { Some(read_identity(r)?) } else { None };
                let excerpt = excerpt::read_part(head, r)?;
                let trace = TraceContext::read_last(r)?;
                Body::TensorRequest {
                    key,
                    tenant,
                    select,
                    metadata_id,
                    excerpt,
                    slot,
                    held,
                    direct: follows & 4 != 0,
                    trace,
                }
            }
            3 => Body::MetaDataUpdate { version: Version(r.u64()?), metadata_id: r.u32()?, meta: r.meta()? },
            4 => Body::TensorReRequest { slot: SlotGrant::read(r)? },
            5 => {
                let code = FailureCode::from_wire(r.u16()?);
                Body::ErrorStatus(Failure { code, text: String::from_utf8_lossy(r.text()?).into_owned() })
            }
            6 => Body::BufferRequest {
                key: read_name(r)?,
                target: read_name(r)?,
                owner: read_name(r)?,
                tenant: read_name(r)?,
                metadata_id: r.u32()?,
                meta: r.meta()?,
            },
            7 => {
                let n = r.u32()?;
                if n as usize > MAX_SLOTS_PER_MESSAGE {
                    return Err(WireError::Value {
                        what: "number of slots in a BUFFER_RESPONSE",
                        value: u64::from(n),
                        expected: "at most 10",
                    });
                }
                let slots = (0..n).map(|_| SlotGrant::read(r)).collect::<Result<_, _>>()?;
                Body::BufferResponse { slots }
            }
            8 => Body::BufferIdle { slot: SlotGrant::read(r)? },
            9 => Body::BufferRecall { why: Recall::from_wire(r.u8()?)?, round: r.u32()? },
            10 => Body::Recalled { why: Recall::from_wire(r.u8()?)?, round: r.u32()? },
            11 => Body::BufferRelease,
            12 => Body::Cancel,
            13 => Body::Cancelled,
            14 => Body::Ack,
            15 => Body::Ping,
            16 => Body::Pong,
            17 => Body::Behind { newest: Version(r.u64()?) },
            18 => {
                let (name, tenant) = (read_name(r)?, read_name(r)?);
                Body::CounterOpen { name, tenant, wants_grant: r.flag("whether a grant is of use")? }
            }
            19 => {
                let (identity, rails) = (r.u64()?, r.u32()?);
                let word = match rails {
                    0 => None,
                    rails => {
                        let address = r.u64()?;
                        Some(RemoteSlice { address, len: 8, keys: read_keys(r, rails)? })
                    }
                };
                Body::CounterOpened { identity, word }
            }
            20 => {
                Body::CounterOp { name: read_name(r)?, tenant: read_name(r)?, identity: r.u64()?, op: read_atomic(r)? }
            }
            21 => Body::CounterResult { old: r.u64()? },
            22 => Body::CounterEnded { name: read_name(r)? },
            23 => Body::BarrierWait { name: read_name(r)?, tenant: read_name(r)?, members: r.u32()? },
            24 => Body::BarrierReleased { round: r.u64()?, leader: r.flag("whether it was the last to arrive")? },
            25 => Body::Trace { version: Version(r.u64()?), context: TraceContext::read(r)? },
            26 => Body::ByReference {
                lease: r.u32()?,
                segment: r.u32()?,
                offset: r.u64()?,
                ranges: r.u32()?,
                version: Version(r.u64()?),
                waited_us: r.u32()?,
                meta: r.meta()?,
            },
            27 => Body::ReleaseReference { lease: r.u32()? },
            28 => {
                let (stem, tenant, parts) = (read_name(r)?, read_name(r)?, gathered::read_parts(r)?);
                Body::GatherRequest { stem, tenant, parts, trace: TraceContext::read_last(r)? }
            }
            29 => Body::Unchanged { version: Version(r.u64()?) },
            30 => Body::RosterAsk { name: read_name(r)?, tenant: read_name(r)?, ask: roster::read_ask(r)? },
            31 => Body::RosterAnswer(roster::read_answer(r)?),
            32 => {
                let (version, metadata_id, len) = (Version(r.u64()?), r.u32()?, r.u64()?);
                Body::Delta { version, metadata_id, len, meta: r.meta()? }
            }
            33 => {
                let (version, identity) = (Version(r.u64()?), read_identity(r)?);
                let mut digest = [0; 16];
                digest.copy_from_slice(r.raw(16)?);
                let mut sources = [NameRef { id: 0, generation: 0 }; MAX_SOURCES];
                for source in &mut sources {
                    *source = read_name(r)?;
                }
                Body::Redirect { version, identity, digest, sources, meta: r.meta()? }
            }
            34 => Body::RelayRequest {
                key: read_name(r)?,
                tenant: read_name(r)?,
                owner: read_name(r)?,
                incarnation: r.u64()?,
                identity: read_identity(r)?,
                trace: TraceContext::read_last(r)?,
            },
            n => {
                return Err(WireError::Value {
                    what: "kind of a control message",
                    value: u64::from(n),
                    expected: "1 to 34",
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
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
        for (lens, says) in
            [(&[4000, 95][..], "is 1"), (&[4000, 97], "is 97"), (&[u64::MAX], "is 18446744073709551615")]
        {
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
                digest: [5; 16],
                sources: [name; MAX_SOURCES],
                meta: meta.clone(),
            },
            Body::RelayRequest {
                key: name,
                tenant: name,
                owner: name,
                incarnation: 6,
                identity: NonZeroU64::MIN,
                trace: TraceContext::new([7; 16], [8; 8], 1).ok(),
            },
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
}
