//! The hash functions by which versions are proved.

use std::fmt;

/// The hash function of a version's digests. The numbers are part of the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Digest {
    /// XXH3 with 128 bits: finds bytes that were damaged, at the speed of memory. Who wants to can make other bytes with the
    /// same digest.
    Xxh3 = 1,
    /// BLAKE3: nobody can make other bytes with the same digest. It takes several times as long.
    Blake3 = 2,
}

impl Digest {
    /// All of them, in the order of their numbers.
    pub const ALL: [Digest; 2] = [Digest::Xxh3, Digest::Blake3];

    /// The one with this number on the wire.
    #[must_use]
    pub fn from_wire(n: u8) -> Option<Digest> {
        Digest::ALL.into_iter().find(|digest| *digest as u8 == n)
    }

    /// The name, as options and errors write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Digest::Xxh3 => "xxh3",
            Digest::Blake3 => "blake3",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Digest> {
        Digest::ALL.into_iter().find(|digest| digest.name() == name)
    }

    /// The length of a digest, in bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        match self {
            Digest::Xxh3 => 16,
            Digest::Blake3 => 32,
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
