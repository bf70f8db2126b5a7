//! The attributes of a queue pair's transitions, up to ready-to-send.

use rdma_sys::ibv_access_flags;

use crate::{Gid, Mtu};

/// The operations that a peer may do through a queue pair, given a key that allows them too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteAccess {
    /// RDMA WRITE.
    pub write: bool,
    /// RDMA READ.
    pub read: bool,
    /// FETCH_ADD and CMP_AND_SWP.
    pub atomic: bool,
}

impl RemoteAccess {
    pub(crate) fn flags(self) -> u32 {
        let flag = |set: bool, flag: ibv_access_flags| if set { flag.0 } else { 0 };
        flag(self.write, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)
            | flag(self.read, ibv_access_flags::IBV_ACCESS_REMOTE_READ)
            | flag(self.atomic, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
    }
}

/// RESET to INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitAttributes {
    /// The port, counted from 1.
    pub port: u8,
    /// The partition: an index into the port's table.
    pub pkey_index: u16,
    /// The operations that the peer may do.
    pub access: RemoteAccess,
}

/// The address of the peer's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// The peer's GID: needed on Ethernet, and on InfiniBand between subnets.
    pub gid: Option<Gid>,
    /// The own port's GID to send from: an index into its table. Used if `gid` is set.
    pub gid_index: u8,
    /// The peer's LID, 0 on Ethernet.
    pub lid: u16,
    /// The most routers that a packet may pass. Used if `gid` is set.
    pub hop_limit: u8,
    /// The IP header's traffic class (DSCP and ECN). Used if `gid` is set.
    pub traffic_class: u8,
    /// The IP header's flow label, 20 bits. Used if `gid` is set.
    pub flow_label: u32,
    /// The service level, 0 to 15.
    pub service_level: u8,
}

impl Default for Destination {
    fn default() -> Self {
        Self { gid: None, gid_index: 0, lid: 0, hop_limit: 64, traffic_class: 0, flow_label: 0, service_level: 0 }
    }
}

/// INIT to RTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveAttributes {
    /// The address of the peer's port.
    pub destination: Destination,
    /// The peer's queue pair, 24 bits.
    pub queue_pair: u32,
    /// The number of the peer's first packet, 24 bits.
    pub packet_number: u32,
    /// The largest packet: the smaller of the two ends' largest packets.
    pub path_mtu: Mtu,
    /// The most READs and atomics of the peer that can be answered at a time.
    pub max_rd_atomic: u8,
    /// The time that a peer waits after it found no receive posted: a code from 0 to 31; 12 is 0.64 ms, 0 is 655 ms.
    pub min_rnr_timer: u8,
}

/// RTR to RTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendAttributes {
    /// The number of the own first packet, 24 bits.
    pub packet_number: u32,
    /// The time to wait for an answer: 4.096 us times 2 to the power of this, 1 to 31. 0 means without limit, and is
    /// refused.
    pub timeout: u8,
    /// The number of retries without an answer, 0 to 6. 7 is refused: on some devices it means without limit.
    pub retry_count: u8,
    /// The number of retries when the peer has no receive posted, 0 to 6. 7 means without limit, and is refused.
    pub rnr_retry: u8,
    /// The most READs and atomics in flight.
    pub max_rd_atomic: u8,
}

/// RESET to INIT of a datagram queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramAttributes {
    /// The port, counted from 1.
    pub port: u8,
    /// The partition: an index into the port's table.
    pub pkey_index: u16,
    /// The queue key: messages with another one are dropped.
    pub queue_key: u32,
}

/// INIT to RTR of an unreliable queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnreliableAttributes {
    /// The address of the peer's port.
    pub destination: Destination,
    /// The peer's queue pair, 24 bits.
    pub queue_pair: u32,
    /// The number of the peer's first packet, 24 bits.
    pub packet_number: u32,
    /// The largest packet: the smaller of the two ends' largest packets.
    pub path_mtu: Mtu,
}
