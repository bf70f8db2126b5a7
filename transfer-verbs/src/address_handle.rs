//! Address handles: the way to a port, for datagrams.

use std::sync::Arc;
use std::{io, mem};

use rdma_sys::{ibv_ah, ibv_ah_attr};

use crate::sys::Handle;
use crate::{Destination, Gid, LinkLayer, ProtectionDomain, VerbsError};

/// The number of bytes in front of each received datagram, which the receive must have room for: the place of the
/// global routing header (GRH). [`Done::len_bytes`](crate::Done) counts them.
pub const ROUTING_HEADER_BYTES: usize = 40;

/// The way to a peer's port. Clones are the same handle.
///
/// Keep it until the work requests that name it have completed; one whose handle is gone may fail with a status.
#[derive(Clone, Debug)]
pub struct AddressHandle(pub(crate) Arc<AddressHandleInner>);

#[derive(Debug)]
pub(crate) struct AddressHandleInner {
    pub(crate) raw: Handle<ibv_ah>,
    pub(crate) domain: ProtectionDomain,
}

impl AddressHandle {
    /// Makes a handle for sending from `port`, counted from 1.
    pub fn new(domain: &ProtectionDomain, port: u8, destination: &Destination) -> Result<Self, VerbsError> {
        let context = domain.context();
        let device = context.device_name();
        if destination.gid.is_none_or(Gid::is_zero) && context.port(port)?.link_layer == LinkLayer::Ethernet {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "no GID was given, and on Ethernet a peer has one");
            return Err(VerbsError::because(device, "ibv_create_ah", why));
        }
        // SAFETY: plain numbers, for which zeros are valid.
        let mut attributes: ibv_ah_attr = unsafe { mem::zeroed() };
        fill(&mut attributes, destination, port);
        // SAFETY: the domain is alive and stays so for the handle's life; the attributes are copied.
        let raw = Handle::new(unsafe { (context.0.functions.ibv_create_ah)(domain.0.raw.raw(), &mut attributes) })
            .map_err(|why| VerbsError::because(device, "ibv_create_ah", why))?;
        Ok(Self(Arc::new(AddressHandleInner { raw, domain: domain.clone() })))
    }
}

impl Drop for AddressHandleInner {
    fn drop(&mut self) {
        let context = self.domain.context();
        // SAFETY: lists that name the handle hold it, so this is its last use.
        let code = unsafe { (context.0.functions.ibv_destroy_ah)(self.raw.raw()) };
        if code != 0 {
            tracing::warn!(device = context.device_name(), code, "an address handle could not be given back");
        }
    }
}

/// Fills in the way to a destination from a port.
pub(crate) fn fill(attributes: &mut ibv_ah_attr, destination: &Destination, port: u8) {
    attributes.dlid = destination.lid;
    attributes.sl = destination.service_level;
    attributes.port_num = port;
    if let Some(gid) = destination.gid {
        attributes.is_global = 1;
        attributes.grh.dgid.raw = gid.0;
        attributes.grh.sgid_index = destination.gid_index;
        attributes.grh.hop_limit = destination.hop_limit;
        attributes.grh.traffic_class = destination.traffic_class;
        attributes.grh.flow_label = destination.flow_label;
    }
}
