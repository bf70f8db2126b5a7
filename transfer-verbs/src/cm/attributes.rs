//! The attributes that a connection requires of its queue pair.

use std::fmt;
use std::marker::PhantomData;

use rdma_sys::{ibv_access_flags, ibv_qp_attr, ibv_qp_attr_mask};

use crate::{Init, QueuePairState, ReadyToReceive, ReadyToSend, RemoteAccess};

/// The attributes that a connection requires of a queue pair on its way to the state `S`.
pub struct Attributes<S: QueuePairState> {
    attributes: ibv_qp_attr,
    mask: libc::c_int,
    state: PhantomData<S>,
}

impl<S: QueuePairState> Attributes<S> {
    pub(super) fn new(attributes: ibv_qp_attr, mask: libc::c_int) -> Self {
        Self { attributes, mask, state: PhantomData }
    }

    pub(crate) fn raw(&self) -> (ibv_qp_attr, libc::c_int) {
        // SAFETY: plain numbers, which may be copied; rdma-sys does not say so of this struct.
        (unsafe { std::ptr::read(&self.attributes) }, self.mask)
    }

    fn set(&mut self, flag: ibv_qp_attr_mask) {
        self.mask |= flag.0 as libc::c_int;
    }
}

impl Attributes<Init> {
    /// Sets the operations that the peer may do, instead of those of the connection.
    pub fn set_access(&mut self, access: RemoteAccess) {
        self.attributes.qp_access_flags = access.flags() | ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        self.set(ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS);
    }
}

impl Attributes<ReadyToReceive> {
    /// Sets the time that a peer waits after it found no receive posted: a code from 0 to 31.
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.attributes.min_rnr_timer = code;
        self.set(ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER);
    }

    /// Sets the number of the peer's READs and atomics that can be answered at a time. The accepting side must set it,
    /// because the connection does not know it before it is accepted.
    pub fn set_max_rd_atomic(&mut self, count: u8) {
        self.attributes.max_dest_rd_atomic = count;
        self.set(ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC);
    }
}

impl Attributes<ReadyToSend> {
    /// Sets the most READs and atomics in flight. The accepting side must set it.
    pub fn set_max_rd_atomic(&mut self, count: u8) {
        self.attributes.max_rd_atomic = count;
        self.set(ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC);
    }

    /// Sets the number of retries when the peer has no receive posted, 0 to 6. The accepting side must set it.
    pub fn set_rnr_retry(&mut self, count: u8) {
        self.attributes.rnr_retry = count;
        self.set(ibv_qp_attr_mask::IBV_QP_RNR_RETRY);
    }
}

impl<S: QueuePairState> fmt::Debug for Attributes<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attributes {:#x} for the state {}", self.mask, self.attributes.qp_state)
    }
}
