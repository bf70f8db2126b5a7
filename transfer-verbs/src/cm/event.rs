//! Events of connections.

use rdma_sys::rdma_cm_event_type::*;
use rdma_sys::rdma_conn_param;

use super::{Id, IdNumber};

/// An event of a connection.
#[derive(Debug)]
pub struct Event {
    /// The id of the connection; for a request, the id that listens.
    pub id: IdNumber,
    /// The kind.
    pub kind: EventKind,
    /// 0, a negative `errno`, or for a rejection the reason of the peer's device.
    pub status: i32,
    /// The peer's private data. It may be longer than the data that was sent, padded with zeros.
    pub private_data: Vec<u8>,
}

/// The kind of an event.
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The device for the address is found.
    AddressResolved,
    /// There is no device for the address.
    AddressError,
    /// The route is found.
    RouteResolved,
    /// There is no route.
    RouteError,
    /// A peer wants to connect.
    ConnectRequest(ConnectRequest),
    /// The peer accepts: bring the queue pair to ready-to-send and call [`Id::establish`].
    ConnectResponse(PeerParameters),
    /// The connection could not be made.
    ConnectError,
    /// The peer's machine does not answer.
    Unreachable,
    /// The peer refuses, or there is no listener.
    Rejected,
    /// The peer is ready to send.
    Established(PeerParameters),
    /// One side has ended the connection.
    Disconnected,
    /// The device is gone.
    DeviceRemoval,
    /// The network address has moved to another device.
    AddressChange,
    /// The queue pair's number may be reused.
    TimewaitExit,
    /// An event that is not used here.
    Other(u32),
}

/// A peer's parameters of its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerParameters {
    /// Its number.
    pub queue_pair: u32,
    /// The READs and atomics that this side may have in flight.
    pub initiator_depth: u8,
    /// The READs and atomics that the peer may have in flight here.
    pub responder_resources: u8,
}

/// A peer that wants to connect.
#[derive(Debug)]
pub struct ConnectRequest {
    /// The new connection: accept or reject it. Dropping it rejects.
    pub id: Id,
    /// The peer's parameters.
    pub peer: PeerParameters,
}

impl EventKind {
    /// Makes the kind of an event. `request` is the new id of a request.
    pub(super) fn new(code: u32, peer: PeerParameters, request: Option<Id>) -> Self {
        match (code, request) {
            (RDMA_CM_EVENT_CONNECT_REQUEST, Some(id)) => Self::ConnectRequest(ConnectRequest { id, peer }),
            (RDMA_CM_EVENT_ADDR_RESOLVED, _) => Self::AddressResolved,
            (RDMA_CM_EVENT_ADDR_ERROR, _) => Self::AddressError,
            (RDMA_CM_EVENT_ROUTE_RESOLVED, _) => Self::RouteResolved,
            (RDMA_CM_EVENT_ROUTE_ERROR, _) => Self::RouteError,
            (RDMA_CM_EVENT_CONNECT_RESPONSE, _) => Self::ConnectResponse(peer),
            (RDMA_CM_EVENT_CONNECT_ERROR, _) => Self::ConnectError,
            (RDMA_CM_EVENT_UNREACHABLE, _) => Self::Unreachable,
            (RDMA_CM_EVENT_REJECTED, _) => Self::Rejected,
            (RDMA_CM_EVENT_ESTABLISHED, _) => Self::Established(peer),
            (RDMA_CM_EVENT_DISCONNECTED, _) => Self::Disconnected,
            (RDMA_CM_EVENT_DEVICE_REMOVAL, _) => Self::DeviceRemoval,
            (RDMA_CM_EVENT_ADDR_CHANGE, _) => Self::AddressChange,
            (RDMA_CM_EVENT_TIMEWAIT_EXIT, _) => Self::TimewaitExit,
            (code, _) => Self::Other(code),
        }
    }

    /// Returns a text for the event.
    pub fn words(&self) -> &'static str {
        match self {
            Self::AddressResolved => "the device for the address is found",
            Self::AddressError => "no RDMA device has a way to the address",
            Self::RouteResolved => "the way to the peer is found",
            Self::RouteError => "there is no way to the peer",
            Self::ConnectRequest(_) => "a peer wants to connect",
            Self::ConnectResponse(_) => "the peer accepts",
            Self::ConnectError => "the connection could not be made",
            Self::Unreachable => "the peer's machine does not answer",
            Self::Rejected => "the peer refuses, or nobody listens there",
            Self::Established(_) => "the connection is established",
            Self::Disconnected => "the connection is ended",
            Self::DeviceRemoval => "the device is gone",
            Self::AddressChange => "the network address has moved to another device",
            Self::TimewaitExit => "the queue pair's number may be used again",
            Self::Other(_) => "an event that is not used here",
        }
    }
}

impl PeerParameters {
    pub(super) fn new(raw: &rdma_conn_param) -> Self {
        Self {
            queue_pair: raw.qp_num,
            initiator_depth: raw.initiator_depth,
            responder_resources: raw.responder_resources,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EventKind, PeerParameters};

    #[test]
    fn every_event_of_a_connection_is_known() {
        let peer = PeerParameters { queue_pair: 17, initiator_depth: 1, responder_resources: 2 };
        for code in [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 14, 15] {
            let kind = EventKind::new(code, peer, None);
            assert!(!matches!(kind, EventKind::Other(_)), "{code}");
            assert!(!kind.words().contains("not used"), "{code}");
        }
        assert!(matches!(EventKind::new(9, peer, None), EventKind::Established(p) if p == peer));
        // Multicast, and a request without its id, which the library never sends.
        assert!(matches!(EventKind::new(12, peer, None), EventKind::Other(12)));
        assert!(matches!(EventKind::new(4, peer, None), EventKind::Other(4)));
    }
}
