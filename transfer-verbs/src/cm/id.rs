//! Ids: the ends of connections.

use std::ffi::{CStr, c_int, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{mem, ptr};

use rdma_sys::{ibv_qp_attr, ibv_qp_state, rdma_cm_id, rdma_conn_param, rdma_port_space};

use super::{Attributes, EventChannel, NAME, address, done};
use crate::sys::{Handle, verbs};
use crate::{Guid, Init, QueuePairState, ReadyToReceive, ReadyToSend, VerbsError};

/// The number of an id, by which events name it. It is unique in this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct IdNumber(u64);

impl IdNumber {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns the form in which the library stores it with the id.
    fn as_user(self) -> *mut c_void {
        ptr::without_provenance_mut(self.0 as usize)
    }

    /// # Safety
    /// The id is alive and was made with a number, and the lock of its channel is held.
    pub(super) unsafe fn of(id: *mut rdma_cm_id) -> Self {
        // SAFETY: as the caller says.
        Self(unsafe { (*id).context } as u64)
    }
}

/// One side's parameters of connecting or accepting.
#[derive(Clone, Debug)]
pub struct ConnectParameters {
    /// The number of the own queue pair.
    pub queue_pair: u32,
    /// The most READs and atomics of the peer that can be answered at a time.
    pub responder_resources: u8,
    /// The most READs and atomics in flight.
    pub initiator_depth: u8,
    /// The number of retries without an answer, 0 to 6. Only that of the connecting side counts.
    pub retry_count: u8,
    /// The number of retries when the peer has no receive posted, 0 to 6.
    pub rnr_retry: u8,
    /// The private data for the peer: at most 56 bytes with a connect, 196 with an accept.
    pub private_data: Vec<u8>,
}

/// The room besides the library's own data in the messages of a connection (rdma_connect(3), rdma_accept(3),
/// rdma_reject(3)).
const CONNECT_DATA: usize = 56;
const ACCEPT_DATA: usize = 196;
const REJECT_DATA: usize = 148;

/// `RDMA_OPTION_ID` and its options, of rdma/rdma_cma.h.
const OPTION_ID: c_int = 0;
const OPTION_ID_TOS: c_int = 0;
const OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// One end of a connection, established or not, or a listener. Dropping it ends the connection or the listening.
///
/// It holds no queue pair: the connection ends with the id, and the queue pair when it is dropped itself.
#[derive(Debug)]
pub struct Id {
    raw: Handle<rdma_cm_id>,
    number: IdNumber,
    channel: EventChannel,
}

impl Id {
    /// Makes an id whose events come in on `channel`.
    pub fn new(channel: &EventChannel) -> Result<Self, VerbsError> {
        let number = IdNumber::next();
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is alive, and stays so for the id's life; the pointer may be written.
        let code = unsafe {
            (channel.functions().rdma_create_id)(
                channel.raw(),
                &mut raw,
                number.as_user(),
                rdma_port_space::RDMA_PS_TCP,
            )
        };
        done("rdma_create_id", code)?;
        let raw = Handle::new(raw).map_err(|why| VerbsError::because(NAME, "rdma_create_id", why))?;
        Ok(Self { raw, number, channel: channel.clone() })
    }

    /// Makes the id of a peer's request.
    ///
    /// # Safety
    /// `raw` came with the request's event on `channel`, whose lock is held, and has no owner.
    pub(super) unsafe fn requested(raw: *mut rdma_cm_id, channel: EventChannel) -> Result<Self, VerbsError> {
        let raw = Handle::new(raw).map_err(|why| VerbsError::because(NAME, "rdma_get_cm_event", why))?;
        let number = IdNumber::next();
        // SAFETY: as the caller says. It still has the listener's number.
        unsafe { (*raw.raw()).context = number.as_user() };
        Ok(Self { raw, number, channel })
    }

    /// Returns the number by which events name it.
    pub fn number(&self) -> IdNumber {
        self.number
    }

    /// Returns the name and number of the device that the connection goes through, once its address is resolved. The
    /// library has opened the device for itself; a queue pair is made in another context of the same device.
    pub fn device(&self) -> Option<(String, Guid)> {
        let library = verbs().ok()?;
        let _using = self.channel.using();
        // SAFETY: the lock is held. The library keeps the device open for the id's life.
        unsafe {
            let context = (*self.raw.raw()).verbs;
            if context.is_null() {
                return None;
            }
            let device = (*context).device;
            let name = CStr::from_ptr((library.ibv_get_device_name)(device)).to_string_lossy().into_owned();
            Some((name, Guid(u64::from_be((library.ibv_get_device_guid)(device)))))
        }
    }

    /// Returns the device's port, once the address is resolved.
    pub fn port(&self) -> Option<u8> {
        let _using = self.channel.using();
        // SAFETY: the lock is held.
        let port = unsafe { (*self.raw.raw()).port_num };
        (port > 0).then_some(port)
    }

    /// Returns this end's address, as far as it is known.
    pub fn local_address(&self) -> Option<SocketAddr> {
        let _using = self.channel.using();
        // SAFETY: the lock is held; every kind of address is plain bytes.
        address::from_raw(unsafe { &(*self.raw.raw()).route.addr.src_addr_union.src_storage })
    }

    /// Returns the peer's address, as far as it is known.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        let _using = self.channel.using();
        // SAFETY: the lock is held; every kind of address is plain bytes.
        address::from_raw(unsafe { &(*self.raw.raw()).route.addr.dst_addr_union.dst_storage })
    }

    /// Sets the IP header's traffic class. Call it before the route is resolved.
    pub fn set_type_of_service(&self, class: u8) -> Result<(), VerbsError> {
        self.set_option(OPTION_ID_TOS, class)
    }

    /// Sets the time to wait for an answer: 4.096 us times 2 to the power of this. Call it before connecting or
    /// accepting.
    pub fn set_ack_timeout(&self, code: u8) -> Result<(), VerbsError> {
        self.set_option(OPTION_ID_ACK_TIMEOUT, code)
    }

    fn set_option(&self, option: c_int, mut value: u8) -> Result<(), VerbsError> {
        let _using = self.channel.using();
        // SAFETY: the id is alive; both options are one byte.
        done("rdma_set_option", unsafe {
            (self.channel.functions().rdma_set_option)(
                self.raw.raw(),
                OPTION_ID,
                option,
                (&raw mut value).cast(),
                size_of::<u8>(),
            )
        })
    }

    /// Finds the device for an address. The result is the event [`EventKind::AddressResolved`](super::EventKind) or
    /// [`EventKind::AddressError`](super::EventKind).
    pub fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        within: Duration,
    ) -> Result<(), VerbsError> {
        let mut source = source.map(address::to_raw);
        let mut destination = address::to_raw(destination);
        let source = source.as_mut().map_or(ptr::null_mut(), |source| ptr::from_mut(source).cast());
        let _using = self.channel.using();
        // SAFETY: the id is alive; the addresses are copied.
        done("rdma_resolve_addr", unsafe {
            (self.channel.functions().rdma_resolve_addr)(
                self.raw.raw(),
                source,
                (&raw mut destination).cast(),
                milliseconds(within),
            )
        })
    }

    /// Finds the route. The result is the event [`EventKind::RouteResolved`](super::EventKind) or
    /// [`EventKind::RouteError`](super::EventKind).
    pub fn resolve_route(&self, within: Duration) -> Result<(), VerbsError> {
        let _using = self.channel.using();
        // SAFETY: the id is alive.
        done("rdma_resolve_route", unsafe {
            (self.channel.functions().rdma_resolve_route)(self.raw.raw(), milliseconds(within))
        })
    }

    /// Listens for requests at an address. With port 0 it listens at a free port, which
    /// [`local_address`](Self::local_address) returns.
    pub fn listen(&self, address: SocketAddr, backlog: u32) -> Result<(), VerbsError> {
        let mut address = address::to_raw(address);
        let library = self.channel.functions();
        let _using = self.channel.using();
        // SAFETY: the id is alive; the address is copied.
        unsafe {
            done("rdma_bind_addr", (library.rdma_bind_addr)(self.raw.raw(), (&raw mut address).cast()))?;
            done("rdma_listen", (library.rdma_listen)(self.raw.raw(), c_int::try_from(backlog).unwrap_or(c_int::MAX)))
        }
    }

    /// Connects to the peer. The result is the event [`EventKind::ConnectResponse`](super::EventKind), or a refusal.
    pub fn connect(&self, parameters: &ConnectParameters) -> Result<(), VerbsError> {
        let mut raw = raw_parameters(parameters, CONNECT_DATA)?;
        let _using = self.channel.using();
        // SAFETY: the id is alive; the parameters and the data that they point to are copied.
        done("rdma_connect", unsafe { (self.channel.functions().rdma_connect)(self.raw.raw(), &mut raw) })
    }

    /// Reports that the queue pair is ready to send, after [`EventKind::ConnectResponse`](super::EventKind).
    pub fn establish(&self) -> Result<(), VerbsError> {
        let _using = self.channel.using();
        // SAFETY: the id is alive.
        done("rdma_establish", unsafe { (self.channel.functions().rdma_establish)(self.raw.raw()) })
    }

    /// Accepts a request. The queue pair has to be ready to send.
    pub fn accept(&self, parameters: &ConnectParameters) -> Result<(), VerbsError> {
        let mut raw = raw_parameters(parameters, ACCEPT_DATA)?;
        let _using = self.channel.using();
        // SAFETY: the id is alive; the parameters and the data that they point to are copied.
        done("rdma_accept", unsafe { (self.channel.functions().rdma_accept)(self.raw.raw(), &mut raw) })
    }

    /// Refuses a request, with at most 148 bytes for the peer.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        let len = data_len(private_data, REJECT_DATA)?;
        let _using = self.channel.using();
        // SAFETY: the id is alive; the data is copied.
        done("rdma_reject", unsafe {
            (self.channel.functions().rdma_reject)(self.raw.raw(), private_data.as_ptr().cast(), len)
        })
    }

    /// Ends the connection: the peer gets [`EventKind::Disconnected`](super::EventKind) and answers by disconnecting
    /// too, or by dropping its id; then this end gets it as well.
    pub fn disconnect(&self) -> Result<(), VerbsError> {
        let _using = self.channel.using();
        // SAFETY: the id is alive.
        done("rdma_disconnect", unsafe { (self.channel.functions().rdma_disconnect)(self.raw.raw()) })
    }

    /// Returns the attributes of the queue pair for RESET to INIT. Call it once the address is resolved.
    pub fn init_attributes(&self) -> Result<Attributes<Init>, VerbsError> {
        self.attributes(ibv_qp_state::IBV_QPS_INIT)
    }

    /// Returns the attributes of the queue pair for INIT to RTR. Call it once the peer's parameters are known.
    pub fn ready_to_receive_attributes(&self) -> Result<Attributes<ReadyToReceive>, VerbsError> {
        self.attributes(ibv_qp_state::IBV_QPS_RTR)
    }

    /// Returns the attributes of the queue pair for RTR to RTS. Call it once the peer's parameters are known.
    pub fn ready_to_send_attributes(&self) -> Result<Attributes<ReadyToSend>, VerbsError> {
        self.attributes(ibv_qp_state::IBV_QPS_RTS)
    }

    fn attributes<S: QueuePairState>(&self, state: ibv_qp_state::Type) -> Result<Attributes<S>, VerbsError> {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut attributes: ibv_qp_attr = unsafe { mem::zeroed() };
        attributes.qp_state = state;
        let mut mask = 0;
        let _using = self.channel.using();
        // SAFETY: the id is alive; both may be written.
        done("rdma_init_qp_attr", unsafe {
            (self.channel.functions().rdma_init_qp_attr)(self.raw.raw(), &mut attributes, &mut mask)
        })?;
        Ok(Attributes::new(attributes, mask))
    }
}

/// Converts parameters for the library. The result points to the private data in `parameters`.
fn raw_parameters(parameters: &ConnectParameters, most: usize) -> Result<rdma_conn_param, VerbsError> {
    Ok(rdma_conn_param {
        private_data: parameters.private_data.as_ptr().cast(),
        private_data_len: data_len(&parameters.private_data, most)?,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        flow_control: 1,
        retry_count: finite("retry_count", parameters.retry_count)?,
        rnr_retry_count: finite("rnr_retry", parameters.rnr_retry)?,
        srq: 0,
        qp_num: parameters.queue_pair,
    })
}

fn data_len(data: &[u8], most: usize) -> Result<u8, VerbsError> {
    u8::try_from(data.len()).ok().filter(|_| data.len() <= most).ok_or_else(|| VerbsError::Limit {
        device: NAME.to_owned(),
        asked: data.len() as u64,
        limit_name: "private data",
        limit: most as u64,
    })
}

/// Checks a number of retries: 7 would mean without limit.
fn finite(limit_name: &'static str, count: u8) -> Result<u8, VerbsError> {
    if count <= 6 {
        return Ok(count);
    }
    Err(VerbsError::Limit { device: NAME.to_owned(), asked: u64::from(count), limit_name, limit: 6 })
}

fn milliseconds(duration: Duration) -> c_int {
    c_int::try_from(duration.as_millis()).unwrap_or(c_int::MAX)
}

impl Drop for Id {
    fn drop(&mut self) {
        let _using = self.channel.using();
        // SAFETY: there is one owner, so this is the id's last use. The call waits for events that were taken and not
        // acknowledged, and there are none while the lock is held.
        let code = unsafe { (self.channel.functions().rdma_destroy_id)(self.raw.raw()) };
        if code != 0 {
            tracing::warn!(code, "a connection's id could not be given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CONNECT_DATA, ConnectParameters, raw_parameters};

    fn parameters() -> ConnectParameters {
        ConnectParameters {
            queue_pair: 17,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 6,
            rnr_retry: 6,
            private_data: vec![7; CONNECT_DATA],
        }
    }

    #[test]
    fn parameters_are_passed_unchanged() {
        let parameters = parameters();
        let raw = raw_parameters(&parameters, CONNECT_DATA).expect("within the limits");
        assert_eq!((raw.qp_num, raw.private_data_len, raw.retry_count, raw.rnr_retry_count), (17, 56, 6, 6));
    }

    #[test]
    fn too_much_data_and_endless_retries_are_refused_with_the_limit() {
        let long = ConnectParameters { private_data: vec![7; CONNECT_DATA + 1], ..parameters() };
        let error = raw_parameters(&long, CONNECT_DATA).err().expect("too long").to_string();
        assert_eq!(error, "librdmacm: 57 asked for, the limit (private data) is 56");
        for endless in
            [ConnectParameters { retry_count: 7, ..parameters() }, ConnectParameters { rnr_retry: 7, ..parameters() }]
        {
            assert!(raw_parameters(&endless, CONNECT_DATA).is_err());
        }
    }
}
