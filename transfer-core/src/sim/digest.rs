//! A digest of the externally visible behaviour of a world's nodes: messages, landed bytes, replies to workers.
//!
//! A change that is meant to preserve the behaviour leaves the digests of all seeds unchanged: see `sim/tests.rs`.

/// FNV-1a of 64 bits over all additions, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

/// The kind of an observation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seen {
    /// An endpoint sent a message.
    Message = 1,
    /// Bytes landed at an endpoint.
    Landed = 2,
    /// A session got a reply.
    #[cfg(test)]
    Reply = 3,
}

impl Digest {
    pub(crate) fn add(&mut self, seen: Seen, who: u64, bytes: &[u8]) {
        self.mix(&[seen as u8]);
        self.mix(&who.to_le_bytes());
        self.mix(&(bytes.len() as u64).to_le_bytes());
        self.mix(bytes);
    }

    /// Adds the digest of another run.
    #[cfg(test)]
    pub(crate) fn add_run(&mut self, run: Digest) {
        self.mix(&run.0.to_le_bytes());
    }

    /// Returns the number that a test compares.
    #[cfg(test)]
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    fn mix(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
