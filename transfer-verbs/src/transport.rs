//! The kinds of queue pairs, as types. Each has a [`SendList`](crate::SendList) that takes the operations that it can
//! do, and no others.

use std::fmt;

use rdma_sys::ibv_qp_type;

/// Reliable connected (RC): SEND, WRITE, READ, atomic operations and memory windows. The device repeats what is lost,
/// and a completion means that the peer's device has acknowledged the operation.
#[derive(Debug)]
pub enum Reliable {}

/// Unreliable connected (UC): SEND and WRITE. Nothing is acknowledged or repeated: a message of which a packet is lost
/// is dropped, and a completion means that the message has left.
#[derive(Debug)]
pub enum Unreliable {}

/// Unreliable datagram (UD): SEND, to any queue pair of this kind, with an [`AddressHandle`](crate::AddressHandle).
/// A message is one packet. A completion means that it has left.
#[derive(Debug)]
pub enum Datagram {}

/// The kinds, as types.
pub trait Transport: sealed::Sealed + fmt::Debug + 'static {}
/// The kinds that have one peer.
pub trait Connected: Transport {}

pub(crate) mod sealed {
    pub trait Sealed {
        /// `enum ibv_qp_type`.
        const CODE: rdma_sys::ibv_qp_type::Type;
    }
}

macro_rules! transports {
    ($($transport:ty = $code:ident),*; connected: $($connected:ty),*) => {
        $(impl sealed::Sealed for $transport { const CODE: ibv_qp_type::Type = ibv_qp_type::$code; }
        impl Transport for $transport {})*
        $(impl Connected for $connected {})*
    };
}
transports!(
    Reliable = IBV_QPT_RC, Unreliable = IBV_QPT_UC, Datagram = IBV_QPT_UD;
    connected: Reliable, Unreliable
);
