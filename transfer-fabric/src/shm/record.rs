//! The records of a link's rings. All numbers are little-endian.
//!
//! | offset | field |
//! |---|---|
//! | 0 | kind, u8: Write 1, Send 2, Ack 3, Forget 4, Kept 5 |
//! | 1 | whether there is an immediate, u8: 0 or 1 |
//! | 2 | the number of elements that follow, u16 |
//! | 4 | the immediate, u32 |
//! | 8 | the number of the peer's writes and messages that are placed, u64 |
//! | 16, 24, 32 | a Write's target: address u64, length u64, key u32. A Forget or Kept has its handle as the key |
//! | 36 | 0, u32 |
//! | 40 | a Send's message, or a Write's elements of 24 bytes: handle u32, 0 u32, offset u64, length u64 |

use super::MAX_SGE;
use smallvec::SmallVec;
use transfer_core::memory::{RemoteKey, RemoteSlice};
use transfer_memory::ring::MAX_RECORD_BYTES;

pub(super) const HEAD_BYTES: usize = 40;
const ELEMENT_BYTES: usize = 24;
const _: () = assert!(HEAD_BYTES + MAX_SGE * ELEMENT_BYTES <= MAX_RECORD_BYTES);

/// A range of a segment that was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) handle: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
}

pub(super) type Elements = SmallVec<[Element; 2]>;

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    /// Copy these elements into the target.
    Write(Write),
    /// A message, which is the rest of the record.
    Send,
    /// Only the number of placed works.
    Ack,
    /// The segment of this handle will not be named again.
    Forget(u32),
    /// This side keeps the segment of this handle, with a reader mark, for workers that read it by reference.
    Kept(u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) elements: Elements,
    pub(super) remote: RemoteSlice,
    pub(super) immediate: Option<u32>,
}

/// A record to be pushed.
#[derive(Debug)]
pub(super) struct Encoded {
    /// Most records are as short as this.
    bytes: SmallVec<[u8; 256]>,
}

impl Encoded {
    pub(super) fn new(record: &Record, message: &[u8], placed: u64) -> Encoded {
        let mut encoded = Encoded { bytes: SmallVec::new() };
        let kind = match record {
            Record::Write(_) => 1,
            Record::Send => 2,
            Record::Ack => 3,
            Record::Forget(_) => 4,
            Record::Kept(_) => 5,
        };
        let (immediate, remote, elements): (_, _, &[Element]) = match record {
            Record::Write(write) => (write.immediate, write.remote, &write.elements),
            Record::Forget(handle) | Record::Kept(handle) => (None, RemoteSlice::new(0, 0, RemoteKey(*handle)), &[]),
            Record::Send | Record::Ack => (None, RemoteSlice::new(0, 0, RemoteKey(0)), &[]),
        };
        encoded.put(&[kind, u8::from(immediate.is_some())]);
        // The number was checked against the limit before.
        encoded.put(&(elements.len() as u16).to_le_bytes());
        encoded.put(&immediate.unwrap_or(0).to_le_bytes());
        encoded.put(&placed.to_le_bytes());
        encoded.put(&remote.address.to_le_bytes());
        encoded.put(&remote.len.to_le_bytes());
        encoded.put(&remote.key().0.to_le_bytes());
        encoded.put(&[0; 4]);
        for Element { handle, offset, len } in elements {
            encoded.put(&handle.to_le_bytes());
            encoded.put(&[0; 4]);
            encoded.put(&offset.to_le_bytes());
            encoded.put(&len.to_le_bytes());
        }
        encoded.put(message);
        encoded
    }

    fn put(&mut self, bytes: &[u8]) {
        // Elements and messages were checked against the limits, so the record is not too long for the ring.
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], &'static str> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or("a record that is too short")
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, &'static str> {
    number(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, &'static str> {
    number(bytes, at).map(u64::from_le_bytes)
}

/// Decodes a record, and the number of works that its sender has placed. Checks all that can be checked without other
/// state.
pub(super) fn decode(bytes: &[u8]) -> Result<(Record, u64), &'static str> {
    let [kind, has_immediate] = number(bytes, 0)?;
    let count = usize::from(number(bytes, 2).map(u16::from_le_bytes)?);
    let (immediate, placed) = (u32_at(bytes, 4)?, u64_at(bytes, 8)?);
    let (address, len, key) = (u64_at(bytes, 16)?, u64_at(bytes, 24)?, u32_at(bytes, 32)?);
    let nothing = Err("a record with bits that mean nothing");
    if u32_at(bytes, 36)? != 0 || has_immediate > 1 || has_immediate == 0 && immediate != 0 {
        return nothing;
    }
    // All kinds but a write leave these fields zero.
    let is_bare = (has_immediate, count, address, len) == (0, 0, 0, 0);
    let rest = bytes.get(HEAD_BYTES..).unwrap_or(&[]);
    let record = match kind {
        1 => {
            if count > MAX_SGE || rest.len() != count * ELEMENT_BYTES {
                return Err("a write with another number of elements than it says");
            }
            let mut elements = Elements::new();
            let mut sum = 0_u64;
            for element in rest.chunks_exact(ELEMENT_BYTES) {
                if u32_at(element, 4)? != 0 {
                    return nothing;
                }
                let (offset, len) = (u64_at(element, 8)?, u64_at(element, 16)?);
                sum = sum.checked_add(len).ok_or("a write whose elements are too long")?;
                elements.push(Element { handle: u32_at(element, 0)?, offset, len });
            }
            if sum != len {
                return Err("a write whose elements have another length than its target");
            }
            let immediate = (has_immediate == 1).then_some(immediate);
            Record::Write(Write { elements, remote: RemoteSlice::new(address, len, RemoteKey(key)), immediate })
        }
        2..=5 if !is_bare || kind < 4 && key != 0 => return nothing,
        2 => Record::Send,
        3..=5 if !rest.is_empty() => return Err("a record that is too long"),
        3 => Record::Ack,
        4 => Record::Forget(key),
        5 => Record::Kept(key),
        _ => return Err("a record of a kind that is not known"),
    };
    Ok((record, placed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(count: usize) -> Record {
        let element = |i: usize| Element { handle: i as u32, offset: 1 << i.min(60), len: 5 };
        let elements: Elements = (0..count).map(element).collect();
        let remote = RemoteSlice::new(u64::MAX, 5 * count as u64, RemoteKey(0xFFFF_FFFF));
        Record::Write(Write { elements, remote, immediate: count.is_multiple_of(2).then_some(7) })
    }

    #[test]
    fn records_round_trip_and_bad_ones_are_refused() {
        for record in [write(0), write(1), write(MAX_SGE), Record::Ack, Record::Forget(9), Record::Kept(8)] {
            let encoded = Encoded::new(&record, &[], 1 << 50);
            assert_eq!(decode(encoded.bytes()), Ok((record, 1 << 50)));
            assert!((0..encoded.bytes().len()).all(|cut| decode(&encoded.bytes()[..cut]).is_err()));
            assert!(decode(&[encoded.bytes(), &[0]].concat()).is_err());
        }
        let sent = Encoded::new(&Record::Send, b"hello", 1);
        assert_eq!((decode(sent.bytes()), &sent.bytes()[HEAD_BYTES..]), (Ok((Record::Send, 1)), &b"hello"[..]));
        // Lengths that do not match, and lengths that overflow.
        for (at, value) in [(24, 6), (HEAD_BYTES + 16, 4), (HEAD_BYTES + 16, u64::MAX)] {
            let mut lie = Encoded::new(&write(2), &[], 0).bytes().to_vec();
            lie[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
            assert!(decode(&lie).is_err(), "{at} {value}");
        }
    }

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_shm_record() {
        let examples = [write(3), Record::Ack, Record::Forget(1), Record::Kept(2)]
            .map(|r| Encoded::new(&r, &[], 2).bytes().to_vec());
        let examples = examples.into_iter().chain([Encoded::new(&Record::Send, b"message", 3).bytes().to_vec()]);
        transfer_fuzz::Target::new("shm-record", examples).max_len(MAX_RECORD_BYTES).run(|bytes| match decode(bytes) {
            Ok((record, placed)) => {
                let message = if record == Record::Send { &bytes[HEAD_BYTES..] } else { &[] };
                assert_eq!(Encoded::new(&record, message, placed).bytes(), bytes);
                let Record::Write(write) = record else { return format!("{record:?}").chars().take(4).collect() };
                assert_eq!(write.elements.iter().map(|e| e.len).sum::<u64>(), write.remote.len);
                assert!(write.elements.len() <= MAX_SGE);
                format!("write {}", write.elements.len())
            }
            Err(why) => why.into(),
        });
    }
}
