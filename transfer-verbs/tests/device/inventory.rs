//! What is listed, compared with what libibverbs' own tool says.

use std::process::Command;

use transfer_verbs::*;

/// The value of the first line of `ibv_devinfo -v` with this name.
fn value<'a>(devinfo: &'a str, name: &str) -> &'a str {
    let line = devinfo.lines().map(str::trim).find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {devinfo}")).trim()
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn the_report_says_what_ibv_devinfo_says() {
    let output = Command::new("ibv_devinfo").arg("-v").output().unwrap();
    let devinfo = String::from_utf8(output.stdout).unwrap();
    let reports = report::devices().unwrap();
    let report = &reports[0];
    let limits = &report.limits;
    assert_eq!(value(&devinfo, "hca_id"), report.name);
    assert_eq!(value(&devinfo, "node_guid"), report.node_guid.to_string());
    assert_eq!(value(&devinfo, "sys_image_guid"), report.system_guid.to_string());
    assert_eq!(value(&devinfo, "phys_port_cnt"), limits.phys_ports.to_string());
    assert_eq!(value(&devinfo, "max_mr_size"), format!("{:#x}", limits.max_mr_size));
    for (name, number) in [
        ("max_qp", limits.max_qp),
        ("max_qp_wr", limits.max_qp_wr),
        ("max_sge", limits.max_sge),
        ("max_sge_rd", limits.max_sge_rd),
        ("max_cq", limits.max_cq),
        ("max_cqe", limits.max_cqe),
        ("max_mr", limits.max_mr),
        ("max_mw", limits.max_mw),
        ("max_pd", limits.max_pd),
        ("max_qp_rd_atom", limits.max_qp_rd_atom),
        ("max_qp_init_rd_atom", limits.max_qp_init_rd_atom),
        ("max_srq", limits.max_srq),
        ("max_srq_wr", limits.max_srq_wr),
        ("max_srq_sge", limits.max_srq_sge),
    ] {
        assert_eq!(value(&devinfo, name), number.to_string(), "{name}");
    }
    assert_eq!(limits.memory_windows_2b, devinfo.contains("MEM_WINDOW_TYPE_2B"));
    assert_eq!(value(&devinfo, "atomic_cap").starts_with("ATOMIC_HCA"), limits.atomic == Atomics::Device);

    let port = &report.ports[0];
    assert!(value(&devinfo, "state").starts_with("PORT_ACTIVE") && port.port.state == PortState::Active);
    assert!(value(&devinfo, "max_mtu").starts_with(&port.port.mtu_max.to_string()));
    assert!(value(&devinfo, "active_mtu").starts_with(&port.port.mtu_active.to_string()));
    assert_eq!(value(&devinfo, "link_layer"), port.port.link_layer.to_string());
    assert_eq!(value(&devinfo, "max_msg_sz"), format!("{:#x}", port.port.max_message_bytes));
    assert_eq!(value(&devinfo, "gid_tbl_len"), port.port.gid_table_len.to_string());
    assert_eq!(value(&devinfo, "pkey_tbl_len"), port.port.pkey_table_len.to_string());
    assert!(value(&devinfo, "phys_state").starts_with("LINK_UP") && port.port.physical_state == PhysicalState::LinkUp);
    for gid in &port.gids {
        let line = devinfo.lines().find(|line| line.contains(&format!("GID[{:3}]", gid.index))).unwrap();
        assert!(line.contains("RoCE v2") && line.contains(&gid.gid.to_string()), "{line}: {gid:?}");
        assert!(gid.netdev.is_some(), "{gid:?}");
    }
    assert_eq!(port.gids.len(), devinfo.matches("GID[").count());
    assert_eq!(port.pkeys, [0xffff]);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn the_report_can_be_written_as_json() {
    let report = serde_json::to_value(report::devices().unwrap()).unwrap();
    let device = &report[0];
    assert_eq!((&device["node_type"], &device["limits"]["atomic"]), (&"channel_adapter".into(), &"device".into()));
    let port = &device["ports"][0];
    assert_eq!((&port["state"], &port["mtu_max"]), (&"active".into(), &4096.into()));
    assert_eq!((&port["gids"][1]["kind"], &port["gids"][1]["index"]), (&"roce_v2_ipv4".into(), &1.into()));
    assert_eq!(port["gids"][1]["gid"], "::ffff:10.77.0.1");
}
