//! The transitions of unreliable queue pairs and of those for datagrams.

use rdma_sys::{ibv_qp_attr_mask, ibv_qp_state};

use super::step::{LARGEST_24_BITS, Step, Wrong, in_range};
use super::{Init, QueuePair, ReadyToReceive, ReadyToSend, Refused, Reset};
use crate::{
    Context, Datagram, DatagramAttributes, InitAttributes, ReceiveAttributes, RemoteAccess, Transition, Unreliable,
    UnreliableAttributes,
};

impl QueuePair<Init, Unreliable> {
    /// Moves from INIT to RTR.
    pub fn ready_to_receive(
        self,
        attributes: &UnreliableAttributes,
    ) -> Result<QueuePair<ReadyToReceive, Unreliable>, Refused<Init, Unreliable>> {
        let step = unreliable(attributes, self.inner.domain.context(), self.inner.port);
        self.step(step)
    }
}

impl QueuePair<ReadyToReceive, Unreliable> {
    /// Moves from RTR to RTS. `packet_number` is that of the own first packet, 24 bits.
    pub fn ready_to_send(
        self,
        packet_number: u32,
    ) -> Result<QueuePair<ReadyToSend, Unreliable>, Refused<ReadyToReceive, Unreliable>> {
        self.step(ready_to_send(packet_number))
    }
}

impl QueuePair<Reset, Datagram> {
    /// Moves from RESET to INIT.
    pub fn init(self, attributes: &DatagramAttributes) -> Result<QueuePair<Init, Datagram>, Refused<Reset, Datagram>> {
        let step = datagram(attributes, self.inner.domain.context());
        self.step(step)
    }
}

impl QueuePair<Init, Datagram> {
    /// Moves from INIT to RTR. It has no peer, so nothing is to be set.
    pub fn ready_to_receive(self) -> Result<QueuePair<ReadyToReceive, Datagram>, Refused<Init, Datagram>> {
        self.step(Ok(Step::new(Transition::InitToReadyToReceive, ibv_qp_state::IBV_QPS_RTR, &[])))
    }
}

impl QueuePair<ReadyToReceive, Datagram> {
    /// Moves from RTR to RTS. `packet_number` is that of the own first packet, 24 bits.
    pub fn ready_to_send(
        self,
        packet_number: u32,
    ) -> Result<QueuePair<ReadyToSend, Datagram>, Refused<ReadyToReceive, Datagram>> {
        self.step(ready_to_send(packet_number))
    }
}

/// INIT to RTR of an unreliable queue pair: what a reliable one needs, without answers and retries.
fn unreliable(wanted: &UnreliableAttributes, context: &Context, port: u8) -> Result<Step, Wrong> {
    let UnreliableAttributes { destination, queue_pair, packet_number, path_mtu } = *wanted;
    let wanted =
        ReceiveAttributes { destination, queue_pair, packet_number, path_mtu, max_rd_atomic: 0, min_rnr_timer: 0 };
    let mut step = Step::ready_to_receive(&wanted, context, port)?;
    let none = ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0 | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
    step.mask &= !(none as libc::c_int);
    Ok(step)
}

/// RESET to INIT of a queue pair for datagrams: a queue key in place of the access of a peer.
fn datagram(wanted: &DatagramAttributes, context: &Context) -> Result<Step, Wrong> {
    let DatagramAttributes { port, pkey_index, queue_key } = *wanted;
    let wanted = InitAttributes { port, pkey_index, access: RemoteAccess::default() };
    let mut step = Step::init(&wanted, context)?;
    step.mask &= !(ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0 as libc::c_int);
    step.mask |= ibv_qp_attr_mask::IBV_QP_QKEY.0 as libc::c_int;
    step.attributes.qkey = queue_key;
    Ok(step)
}

fn ready_to_send(packet_number: u32) -> Result<Step, Wrong> {
    let transition = Transition::ReadyToReceiveToReadyToSend;
    in_range(transition, &[("packet_number", packet_number, 0, LARGEST_24_BITS, "")])?;
    let mut step = Step::new(transition, ibv_qp_state::IBV_QPS_RTS, &[ibv_qp_attr_mask::IBV_QP_SQ_PSN]);
    step.attributes.sq_psn = packet_number;
    Ok(step)
}

#[cfg(test)]
mod tests {
    use rdma_sys::ibv_qp_attr_mask;

    use super::ready_to_send;

    #[test]
    fn a_packet_number_has_24_bits_and_nothing_else_is_set() {
        let step = ready_to_send(0xff_ffff).expect("in range");
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 | ibv_qp_attr_mask::IBV_QP_SQ_PSN.0;
        assert_eq!((step.attributes.sq_psn, step.mask), (0xff_ffff, mask as libc::c_int));
        let wrong = ready_to_send(1 << 24).err().expect("out of range");
        assert_eq!(wrong.attribute, "packet_number");
    }
}
