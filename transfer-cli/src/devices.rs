//! `transferctl devices`: the data of ibv_devices, ibv_devinfo and ibstat, the port that `transferd` would use, and the
//! GPUs. It needs no sidecar.

use crate::gpus::Gpus;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write;
use transfer_terminal::units::{bytes, count};
use transfer_verbs::choose::{self, Chosen, Wanted};
use transfer_verbs::report::{self, DeviceReport, PortReport};
use transfer_verbs::{PortState, VerbsError};

/// The directory where the kernel lists its RDMA devices.
const KERNEL_DEVICES: &str = "/sys/class/infiniband";

/// The options of `transferctl devices`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// As JSON; empty lists with the reasons if there is no device and no GPU
    #[arg(long)]
    pub json: bool,
}

/// The reason why there is no device to show.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoRdma {
    /// The library is missing, or fails.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The kernel has no device.
    #[error("no RDMA device: {KERNEL_DEVICES} is empty")]
    NoDevice,
    /// The kernel has devices that this process cannot reach.
    #[error("the kernel has {}, but no RDMA device can be opened here", kernel.join(", "))]
    Hidden {
        /// The kernel's names for them.
        kernel: Vec<String>,
    },
}

impl NoRdma {
    /// The advice.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self {
            NoRdma::Verbs(VerbsError::Unavailable(_)) => {
                "Install libibverbs with its providers (rdma-core; on Debian libibverbs1 and ibverbs-providers)."
            }
            NoRdma::Verbs(_) => "`ibv_devinfo` and the kernel's log may tell more.",
            NoRdma::NoDevice => {
                "Load the driver of the card. Without a card, `rdma link add rxe0 type rxe netdev eth0` makes a device of software."
            }
            NoRdma::Hidden { .. } => {
                "Its files /dev/infiniband/uverbs* must be there and readable: give them to the container (--device /dev/infiniband), and \
                 the provider of the device must be installed (ibverbs-providers)."
            }
        }
    }
}

/// Queries the devices and the GPUs, and prints them.
///
/// # Errors
/// [`NoRdma`], after the GPUs were printed. A host without GPUs is no error.
pub fn run(options: &Options) -> Result<(), NoRdma> {
    let (devices, gpus) = (devices(), Gpus::look());
    if options.json {
        transfer_terminal::outln!("{:#}", as_json(&devices, &gpus));
    } else {
        if let Ok(devices) = &devices {
            transfer_terminal::out!("{}\n", as_text(devices, &choice()));
        }
        transfer_terminal::out!("{}", gpus.text());
    }
    devices.map(drop)
}

/// Every device of this host; at least one.
pub(crate) fn devices() -> Result<Vec<DeviceReport>, NoRdma> {
    let devices = report::devices()?;
    if !devices.is_empty() {
        return Ok(devices);
    }
    let kernel = std::fs::read_dir(KERNEL_DEVICES).into_iter().flatten().flatten();
    let mut kernel: Vec<_> = kernel.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    kernel.sort_unstable();
    Err(if kernel.is_empty() { NoRdma::NoDevice } else { NoRdma::Hidden { kernel } })
}

/// The default port of `transferd`, in words; or why there is none.
pub(crate) fn choice() -> Result<String, String> {
    let Chosen { context, port, gid } = choose::port(&Wanted::default()).map_err(|e| e.to_string())?;
    let address = match gid {
        Some(gid) => format!("GID {} ({}, {})", gid.index, gid.gid, gid.kind),
        None => format!("LID {}", port.lid),
    };
    Ok(format!("{} port {}, {address}", context.device_name(), port.number))
}

fn as_json(devices: &Result<Vec<DeviceReport>, NoRdma>, gpus: &Gpus) -> Value {
    let mut all = match devices {
        Ok(devices) => json!({ "devices": devices, "why_none": null, "default": choice().ok() }),
        Err(why) => json!({ "devices": [], "why_none": why.to_string(), "default": null }),
    };
    if let (Value::Object(all), Value::Object(gpus)) = (&mut all, gpus.json()) {
        all.extend(gpus);
    }
    all
}

/// A value's name, as JSON has it.
pub(crate) fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().map_or_else(|| value.to_string(), |name| name.replace('_', " "))
}

fn as_text(devices: &[DeviceReport], choice: &Result<String, String>) -> String {
    let mut text = String::new();
    for device in devices {
        device_text(&mut text, device);
        device.ports.iter().for_each(|port| port_text(&mut text, port));
        text.push('\n');
    }
    // Writing to a String cannot fail.
    let _ = match choice {
        Ok(choice) => writeln!(text, "transferd takes {choice} by default"),
        Err(why) => writeln!(text, "transferd takes none of them: {why}"),
    };
    text
}

fn device_text(text: &mut String, device: &DeviceReport) {
    let DeviceReport { name, node_guid, system_guid, node_type, limits: l, .. } = device;
    let many = |n: u32| count(n.into());
    let _ = writeln!(text, "{name}");
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "    {name:<16} {value}");
    };
    line("node type", word(node_type));
    line("node GUID", node_guid.to_string());
    line("system GUID", system_guid.to_string());
    line("firmware", if l.fw_version.is_empty() { "not told".to_owned() } else { l.fw_version.clone() });
    line("made by", format!("vendor {:#06x}, part {}, hardware {:#x}", l.vendor_id, l.vendor_part_id, l.hw_version));
    line(
        "queue pairs",
        format!("{} of {} work requests, {} elements each", many(l.max_qp), many(l.max_qp_wr), l.max_sge),
    );
    line("completion", format!("{} queues of {} entries", many(l.max_cq), many(l.max_cqe)));
    line(
        "shared receive",
        format!("{} queues of {} entries, {} elements", many(l.max_srq), many(l.max_srq_wr), l.max_srq_sge),
    );
    // The software device reports no limit.
    let size = if l.max_mr_size == u64::MAX { "any size".to_owned() } else { bytes(l.max_mr_size) };
    line("memory", format!("{} regions of {size}, {} domains", many(l.max_mr), many(l.max_pd)));
    let kind = if l.memory_windows_2b { "type 2B among them" } else { "none of type 2B: isolation is by pool" };
    line("memory windows", format!("{}, {kind}", many(l.max_mw)));
    line("atomics", format!("{}; {} to answer, {} under way", l.atomic, l.max_qp_rd_atom, l.max_qp_init_rd_atom));
}

fn port_text(text: &mut String, report: &PortReport) {
    let PortReport { port, rate_gbps, gids, pkeys } = report;
    let state = if port.state == PortState::Active {
        "active".to_owned()
    } else {
        format!("NOT active: {}", word(&port.state))
    };
    let _ = writeln!(text, "    port {}", port.number);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "        {name:<12} {value}");
    };
    line("state", format!("{state}, {}", word(&port.physical_state)));
    line("link layer", word(&port.link_layer));
    line("MTU", format!("{}, at most {}", port.mtu_active, port.mtu_max));
    line("LID", format!("{}, LMC {}, subnet manager {}", port.lid, port.lmc, port.sm_lid));
    let lane = f64::from(port.lane_speed_tenths) / 10.0;
    line(
        "rate",
        match rate_gbps {
            Some(rate) => format!("{rate} Gb/s ({}x {lane})", port.width),
            None => "not told".to_owned(),
        },
    );
    line("message", format!("at most {}", bytes(port.max_message_bytes.into())));
    line("capabilities", format!("{:#010x}", port.capabilities));
    for gid in gids {
        let netdev = gid.netdev.as_ref().map_or_else(String::new, |netdev| format!(", {netdev}"));
        line(&format!("GID {}", gid.index), format!("{}, {}{netdev}", gid.gid, gid.kind));
    }
    let pkeys: Vec<_> = pkeys.iter().map(|pkey| format!("{pkey:#06x}")).collect();
    line("P_Keys", format!("{} ({} places)", pkeys.join(", "), port.pkey_table_len));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use transfer_verbs::{
        Atomics, DeviceLimits, Gid, GidEntry, GidKind, Guid, LinkLayer, Mtu, NodeType, PhysicalState, Port,
    };

    pub(crate) fn rxe() -> DeviceReport {
        let limits = DeviceLimits {
            fw_version: String::new(),
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            hw_version: 0,
            phys_ports: 1,
            page_size_cap: 4096,
            max_mr_size: u64::MAX,
            max_mr: 524_287,
            max_mw: 524_287,
            max_pd: 1_048_576,
            max_qp: 1_048_560,
            max_qp_wr: 1_048_576,
            max_sge: 32,
            max_sge_rd: 32,
            max_cq: 1_048_576,
            max_cqe: 32_767,
            max_srq: 917_503,
            max_srq_wr: 1_048_576,
            max_srq_sge: 27,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            max_pkeys: 64,
            atomic: Atomics::Device,
            memory_windows_2b: true,
        };
        let port = Port {
            number: 1,
            state: PortState::Active,
            physical_state: PhysicalState::LinkUp,
            mtu_active: Mtu::B1024,
            mtu_max: Mtu::B4096,
            lid: 0,
            lmc: 0,
            sm_lid: 0,
            link_layer: LinkLayer::Ethernet,
            max_message_bytes: 8 << 20,
            gid_table_len: 1024,
            pkey_table_len: 1,
            width: 1,
            lane_speed_tenths: 25,
            capabilities: 0x0001_0000,
        };
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 78, 0, 1]);
        let gid = GidEntry { index: 1, gid, kind: GidKind::RoceV2Ipv4, netdev: Some("eth0".into()) };
        let port = PortReport { port, rate_gbps: Some(2.5), gids: vec![gid], pkeys: vec![0xffff] };
        let guid = Guid(0x5054_00ff_fe12_3456);
        let node_type = NodeType::ChannelAdapter;
        DeviceReport { name: "rxe0".into(), node_guid: guid, system_guid: guid, node_type, limits, ports: vec![port] }
    }

    #[test]
    fn a_device_is_shown_with_its_ports_and_addresses() {
        let mut down = rxe();
        down.name = "rxe1".into();
        down.ports[0].port.state = PortState::Down;
        let text = as_text(&[rxe(), down], &Ok("rxe0 port 1".into()));
        for line in [
            "rxe0\n    node type        channel adapter\n    node GUID        5054:00ff:fe12:3456\n",
            "type 2B",
            "        state        active, link up\n        link layer   ethernet\n        MTU          1024, at most 4096\n",
            "        rate         2.5 Gb/s (1x 2.5)",
            "        GID 1        ::ffff:10.78.0.1, RoCE v2 over IPv4, eth0\n",
            "0xffff (1 places)\n\nrxe1\n",
            "NOT active: down",
            "transferd takes rxe0 port 1 by default",
        ] {
            assert!(text.contains(line), "{line:?}: {text}");
        }
        assert!(as_text(&[rxe()], &Err("port down".into())).contains("none of them: port down"));
        let gpus = Gpus { found: Ok(vec![crate::gpus::tests::gpu()]), driver: Some("13.0".into()), in_kernel: true };
        let json = as_json(&Err(NoRdma::NoDevice), &gpus);
        let seen = (&json["devices"], &json["gpus"][0]["name"], &json["cuda_driver"]);
        assert_eq!(seen, (&json!([]), &json!("NVIDIA H100 80GB HBM3"), &json!("13.0")));
        let json = serde_json::to_value([rxe()]).unwrap();
        assert_eq!(json[0]["ports"][0]["gids"][0]["kind"], "roce_v2_ipv4");
    }
}
