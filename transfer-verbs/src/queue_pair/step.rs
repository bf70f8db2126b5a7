//! The attributes of a transition, and the one that is to blame for a refusal.
//!
//! The kernel only says "invalid argument". So attributes that are known to be wrong are refused in advance, and after
//! a refusal the attributes are compared with the limits of the device and its port.

use std::{io, mem};

use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

use crate::{
    Context, Gid, InitAttributes, LinkLayer, Mtu, QueuePairState, ReceiveAttributes, SendAttributes, Transition,
    address_handle, cm,
};

pub(super) struct Step {
    transition: Transition,
    pub(super) attributes: ibv_qp_attr,
    pub(super) mask: libc::c_int,
}

/// The wrong attribute of a step.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) transition: Transition,
    pub(super) attribute: &'static str,
    pub(super) value: String,
    pub(super) why: io::Error,
}

/// Returns an error for the first attribute that is out of its range, with the right values.
pub(super) fn in_range(
    transition: Transition,
    attributes: &[(&'static str, u32, u32, u32, &str)],
) -> Result<(), Wrong> {
    for &(attribute, value, least, most, note) in attributes {
        if !(least..=most).contains(&value) {
            let value = format!("{value} ({least} to {most} would be right{note})");
            return Err(Wrong { transition, attribute, value, why: io::Error::from_raw_os_error(libc::EINVAL) });
        }
    }
    Ok(())
}

pub(super) const LARGEST_24_BITS: u32 = 0xff_ffff;

impl Step {
    pub(super) fn new(transition: Transition, state: ibv_qp_state::Type, mask: &[ibv_qp_attr_mask]) -> Self {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut attributes: ibv_qp_attr = unsafe { mem::zeroed() };
        attributes.qp_state = state;
        let mask = mask.iter().fold(ibv_qp_attr_mask::IBV_QP_STATE.0, |all, one| all | one.0);
        Self { transition, attributes, mask: mask as libc::c_int }
    }

    pub(super) fn error() -> Result<Self, Wrong> {
        Ok(Self::new(Transition::AnyToError, ibv_qp_state::IBV_QPS_ERR, &[]))
    }

    pub(super) fn init(wanted: &InitAttributes, context: &Context) -> Result<Self, Wrong> {
        let transition = Transition::ResetToInit;
        let ports = u32::from(context.limits().phys_ports);
        in_range(transition, &[("port", u32::from(wanted.port), 1, ports, "")])?;
        // Some devices (rxe) accept any index, and use the first one.
        if let Ok(port) = context.port(wanted.port) {
            let last = u32::from(port.pkey_table_len).saturating_sub(1);
            in_range(transition, &[("pkey_index", u32::from(wanted.pkey_index), 0, last, "")])?;
        }
        let mut step = Self::new(
            transition,
            ibv_qp_state::IBV_QPS_INIT,
            &[
                ibv_qp_attr_mask::IBV_QP_PKEY_INDEX,
                ibv_qp_attr_mask::IBV_QP_PORT,
                ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS,
            ],
        );
        step.attributes.port_num = wanted.port;
        step.attributes.pkey_index = wanted.pkey_index;
        step.attributes.qp_access_flags = wanted.access.flags();
        Ok(step)
    }

    pub(super) fn ready_to_receive(wanted: &ReceiveAttributes, context: &Context, port: u8) -> Result<Self, Wrong> {
        let transition = Transition::InitToReadyToReceive;
        let destination = &wanted.destination;
        check_ready_to_receive(wanted, context.limits().max_qp_rd_atom)?;
        let ethernet = || context.port(port).is_ok_and(|port| port.link_layer == LinkLayer::Ethernet);
        if destination.gid.is_none_or(Gid::is_zero) && ethernet() {
            return Err(Wrong {
                transition,
                attribute: "gid",
                value: "none (on Ethernet a peer has one)".to_owned(),
                why: io::Error::from_raw_os_error(libc::EINVAL),
            });
        }
        let mut step = Self::new(
            transition,
            ibv_qp_state::IBV_QPS_RTR,
            &[
                ibv_qp_attr_mask::IBV_QP_AV,
                ibv_qp_attr_mask::IBV_QP_PATH_MTU,
                ibv_qp_attr_mask::IBV_QP_DEST_QPN,
                ibv_qp_attr_mask::IBV_QP_RQ_PSN,
                ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC,
                ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER,
            ],
        );
        let attributes = &mut step.attributes;
        attributes.path_mtu = wanted.path_mtu.code();
        attributes.dest_qp_num = wanted.queue_pair;
        attributes.rq_psn = wanted.packet_number;
        attributes.max_dest_rd_atomic = wanted.max_rd_atomic;
        attributes.min_rnr_timer = wanted.min_rnr_timer;
        address_handle::fill(&mut attributes.ah_attr, destination, port);
        Ok(step)
    }

    pub(super) fn ready_to_send(wanted: &SendAttributes, context: &Context) -> Result<Self, Wrong> {
        let transition = Transition::ReadyToReceiveToReadyToSend;
        check_ready_to_send(wanted, context.limits().max_qp_init_rd_atom)?;
        let mut step = Self::new(
            transition,
            ibv_qp_state::IBV_QPS_RTS,
            &[
                ibv_qp_attr_mask::IBV_QP_SQ_PSN,
                ibv_qp_attr_mask::IBV_QP_TIMEOUT,
                ibv_qp_attr_mask::IBV_QP_RETRY_CNT,
                ibv_qp_attr_mask::IBV_QP_RNR_RETRY,
                ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC,
            ],
        );
        step.attributes.sq_psn = wanted.packet_number;
        step.attributes.timeout = wanted.timeout;
        step.attributes.retry_cnt = wanted.retry_count;
        step.attributes.rnr_retry = wanted.rnr_retry;
        step.attributes.max_rd_atomic = wanted.max_rd_atomic;
        Ok(step)
    }

    /// Makes a step of the attributes that a connection of librdmacm requires.
    pub(super) fn by<S: QueuePairState>(transition: Transition, wanted: &cm::Attributes<S>) -> Result<Self, Wrong> {
        let (attributes, mask) = wanted.raw();
        Ok(Self { transition, attributes, mask })
    }

    /// Returns the port that the step sets.
    pub(super) fn port(&self) -> Option<u8> {
        let sets = self.mask & ibv_qp_attr_mask::IBV_QP_PORT.0 as libc::c_int != 0;
        sets.then_some(self.attributes.port_num)
    }

    /// Returns the attribute that the kernel must have meant. `port` is the queue pair's, once it has one.
    pub(super) fn blame(self, context: &Context, port: u8, why: io::Error) -> Wrong {
        let (attribute, value) = match self.transition {
            Transition::ResetToInit => {
                let a = &self.attributes;
                let value =
                    format!("port {}, pkey_index {}, access {:#x}", a.port_num, a.pkey_index, a.qp_access_flags);
                ("one of several", value)
            }
            Transition::InitToReadyToReceive => self.blame_ready_to_receive(context, port, &why),
            Transition::ReadyToReceiveToReadyToSend => {
                let a = &self.attributes;
                let value = format!(
                    "timeout {}, retry_count {}, rnr_retry {}, max_rd_atomic {}",
                    a.timeout, a.retry_cnt, a.rnr_retry, a.max_rd_atomic
                );
                ("one of several", value)
            }
            Transition::AnyToError => ("state", "ERR".to_owned()),
        };
        Wrong { transition: self.transition, attribute, value, why }
    }

    fn blame_ready_to_receive(&self, context: &Context, port: u8, why: &io::Error) -> (&'static str, String) {
        let a = &self.attributes;
        let grh = &a.ah_attr.grh;
        let index = u32::from(grh.sgid_index);
        if a.ah_attr.is_global != 0
            && let Ok(gids) = context.gids(port)
            && !gids.iter().any(|gid| gid.index == index)
        {
            let used: Vec<String> = gids.iter().map(|gid| gid.index.to_string()).collect();
            return ("gid_index", format!("{index} (port {port} has an address at {})", used.join(", ")));
        }
        if let (Ok(port), Some(mtu)) = (context.port(port), Mtu::from_code(a.path_mtu))
            && mtu > port.mtu_active
        {
            return ("path_mtu", format!("{mtu} (port {} carries {})", port.number, port.mtu_active));
        }
        // SAFETY: all of the union's variants are plain bytes.
        let gid = Gid(unsafe { grh.dgid.raw });
        let unreachable = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ETIMEDOUT, libc::ENODEV, libc::EADDRNOTAVAIL];
        if a.ah_attr.is_global != 0 && why.raw_os_error().is_some_and(|code| unreachable.contains(&code)) {
            return ("gid", format!("{gid} (no way to it from gid_index {index})"));
        }
        let value = format!(
            "gid {gid}, gid_index {index}, lid {}, queue_pair {}, path_mtu code {}, max_rd_atomic {}",
            a.ah_attr.dlid, a.dest_qp_num, a.path_mtu, a.max_dest_rd_atomic
        );
        ("one of several", value)
    }
}

fn check_ready_to_receive(wanted: &ReceiveAttributes, max_rd_atomic: u32) -> Result<(), Wrong> {
    let destination = &wanted.destination;
    in_range(
        Transition::InitToReadyToReceive,
        &[
            ("queue_pair", wanted.queue_pair, 0, LARGEST_24_BITS, ""),
            ("packet_number", wanted.packet_number, 0, LARGEST_24_BITS, ""),
            ("min_rnr_timer", u32::from(wanted.min_rnr_timer), 0, 31, ""),
            ("max_rd_atomic", u32::from(wanted.max_rd_atomic), 0, max_rd_atomic, ": the device's max_qp_rd_atom"),
            ("service_level", u32::from(destination.service_level), 0, 15, ""),
            ("flow_label", destination.flow_label, 0, 0xf_ffff, ""),
        ],
    )
}

fn check_ready_to_send(wanted: &SendAttributes, max_rd_atomic: u32) -> Result<(), Wrong> {
    in_range(
        Transition::ReadyToReceiveToReadyToSend,
        &[
            ("packet_number", wanted.packet_number, 0, LARGEST_24_BITS, ""),
            ("timeout", u32::from(wanted.timeout), 1, 31, ": 0 would wait for ever"),
            ("retry_count", u32::from(wanted.retry_count), 0, 6, ": 7 is for ever on some devices"),
            ("rnr_retry", u32::from(wanted.rnr_retry), 0, 6, ": 7 is for ever"),
            ("max_rd_atomic", u32::from(wanted.max_rd_atomic), 0, max_rd_atomic, ": the device's max_qp_init_rd_atom"),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::{check_ready_to_receive, check_ready_to_send};
    use crate::{Destination, Mtu, ReceiveAttributes, SendAttributes};

    const SEND: SendAttributes =
        SendAttributes { packet_number: 0xff_ffff, timeout: 14, retry_count: 6, rnr_retry: 6, max_rd_atomic: 16 };

    fn receive() -> ReceiveAttributes {
        ReceiveAttributes {
            destination: Destination { service_level: 15, flow_label: 0xf_ffff, ..Destination::default() },
            queue_pair: 0xff_ffff,
            packet_number: 0xff_ffff,
            path_mtu: Mtu::B4096,
            max_rd_atomic: 16,
            min_rnr_timer: 31,
        }
    }

    #[test]
    fn largest_values_are_accepted() {
        assert!(check_ready_to_send(&SEND, 16).is_ok());
        assert!(check_ready_to_receive(&receive(), 16).is_ok());
    }

    #[test]
    fn endless_waits_are_refused_by_name_and_value() {
        for (wanted, attribute, value) in [
            (SendAttributes { timeout: 0, ..SEND }, "timeout", "0 (1 to 31"),
            (SendAttributes { retry_count: 7, ..SEND }, "retry_count", "7 (0 to 6"),
            (SendAttributes { rnr_retry: 7, ..SEND }, "rnr_retry", "7 (0 to 6"),
            (SendAttributes { max_rd_atomic: 17, ..SEND }, "max_rd_atomic", "17 (0 to 16"),
            (SendAttributes { packet_number: 1 << 24, ..SEND }, "packet_number", "16777216 (0 to 16777215"),
        ] {
            let wrong = check_ready_to_send(&wanted, 16).expect_err("out of range");
            assert_eq!(wrong.attribute, attribute);
            assert!(wrong.value.starts_with(value), "{}", wrong.value);
        }
    }

    #[test]
    fn oversized_values_are_refused_by_name_and_value() {
        let in_destination = |destination| ReceiveAttributes { destination, ..receive() };
        for (wanted, attribute) in [
            (ReceiveAttributes { queue_pair: 1 << 24, ..receive() }, "queue_pair"),
            (ReceiveAttributes { min_rnr_timer: 32, ..receive() }, "min_rnr_timer"),
            (in_destination(Destination { service_level: 16, ..Destination::default() }), "service_level"),
            (in_destination(Destination { flow_label: 1 << 20, ..Destination::default() }), "flow_label"),
        ] {
            assert_eq!(check_ready_to_receive(&wanted, 16).expect_err("out of range").attribute, attribute);
        }
    }
}
