//! The bytes of a datagram. They come from anyone who knows a queue pair and its key.
//!
//! | bytes | |
//! |---|---|
//! | 6 | `TVPING` |
//! | 1 | version |
//! | 1 | `r`equest or `a`nswer |
//! | 16 | the token that the answering side has given to the asking one |
//! | 8 | the request's random number |

use crate::token::{TOKEN_BYTES, Token};

/// The length of each datagram.
pub(super) const LEN_BYTES: usize = 32;

const MAGIC: [u8; 6] = *b"TVPING";
const VERSION: u8 = 1;

/// Whether a datagram asks or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Answer,
}

/// A datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) token: Token,
    pub(super) number: u64,
}

impl Message {
    pub(super) fn encode(&self) -> [u8; LEN_BYTES] {
        let mut bytes = [0; LEN_BYTES];
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[6] = VERSION;
        bytes[7] = match self.kind {
            Kind::Request => b'r',
            Kind::Answer => b'a',
        };
        bytes[8..8 + TOKEN_BYTES].copy_from_slice(self.token.bytes());
        bytes[8 + TOKEN_BYTES..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Returns `None` for bytes that are no message of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; LEN_BYTES] = bytes.try_into().ok()?;
        let kind = match bytes.strip_prefix(&MAGIC)? {
            [VERSION, b'r', ..] => Kind::Request,
            [VERSION, b'a', ..] => Kind::Answer,
            _ => return None,
        };
        let token = Token::leading(&bytes[8..])?;
        let number = u64::from_le_bytes(*bytes.last_chunk()?);
        Some(Message { kind, token, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(kind: Kind) -> Message {
        Message { kind, token: Token([7; TOKEN_BYTES]), number: 0x0102_0304_0506_0708 }
    }

    #[test]
    fn messages_read_back() {
        for kind in [Kind::Request, Kind::Answer] {
            assert_eq!(Message::decode(&example(kind).encode()), Some(example(kind)));
        }
    }

    #[test]
    fn another_length_magic_version_or_kind_is_no_message() {
        let bytes = example(Kind::Request).encode();
        assert_eq!(Message::decode(&bytes[..31]), None);
        assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(Message::decode(&[]), None);
        for place in 0..8 {
            let mut other = bytes;
            other[place] ^= 0x80;
            assert_eq!(Message::decode(&other), None, "byte {place}");
        }
    }

    #[test]
    fn fuzz_datagrams() {
        let examples = [Kind::Request, Kind::Answer].map(|kind| example(kind).encode().to_vec());
        transfer_fuzz::Target::new("verbs-datagrams", examples).run(|bytes| {
            let message = Message::decode(bytes);
            if let Some(message) = message {
                assert_eq!(message.encode(), bytes);
            }
            format!("{:?}", message.map(|message| message.kind))
        });
    }
}
