//! A device's ports.

use std::fmt;

use rdma_sys::ibv_port_attr;
use serde::{Serialize, Serializer};

/// The largest packet of a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Mtu {
    B256,
    B512,
    B1024,
    B2048,
    B4096,
}

impl Mtu {
    const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// The size in bytes.
    pub const fn len_bytes(self) -> u32 {
        128 << self.code()
    }

    /// Returns the value of exactly this size.
    pub fn from_len_bytes(len_bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.len_bytes() == len_bytes)
    }

    /// Returns the code in `enum ibv_mtu`.
    pub(crate) const fn code(self) -> u32 {
        self as u32 + 1
    }

    pub(crate) fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.len_bytes().fmt(f)
    }
}

impl Serialize for Mtu {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.len_bytes())
    }
}

/// Whether a port carries data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Nothing reported.
    Nop,
    /// No link.
    Down,
    /// Link, but not configured by a subnet manager.
    Initializing,
    /// Configured, not yet active.
    Armed,
    /// It carries data.
    Active,
    /// Active, with the link lost for a moment.
    ActiveDefer,
}

/// The link layer of a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// Not reported, which on old devices means InfiniBand.
    Unspecified,
    /// InfiniBand: peers are addressed by LID.
    InfiniBand,
    /// Ethernet (RoCE): peers are addressed by GID.
    Ethernet,
}

/// The physical state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum PhysicalState {
    Unknown,
    Sleep,
    Polling,
    Disabled,
    Training,
    LinkUp,
    ErrorRecovery,
    PhyTest,
}

impl PortState {
    fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Down,
            2 => Self::Initializing,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDefer,
            _ => Self::Nop,
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nop => "no state",
            Self::Down => "down",
            Self::Initializing => "initializing",
            Self::Armed => "armed",
            Self::Active => "active",
            Self::ActiveDefer => "active, deferred",
        })
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "unspecified",
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

impl PhysicalState {
    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Sleep,
            2 => Self::Polling,
            3 => Self::Disabled,
            4 => Self::Training,
            5 => Self::LinkUp,
            6 => Self::ErrorRecovery,
            7 => Self::PhyTest,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for PhysicalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Sleep => "sleep",
            Self::Polling => "polling",
            Self::Disabled => "disabled",
            Self::Training => "training",
            Self::LinkUp => "link up",
            Self::ErrorRecovery => "error recovery",
            Self::PhyTest => "test",
        })
    }
}

/// The current state of a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Port {
    /// Counted from 1.
    pub number: u8,
    /// Whether it carries data.
    pub state: PortState,
    /// The physical state.
    pub physical_state: PhysicalState,
    /// The largest packet now.
    pub mtu_active: Mtu,
    /// The largest packet that the port could carry.
    pub mtu_max: Mtu,
    /// Its address in an InfiniBand subnet, 0 on Ethernet.
    pub lid: u16,
    /// The number of low bits of the LID that are paths to the same port.
    pub lmc: u8,
    /// The subnet manager's address.
    pub sm_lid: u16,
    /// The link layer.
    pub link_layer: LinkLayer,
    /// The largest message that one work request may carry.
    pub max_message_bytes: u32,
    /// Entries of its table of GIDs, used or not.
    pub gid_table_len: u32,
    /// Entries of its table of partition keys.
    pub pkey_table_len: u16,
    /// The number of lanes: 1, 2, 4, 8 or 12; 0 if the device's code is unknown.
    pub width: u8,
    /// The gigabits per second of one lane, in tenths; 0 if the device's code is unknown.
    pub lane_speed_tenths: u32,
    /// `IBV_PORT_*` bits.
    pub capabilities: u32,
}

impl Port {
    pub(crate) fn new(number: u8, attr: &ibv_port_attr) -> Self {
        // A device that reports no size can carry the smallest.
        let mtu = |code| Mtu::from_code(code).unwrap_or(Mtu::B256);
        Self {
            number,
            state: PortState::from_code(attr.state),
            physical_state: PhysicalState::from_code(attr.phys_state),
            mtu_active: mtu(attr.active_mtu),
            mtu_max: mtu(attr.max_mtu),
            lid: attr.lid,
            lmc: attr.lmc,
            sm_lid: attr.sm_lid,
            link_layer: match attr.link_layer {
                1 => LinkLayer::InfiniBand,
                2 => LinkLayer::Ethernet,
                _ => LinkLayer::Unspecified,
            },
            max_message_bytes: attr.max_msg_sz,
            gid_table_len: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            pkey_table_len: attr.pkey_tbl_len,
            width: lanes(attr.active_width),
            lane_speed_tenths: lane_speed_tenths(attr.active_speed),
            capabilities: attr.port_cap_flags,
        }
    }

    /// Returns the gigabits per second of all lanes, if the device reports them.
    pub fn rate_gbps(&self) -> Option<f64> {
        let tenths = u32::from(self.width) * self.lane_speed_tenths;
        (tenths > 0).then(|| f64::from(tenths) / 10.0)
    }
}

/// Converts a code of `ibv_query_port`(3).
fn lanes(code: u8) -> u8 {
    match code {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// Converts a code of `ibv_query_port`(3): SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR.
fn lane_speed_tenths(code: u8) -> u32 {
    match code {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::{LinkLayer, Mtu, PhysicalState, Port, PortState, lane_speed_tenths, lanes};

    #[test]
    fn sizes_and_codes_are_those_of_the_header() {
        for (code, len_bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            let mtu = Mtu::from_code(code).expect("a code of the header");
            assert_eq!((mtu.code(), mtu.len_bytes()), (code, len_bytes));
            assert_eq!(Mtu::from_len_bytes(len_bytes), Some(mtu));
        }
        assert_eq!((Mtu::from_code(0), Mtu::from_code(6), Mtu::from_len_bytes(1500)), (None, None, None));
    }

    #[test]
    fn port_has_the_attributes_of_the_device() {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut attr: rdma_sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        (attr.state, attr.phys_state, attr.link_layer) = (4, 5, 2);
        (attr.active_mtu, attr.max_mtu, attr.max_msg_sz) = (3, 5, 8 << 20);
        (attr.active_width, attr.active_speed) = (2, 32);
        let port = Port::new(1, &attr);
        assert_eq!((port.state, port.physical_state), (PortState::Active, PhysicalState::LinkUp));
        assert_eq!((port.link_layer, port.mtu_active, port.mtu_max), (LinkLayer::Ethernet, Mtu::B1024, Mtu::B4096));
        assert_eq!(port.rate_gbps(), Some(100.0));
        assert_eq!((lanes(3), lane_speed_tenths(3)), (0, 0));
    }
}
