//! Addresses of ports, to which a peer's device sends.

use std::fmt;
use std::net::Ipv6Addr;

use serde::{Serialize, Serializer};

/// A port's 128-bit address, in network order. For RoCE it is an IP address: an IPv4 one as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether it is all zeros: an unused entry of a port's table.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether it is an IPv4 address mapped into IPv6.
    pub fn is_ipv4(self) -> bool {
        Ipv6Addr::from(self.0).to_ipv4_mapped().is_some()
    }

    /// Whether it is valid only on the local link (`fe80::/10`).
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl Serialize for Gid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The kind of an entry of a port's table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet frames that are not routed.
    RoceV1,
    /// RoCE version 2 over IPv4.
    RoceV2Ipv4,
    /// RoCE version 2 over IPv6.
    RoceV2Ipv6,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2Ipv4 => "RoCE v2 over IPv4",
            Self::RoceV2Ipv6 => "RoCE v2 over IPv6",
        })
    }
}

/// One used entry of a port's table of addresses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GidEntry {
    /// Its index in the table, as a queue pair needs it.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// Its kind.
    pub kind: GidKind,
    /// Its network interface, if it has one.
    pub netdev: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::Gid;

    #[test]
    fn an_address_is_shown_and_judged_as_an_ip_address() {
        let ipv4 = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]);
        assert_eq!(ipv4.to_string(), "::ffff:10.77.0.1");
        assert!(ipv4.is_ipv4() && !ipv4.is_link_local() && !ipv4.is_zero());
        let local = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(local.is_link_local() && !local.is_ipv4());
        assert!(Gid::default().is_zero());
    }
}
