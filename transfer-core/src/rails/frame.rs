//! The frames in the messages of a rail, for a link with several rails. All integers are little-endian.
//!
//! | first byte | frame | fields | |---|---|---| | 1 | USER: a message of the link's user | its bytes | | 2 | WAIT: the
//! following messages wait for these fences | first fence u64, number of fences u8 | | 3 | FENCE: the shares that this
//! rail carried for the fence have arrived | fence u64, their bytes u64 | | 4 | RAIL_DOWN: the sender's end of that
//! rail is dead and drained | rail u8, messages and immediates received on it u64 |

/// A message of a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    User(&'a [u8]),
    Wait { first: u64, count: u8 },
    Fence { number: u64, bytes: u64 },
    RailDown { rail: u8, received: u64 },
}

/// The number of bytes that a frame adds to a user's message.
pub(super) const OVERHEAD: usize = 1;

impl<'a> Frame<'a> {
    pub(super) fn encode(&self) -> Box<[u8]> {
        let mut out = Vec::with_capacity(match self {
            Frame::User(bytes) => OVERHEAD + bytes.len(),
            _ => 17,
        });
        match self {
            Frame::User(bytes) => {
                out.push(1);
                out.extend_from_slice(bytes);
            }
            Frame::Wait { first, count } => {
                out.push(2);
                out.extend(first.to_le_bytes());
                out.push(*count);
            }
            Frame::Fence { number, bytes } => {
                out.push(3);
                out.extend(number.to_le_bytes());
                out.extend(bytes.to_le_bytes());
            }
            Frame::RailDown { rail, received } => {
                out.extend([4, *rail]);
                out.extend(received.to_le_bytes());
            }
        }
        out.into()
    }

    /// Reads a frame. Returns `None` for malformed bytes.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Frame<'a>> {
        let (kind, rest) = bytes.split_first()?;
        match kind {
            1 => Some(Frame::User(rest)),
            2 => {
                let (first, rest) = u64_of(rest)?;
                let [count] = *rest else { return None };
                Some(Frame::Wait { first, count })
            }
            3 => {
                let (number, rest) = u64_of(rest)?;
                let (bytes, rest) = u64_of(rest)?;
                rest.is_empty().then_some(Frame::Fence { number, bytes })
            }
            4 => {
                let (rail, rest) = rest.split_first()?;
                let (received, rest) = u64_of(rest)?;
                rest.is_empty().then_some(Frame::RailDown { rail: *rail, received })
            }
            _ => None,
        }
    }
}

fn u64_of(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_rails_frame() {
        let examples = [
            Frame::User(b"message"),
            Frame::Wait { first: 1, count: 2 },
            Frame::Fence { number: 1, bytes: 2 },
            Frame::RailDown { rail: 3, received: 4 },
        ];
        let examples = examples.map(|frame| frame.encode().into_vec());
        transfer_fuzz::Target::new("rails-frame", examples).run(|bytes| match Frame::decode(bytes) {
            Some(frame) => {
                assert_eq!(*frame.encode(), *bytes);
                format!("kind {}", char::from(b'g' + bytes[0]))
            }
            None => "no frame".into(),
        });
    }

    #[test]
    fn frames_read_back() {
        for frame in [
            Frame::User(b""),
            Frame::User(b"x"),
            Frame::Wait { first: 1 << 40, count: 3 },
            Frame::Fence { number: u64::MAX, bytes: 7 },
            Frame::RailDown { rail: 3, received: 9 },
        ] {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes), Some(frame));
            if !matches!(frame, Frame::User(_)) {
                assert!((0..bytes.len()).all(|cut| Frame::decode(&bytes[..cut]).is_none()));
            }
        }
        assert_eq!(Frame::decode(&[]), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_read_back(bytes: Vec<u8>) {
            if let Some(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(&*frame.encode(), &bytes[..]);
            }
        }
    }
}
