//! The address of a queue pair for datagrams. A peer tells it over the control plane, and it is checked as if a
//! stranger had.

use super::super::device::Device;
use transfer_verbs::{AddressHandle, Gid, GidKind, ProtectionDomain, VerbsError};

/// The longest name of a device, as in the kernel (`IB_DEVICE_NAME_MAX`).
const MAX_DEVICE_NAME: usize = 64;

/// The lowest LID of a multicast group.
const MULTICAST_LID: u16 = 0xC000;

/// The highest bit of a queue key is for keys of the system.
pub(super) const USER_KEY: u32 = 0x7FFF_FFFF;

/// The address of a queue pair for datagrams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatagramEndpoint {
    /// The device's name at its node.
    pub device: String,
    /// The port, counted from 1.
    pub port: u8,
    /// The kind of the address.
    pub kind: GidKind,
    /// The port's GID; zeros if it has none, which can be on InfiniBand only.
    pub gid: Gid,
    /// The port's LID; 0 on Ethernet.
    pub lid: u16,
    /// The number of the queue pair.
    pub queue_pair: u32,
    /// Its queue key.
    pub queue_key: u32,
}

/// The reason why nothing can be sent to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadEndpoint {
    /// A field has a value that none can have.
    #[error("the {field} of the peer's queue pair is {value:#x}, which none can be")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// The device's name is none.
    #[error("the name of the peer's device has {len_bytes} bytes, 1 to 64 printable ones would be right")]
    Name {
        /// Its length.
        len_bytes: usize,
    },
    /// The ports have addresses of different kinds.
    #[error("the peer's port is reached by {theirs}, this side's by {ours}")]
    Unreachable {
        /// The kind of the peer's address.
        theirs: GidKind,
        /// The kind of the own one.
        ours: GidKind,
    },
}

impl DatagramEndpoint {
    /// # Errors
    /// The first field that cannot be right, or an address of another kind than `ours`.
    pub(super) fn check(&self, ours: GidKind) -> Result<(), BadEndpoint> {
        let bad = |field, value| Err(BadEndpoint::Field { field, value });
        let len_bytes = self.device.len();
        if !(1..=MAX_DEVICE_NAME).contains(&len_bytes) || !self.device.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(BadEndpoint::Name { len_bytes });
        }
        if self.kind != ours {
            return Err(BadEndpoint::Unreachable { theirs: self.kind, ours });
        }
        match self.kind {
            GidKind::InfiniBand if self.lid == 0 || self.lid >= MULTICAST_LID => return bad("LID", self.lid.into()),
            GidKind::InfiniBand => {}
            // An endpoint of a group would get an answer to each of its members.
            _ if self.gid.is_zero() || self.gid.0[0] == 0xff => {
                return bad("first byte of the GID", self.gid.0[0].into());
            }
            GidKind::RoceV2Ipv4 if !self.gid.is_ipv4() => {
                return bad("first byte of the IPv4 GID", self.gid.0[0].into());
            }
            GidKind::RoceV2Ipv4 if self.gid.0[12] >= 224 || self.gid.0[12] == 0 => {
                return bad("first byte of the IPv4 address", self.gid.0[12].into());
            }
            _ => {}
        }
        // 0 and 1 are the management queue pairs, and the last number is the multicast one.
        if !(2..0xFF_FFFF).contains(&self.queue_pair) {
            return bad("number", self.queue_pair);
        }
        if self.queue_key & !USER_KEY != 0 {
            return bad("queue key", self.queue_key);
        }
        if self.port == 0 {
            return bad("port", 0);
        }
        Ok(())
    }
}

/// The way to an endpoint.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) handle: AddressHandle,
    pub(super) queue_pair: u32,
    pub(super) queue_key: u32,
}

/// What a route is made from. The kernel may look for the peer for a second, so nothing is locked meanwhile.
pub(super) struct RouteMaker {
    pub(super) domain: ProtectionDomain,
    port: u8,
    destination: transfer_verbs::Destination,
    queue_pair: u32,
    queue_key: u32,
}

impl RouteMaker {
    /// Prepares the way from this device's port to an endpoint.
    pub(super) fn new(device: &Device, domain: &ProtectionDomain, to: &DatagramEndpoint) -> RouteMaker {
        RouteMaker {
            domain: domain.clone(),
            port: device.port.number,
            destination: device.destination(to.gid, to.lid),
            queue_pair: to.queue_pair,
            queue_key: to.queue_key,
        }
    }

    pub(super) fn make(self) -> Result<Route, VerbsError> {
        let RouteMaker { domain, port, destination, queue_pair, queue_key } = self;
        Ok(Route { handle: AddressHandle::new(&domain, port, &destination)?, queue_pair, queue_key })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn example() -> DatagramEndpoint {
        DatagramEndpoint {
            device: "rxe0".to_owned(),
            port: 1,
            kind: GidKind::RoceV2Ipv4,
            gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]),
            lid: 0,
            queue_pair: 17,
            queue_key: 0x1234,
        }
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut DatagramEndpoint), words: &str) {
        let mut endpoint = example();
        change(&mut endpoint);
        let why = endpoint.check(GidKind::RoceV2Ipv4).expect_err("it is wrong").to_string();
        assert!(why.contains(words), "{why}");
    }

    #[test]
    fn impossible_endpoints_are_refused() {
        assert_eq!(example().check(GidKind::RoceV2Ipv4), Ok(()));
        refused(|e| e.device = String::new(), "0 bytes");
        refused(|e| e.device = "x".repeat(65), "65 bytes");
        refused(|e| e.device = "a\x1b[2J".to_owned(), "printable");
        refused(|e| e.kind = GidKind::RoceV1, "RoCE v1, this side's by RoCE v2 over IPv4");
        refused(|e| e.gid = Gid([0; 16]), "first byte of the GID");
        refused(|e| e.gid.0[0] = 0xff, "first byte of the GID");
        refused(|e| e.gid.0[0] = 0xfe, "IPv4 GID");
        refused(|e| e.gid.0[12] = 224, "IPv4 address");
        for number in [0, 1, 0xFF_FFFF, 1 << 24] {
            refused(|e| e.queue_pair = number, "number");
        }
        refused(|e| e.queue_key = 1 << 31, "queue key");
        refused(|e| e.port = 0, "port");
    }

    #[test]
    fn infiniband_needs_a_lid_of_one_port() {
        let of = |lid| DatagramEndpoint { kind: GidKind::InfiniBand, gid: Gid([0; 16]), lid, ..example() };
        assert_eq!(of(1).check(GidKind::InfiniBand), Ok(()));
        for lid in [0, MULTICAST_LID, 0xFFFF] {
            assert!(matches!(of(lid).check(GidKind::InfiniBand), Err(BadEndpoint::Field { field: "LID", .. })));
        }
    }
}
