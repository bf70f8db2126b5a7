//! The two kinds of keys. A local key opens memory to the own device, a remote key opens it to a peer. Neither can be
//! converted into the other, so the wrong one cannot be sent to a peer or put into a gather list.

use std::fmt;

/// The key with which the own device reads or writes a region: part of every [`Element`](crate::Element).
///
/// ```compile_fail
/// # fn sent_to_a_peer(_: transfer_verbs::RemoteKey) {}
/// # fn of(region: &transfer_verbs::MemoryRegion) {
/// sent_to_a_peer(region.local_key());
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalKey(pub(crate) u32);

/// The key with which a peer reads or writes memory here, or the key of a peer's memory.
///
/// It is unique only within 256 binds of one window, so it is no identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub(crate) u32);

impl RemoteKey {
    /// Makes a key from a peer's bytes. The peer's device checks it.
    pub const fn from_peer(key: u32) -> Self {
        Self(key)
    }

    /// The key as it goes to a peer.
    pub const fn to_wire(self) -> u32 {
        self.0
    }

    /// The key for a window's next bind: only its lowest 8 bits change, and they wrap around.
    pub(crate) const fn next(self) -> Self {
        Self((self.0 & 0xffff_ff00) | (self.0.wrapping_add(1) & 0xff))
    }
}

impl fmt::Debug for LocalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalKey({:#010x})", self.0)
    }
}

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteKey({:#010x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::RemoteKey;

    #[test]
    fn the_next_key_changes_the_lowest_byte_only() {
        assert_eq!(RemoteKey(0x1234_5600).next(), RemoteKey(0x1234_5601));
        assert_eq!(RemoteKey(0x1234_56ff).next(), RemoteKey(0x1234_5600));
        assert_eq!(RemoteKey(u32::MAX).next(), RemoteKey(0xffff_ff00));
    }
}
