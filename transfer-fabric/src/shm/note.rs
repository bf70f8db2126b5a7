//! The notes that go over the socket of a link: greetings, descriptors and farewells. All numbers are little-endian.
//!
//! | note | bytes behind the kind | with it |
//! |---|---|---|
//! | Hello (1) | version u8, token 16, incarnation u64, user namespace u64 (0: no references) | the rings' memfd |
//! | Welcome (2) | token 16, nonce 16, incarnation u64, user namespace u64 (0: no references) | |
//! | Segment (3) | handle u32, length u64 | the segment's memfd |
//! | Bye (4), Refuse (5) | a text | |

use super::offer::VERSION;
use crate::token::{TOKEN_BYTES, Token};

/// The longest text of a farewell, in bytes.
const MAX_TEXT_BYTES: usize = 512;

/// The length of the nonce that is read through shared memory.
pub(super) const NONCE_BYTES: usize = 16;

/// A random number that only a process that maps the same memory can know.
pub(super) type Nonce = [u8; NONCE_BYTES];

/// A message over the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Note {
    /// The acceptor's first note: the token of the offer, and the memory of the rings.
    Hello { token: Token, incarnation: u64, namespace: u64 },
    /// The initiator's answer: the token of the acceptor's answer, and the nonce that it found in that memory.
    Welcome { token: Token, nonce: Nonce, incarnation: u64, namespace: u64 },
    /// A segment that writes will name by this handle.
    Segment { handle: u32, len: u64 },
    /// The link ends in good order.
    Bye(String),
    /// The link ends because of a mistake of the peer.
    Refuse(String),
}

impl Note {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        match self {
            Note::Hello { token, incarnation, namespace } => {
                bytes.extend([1, VERSION]);
                bytes.extend(token.0);
                bytes.extend(incarnation.to_le_bytes());
                bytes.extend(namespace.to_le_bytes());
            }
            Note::Welcome { token, nonce, incarnation, namespace } => {
                bytes.push(2);
                bytes.extend(token.0);
                bytes.extend(nonce);
                bytes.extend(incarnation.to_le_bytes());
                bytes.extend(namespace.to_le_bytes());
            }
            Note::Segment { handle, len } => {
                bytes.push(3);
                bytes.extend(handle.to_le_bytes());
                bytes.extend(len.to_le_bytes());
            }
            Note::Bye(text) | Note::Refuse(text) => {
                let kind = if matches!(self, Note::Bye(_)) { 4 } else { 5 };
                // A message of one byte would be a doorbell.
                bytes.extend([kind, b' ']);
                bytes.extend(&text.as_bytes()[..text.floor_char_boundary(MAX_TEXT_BYTES)]);
            }
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Note, &'static str> {
        let mut rest = Rest(bytes);
        let note = match rest.take::<1>()? {
            [1] => {
                if rest.take::<1>()? != [VERSION] {
                    return Err("a greeting of another version of the shm fabric");
                }
                let token = Token(rest.take::<TOKEN_BYTES>()?);
                let incarnation = u64::from_le_bytes(rest.take()?);
                Note::Hello { token, incarnation, namespace: u64::from_le_bytes(rest.take()?) }
            }
            [2] => {
                let (token, nonce) = (Token(rest.take::<TOKEN_BYTES>()?), rest.take()?);
                let incarnation = u64::from_le_bytes(rest.take()?);
                Note::Welcome { token, nonce, incarnation, namespace: u64::from_le_bytes(rest.take()?) }
            }
            [3] => Note::Segment { handle: u32::from_le_bytes(rest.take()?), len: u64::from_le_bytes(rest.take()?) },
            [kind @ (4 | 5)] => {
                rest.take::<1>()?;
                let text = std::mem::take(&mut rest.0);
                let text = String::from_utf8_lossy(text.get(..MAX_TEXT_BYTES).unwrap_or(text)).into_owned();
                if kind == 4 { Note::Bye(text) } else { Note::Refuse(text) }
            }
            _ => return Err("a note of a kind that is not known"),
        };
        if rest.0.is_empty() { Ok(note) } else { Err("a note that is too long") }
    }
}

/// The rest of a message.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or("a note that is too short")?;
        self.0 = rest;
        Ok(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes() -> [Note; 5] {
        let token = Token([9; TOKEN_BYTES]);
        [
            Note::Hello { token, incarnation: 3, namespace: 0 },
            Note::Welcome { token, nonce: [5; NONCE_BYTES], incarnation: u64::MAX, namespace: 4 << 30 },
            Note::Segment { handle: 77, len: 1 << 40 },
            Note::Bye(String::new()),
            Note::Refuse("a write with key 0x1".into()),
        ]
    }

    #[test]
    fn notes_round_trip() {
        for note in notes() {
            let bytes = note.encode();
            assert!((2..=4096).contains(&bytes.len()));
            assert_eq!(Note::decode(&bytes).as_ref(), Ok(&note));
            if !matches!(note, Note::Bye(_) | Note::Refuse(_)) {
                assert!((0..bytes.len()).all(|cut| Note::decode(&bytes[..cut]).is_err()));
                assert!(Note::decode(&[&bytes[..], &[0]].concat()).is_err());
            }
        }
        let long = Note::Bye("ä".repeat(1000)).encode();
        assert!(matches!(Note::decode(&long), Ok(Note::Bye(text)) if text == "ä".repeat(256)));
        assert!(Note::decode(&[9, 0]).is_err() && Note::decode(&[]).is_err());
    }

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_shm_note() {
        let examples = notes().map(|note| note.encode());
        transfer_fuzz::Target::new("shm-note", examples).run(|bytes| match Note::decode(bytes) {
            Ok(note) => {
                assert!(note.encode().len() <= 4096);
                // Texts for people may be cut.
                if !matches!(note, Note::Bye(_) | Note::Refuse(_)) {
                    assert_eq!(note.encode(), bytes);
                }
                format!("{note:?}").split(|c: char| !c.is_alphanumeric()).next().unwrap_or("").to_owned()
            }
            Err(why) => why.into(),
        });
    }
}
