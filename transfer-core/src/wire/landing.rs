//! Landing slots, their immediate data, and the header in front of every landed tensor.
//!
//! A landing slot belongs to the receiver. It has a number with a generation, and a range of the receiver's memory: a
//! [`Header`] of [`HEADER_BYTES`], then the body, unless that lands apart, in ranges of a worker's memory. Immediate data is always the receiver's [`SlotNumber`], never a
//! number that the sender chose. On verbs the fabric converts it to network byte order, as the InfiniBand specification
//! requires; here it is an integer.
//!
//! ```text
//! offset  0  magic        u32   "TLH1"
//!         4  slot         u32   the immediate that follows
//!         8  index        u32   pull: the receiver's request; push: the sender's flow
//!         12  metadata id  u32   the id of the (dtype, shape) among those of the key
//!         16  version      u64
//!         24  body length  u64   bytes, without padding
//!         32  pieces       u32   writes of this transfer, over all rails
//!         36  waited       u32   microseconds that the request waited for its version
//!         40  name         u32   number of the key in this link's table
//!         44  until        u8    push: 0 replaced, 1 fetched a number of times, 2 deleted
//!         45  life         u8    push: 0 the session of the worker that owns it, 1 the sidecar where it has landed
//!         46  fetches      u32   push: the number of fetches if `until` is 1, else 0
//!        50  packed       u8    pull: 1 if the sender's processor has packed the body before it was sent, else 0
//!        51  deltas       u8    pull: 1 if deltas of the version may follow, 2 more if the body is a delta of the one that the request named, 4 more if other nodes may ask for the version here
//!        52  identity     u64   pull: the owner's number of the version, by which its next requests may name it; else 0
//!        60  checksum     u32   CRC32C of bytes 0 to 59
//! ```

use super::session::{read_retention, retention_bytes};
use super::{Reader, WireError, Writer, crc32c};
use crate::memory::{RailKeys, RemoteKey, RemoteSlice};
use crate::op::MAX_LANDING_RANGES;
use crate::tensor::{Retention, Version};
use std::fmt;
use std::num::NonZeroU64;

/// The length of the header in bytes. A body behind it starts there, and so has the alignment of its slot.
pub const HEADER_BYTES: u64 = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"TLH1");
const INDEX_BITS: u32 = 20;

/// The largest number of slots of one link.
pub const MAX_SLOTS: u32 = 1 << INDEX_BITS;

/// A landing slot's number with its generation, as carried in immediate data. The low 20 bits are the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotNumber(pub u32);

impl SlotNumber {
    /// Combines an index below [`MAX_SLOTS`] with the low 12 bits of a generation.
    #[must_use]
    pub fn new(index: u32, generation: u32) -> SlotNumber {
        SlotNumber((index & (MAX_SLOTS - 1)) | (generation << INDEX_BITS))
    }

    /// Returns the index in the receiver's table.
    #[must_use]
    pub fn index(self) -> u32 {
        self.0 & (MAX_SLOTS - 1)
    }
}

impl fmt::Display for SlotNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}.{}", self.index(), self.0 >> INDEX_BITS)
    }
}

/// The header of a landed tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The slot that the sender meant to write.
    pub slot: SlotNumber,
    /// Pull: the receiver's request index. Push: the sender's flow index.
    pub index: u32,
    /// The id of the tensor's description among those of the key.
    pub metadata_id: u32,
    /// The version.
    pub version: Version,
    /// The length of the body in bytes.
    pub body_len: u64,
    /// The number of writes of this transfer.
    pub pieces: u32,
    /// Microseconds that the request waited for its version at the owner.
    pub waited_us: u32,
    /// The key's number in the link's table of the requesting side.
    pub name: u32,
    /// Push: how long the version stays published where it has landed.
    pub retention: Retention,
    /// Pull: whether the sender's processor has packed the body. The receiver's report counts it as copied.
    pub packed: bool,
    /// Pull: the owner's number of the version, by which a later request may name it. `None`: each fetch of the version
    /// has to reach the owner.
    pub identity: Option<NonZeroU64>,
    /// Pull: whether deltas of the version may follow, so that it is worth to keep it.
    pub deltas_follow: bool,
    /// Pull: whether the body is a delta of the version that the request says this side has.
    pub is_delta: bool,
    /// Pull: whether other nodes may be sent here for the version, so that it is worth to keep it.
    pub spreads: bool,
}

impl Header {
    /// Returns the header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        const SUM_AT: usize = HEADER_BYTES as usize - 4;
        let mut out = [0; HEADER_BYTES as usize];
        let mut at = 0;
        // Not by a `Writer`, which takes its memory from the heap: each tensor that is sent has a header.
        let mut put = |field: &[u8]| {
            out[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        [MAGIC, self.slot.0, self.index, self.metadata_id].iter().for_each(|n| put(&n.to_le_bytes()));
        [self.version.0, self.body_len].iter().for_each(|n| put(&n.to_le_bytes()));
        [self.pieces, self.waited_us, self.name].iter().for_each(|n| put(&n.to_le_bytes()));
        put(&retention_bytes(self.retention));
        let flags = u8::from(self.deltas_follow) | u8::from(self.is_delta) << 1 | u8::from(self.spreads) << 2;
        put(&[u8::from(self.packed), flags]);
        put(&self.identity.map_or(0, NonZeroU64::get).to_le_bytes());
        let sum = crc32c(&out[..SUM_AT]);
        out[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a header that was copied out of landed memory.
    ///
    /// # Errors
    /// [`WireError`] if the magic, the checksum or a field is wrong.
    pub fn decode(bytes: &[u8; HEADER_BYTES as usize]) -> Result<Header, WireError> {
        let mut r = Reader::new("a landing header", bytes);
        let magic = r.u32()?;
        if magic != MAGIC {
            return Err(WireError::Value {
                what: "magic of a landing header",
                value: u64::from(magic),
                expected: "\"TLH1\"",
            });
        }
        let mut header = Header {
            slot: SlotNumber(r.u32()?),
            index: r.u32()?,
            metadata_id: r.u32()?,
            version: Version(r.u64()?),
            body_len: r.u64()?,
            pieces: r.u32()?,
            waited_us: r.u32()?,
            name: r.u32()?,
            retention: read_retention(&mut r)?,
            packed: r.flag("whether a landed body was packed")?,
            identity: None,
            deltas_follow: false,
            is_delta: false,
            spreads: false,
        };
        let deltas = r.u8()?;
        if deltas > 7 {
            let what = "deltas of a landing header";
            return Err(WireError::Value { what, value: deltas.into(), expected: "0 to 7" });
        }
        (header.deltas_follow, header.is_delta, header.spreads) = (deltas & 1 != 0, deltas & 2 != 0, deltas & 4 != 0);
        header.identity = NonZeroU64::new(r.u64()?);
        let found = r.u32()?;
        let computed = crc32c(&bytes[..60]);
        if found != computed {
            return Err(WireError::Checksum { what: "a landing header", found, computed });
        }
        Ok(header)
    }
}

/// A landing slot as its receiver grants it: its number, and its range with one remote key for each rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotGrant {
    /// The slot's number. The immediate of the last write must have this value.
    pub number: SlotNumber,
    /// The largest body in bytes.
    pub capacity: u64,
    /// The range of the header, with its keys. It is `capacity` longer than [`HEADER_BYTES`] if the body lies behind the
    /// header.
    pub remote: RemoteSlice,
    /// The ranges that the body fills one behind the other, each with its keys, if the body lies apart. Together they are
    /// `capacity` bytes long. There are at most [`MAX_LANDING_RANGES`], and none if the body lies behind the header.
    pub body: Vec<RemoteSlice>,
}

/// The bit in the rails of a slot which says that its body lies apart.
const BODY_APART: u32 = 1 << 31;

impl SlotGrant {
    pub(super) fn write(&self, w: &mut Writer) {
        let apart = if self.body.is_empty() { 0 } else { BODY_APART };
        w.u32(self.number.0).u32(rails_of(&self.remote.keys) | apart).u64(self.capacity).u64(self.remote.address);
        write_keys(w, &self.remote.keys);
        if !self.body.is_empty() {
            w.u8(u8::try_from(self.body.len()).unwrap_or(u8::MAX));
        }
        for range in &self.body {
            w.u32(rails_of(&range.keys)).u64(range.address).u64(range.len);
            write_keys(w, &range.keys);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<SlotGrant, WireError> {
        let number = SlotNumber(r.u32()?);
        let rails = r.u32()?;
        let (capacity, address) = (r.u64()?, r.u64()?);
        if capacity >= 1 << 63 {
            return Err(WireError::Value { what: "capacity of a slot", value: capacity, expected: "below 2^63" });
        }
        let keys = read_keys(r, rails & !BODY_APART)?;
        if rails & BODY_APART == 0 {
            let remote = RemoteSlice { address, len: capacity + HEADER_BYTES, keys };
            return Ok(SlotGrant { number, capacity, remote, body: Vec::new() });
        }
        let remote = RemoteSlice { address, len: HEADER_BYTES, keys };
        Ok(SlotGrant { number, capacity, remote, body: read_body(r, capacity)? })
    }
}

/// Reads the ranges of a body that lies apart.
fn read_body(r: &mut Reader<'_>, capacity: u64) -> Result<Vec<RemoteSlice>, WireError> {
    let wrong = |what, value, expected| Err(WireError::Value { what, value, expected });
    let count = r.u8()?;
    if count == 0 || usize::from(count) > MAX_LANDING_RANGES {
        return wrong("number of ranges of a body", count.into(), "1 to 24");
    }
    let (mut body, mut left) = (Vec::with_capacity(count.into()), capacity);
    for _ in 0..count {
        let (rails, address, len) = (r.u32()?, r.u64()?, r.u64()?);
        if address.checked_add(len).is_none() {
            return wrong("address of a range of a body", address, "below 2^64 minus its length");
        }
        let Some(rest) = left.checked_sub(len).filter(|_| len > 0) else {
            return wrong("length of a range of a body", len, "1 to what is left of the capacity of its slot");
        };
        left = rest;
        body.push(RemoteSlice { address, len, keys: read_keys(r, rails)? });
    }
    match left {
        0 => Ok(body),
        left => wrong("capacity of a slot that its ranges do not have", left, "0"),
    }
}

/// Returns a bit set of the rails that have a key.
pub(super) fn rails_of(keys: &RailKeys) -> u32 {
    let keys = keys.all();
    (0..RailKeys::MAX_RAILS).filter(|rail| keys[*rail].is_some()).map(|rail| 1 << rail).sum()
}

/// Writes the keys of the rails that have one, in order.
pub(super) fn write_keys(w: &mut Writer, keys: &RailKeys) {
    for key in keys.all().into_iter().flatten() {
        w.u32(key.0);
    }
}

/// Reads the keys of the rails in the bit set `rails`.
pub(super) fn read_keys(r: &mut Reader<'_>, rails: u32) -> Result<RailKeys, WireError> {
    let wrong =
        WireError::Value { what: "rails of a slot", value: u64::from(rails), expected: "1 to 15, a bit for each rail" };
    if rails >> RailKeys::MAX_RAILS != 0 {
        return Err(wrong);
    }
    let mut keys = [None; RailKeys::MAX_RAILS];
    for (rail, key) in keys.iter_mut().enumerate() {
        if rails & 1 << rail != 0 {
            *key = Some(RemoteKey(r.u32()?));
        }
    }
    RailKeys::new(&keys).ok_or(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Life, Until};
    use std::num::NonZeroU32;

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_landing_header() {
        let examples = [(0, 0), (u32::MAX, u64::MAX)].map(|(n, m)| {
            let slot = SlotNumber(n);
            let (version, body_len) = (Version(m), m);
            let retention = Retention {
                until: NonZeroU32::new(n).map_or(Until::Deleted, Until::Fetched),
                life: Life::Session,
                ..Retention::default()
            };
            let header = Header {
                slot,
                index: n,
                metadata_id: n,
                version,
                body_len,
                pieces: n,
                waited_us: n,
                name: n,
                retention,
                packed: n > 0,
                identity: NonZeroU64::new(m),
                deltas_follow: n > 0,
                is_delta: n > 0,
                spreads: n > 0,
            };
            header.encode().to_vec()
        });
        let repair = |bytes: &mut Vec<u8>| {
            bytes.resize(64, 0);
            let sum = crc32c(&bytes[..60]);
            bytes[60..].copy_from_slice(&sum.to_le_bytes());
        };
        transfer_fuzz::Target::new("landing-header", examples).repair(repair).run(|bytes| {
            let Ok(bytes) = <&[u8; 64]>::try_from(bytes) else { return "another length".into() };
            match Header::decode(bytes) {
                Ok(header) => {
                    assert_eq!(&header.encode(), bytes);
                    "a header".into()
                }
                Err(e) => e.to_string(),
            }
        });
    }

    #[test]
    fn header_reads_back_and_any_flipped_bit_is_an_error() {
        let h = Header {
            slot: SlotNumber::new(7, 3),
            index: 1,
            metadata_id: 2,
            version: Version(3),
            body_len: 4,
            pieces: 5,
            waited_us: 6,
            name: 8,
            retention: Retention { until: Until::Deleted, life: Life::Sidecar, ..Retention::default() },
            packed: true,
            identity: NonZeroU64::new(9),
            deltas_follow: true,
            is_delta: false,
            spreads: false,
        };
        let bytes = h.encode();
        assert_eq!(Header::decode(&bytes), Ok(h));
        for bit in 0..512 {
            let mut b = bytes;
            b[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&b).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn slot_generations_wrap_around() {
        let n = SlotNumber::new(MAX_SLOTS - 1, 0xfff + 1 + 5);
        assert_eq!(n.index(), MAX_SLOTS - 1);
        assert_eq!(n, SlotNumber::new(MAX_SLOTS - 1, 5));
    }
}
