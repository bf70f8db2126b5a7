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
    Body, LAYOUT_VERSION, MAX_DIGESTS_PER_MESSAGE, MAX_MESSAGE_BYTES, MAX_SLOTS_PER_MESSAGE, MAX_SOURCES, Message,
    NameRef, Recall, Role,
};
use crate::fabric::AtomicOp;
use crate::memory::RemoteSlice;
use crate::op::{Failure, FailureCode};
use crate::tensor::{Name, Version};
use crate::trace::TraceContext;
use crate::wire::landing::{SlotGrant, rails_of, read_keys, write_keys};
use crate::wire::select::{select, select_parts};
use crate::wire::session::cut;
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
            Body::Redirect { version, identity, metadata_id, chunk_bytes, sources, meta } => {
                w.u64(version.0).u64(identity.get()).u32(*metadata_id).u64(*chunk_bytes);
                sources.iter().for_each(|source| write_name(&mut w, *source));
                w.meta(meta);
            }
            Body::ChunkRequest { key, tenant, owner, incarnation, version, identity, offset, slot, trace } => {
                for n in [key, tenant, owner] {
                    write_name(&mut w, *n);
                }
                w.u64(*incarnation).u64(version.0).u64(identity.get()).u64(*offset);
                slot.write(&mut w);
                TraceContext::write_last(*trace, &mut w);
            }
            Body::Digests { first, digests } => {
                w.u32(*first).u8(u8::try_from(digests.len()).unwrap_or(u8::MAX));
                digests.iter().for_each(|digest| {
                    w.raw(digest);
                });
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
            Body::SourceFailed { source } => {
                w.u8(*source);
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
            Body::BufferRelease
            | Body::Cancel
            | Body::Taken
            | Body::Cancelled
            | Body::Ack
            | Body::Ping
            | Body::Pong => {}
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
                expected: "19",
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
                let (version, identity, metadata_id) = (Version(r.u64()?), read_identity(r)?, r.u32()?);
                let chunk_bytes = r.u64()?;
                let mut sources = [NameRef { id: 0, generation: 0 }; MAX_SOURCES];
                for source in &mut sources {
                    *source = read_name(r)?;
                }
                Body::Redirect { version, identity, metadata_id, chunk_bytes, sources, meta: r.meta()? }
            }
            34 => Body::ChunkRequest {
                key: read_name(r)?,
                tenant: read_name(r)?,
                owner: read_name(r)?,
                incarnation: r.u64()?,
                version: Version(r.u64()?),
                identity: read_identity(r)?,
                offset: r.u64()?,
                slot: SlotGrant::read(r)?,
                trace: TraceContext::read_last(r)?,
            },
            35 => Body::Taken,
            36 => match r.u8()? {
                source if usize::from(source) < MAX_SOURCES => Body::SourceFailed { source },
                n => {
                    return Err(WireError::Value {
                        what: "place of a node among those that REDIRECT has named",
                        value: u64::from(n),
                        expected: "0 to 2",
                    });
                }
            },
            37 => {
                let (first, count) = (r.u32()?, r.u8()?);
                if count == 0 || usize::from(count) > MAX_DIGESTS_PER_MESSAGE {
                    return Err(WireError::Value {
                        what: "number of digests in a DIGESTS",
                        value: u64::from(count),
                        expected: "1 to 60",
                    });
                }
                let digest = |bytes: &[u8]| bytes.try_into().unwrap_or([0; 16]);
                let digests = (0..count).map(|_| r.raw(16).map(digest)).collect::<Result<_, _>>()?;
                Body::Digests { first, digests }
            }
            n => {
                return Err(WireError::Value {
                    what: "kind of a control message",
                    value: u64::from(n),
                    expected: "1 to 37",
                });
            }
        })
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
