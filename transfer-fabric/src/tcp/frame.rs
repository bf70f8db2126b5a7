//! Frames: a fixed header of 48 bytes, then a body.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `TTCP` |
//! | 4 | 1 | version, [`VERSION`] |
//! | 5 | 1 | [`Kind`] |
//! | 6 | 1 | 1: an immediate follows the body; 0: none |
//! | 7 | 1 | 0 |
//! | 8 | 4 | the immediate |
//! | 12 | 4 | the key of a write |
//! | 16 | 8 | the address of a write |
//! | 24 | 8 | length of the body in bytes |
//! | 32 | 8 | the number of writes and messages, received on this link, that the sender has placed so far |
//! | 40 | 4 | 0 |
//! | 44 | 4 | CRC32C of the 44 bytes before |
//!
//! All numbers are little-endian.

use transfer_core::memory::{RemoteKey, RemoteSlice};
use transfer_core::wire::crc32c;

pub(super) const HEADER_BYTES: usize = 48;
pub(super) const VERSION: u8 = 1;
const MAGIC: [u8; 4] = *b"TTCP";
const SUM_AT: usize = 44;

/// The longest text of a [`Kind::Refuse`] or [`Kind::Bye`], in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The first frame of the connecting side: the acceptor's token.
    Hello = 1,
    /// The first frame of the accepting side: the initiator's token.
    Welcome = 2,
    /// A write; the body goes to `remote`.
    Write = 3,
    /// A message.
    Send = 4,
    /// Only the number of placed works.
    Ack = 5,
    /// The last frame: the peer's mistake, in words.
    Refuse = 6,
    /// The last frame of a link that ends in good order: the reason, in words.
    Bye = 7,
}

impl Kind {
    const ALL: [Kind; 7] = [Kind::Hello, Kind::Welcome, Kind::Write, Kind::Send, Kind::Ack, Kind::Refuse, Kind::Bye];
}

/// A frame that cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadFrame {
    #[error("a frame that does not start with TTCP")]
    Magic,
    #[error("a frame of version {0}, this side speaks {VERSION}")]
    Version(u8),
    #[error("a frame whose header has CRC32C {computed:#010x}, it says {found:#010x}")]
    Checksum { found: u32, computed: u32 },
    #[error("a frame of the unknown kind {0}")]
    Kind(u8),
    #[error("a frame with a bit set that has no meaning")]
    Reserved,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) immediate: Option<u32>,
    /// The length of this slice is that of the body, for every kind.
    pub(super) remote: RemoteSlice,
    pub(super) placed: u64,
}

impl Header {
    pub(super) fn new(kind: Kind, body_len: u64) -> Header {
        let remote = RemoteSlice::new(0, body_len, RemoteKey(0));
        Header { kind, immediate: None, remote, placed: 0 }
    }

    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[6] = self.immediate.is_some().into();
        bytes[8..12].copy_from_slice(&self.immediate.unwrap_or(0).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.remote.key().0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.remote.address.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.remote.len.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.placed.to_le_bytes());
        let sum = crc32c(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, BadFrame> {
        if bytes[0..4] != MAGIC {
            return Err(BadFrame::Magic);
        }
        if bytes[4] != VERSION {
            return Err(BadFrame::Version(bytes[4]));
        }
        let (found, computed) = (u32_at(bytes, SUM_AT), crc32c(&bytes[..SUM_AT]));
        if found != computed {
            return Err(BadFrame::Checksum { found, computed });
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[5]).ok_or(BadFrame::Kind(bytes[5]))?;
        let immediate = match (bytes[6], u32_at(bytes, 8)) {
            (1, value) => Some(value),
            (0, 0) => None,
            _ => return Err(BadFrame::Reserved),
        };
        if bytes[7] != 0 || u32_at(bytes, 40) != 0 {
            return Err(BadFrame::Reserved);
        }
        let key = RemoteKey(u32_at(bytes, 12));
        let remote = RemoteSlice::new(u64_at(bytes, 16), u64_at(bytes, 24), key);
        Ok(Header { kind, immediate, remote, placed: u64_at(bytes, 32) })
    }
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let mut le = [0; 4];
    le.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(le)
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut le = [0; 8];
    le.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(le)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_round_trip(
            kind in prop::sample::select(Kind::ALL.to_vec()),
            immediate in any::<Option<u32>>(),
            (address, len, key) in any::<(u64, u64, u32)>(),
            placed in any::<u64>(),
        ) {
            let header = Header { kind, immediate, remote: RemoteSlice::new(address, len, RemoteKey(key)), placed };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn a_changed_bit_is_found(at in 0..HEADER_BYTES * 8, len in any::<u64>()) {
            let mut bytes = Header::new(Kind::Write, len).encode();
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert!(Header::decode(&bytes).is_err());
        }
    }

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_tcp_frame() {
        let examples = Kind::ALL.map(|kind| {
            let remote = RemoteSlice::new(1 << 40, 4096, RemoteKey(7));
            Header { kind, immediate: Some(9), remote, placed: 3 }.encode().to_vec()
        });
        let repair = |bytes: &mut Vec<u8>| {
            bytes.resize(HEADER_BYTES, 0);
            let sum = crc32c(&bytes[..SUM_AT]);
            bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        };
        transfer_fuzz::Target::new("tcp-frame", examples).repair(repair).run(|bytes| {
            let Ok(bytes) = <&[u8; HEADER_BYTES]>::try_from(bytes) else { return "another length".into() };
            match Header::decode(bytes) {
                Ok(header) => {
                    assert_eq!(&header.encode(), bytes);
                    format!("{:?}", header.kind)
                }
                Err(e) => e.to_string(),
            }
        });
    }

    #[test]
    fn unknown_kinds_and_reserved_bits_are_refused() {
        for (at, value, error) in [(5, 99, BadFrame::Kind(99)), (6, 2, BadFrame::Reserved), (40, 1, BadFrame::Reserved)]
        {
            let mut bytes = Header::new(Kind::Ack, 0).encode();
            bytes[at] = value;
            let sum = crc32c(&bytes[..SUM_AT]);
            bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(Header::decode(&bytes), Err(error));
        }
    }
}
