//! Checks of RDMA: its libraries, devices and ports, and the sidecar's use of them.

use super::{found, ok, warn};
use crate::devices::word;
use crate::doctor::facts::Facts;
use crate::doctor::{Finding, Verdict};
use transfer_proto::v1::Fabric;
use transfer_verbs::{GidKind, LinkLayer, PortState};

pub(super) fn verbs_library(facts: &Facts) -> Vec<Finding> {
    match &facts.verbs {
        Ok(()) => ok("libibverbs", "there"),
        Err(why) => {
            let advice =
                "For RDMA, install it with its providers (rdma-core; on Debian libibverbs1 and ibverbs-providers)";
            warn("libibverbs", why, advice)
        }
    }
}

/// Checks the library of the connection manager, which only --verbs-connect rdma-cm needs.
pub(super) fn cm_library(facts: &Facts) -> Vec<Finding> {
    match (&facts.verbs, &facts.connection_manager) {
        (Err(_), _) => vec![],
        (Ok(()), Ok(())) => ok("librdmacm", "there"),
        (Ok(()), Err(why)) => {
            let advice = "--verbs-connect rdma-cm needs it (on Debian librdmacm1); the default, qp, does not";
            warn("librdmacm", why, advice)
        }
    }
}

pub(super) fn devices(facts: &Facts) -> Vec<Finding> {
    match &facts.devices {
        // The missing library has its own check.
        Err(_) if facts.verbs.is_err() => vec![],
        Err(why) => warn("RDMA devices", why.to_string(), why.advice()),
        Ok(devices) => {
            let one = |device: &transfer_verbs::report::DeviceReport| {
                let windows = if device.limits.memory_windows_2b { "" } else { ", without memory windows of type 2B" };
                let (verdict, advice) = match device.limits.memory_windows_2b {
                    true => (Verdict::Ok, None),
                    false => (
                        Verdict::Warn,
                        Some("A peer that is granted one slot may write to the whole landing pool of that user"),
                    ),
                };
                found("RDMA device", verdict, format!("{} ({}){windows}", device.name, word(&device.node_type)), advice)
            };
            devices.iter().flat_map(one).collect()
        }
    }
}

pub(super) fn ports(facts: &Facts) -> Vec<Finding> {
    let Ok(devices) = &facts.devices else { return vec![] };
    let mut findings = Vec::new();
    for (device, report) in devices.iter().flat_map(|d| d.ports.iter().map(move |port| (d, port))) {
        let port = &report.port;
        let name = format!("{} port {}", device.name, port.number);
        if port.state != PortState::Active {
            let text = format!("{name} is {}", word(&port.state));
            let advice = match port.link_layer {
                LinkLayer::Ethernet => "Bring its network interface up (`ip link set DEV up`), and look at the cable",
                _ => "Look at the cable, and whether a subnet manager (opensm) runs",
            };
            findings.extend(warn("RDMA port", text, advice));
            continue;
        }
        let text = format!("{name} is active, {}, MTU {}", word(&port.link_layer), port.mtu_active);
        let ethernet = port.link_layer == LinkLayer::Ethernet;
        let routed = report.gids.iter().any(|gid| matches!(gid.kind, GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6));
        if ethernet && !routed {
            let advice = "Give its network interface an IP address: packets are addressed by it";
            findings.extend(warn("RDMA port", format!("{text}, and has no RoCE v2 address"), advice));
        } else if ethernet && port.mtu_active < port.mtu_max {
            let text = format!("{text} of {}", port.mtu_max);
            let advice = "Larger packets cost less: set the MTU of the network interface to 4200 or more, on all nodes and switches";
            findings.extend(warn("RDMA port", text, advice));
        } else {
            findings.extend(ok("RDMA port", text));
        }
    }
    findings.extend(match &facts.choice {
        Ok(choice) => ok("RDMA address", format!("by rule it is {choice}")),
        Err(why) => warn("RDMA address", why, "Name one with --verbs-device and --verbs-gid-index"),
    });
    findings
}

pub(super) fn verbs_fabric(facts: &Facts) -> Vec<Finding> {
    let Some(verbs) = facts.fabric(Fabric::Verbs) else { return vec![] };
    if !verbs.available {
        // A host without RDMA is fine.
        let text = format!("RDMA is not used: {}", verbs.why_not);
        return warn("verbs", text, "Transfers between nodes are carried by tcp");
    }
    let setting = |name: &str| verbs.settings.iter().find(|s| s.name == name).map(|s| s.value.as_str());
    let settings =
        ["device", "port", "gid", "path mtu"].into_iter().filter_map(|name| Some(format!("{name} {}", setting(name)?)));
    let mut findings = ok("verbs", settings.collect::<Vec<_>>().join(", "));
    if let Some(isolation) = setting("isolation") {
        let (verdict, advice) = match isolation.starts_with("pool") {
            true => (
                Verdict::Warn,
                Some("A peer that is granted one slot may write to the whole landing pool of that user"),
            ),
            false => (Verdict::Ok, None),
        };
        findings.extend(found("isolation", verdict, isolation, advice));
    }
    match setting("checks the bounds of windows") {
        Some("yes") => findings.extend(ok("bounds", "the device checks the bounds of memory windows")),
        Some(_) => {
            let text = "the device does not check the bounds of memory windows: a peer may write beyond what it was granted, in the same pool";
            findings.extend(warn("bounds", text, "Software devices (rxe) do not; use them for tests only"));
        }
        None => {}
    }
    findings
}
