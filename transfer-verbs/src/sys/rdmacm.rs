//! librdmacm.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use rdma_sys::*;

use super::{Unavailable, library};

library! {
    /// The functions of librdmacm that are used here.
    Rdmacm {
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
        fn rdma_create_id(
            channel: *mut rdma_event_channel,
            id: *mut *mut rdma_cm_id,
            user: *mut c_void,
            space: rdma_port_space::Type,
        ) -> c_int;
        fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
        fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut libc::sockaddr) -> c_int;
        fn rdma_resolve_addr(
            id: *mut rdma_cm_id,
            source: *mut libc::sockaddr,
            destination: *mut libc::sockaddr,
            timeout_ms: c_int,
        ) -> c_int;
        fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
        fn rdma_connect(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int;
        fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
        fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
        fn rdma_accept(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int;
        fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int;
        fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
        fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
        fn rdma_set_option(
            id: *mut rdma_cm_id,
            level: c_int,
            name: c_int,
            value: *mut c_void,
            length: usize,
        ) -> c_int;
        fn rdma_init_qp_attr(id: *mut rdma_cm_id, attributes: *mut ibv_qp_attr, mask: *mut c_int) -> c_int;
    }
}

/// Returns the library, which the first call opens.
pub(crate) fn rdmacm() -> Result<&'static Rdmacm, Unavailable> {
    static LIBRARY: OnceLock<Result<Rdmacm, Unavailable>> = OnceLock::new();
    LIBRARY.get_or_init(|| Rdmacm::load(c"librdmacm.so.1")).as_ref().map_err(Clone::clone)
}
