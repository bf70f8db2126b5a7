//! The limits of a device, as it reports them.

use std::fmt;

use rdma_sys::{ibv_atomic_cap, ibv_device_attr, ibv_device_cap_flags};
use serde::Serialize;

/// The scope of a device's atomic operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Atomics {
    /// It has none.
    None,
    /// Atomic to other operations of the same device, not to those of the processor.
    Device,
    /// Atomic to all operations.
    Global,
}

impl fmt::Display for Atomics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Device => "within the device",
            Self::Global => "global",
        })
    }
}

/// A device's limits and identity. The names are those that `ibv_devinfo -v` prints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[allow(missing_docs)]
pub struct DeviceLimits {
    pub fw_version: String,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_version: u32,
    pub phys_ports: u8,
    pub page_size_cap: u64,
    pub max_mr_size: u64,
    pub max_mr: u32,
    pub max_mw: u32,
    pub max_pd: u32,
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Elements of one work request.
    pub max_sge: u32,
    /// Elements of one RDMA READ.
    pub max_sge_rd: u32,
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    /// The most READs and atomics from the peer that one queue pair can answer at a time.
    pub max_qp_rd_atom: u32,
    /// The most READs and atomics that one queue pair can have in flight.
    pub max_qp_init_rd_atom: u32,
    pub max_pkeys: u16,
    pub atomic: Atomics,
    /// Memory windows of type 2B: bound by a work request, and to one queue pair.
    pub memory_windows_2b: bool,
}

impl DeviceLimits {
    pub(crate) fn new(attr: &ibv_device_attr) -> Self {
        let count = |n: libc::c_int| u32::try_from(n).unwrap_or(0);
        Self {
            fw_version: crate::sys::text(&attr.fw_ver),
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            hw_version: attr.hw_ver,
            phys_ports: attr.phys_port_cnt,
            page_size_cap: attr.page_size_cap,
            max_mr_size: attr.max_mr_size,
            max_mr: count(attr.max_mr),
            max_mw: count(attr.max_mw),
            max_pd: count(attr.max_pd),
            max_qp: count(attr.max_qp),
            max_qp_wr: count(attr.max_qp_wr),
            max_sge: count(attr.max_sge),
            max_sge_rd: count(attr.max_sge_rd),
            max_cq: count(attr.max_cq),
            max_cqe: count(attr.max_cqe),
            max_srq: count(attr.max_srq),
            max_srq_wr: count(attr.max_srq_wr),
            max_srq_sge: count(attr.max_srq_sge),
            max_qp_rd_atom: count(attr.max_qp_rd_atom),
            max_qp_init_rd_atom: count(attr.max_qp_init_rd_atom),
            max_pkeys: attr.max_pkeys,
            atomic: match attr.atomic_cap {
                ibv_atomic_cap::IBV_ATOMIC_HCA => Atomics::Device,
                ibv_atomic_cap::IBV_ATOMIC_GLOB => Atomics::Global,
                _ => Atomics::None,
            },
            memory_windows_2b: attr.device_cap_flags & ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0 != 0,
        }
    }
}
