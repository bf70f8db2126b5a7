//! Ranges of several versions that lie at one node, and are asked for together.

use super::{BodyRange, InvalidName, Key, Name};
use crate::memory::ALIGNMENT;

/// The most bytes that the parts of one [`Gathered`] take in a message. A request with this many fits in the smallest
/// message that a fabric has.
pub const MAX_GATHERED_BYTES: usize = 960;

/// The bytes that a part takes in a message besides the rest of its key.
const PART_BYTES: usize = 2 + 4 + 4;

/// The error for parts that cannot be asked for together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidGathered {
    /// There are no parts.
    #[error("parts that are asked for together are at least one")]
    Empty,
    /// The parts take more than [`MAX_GATHERED_BYTES`].
    #[error(
        "parts that are asked for together take at most {MAX_GATHERED_BYTES} bytes of a message, these take {found}"
    )]
    TooLong {
        /// The bytes that they take.
        found: usize,
    },
    /// A range is empty, does not start or end at a multiple of [`ALIGNMENT`], or is too far.
    #[error(
        "a range that is asked for together with others starts and ends at multiples of {ALIGNMENT}, is not empty and lies below \
         256 GiB; this one has {len} bytes at {offset}"
    )]
    Range {
        /// Its start, in bytes.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
    },
    /// A key is not valid.
    #[error(transparent)]
    Key(#[from] InvalidName),
}

/// A range of the body of one version, as a part of a [`Gathered`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GatheredPart {
    rest: Box<str>,
    range: BodyRange,
}

impl GatheredPart {
    /// Creates a part: a range of the newest version of the key that ends with `rest`.
    ///
    /// # Errors
    /// [`InvalidGathered::Range`].
    pub fn new(rest: &str, range: BodyRange) -> Result<GatheredPart, InvalidGathered> {
        let BodyRange { offset, len } = range;
        let fits = |n: u64| n.is_multiple_of(ALIGNMENT) && n / ALIGNMENT <= u64::from(u32::MAX);
        match len > 0 && fits(offset) && fits(len) {
            true => Ok(GatheredPart { rest: rest.into(), range }),
            false => Err(InvalidGathered::Range { offset, len }),
        }
    }

    /// Returns the end of its key.
    #[must_use]
    pub fn rest(&self) -> &str {
        &self.rest
    }

    /// Returns the range of the version's body.
    #[must_use]
    pub fn range(&self) -> BodyRange {
        self.range
    }

    /// Returns the number of bytes that it takes in a message.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        PART_BYTES + self.rest.len()
    }
}

/// Ranges of the newest versions of some keys, which begin with the same text. They are asked for at one node, and land
/// one behind the other, as a body of bytes.
///
/// Nothing waits: all of the versions are published there at that moment, or none of the ranges is sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gathered {
    stem: Name,
    parts: Box<[GatheredPart]>,
}

impl Gathered {
    /// Creates a request for these parts. `stem` is the text with which their keys begin.
    ///
    /// # Errors
    /// [`InvalidGathered`].
    pub fn new(stem: Name, parts: Vec<GatheredPart>) -> Result<Gathered, InvalidGathered> {
        let found = parts.iter().map(GatheredPart::wire_bytes).sum();
        match parts.len() {
            0 => return Err(InvalidGathered::Empty),
            _ if found > MAX_GATHERED_BYTES => return Err(InvalidGathered::TooLong { found }),
            _ => {}
        }
        for part in &parts {
            key_of(&stem, part)?;
        }
        Ok(Gathered { stem, parts: parts.into() })
    }

    /// Returns the text with which the keys begin.
    #[must_use]
    pub fn stem(&self) -> &Name {
        &self.stem
    }

    /// Returns the parts, in the order in which they land.
    #[must_use]
    pub fn parts(&self) -> &[GatheredPart] {
        &self.parts
    }

    /// Returns the keys of the parts, and their ranges.
    pub fn keys(&self) -> impl Iterator<Item = (Key, BodyRange)> {
        // Each key was checked.
        self.parts.iter().filter_map(|part| Some((key_of(&self.stem, part).ok()?, part.range)))
    }

    /// Returns the length of all ranges together, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        // There are fewer than 2^7 parts, each shorter than 2^38.
        self.parts.iter().map(|part| part.range.len).sum()
    }
}

fn key_of(stem: &Name, part: &GatheredPart) -> Result<Key, InvalidName> {
    Key::new(&format!("{stem}{}", part.rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::MAX_KEY_BYTES;

    fn part(rest: &str, offset: u64, len: u64) -> Result<GatheredPart, InvalidGathered> {
        GatheredPart::new(rest, BodyRange { offset, len })
    }

    #[test]
    fn ranges_that_do_not_fit_the_message_are_refused() {
        let most = u64::from(u32::MAX) * ALIGNMENT;
        for (offset, len) in [(0, 0), (1, 64), (0, 65), (most + 64, 64), (0, most + 64), (u64::MAX, 64), (0, u64::MAX)]
        {
            assert_eq!(part("a", offset, len), Err(InvalidGathered::Range { offset, len }));
        }
        assert!(part("a", most, most).is_ok());
    }

    #[test]
    fn parts_that_cannot_be_asked_for_together_are_refused() {
        let stem = || Name::new("x/").unwrap();
        assert_eq!(Gathered::new(stem(), Vec::new()), Err(InvalidGathered::Empty));
        let many = |n: usize| vec![part("123456", 0, 64).unwrap(); n];
        assert!(Gathered::new(stem(), many(60)).is_ok());
        assert_eq!(Gathered::new(stem(), many(61)), Err(InvalidGathered::TooLong { found: 61 * 16 }));
        let long = Name::new(&"n".repeat(MAX_KEY_BYTES)).unwrap();
        let found = Gathered::new(long, vec![part("1", 0, 64).unwrap()]);
        assert!(matches!(found, Err(InvalidGathered::Key(InvalidName::TooLong { len: 513, .. }))), "{found:?}");
        let reserved = Gathered::new(Name::new("\0c").unwrap(), vec![part("counter", 0, 64).unwrap()]);
        assert_eq!(reserved, Err(InvalidGathered::Key(InvalidName::Reserved)));
    }

    #[test]
    fn keys_and_lengths_are_those_of_the_parts() {
        let parts = vec![part("1", 0, 64).unwrap(), part("2/é", 128, 256).unwrap(), part("1", 64, 64).unwrap()];
        let gathered = Gathered::new(Name::new("x/").unwrap(), parts).unwrap();
        let keys: Vec<_> = gathered.keys().map(|(key, range)| (key.to_string(), range.offset, range.len)).collect();
        assert_eq!(keys, [("x/1".into(), 0, 64), ("x/2/é".into(), 128, 256), ("x/1".into(), 64, 64)]);
        assert_eq!(gathered.len_bytes(), 384);
    }
}
