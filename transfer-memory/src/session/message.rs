//! The session's messages as bytes.
//!
//! All integers are little-endian. Every message begins with `"TFSM"`, the version (u16) and the kind (u16); those
//! eight bytes, and the whole of Refused, are the same in all versions. A text is its length in bytes (u16) and UTF-8.
//!
//! | kind | message | fields | descriptors |
//! |---|---|---|---|
//! | 1 | Hello | wanted arena bytes u64, worker's name | |
//! | 2 | Welcome | session u64, incarnation u64, arena u32, arena bytes u64, rings bytes u64, submission and completion ring each as offset u64, capacity u32; offset of the hazard pointers behind them u64; board bytes u64; notices u32 and their bytes u64; node's name | rings, arena, and board and notices where they have any bytes |
//! | 3 | Refused | code u16, text | |
//! | 4 | Mapped | session u64 | |
//! | 5 | SegmentPassed | segment u32, bytes u64; reader marks of another sidecar's segment, else 0: owner u64, link u64 | the segment |
//! | 6 | SegmentRetired | segment u32 | |
//! | 7 | Return | incarnation u64 of the worker's last session, arena bytes u64, worker's name | its arena |
//! | 8 | Leave | | |

use super::{MessageError, Refusal, RefusalCode};
use crate::ring::RingRange;
use crate::segment::ReferenceMarks;
use transfer_core::memory::SegmentId;
use transfer_core::tensor::Name;

/// The version of the session's messages that this library speaks.
pub const PROTOCOL_VERSION: u16 = 22;

const MAGIC: &[u8; 4] = b"TFSM";

/// The longest text of a refusal, in bytes.
const MAX_REFUSAL_BYTES: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Welcome {
    pub(super) session: u64,
    pub(super) incarnation: u64,
    pub(super) arena: SegmentId,
    pub(super) arena_len: u64,
    pub(super) rings_len: u64,
    pub(super) submission: RingRange,
    pub(super) completion: RingRange,
    pub(super) hazards: u64,
    /// The length of the board; 0: there is none.
    pub(super) board_len: u64,
    /// Of 0 bytes if there is no board.
    pub(super) notices: (SegmentId, u64),
    pub(super) node: Name,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SessionMessage {
    Hello { wanted_arena_bytes: u64, name: Name },
    Welcome(Welcome),
    Refused(Refusal),
    Mapped { session: u64 },
    SegmentPassed { segment: SegmentId, len: u64, references: Option<ReferenceMarks> },
    SegmentRetired { segment: SegmentId },
    Return { incarnation: u64, arena_len: u64, name: Name },
    Leave,
}

impl SessionMessage {
    pub(super) fn name(&self) -> &'static str {
        match self {
            SessionMessage::Hello { .. } => "Hello",
            SessionMessage::Welcome(_) => "Welcome",
            SessionMessage::Refused(_) => "Refused",
            SessionMessage::Mapped { .. } => "Mapped",
            SessionMessage::SegmentPassed { .. } => "SegmentPassed",
            SessionMessage::SegmentRetired { .. } => "SegmentRetired",
            SessionMessage::Return { .. } => "Return",
            SessionMessage::Leave => "Leave",
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer(MAGIC.to_vec());
        out.u16(PROTOCOL_VERSION);
        match self {
            SessionMessage::Hello { wanted_arena_bytes, name } => {
                out.u16(1);
                out.u64(*wanted_arena_bytes);
                out.text(name.as_str());
            }
            SessionMessage::Welcome(w) => {
                out.u16(2);
                out.u64(w.session);
                out.u64(w.incarnation);
                out.u32(w.arena.0);
                out.u64(w.arena_len);
                out.u64(w.rings_len);
                for ring in [w.submission, w.completion] {
                    out.u64(ring.offset);
                    out.u32(ring.capacity);
                }
                out.u64(w.hazards);
                out.u64(w.board_len);
                out.u32(w.notices.0.0);
                out.u64(w.notices.1);
                out.text(w.node.as_str());
            }
            SessionMessage::Refused(refusal) => {
                out.u16(3);
                out.u16(refusal.code.to_wire());
                out.text(&refusal.text[..refusal.text.floor_char_boundary(MAX_REFUSAL_BYTES)]);
            }
            SessionMessage::Mapped { session } => {
                out.u16(4);
                out.u64(*session);
            }
            SessionMessage::SegmentPassed { segment, len, references } => {
                out.u16(5);
                out.u32(segment.0);
                out.u64(*len);
                let marks = references.unwrap_or(ReferenceMarks { owner: 0, link: 0 });
                out.u64(marks.owner);
                out.u64(marks.link);
            }
            SessionMessage::SegmentRetired { segment } => {
                out.u16(6);
                out.u32(segment.0);
            }
            SessionMessage::Return { incarnation, arena_len, name } => {
                out.u16(7);
                out.u64(*incarnation);
                out.u64(*arena_len);
                out.text(name.as_str());
            }
            SessionMessage::Leave => out.u16(8),
        }
        out.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<SessionMessage, MessageError> {
        if bytes.get(..4) != Some(MAGIC) {
            return Err(MessageError::NotOurs { found: bytes[..bytes.len().min(4)].to_vec() });
        }
        let mut head = Reader { message: "the head of a message", bytes, at: 4 };
        let (version, kind) = (head.u16()?, head.u16()?);
        if version != PROTOCOL_VERSION && kind != 3 {
            return Err(MessageError::Version { found: version });
        }
        let message = match kind {
            1 => "Hello",
            2 => "Welcome",
            3 => "Refused",
            4 => "Mapped",
            5 => "SegmentPassed",
            6 => "SegmentRetired",
            7 => "Return",
            8 => "Leave",
            kind => return Err(MessageError::UnknownKind { kind }),
        };
        let mut r = Reader { message, ..head };
        let decoded = match kind {
            1 => SessionMessage::Hello { wanted_arena_bytes: r.u64()?, name: Name::from_bytes(r.text()?)? },
            2 => SessionMessage::Welcome(Welcome {
                session: r.u64()?,
                incarnation: r.u64()?,
                arena: SegmentId(r.u32()?),
                arena_len: r.u64()?,
                rings_len: r.u64()?,
                submission: r.ring()?,
                completion: r.ring()?,
                hazards: r.u64()?,
                board_len: r.u64()?,
                notices: (SegmentId(r.u32()?), r.u64()?),
                node: Name::from_bytes(r.text()?)?,
            }),
            3 => SessionMessage::Refused(Refusal {
                code: RefusalCode::from_wire(r.u16()?),
                // The text is for people, so invalid UTF-8 is replaced.
                text: String::from_utf8_lossy(r.text()?).into_owned(),
            }),
            4 => SessionMessage::Mapped { session: r.u64()? },
            5 => {
                let (segment, len) = (SegmentId(r.u32()?), r.u64()?);
                let marks = ReferenceMarks { owner: r.u64()?, link: r.u64()? };
                let references = (marks.owner != 0 || marks.link != 0).then_some(marks);
                SessionMessage::SegmentPassed { segment, len, references }
            }
            6 => SessionMessage::SegmentRetired { segment: SegmentId(r.u32()?) },
            7 => {
                let (incarnation, arena_len) = (r.u64()?, r.u64()?);
                SessionMessage::Return { incarnation, arena_len, name: Name::from_bytes(r.text()?)? }
            }
            _ => SessionMessage::Leave,
        };
        match r.at == bytes.len() {
            true => Ok(decoded),
            false => Err(MessageError::WrongLength { message, found: bytes.len(), needed: r.at }),
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u16(&mut self, n: u16) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    fn u32(&mut self, n: u32) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    /// Writes a text of at most 1 KiB: a name, or a refusal's text.
    fn text(&mut self, text: &str) {
        self.u16(text.len() as u16);
        self.0.extend_from_slice(text.as_bytes());
    }
}

struct Reader<'a> {
    message: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], MessageError> {
        let needed = self.at + len;
        let found = self.bytes.get(self.at..needed);
        self.at = needed;
        found.ok_or(MessageError::WrongLength { message: self.message, found: self.bytes.len(), needed })
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }
    fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_le_bytes)
    }
    fn ring(&mut self) -> Result<RingRange, MessageError> {
        Ok(RingRange { offset: self.u64()?, capacity: self.u32()? })
    }
    fn text(&mut self) -> Result<&'a [u8], MessageError> {
        let len = self.u16()?;
        self.take(len.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn examples() -> Vec<SessionMessage> {
        let ring = |offset| RingRange { offset, capacity: 8192 };
        vec![
            SessionMessage::Hello { wanted_arena_bytes: 1 << 40, name: Name::new("trainer-0").unwrap() },
            SessionMessage::Welcome(Welcome {
                session: 1,
                incarnation: u64::MAX,
                arena: SegmentId(3),
                arena_len: 4,
                rings_len: 5,
                submission: ring(0),
                completion: ring(8704),
                hazards: 1 << 15,
                board_len: 1 << 20,
                notices: (SegmentId(9), 1 << 15),
                node: Name::new("node-ä").unwrap(),
            }),
            SessionMessage::Refused(Refusal { code: RefusalCode::NameTaken, text: "taken".to_owned() }),
            SessionMessage::Refused(Refusal { code: RefusalCode::Other(900), text: String::new() }),
            SessionMessage::Mapped { session: 7 },
            SessionMessage::SegmentPassed { segment: SegmentId(9), len: 10, references: None },
            SessionMessage::SegmentPassed {
                segment: SegmentId(9),
                len: 10,
                references: Some(ReferenceMarks { owner: 11, link: u64::MAX }),
            },
            SessionMessage::SegmentRetired { segment: SegmentId(9) },
            SessionMessage::Return { incarnation: 1, arena_len: 2, name: Name::new("trainer-0").unwrap() },
            SessionMessage::Leave,
        ]
    }

    #[test]
    fn messages_read_back_and_every_other_length_is_an_error() {
        for message in examples() {
            let mut bytes = message.encode();
            assert_eq!(SessionMessage::decode(&bytes).as_ref(), Ok(&message));
            for cut in 0..bytes.len() {
                assert!(SessionMessage::decode(&bytes[..cut]).is_err(), "{message:?} cut to {cut}");
            }
            bytes.push(0);
            let e = SessionMessage::decode(&bytes).unwrap_err();
            assert!(matches!(e, MessageError::WrongLength { found, needed, .. } if found == needed + 1), "{e}");
        }
    }

    #[test]
    fn a_refusal_is_understood_in_any_version_and_cut_to_size() {
        let text = "ä".repeat(5000);
        let mut bytes = SessionMessage::Refused(Refusal { code: RefusalCode::Version, text }).encode();
        bytes[4] = 200;
        let Ok(SessionMessage::Refused(refusal)) = SessionMessage::decode(&bytes) else { panic!() };
        assert_eq!((refusal.code, refusal.text.len()), (RefusalCode::Version, 1024));
        bytes[6] = 4;
        assert_eq!(SessionMessage::decode(&bytes), Err(MessageError::Version { found: 200 }));
    }

    #[test]
    fn refusal_codes_read_back() {
        for n in 0..20 {
            assert_eq!(RefusalCode::from_wire(n).to_wire(), n);
        }
    }

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_session_message() {
        let target = transfer_fuzz::Target::new("session-message", examples().iter().map(SessionMessage::encode));
        target.run(|bytes| match SessionMessage::decode(bytes) {
            Ok(message) => {
                // A refusal is understood in any version, and its text may be cut.
                if message.name() != "Refused" {
                    assert_eq!(message.encode(), bytes);
                }
                message.name().to_owned()
            }
            Err(e) => e.to_string(),
        });
    }

    proptest! {
        #[test]
        fn garbage_is_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..10) {
            prop_assert!(bytes.starts_with(MAGIC) || SessionMessage::decode(&bytes).is_err());
            if bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&[b'T', b'F', b'S', b'M', PROTOCOL_VERSION as u8, 0, kind, 0]);
                if let Ok(message) = SessionMessage::decode(&bytes) && message.name() != "Refused" {
                    prop_assert_eq!(message.encode(), bytes);
                }
            }
        }
    }
}
