//! The admin socket accepts any `:authority`.
//!
//! gRPC's C library, and with it Python's, sends the socket's path with `%2F` for each `/` as the `:authority` of its
//! calls over a Unix socket. The HTTP/2 library here refuses such a call, because no host name may contain a percent
//! sign, and it has no setting for that. At a Unix socket the authority has no meaning. So each byte of it that could
//! be refused is replaced by a `-` before that library sees it.
//!
//! One byte replaces one byte. So lengths stay as they are, and so do the tables of repeated headers that both sides
//! keep: nothing has to be decoded or encoded. Everything else passes unchanged: Huffman-coded strings, which gRPC's C
//! library does not use for authorities, and everything from the first byte on that is not HTTP/2.

/// The length of the client preface.
const PREFACE_BYTES: usize = 24;

const FRAME_HEADER_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;

const NAME: &[u8] = b":authority";
/// The number of `:authority` in HPACK's static table.
const NAME_INDEX: usize = 1;

/// Follows a client's bytes, and replaces the authorities in them.
#[derive(Debug)]
pub(super) struct Authorities {
    frame: At,
    field: Field,
}

/// The position in a frame, or in the preface.
#[derive(Debug)]
enum At {
    Preface {
        left: usize,
    },
    Header {
        bytes: [u8; FRAME_HEADER_BYTES],
        has: usize,
    },
    /// The length of the padding comes next.
    PadLength {
        payload: usize,
        has_priority: bool,
    },
    Skipped {
        left: usize,
        then: Fragment,
    },
    Fragment(Fragment),
    /// The bytes are not HTTP/2.
    Lost,
}

/// A part of a header block.
#[derive(Debug, Clone, Copy, Default)]
struct Fragment {
    left: usize,
    padding: usize,
}

/// The position in a header block, which may continue in the next frame.
#[derive(Debug, Clone, Copy)]
enum Field {
    Start,
    /// In the number that ends a field.
    LastNumber,
    /// In the number of a name.
    NameIndex,
    NameLength(Option<Number>),
    Name {
        left: usize,
        is_authority: bool,
    },
    ValueLength {
        number: Option<Number>,
        is_authority: bool,
    },
    Value {
        left: usize,
        is_mended: bool,
    },
}

/// The length of a string, as far as it was received.
#[derive(Debug, Clone, Copy)]
struct Number {
    value: usize,
    shift: u32,
    is_huffman: bool,
}

/// The bytes are not valid HTTP/2.
struct NoHttp2;

impl Authorities {
    pub(super) fn new() -> Authorities {
        Authorities { frame: At::Preface { left: PREFACE_BYTES }, field: Field::Start }
    }

    /// Processes the next bytes. They may begin and end anywhere.
    pub(super) fn mend(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes;
        while let Some(first) = rest.first_mut() {
            let skipped = match &mut self.frame {
                At::Lost => return,
                At::Preface { left } | At::Skipped { left, .. } => {
                    let skipped = (*left).min(rest.len());
                    *left -= skipped;
                    self.after_skipping();
                    skipped
                }
                _ => {
                    if self.byte(first).is_err() {
                        self.frame = At::Lost;
                    }
                    1
                }
            };
            rest = rest.split_at_mut(skipped).1;
        }
    }

    fn next_frame(&mut self) {
        self.frame = At::Header { bytes: [0; FRAME_HEADER_BYTES], has: 0 };
    }

    fn after_skipping(&mut self) {
        match self.frame {
            At::Preface { left: 0 } => self.next_frame(),
            At::Skipped { left: 0, then } => self.fragment(then),
            _ => {}
        }
    }

    /// Enters a part of a header block, or skips it if it is empty.
    fn fragment(&mut self, fragment: Fragment) {
        match fragment {
            Fragment { left: 0, padding: 0 } => self.next_frame(),
            Fragment { left: 0, padding } => self.skip(padding, Fragment::default()),
            _ => self.frame = At::Fragment(fragment),
        }
    }

    fn skip(&mut self, left: usize, then: Fragment) {
        self.frame = At::Skipped { left, then };
        self.after_skipping();
    }

    fn byte(&mut self, byte: &mut u8) -> Result<(), NoHttp2> {
        match &mut self.frame {
            At::Header { bytes, has } => {
                bytes[*has] = *byte;
                *has += 1;
                if *has == FRAME_HEADER_BYTES {
                    let header = *bytes;
                    self.frame_begins(header)?;
                }
            }
            At::PadLength { payload, has_priority } => {
                let (padding, before) = (usize::from(*byte), if *has_priority { PRIORITY_BYTES } else { 0 });
                let left = payload.checked_sub(1 + before + padding).ok_or(NoHttp2)?;
                self.skip(before, Fragment { left, padding });
            }
            At::Fragment(fragment) => {
                fragment.left -= 1;
                let fragment = *fragment;
                self.field = self.field.then(byte)?;
                if fragment.left == 0 {
                    self.fragment(fragment);
                }
            }
            At::Preface { .. } | At::Skipped { .. } | At::Lost => {}
        }
        Ok(())
    }

    fn frame_begins(&mut self, [a, b, c, kind, flags, ..]: [u8; FRAME_HEADER_BYTES]) -> Result<(), NoHttp2> {
        let payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let has_priority = flags & PRIORITY != 0;
        match kind {
            // A block ends at the end of a field. The flag that marks the end of a block is not examined.
            HEADERS if !matches!(self.field, Field::Start) => return Err(NoHttp2),
            HEADERS if flags & PADDED != 0 => match payload {
                0 => return Err(NoHttp2),
                _ => self.frame = At::PadLength { payload, has_priority },
            },
            HEADERS => {
                let before = if has_priority { PRIORITY_BYTES } else { 0 };
                let left = payload.checked_sub(before).ok_or(NoHttp2)?;
                self.skip(before, Fragment { left, padding: 0 });
            }
            CONTINUATION => self.fragment(Fragment { left: payload, padding: 0 }),
            _ => self.skip(payload, Fragment::default()),
        }
        Ok(())
    }
}

impl Field {
    /// Returns the state after this byte (RFC 7541, chapters 5 and 6).
    fn then(self, byte: &mut u8) -> Result<Field, NoHttp2> {
        let goes_on = *byte & 0x80 != 0;
        Ok(match self {
            Field::Start => match *byte {
                // An entry of a table, or a new size for the table.
                b @ 0x80.. => {
                    if b == 0xff {
                        Field::LastNumber
                    } else {
                        Field::Start
                    }
                }
                b @ 0x20..0x40 => {
                    if b == 0x3f {
                        Field::LastNumber
                    } else {
                        Field::Start
                    }
                }
                // A name and a value, with or without an entry in the table.
                b @ 0x40..0x80 => Field::named(b & 0x3f, 0x3f),
                b => Field::named(b & 0x0f, 0x0f),
            },
            Field::LastNumber => {
                if goes_on {
                    self
                } else {
                    Field::Start
                }
            }
            // A number that needs more than a byte is not `:authority`, which is among the first in the table.
            Field::NameIndex => {
                if goes_on {
                    self
                } else {
                    Field::ValueLength { number: None, is_authority: false }
                }
            }
            Field::NameLength(number) => match Number::then(number, *byte)? {
                (number, true) => Field::NameLength(Some(number)),
                (Number { value: 0, .. }, false) => Field::ValueLength { number: None, is_authority: false },
                (number, false) => {
                    let is_authority = number.value == NAME.len() && !number.is_huffman;
                    Field::Name { left: number.value, is_authority }
                }
            },
            Field::Name { left, is_authority } => {
                let is_authority = is_authority && NAME.get(NAME.len() - left) == Some(byte);
                match left - 1 {
                    0 => Field::ValueLength { number: None, is_authority },
                    left => Field::Name { left, is_authority },
                }
            }
            Field::ValueLength { number, is_authority } => match Number::then(number, *byte)? {
                (number, true) => Field::ValueLength { number: Some(number), is_authority },
                (Number { value: 0, .. }, false) => Field::Start,
                (Number { value: left, is_huffman, .. }, false) => {
                    Field::Value { left, is_mended: is_authority && !is_huffman }
                }
            },
            Field::Value { left, is_mended } => {
                if is_mended && !(byte.is_ascii_alphanumeric() || b".-_".contains(byte)) {
                    *byte = b'-';
                }
                match left - 1 {
                    0 => Field::Start,
                    left => Field::Value { left, is_mended },
                }
            }
        })
    }

    /// Returns the state after the index of a name, which may be too large for its first byte.
    fn named(index: u8, most: u8) -> Field {
        match index {
            0 => Field::NameLength(None),
            index if index == most => Field::NameIndex,
            index => Field::ValueLength { number: None, is_authority: usize::from(index) == NAME_INDEX },
        }
    }
}

impl Number {
    /// Returns the number as far as it is known after this byte, and whether more bytes follow.
    fn then(number: Option<Number>, byte: u8) -> Result<(Number, bool), NoHttp2> {
        let low = usize::from(byte & 0x7f);
        Ok(match number {
            None => (Number { value: low, shift: 0, is_huffman: byte & 0x80 != 0 }, low == 0x7f),
            // No header has a field this long.
            Some(Number { shift: 28.., .. }) => return Err(NoHttp2),
            Some(Number { value, shift, is_huffman }) => {
                (Number { value: value + (low << shift), shift: shift + 7, is_huffman }, byte & 0x80 != 0)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE: &[u8; PREFACE_BYTES] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [.., a, b, c] = (payload.len() as u32).to_be_bytes();
        [&[a, b, c, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Makes a connection: the settings, and a call with this block of headers, which is cut into two frames.
    fn call(flags: u8, before: &[u8], block: &[u8], after: &[u8]) -> Vec<u8> {
        let (first, second) = block.split_at(block.len() / 2);
        let headers = frame(HEADERS, flags, &[before, first, after].concat());
        let data = frame(0, 1, b"\x41\x03a%b");
        [&PREFACE[..], &frame(4, 0, &[]), &headers, &frame(CONTINUATION, 4, second), &data].concat()
    }

    fn mended(said: &[u8], piece: usize) -> Vec<u8> {
        let (mut said, mut authorities) = (said.to_vec(), Authorities::new());
        said.chunks_mut(piece).for_each(|piece| authorities.mend(piece));
        said
    }

    /// Returns blocks of fields as gRPC's libraries write them, and the expected results.
    fn blocks() -> Vec<(Vec<u8>, Vec<u8>)> {
        let long = [b"\x41\x7f\xad\x01", "run%2F".repeat(50).as_bytes()].concat();
        let long_after = [b"\x41\x7f\xad\x01", "run-2F".repeat(50).as_bytes()].concat();
        let same: &[&[u8]] = &[
            b"\x41\x0elocalhost.a-_9",
            // A Huffman-coded value; other names: by number, by letters, Huffman-coded, and by a number of several
            // bytes.
            b"\x41\x83%%%",
            b"\x44\x03/%2",
            b"\x40\x0a:authoritx\x03a%b",
            b"\x40\x84%%%%\x03a%b",
            b"\x7f\x80\x01\x03a%b",
            b"\x0f\x31\x03a%b",
            // Entries of the table, one with a number of several bytes; another size of the table; empty strings.
            b"\x83\xff\x80\x01\x20\x3f\xe1\x1f",
            b"\x41\x00\x40\x00\x00",
        ];
        let other: &[(&[u8], &[u8])] = &[
            (b"\x41\x09run%2Fa:1", b"\x41\x09run-2Fa-1"),
            (b"\x01\x03/a@", b"\x01\x03-a-"),
            (b"\x11\x03/a@", b"\x11\x03-a-"),
            (b"\x40\x0a:authority\x03a\xff ", b"\x40\x0a:authority\x03a--"),
            (b"\x00\x0a:authority\x03a%b", b"\x00\x0a:authority\x03a-b"),
        ];
        let same = same.iter().map(|block| (block.to_vec(), block.to_vec()));
        same.chain(other.iter().map(|(a, b)| (a.to_vec(), b.to_vec()))).chain([(long, long_after)]).collect()
    }

    #[test]
    fn only_authorities_are_replaced() {
        let (before, after): (Vec<_>, Vec<_>) = blocks().into_iter().unzip();
        let all = (before.concat(), after.concat());
        for (block, wanted) in blocks().into_iter().chain([all]) {
            for (flags, first, last) in [
                (0, &b""[..], &b""[..]),
                (PRIORITY, b"%%%%%", b""),
                (PADDED, b"\x02", b"%%"),
                (PADDED | PRIORITY, b"\x03%%%%%", b"%%%"),
            ] {
                let (said, wanted) = (call(flags, first, &block, last), call(flags, first, &wanted, last));
                for piece in [1, 2, 7, said.len()] {
                    assert_eq!(mended(&said, piece), wanted, "flags {flags}, {piece} bytes at a time");
                }
            }
        }
    }

    #[test]
    fn other_protocols_pass_unchanged() {
        let authority = frame(HEADERS, 4, b"\x41\x03a%b");
        let wrong = [
            frame(HEADERS, PADDED, b""),
            frame(HEADERS, PADDED, b"\x09%"),
            frame(HEADERS, PRIORITY, b"%"),
            frame(HEADERS, 4, b"\x41\x7f\xff\xff\xff\xff\xff\x7f"),
            // A block ends in the middle of a field, and another block begins.
            frame(HEADERS, 4, b"\x41\x03a"),
        ];
        for wrong in wrong {
            let said = [&PREFACE[..], &wrong, &authority].concat();
            assert_eq!(mended(&said, said.len()), said, "{wrong:x?}");
        }
    }

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_authorities() {
        let examples = blocks().into_iter().map(|(block, _)| call(0, b"", &block, b""));
        transfer_fuzz::Target::new("grpc-authorities", examples).run(|bytes| {
            let (at_once, one_by_one) = (mended(bytes, bytes.len().max(1)), mended(bytes, 1));
            assert_eq!(at_once, one_by_one);
            let changed = bytes.iter().zip(&at_once).filter(|(before, after)| before != after);
            changed.clone().for_each(|(_, after)| assert_eq!(*after, b'-'));
            let mut authorities = Authorities::new();
            authorities.mend(&mut bytes.to_vec());
            let Authorities { frame, field } = authorities;
            format!("{} {frame:?} {field:?}", changed.count())
        });
    }
}
