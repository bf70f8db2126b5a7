//! The checks.

use super::facts::Facts;
use super::{Finding, Verdict};
use crate::devices::word;
use crate::units::{age, bytes};
use std::time::Duration;
use transfer_proto::v1::Fabric;
use transfer_verbs::{GidKind, LinkLayer, PortState};

/// All of them, in the order in which they are printed. Each finds nothing, one thing or several.
pub(super) const ALL: [fn(&Facts) -> Vec<Finding>; 9] =
    [sidecar, directory, locked_memory, verbs_library, cm_library, devices, ports, verbs_fabric, links];

fn found(check: &'static str, verdict: Verdict, found: impl Into<String>, advice: Option<&str>) -> Vec<Finding> {
    vec![Finding { check, verdict, found: found.into(), advice: advice.map(str::to_owned) }]
}

fn sidecar(facts: &Facts) -> Vec<Finding> {
    match &facts.sidecar {
        Ok(status) => {
            let up = age(Duration::from_nanos(status.uptime_ns));
            found("sidecar", Verdict::Ok, format!("node {}, transferd {}, up {up}", status.node, status.version), None)
        }
        Err(e) => found("sidecar", Verdict::Fail, e.to_string(), e.advice().as_deref()),
    }
}

fn directory(facts: &Facts) -> Vec<Finding> {
    let Some(directory) = facts.sidecar.as_ref().ok().and_then(|status| status.directory.as_ref()) else {
        return vec![];
    };
    match directory.attached {
        true => found("directory", Verdict::Ok, format!("{}, attached", directory.location), None),
        false => {
            let text = format!("not attached to {}: {}", directory.location, directory.why_not);
            let advice = "Start the node that hosts it, or give the right URL with --directory";
            found("directory", Verdict::Fail, text, Some(advice))
        }
    }
}

/// Registered memory is locked memory, so the limit counts for RDMA even with --lock no.
fn locked_memory(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.sidecar else { return vec![] };
    let limit = match status.locked_limit_bytes {
        None => return found("locked memory", Verdict::Ok, "the sidecar may lock any amount", None),
        Some(limit) => limit,
    };
    let may_pin = status.pinned_limit_bytes;
    let text = format!("the sidecar may lock {}, and pin {} (--pinned-limit)", bytes(limit), bytes(may_pin));
    if limit >= may_pin {
        return found("locked memory", Verdict::Ok, text, None);
    }
    let advice = "Raise RLIMIT_MEMLOCK (`ulimit -l unlimited`, LimitMEMLOCK=infinity in the systemd unit, --ulimit memlock=-1 for a \
                  container), or lower --pinned-limit: what is registered with an RDMA device must be locked";
    found("locked memory", Verdict::Warn, text, Some(advice))
}

fn verbs_library(facts: &Facts) -> Vec<Finding> {
    match &facts.verbs {
        Ok(()) => found("libibverbs", Verdict::Ok, "there", None),
        Err(why) => {
            let advice =
                "For RDMA, install it with its providers (rdma-core; on Debian libibverbs1 and ibverbs-providers)";
            found("libibverbs", Verdict::Warn, why, Some(advice))
        }
    }
}

/// Only --verbs-connect rdma-cm needs it.
fn cm_library(facts: &Facts) -> Vec<Finding> {
    match (&facts.verbs, &facts.connection_manager) {
        (Err(_), _) => vec![],
        (Ok(()), Ok(())) => found("librdmacm", Verdict::Ok, "there", None),
        (Ok(()), Err(why)) => {
            let advice = "--verbs-connect rdma-cm needs it (on Debian librdmacm1); the default, qp, does not";
            found("librdmacm", Verdict::Warn, why, Some(advice))
        }
    }
}

fn devices(facts: &Facts) -> Vec<Finding> {
    match &facts.devices {
        // That has its own check.
        Err(_) if facts.verbs.is_err() => vec![],
        Err(why) => found("RDMA devices", Verdict::Warn, why.to_string(), Some(why.advice())),
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

fn ports(facts: &Facts) -> Vec<Finding> {
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
            findings.extend(found("RDMA port", Verdict::Warn, text, Some(advice)));
            continue;
        }
        let text = format!("{name} is active, {}, MTU {}", word(&port.link_layer), port.mtu_active);
        let ethernet = port.link_layer == LinkLayer::Ethernet;
        let routed = report.gids.iter().any(|gid| matches!(gid.kind, GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6));
        if ethernet && !routed {
            let advice = "Give its network interface an IP address: packets are addressed by it";
            findings.extend(found(
                "RDMA port",
                Verdict::Warn,
                format!("{text}, and has no RoCE v2 address"),
                Some(advice),
            ));
        } else if ethernet && port.mtu_active < port.mtu_max {
            let text = format!("{text} of {}", port.mtu_max);
            let advice = "Larger packets cost less: set the MTU of the network interface to 4200 or more, on all nodes and switches";
            findings.extend(found("RDMA port", Verdict::Warn, text, Some(advice)));
        } else {
            findings.extend(found("RDMA port", Verdict::Ok, text, None));
        }
    }
    findings.extend(match &facts.choice {
        Ok(choice) => found("RDMA address", Verdict::Ok, format!("by rule it is {choice}"), None),
        Err(why) => {
            found("RDMA address", Verdict::Warn, why, Some("Name one with --verbs-device and --verbs-gid-index"))
        }
    });
    findings
}

fn verbs_fabric(facts: &Facts) -> Vec<Finding> {
    let Some(verbs) = facts.fabric(Fabric::Verbs) else { return vec![] };
    if !verbs.available {
        // A host without RDMA is well.
        let text = format!("RDMA is not used: {}", verbs.why_not);
        return found("verbs", Verdict::Warn, text, Some("Transfers between nodes are carried by tcp"));
    }
    let setting = |name: &str| verbs.settings.iter().find(|s| s.name == name).map(|s| s.value.as_str());
    let settings =
        ["device", "port", "gid", "path mtu"].into_iter().filter_map(|name| Some(format!("{name} {}", setting(name)?)));
    let mut findings = found("verbs", Verdict::Ok, settings.collect::<Vec<_>>().join(", "), None);
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
        Some("yes") => {
            findings.extend(found("bounds", Verdict::Ok, "the device checks the bounds of memory windows", None))
        }
        Some(_) => {
            let text = "the device does not check the bounds of memory windows: a peer may write beyond what it was granted, in the same pool";
            findings.extend(found(
                "bounds",
                Verdict::Warn,
                text,
                Some("Devices of software (rxe) are so; use them for tests only"),
            ));
        }
        None => {}
    }
    findings
}

/// Links that could be better.
fn links(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.sidecar else { return vec![] };
    let one = |link: &transfer_proto::v1::Link| {
        let fabric = crate::admin::fabric_name(link.fabric);
        // Why it is not shared memory is no fault where RDMA carries.
        match link.why.is_empty() || link.fabric() == Fabric::Verbs {
            true => found("link", Verdict::Ok, format!("to node {} is {fabric}", link.peer), None),
            false => {
                found("link", Verdict::Warn, format!("to node {} is {fabric}, because {}", link.peer, link.why), None)
            }
        }
    };
    status.links.iter().flat_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::NoRdma;
    use crate::devices::tests::rxe;
    use transfer_proto::v1::{DirectoryState, FabricState, Link, Setting, StatusResponse};

    fn well() -> Facts {
        let setting = |name: &str, value: &str| Setting { name: name.into(), value: value.into() };
        let settings = vec![
            setting("device", "rxe0"),
            setting("isolation", "window: each grant has its own"),
            setting("checks the bounds of windows", "yes"),
        ];
        let verbs = FabricState { fabric: Fabric::Verbs.into(), available: true, settings, ..FabricState::default() };
        let status = StatusResponse {
            node: "a".into(),
            directory: Some(DirectoryState { attached: true, ..DirectoryState::default() }),
            fabric_states: vec![verbs],
            links: vec![Link { peer: "b".into(), fabric: 4, ..Link::default() }],
            ..StatusResponse::default()
        };
        let mut device = rxe();
        device.ports[0].port.mtu_active = device.ports[0].port.mtu_max;
        Facts {
            sidecar: Ok(status),
            verbs: Ok(()),
            connection_manager: Ok(()),
            devices: Ok(vec![device]),
            choice: Ok("rxe0 port 1, GID 1".into()),
        }
    }

    fn findings(change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
        let mut facts = well();
        change(&mut facts);
        ALL.iter().flat_map(|check| check(&facts)).collect()
    }

    /// That one check, and no other, has this verdict, with these words.
    #[track_caller]
    fn one(change: impl FnOnce(&mut Facts), check: &str, verdict: Verdict, words: &[&str]) {
        let bad: Vec<_> = findings(change).into_iter().filter(|finding| finding.verdict != Verdict::Ok).collect();
        let [finding] = &bad[..] else { panic!("{bad:#?}") };
        assert_eq!((finding.check, finding.verdict), (check, verdict), "{finding:?}");
        let text = super::super::line(finding);
        words.iter().for_each(|word| assert!(text.contains(word), "{word} in {text}"));
    }

    fn status(facts: &mut Facts) -> &mut StatusResponse {
        facts.sidecar.as_mut().unwrap()
    }

    #[test]
    fn who_is_well_hears_so() {
        let findings = findings(|_| ());
        assert!(findings.iter().all(|finding| finding.verdict == Verdict::Ok), "{findings:#?}");
        assert_eq!(findings.len(), 12);
    }

    #[test]
    fn each_check_finds_what_it_is_for_and_says_what_to_do() {
        use Verdict::{Fail, Warn};
        let gone = |f: &mut Facts| f.sidecar = Err(crate::error::Error::Unwell { failed: 1, checks: 1 });
        one(gone, "sidecar", Fail, &["failed"]);
        let away = |f: &mut Facts| status(f).directory = Some(DirectoryState::default());
        one(away, "directory", Fail, &["not attached", "--directory"]);
        let locked = |f: &mut Facts| {
            status(f).locked_limit_bytes = Some(8 << 20);
            status(f).pinned_limit_bytes = 1 << 30;
        };
        one(locked, "locked memory", Warn, &["8 MiB", "1 GiB", "ulimit -l"]);
        let library = |f: &mut Facts| {
            f.verbs = Err("libibverbs.so.1 cannot be used: no such file".into());
            f.devices = Err(NoRdma::NoDevice);
        };
        one(library, "libibverbs", Warn, &["libibverbs.so.1", "ibverbs-providers"]);
        one(|f| f.connection_manager = Err("none".into()), "librdmacm", Warn, &["librdmacm1"]);
        one(|f| f.devices = Err(NoRdma::NoDevice), "RDMA devices", Warn, &["/sys/class/infiniband", "rdma link add"]);
        let hidden = |f: &mut Facts| f.devices = Err(NoRdma::Hidden { kernel: vec!["mlx5_0".into()] });
        one(hidden, "RDMA devices", Warn, &["mlx5_0", "/dev/infiniband"]);
        let device = |f: &mut Facts, change: fn(&mut transfer_verbs::report::DeviceReport)| {
            change(&mut f.devices.as_mut().unwrap()[0]);
        };
        one(|f| device(f, |d| d.limits.memory_windows_2b = false), "RDMA device", Warn, &["2B", "whole landing pool"]);
        one(|f| device(f, |d| d.ports[0].port.state = PortState::Down), "RDMA port", Warn, &["down", "ip link set"]);
        one(|f| device(f, |d| d.ports[0].gids.clear()), "RDMA port", Warn, &["no RoCE v2 address", "IP address"]);
        let small = |f: &mut Facts| device(f, |d| d.ports[0].port.mtu_active = transfer_verbs::Mtu::B1024);
        one(small, "RDMA port", Warn, &["MTU 1024 of 4096", "4200"]);
        one(|f| f.choice = Err("no port fits".into()), "RDMA address", Warn, &["no port fits", "--verbs-gid-index"]);
        let off = |f: &mut Facts| {
            let state = &mut status(f).fabric_states[0];
            (state.available, state.why_not) = (false, "it was started with --verbs off".into());
        };
        one(off, "verbs", Warn, &["--verbs off", "tcp"]);
        let setting = |f: &mut Facts, i: usize, value: &str| {
            status(f).fabric_states[0].settings[i].value = value.to_owned();
        };
        one(|f| setting(f, 1, "pool"), "isolation", Warn, &["pool"]);
        one(|f| setting(f, 2, "no"), "bounds", Warn, &["does not check", "rxe"]);
        let by_tcp = |f: &mut Facts| {
            let link = &mut status(f).links[0];
            (link.fabric, link.why) = (Fabric::Tcp.into(), "node b has no verbs".into());
        };
        one(by_tcp, "link", Warn, &["node b has no verbs"]);
    }
}
