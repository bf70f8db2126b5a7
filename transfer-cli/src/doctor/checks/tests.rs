//! Tests of the checks: for each there are facts with which it alone fails.

use super::*;
use crate::admin::address::Address;
use crate::devices::NoRdma;
use crate::devices::tests::rxe;
use crate::doctor::facts::certificate::{Certificate, CertificateFile};
use crate::doctor::facts::host::{Host, HugePool};
use crate::doctor::facts::moved::Moved;
use crate::doctor::facts::peer::{Ahead, Direction, Peer};
use crate::doctor::facts::socket::{Process, Socket, State};
use crate::error::Error;
use crate::gpus::Gpus;
use crate::gpus::tests::gpu;
use std::time::Duration;
use transfer_client::FabricKind;
use transfer_cuda::CudaError;
use transfer_proto::v1::{DirectoryState, Fabric, FabricState, Link, Pool, Setting, StatusResponse};
use transfer_verbs::PortState;

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
        version: "1.0.0".into(),
        believes: "sidecars by their certificates".into(),
        pinned_limit_bytes: 1 << 30,
        pools: vec![Pool { bytes: 1 << 20, ..Pool::default() }],
        ..StatusResponse::default()
    };
    let theirs = StatusResponse { node: "b".into(), ..status.clone() };
    let host = Host {
        kernel: "6.1.0-23-amd64".into(),
        needed: vec![("memfd with seals", Ok(())), ("epoll", Ok(()))],
        pidfd: Ok(()),
        huge_pages: vec![
            HugePool { page_bytes: 2 << 20, pages: 8, free: 4 },
            HugePool { page_bytes: 1 << 30, pages: 0, free: 0 },
        ],
        memory_bytes: Some(16 << 30),
        available_bytes: Some(8 << 30),
    };
    let process = Process { group_limit_bytes: Some(2 << 30), open_files: Some(65_536) };
    let moved = Moved {
        fabric: FabricKind::Local,
        bytes: 4 << 20,
        copied: 0,
        took: Duration::from_micros(50),
        same: Some(true),
    };
    let between = Moved { fabric: FabricKind::Tcp, copied: 8 << 20, ..moved };
    let certificate =
        Certificate { subject: "CN=node-a".into(), from_s: 900_000_000, until_s: 1_000_000_000 + 90 * 86_400 };
    let peer = Peer {
        address: Address::Tcp("http://b:7471".into()),
        status: Ok(theirs),
        clock: Some(Ahead { by_ns: -900_000_000, give_or_take_ns: 1_000_000 }),
        data_port: Some(("10.0.0.2:4000".into(), Ok(()))),
        interface: Some(("eth0".into(), 1500)),
        moved: vec![(Direction::From, Ok(between)), (Direction::To, Ok(between))],
        why_not_better: Some(String::new()),
    };
    let mut device = rxe();
    device.ports[0].port.mtu_active = device.ports[0].port.mtu_max;
    Facts {
        version: "1.0.0",
        sidecar: Ok(status),
        links: vec![Link { peer: "b".into(), fabric: 4, ..Link::default() }],
        host,
        socket: Socket {
            path: "/run/s".into(),
            named: true,
            state: State::Open { mode: 0o660, uid: 7, sidecar: Some(process) },
        },
        data_port: Some(("10.0.0.1:4000".into(), Ok(()))),
        moved: Some(Ok(moved)),
        peer: Some(peer),
        certificates: vec![CertificateFile { path: "/etc/tls.pem".into(), found: Ok(vec![certificate]) }],
        now_s: 1_000_000_000,
        verbs: Ok(()),
        connection_manager: Ok(()),
        devices: Ok(vec![device]),
        choice: Ok("rxe0 port 1, GID 1".into()),
        gpus: Gpus { found: Ok(vec![gpu()]), driver: Some("13.0".into()), in_kernel: true },
    }
}

fn findings(change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut facts = well();
    change(&mut facts);
    ALL.iter().flat_map(|check| check(&facts)).collect()
}

/// Asserts that this check, and no other, has this verdict, with these words.
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
fn healthy_host_passes_all_checks() {
    let findings = findings(|_| ());
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Ok), "{findings:#?}");
    assert_eq!(findings.len(), 33);
}

#[test]
fn a_host_without_gpus_is_fine() {
    let none = |f: &mut Facts| {
        f.gpus = Gpus { found: Err(CudaError::NoGpu), driver: None, in_kernel: false };
    };
    let findings = findings(none);
    let found = findings.iter().find(|finding| finding.check == "GPU").unwrap();
    assert_eq!(found.verdict, Verdict::Ok);
    assert!(found.found.starts_with("none is used: the CUDA driver shows no GPU"), "{}", found.found);
}

#[test]
fn each_check_finds_its_fault_and_gives_advice() {
    use Verdict::{Fail, Warn};
    let gone = |f: &mut Facts| f.sidecar = Err(crate::error::Error::Unhealthy { failed: 1, checks: 1 });
    one(gone, "sidecar", Fail, &["failed"]);
    let away = |f: &mut Facts| status(f).directory = Some(DirectoryState::default());
    one(away, "directory", Fail, &["not attached", "--directory"]);
    let unproved = |f: &mut Facts| status(f).believes = "nobody: there is no socket".into();
    one(unproved, "peers", Fail, &["no socket", "--tls-cert"]);
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
    let hidden = |f: &mut Facts| f.gpus.found = Err(CudaError::NoGpu);
    one(hidden, "GPU", Warn, &["shows no GPU", "--gpus all"]);
    let gpu = |f: &mut Facts, change: fn(&mut transfer_cuda::DeviceReport)| {
        change(&mut f.gpus.found.as_mut().unwrap()[0]);
    };
    one(|f| gpu(f, |g| g.read_only_host_registration = false), "GPU", Warn, &["H100", "pageable", "newer driver"]);
    one(|f| gpu(f, |g| g.host_registration = false), "GPU", Warn, &["not registered", "pageable"]);
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
        let link = &mut f.links[0];
        (link.fabric, link.why) = (Fabric::Tcp.into(), "node b has no verbs".into());
    };
    one(by_tcp, "link", Warn, &["node b has no verbs"]);
}

#[test]
fn wrong_digests_are_found() {
    let wrong = |f: &mut Facts| {
        status(f).counters = Some(transfer_proto::v1::Counters { wrong_digests: 1, ..Default::default() });
    };
    one(wrong, "digests", Verdict::Fail, &["1 fetch of workers here", "transferctl events --after 0"]);
}

fn peer(facts: &mut Facts) -> &mut Peer {
    facts.peer.as_mut().unwrap()
}

#[test]
fn sockets_and_ports_of_the_sidecar_are_checked() {
    use Verdict::{Fail, Warn};
    one(|f| f.version = "1.1.0", "version", Warn, &["transferctl is 1.1.0", "transferd 1.0.0", "one release"]);
    let socket = |state: State, named: bool| {
        move |f: &mut Facts| f.socket = Socket { path: "/run/s".into(), named, state: state.clone() }
    };
    one(socket(State::Missing, true), "worker socket", Fail, &["nothing is at /run/s", "--socket"]);
    one(socket(State::Missing, false), "worker socket", Warn, &["nothing is at /run/s", "--socket"]);
    one(socket(State::NoSocket, true), "worker socket", Fail, &["no socket", "socket=PATH"]);
    let another = State::Another { node: "c".into() };
    one(
        socket(another.clone(), true),
        "worker socket",
        Fail,
        &["/run/s is that of another sidecar, of node c", "--socket"],
    );
    one(socket(another, false), "worker socket", Warn, &["of another sidecar", "--socket"]);
    let denied = State::Closed { mode: 0o600, why: "Permission denied".into(), denied: true };
    one(socket(denied, true), "worker socket", Fail, &["mode 600", "Permission denied", "--socket-mode"]);
    let refused = State::Closed { mode: 0o660, why: "Connection refused".into(), denied: false };
    one(socket(refused, true), "worker socket", Fail, &["Connection refused", "start transferd"]);
    let shut = |f: &mut Facts| f.data_port = Some(("10.0.0.1:4000".into(), Err("timed out".into())));
    one(shut, "data port", Fail, &["10.0.0.1:4000", "timed out", "firewall", "--data-listen"]);
}

#[test]
fn host_and_memory_are_checked() {
    use Verdict::{Fail, Warn};
    one(|f| f.host.kernel = "5.10.0-28".into(), "kernel", Fail, &["5.10.0-28 is too old", "5.14"]);
    one(|f| f.host.kernel = "plan9".into(), "kernel", Warn, &["plan9"]);
    let seals = |f: &mut Facts| f.host.needed[0].1 = Err("Operation not permitted".into());
    one(seals, "kernel", Fail, &["memfd with seals", "not permitted", "seccomp"]);
    one(|f| f.host.pidfd = Err("no such call".into()), "kernel", Warn, &["pidfd", "no such call", "seccomp"]);
    one(|f| f.host.huge_pages[0].free = 0, "huge pages", Warn, &["8 of 2 MiB, 0 free", "nr_hugepages"]);
    let process = |change: fn(&mut Process)| {
        move |f: &mut Facts| {
            let State::Open { sidecar: Some(process), .. } = &mut f.socket.state else { panic!("it is open") };
            change(process);
        }
    };
    one(process(|p| p.open_files = Some(256)), "open files", Warn, &["256", "LimitNOFILE"]);
    let group = |p: &mut Process| p.group_limit_bytes = Some(512 << 20);
    one(process(group), "memory limit", Warn, &["512 MiB", "of 1 GiB", "--pinned-limit"]);
    one(|f| f.host.memory_bytes = Some(1 << 29), "memory", Warn, &["the host has 512 MiB", "--pinned-limit"]);
    one(|f| f.host.available_bytes = Some(1 << 20), "memory", Warn, &["1 MiB more could be had", "--pinned-limit"]);
    one(|f| status(f).pools[0].waiting = 3, "landing pool", Warn, &["3 wait for room", "--pool-bytes"]);
}

#[test]
fn moved_bytes_are_judged() {
    use Verdict::{Fail, Warn};
    let here = |change: fn(&mut Moved)| move |f: &mut Facts| change(f.moved.as_mut().unwrap().as_mut().unwrap());
    one(here(|m| m.same = Some(false)), "bytes here", Fail, &["differ from those that were sent"]);
    one(here(|m| m.copied = 5), "bytes here", Warn, &["copied=5 B", "by reference"]);
    let gone = || Error::Unhealthy { failed: 1, checks: 1 };
    one(|f| f.moved = Some(Err(gone())), "bytes here", Fail, &["worker to worker", "1 of 1 checks failed"]);

    let between = |change: fn(&mut Moved)| move |f: &mut Facts| change(peer(f).moved[1].1.as_mut().unwrap());
    one(between(|m| m.same = Some(false)), "bytes between", Fail, &["to it", "differ from those that were sent"]);
    one(|f| peer(f).moved[0].1 = Err(gone()), "bytes between", Fail, &["from it"]);
    one(
        |f| peer(f).moved.clear(),
        "bytes between",
        Warn,
        &["none were moved", "no worker of this user", "--with-socket"],
    );
    let why = |f: &mut Facts| {
        peer(f).moved.truncate(1);
        peer(f).why_not_better = Some("node b has no verbs".into());
    };
    one(why, "bytes between", Warn, &["4 MiB tcp", "GiB/s", "because node b has no verbs"]);
}

#[test]
fn other_node_is_compared_with_this_one() {
    use Verdict::{Fail, Warn};
    let away = |f: &mut Facts| peer(f).status = Err(Error::Unhealthy { failed: 1, checks: 1 });
    one(away, "other node", Fail, &["failed"]);
    let namesake = |f: &mut Facts| {
        let theirs = peer(f).status.as_mut().unwrap();
        (theirs.node, theirs.incarnation) = ("a".into(), 9);
    };
    one(namesake, "other node", Fail, &["this one's name", "--node"]);
    one(|f| peer(f).status.as_mut().unwrap().node = "a".into(), "other node", Fail, &["it is this one"]);
    one(|f| peer(f).status.as_mut().unwrap().version = "0.9.0".into(), "versions", Warn, &["0.9.0 there"]);
    let ahead = |f: &mut Facts| peer(f).clock = Some(Ahead { by_ns: 3_000_000_000, give_or_take_ns: 500_000_000 });
    one(ahead, "clocks", Warn, &["3.000 s ahead", "give or take 0.500 s", "chrony"]);
    let shut = |f: &mut Facts| peer(f).data_port = Some(("10.0.0.2:4000".into(), Err("refused".into())));
    one(shut, "its data port", Fail, &["10.0.0.2:4000", "refused", "firewall"]);
    one(|f| peer(f).interface = Some(("tun0".into(), 1400)), "MTU", Warn, &["1400 on tun0", "VPN"]);
}

#[test]
fn certificates_are_judged_by_the_clock() {
    use Verdict::{Fail, Warn};
    let at = |now_s: i64| move |f: &mut Facts| f.now_s = now_s;
    let until = 1_000_000_000 + 90 * 86_400;
    one(at(until + 1), "certificate", Fail, &["/etc/tls.pem", "CN=node-a", "has expired", "new one"]);
    one(at(until - 3 * 86_400), "certificate", Warn, &["CN=node-a", "3 d 0 h", "new one"]);
    one(at(899_999_999), "certificate", Fail, &["not valid yet", "clock"]);
    let unread = |f: &mut Facts| f.certificates[0].found = Err("No such file".into());
    one(unread, "certificate", Fail, &["/etc/tls.pem", "No such file"]);
    one(|f| f.certificates[0].found = Ok(vec![]), "certificate", Fail, &["no certificate", "PEM"]);
}
