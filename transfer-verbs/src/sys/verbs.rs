//! libibverbs.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use rdma_sys::*;

use super::{Unavailable, library};

library! {
    /// The functions of libibverbs that are used here.
    Verbs {
        fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(list: *mut *mut ibv_device);
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        fn ibv_get_device_guid(device: *mut ibv_device) -> __be64;
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(context: *mut ibv_context) -> c_int;
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(event: *mut ibv_async_event);
        fn ibv_query_device(context: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(context: *mut ibv_context, port: u8, attributes: *mut _compat_ibv_port_attr) -> c_int;
        fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, key: *mut __be16) -> c_int;
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int;
        fn ibv_create_ah(domain: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah;
        fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int;
        fn ibv_reg_mr(domain: *mut ibv_pd, address: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(
            context: *mut ibv_context,
            capacity: c_int,
            user: *mut c_void,
            channel: *mut ibv_comp_channel,
            vector: c_int,
        ) -> *mut ibv_cq;
        fn ibv_resize_cq(queue: *mut ibv_cq, capacity: c_int) -> c_int;
        fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            queue: *mut *mut ibv_cq,
            user: *mut *mut c_void,
        ) -> c_int;
        fn ibv_ack_cq_events(queue: *mut ibv_cq, count: c_uint);
        fn ibv_create_srq(domain: *mut ibv_pd, attributes: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        fn ibv_destroy_srq(queue: *mut ibv_srq) -> c_int;
        fn ibv_create_qp(domain: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int;
        fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int;
        undeclared fn _ibv_query_gid_table(
            context: *mut ibv_context,
            entries: *mut ibv_gid_entry,
            max_entries: usize,
            flags: u32,
            entry_size: usize,
        ) -> isize;
    }
}

/// Returns the library, which the first call opens.
pub(crate) fn verbs() -> Result<&'static Verbs, Unavailable> {
    static LIBRARY: OnceLock<Result<Verbs, Unavailable>> = OnceLock::new();
    LIBRARY.get_or_init(|| Verbs::load(c"libibverbs.so.1")).as_ref().map_err(Clone::clone)
}
