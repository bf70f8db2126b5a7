//! Tests of the choice between RDMA and other fabrics, and of the stated reasons.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Node, SOON, over_unix};
use transfer_core::fabric::FabricKind;
use transfer_proto::v1;
use transfer_server::StartError;
use transfer_server::config::{Config, ConfigError, DirectoryPlace, IsolationChoice, UseFabric};
use v1::admin_client::AdminClient;

const OFF: &str = "it was started with --verbs off";

fn status(node: &Node) -> v1::StatusResponse {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut admin = AdminClient::new(over_unix(node).await);
        admin.status(v1::StatusRequest {}).await.unwrap().into_inner()
    })
}

/// Returns the first link of a node.
fn link(node: &Node) -> v1::Link {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut admin = AdminClient::new(over_unix(node).await);
        admin.links(v1::LinksRequest::default()).await.unwrap().into_inner().links.remove(0)
    })
}

/// Starts a node that uses the directory of `host`; `change` sets its use of RDMA.
fn join(node: &str, host: &Node, change: impl FnOnce(&mut Config)) -> Node {
    let url = host.url();
    let start = |c: &mut Config| {
        c.directory = DirectoryPlace::At(url);
        change(c);
    };
    Node::try_start(node, start).unwrap()
}

#[test]
fn missing_rdma_has_the_same_reason_everywhere() {
    let a = Node::start("a");
    let b = Node::join("b", &a);
    let (mut giver, mut taker) = (a.worker("giver").unwrap(), b.worker("taker").unwrap());
    giver.push("w", &[1, 2, 3]);
    assert_eq!(taker.fetch("w", SOON), Ok((vec![1, 2, 3], FabricKind::Tcp)));
    // b made the link.
    let why = format!("node b has no verbs: {OFF}");
    let shm = "node b has no shm: it was started with --shm off";
    let failure = taker.fetch_over(Some(FabricKind::Verbs), "w", SOON).unwrap_err();
    assert_eq!(failure, format!("verbs is required, but the link to node \"a\" is tcp, because {why}"));
    for node in [&a, &b] {
        let status = status(node);
        let link = link(node);
        assert_eq!(link.fabric(), v1::Fabric::Tcp);
        assert!(link.why.contains(shm) && link.why.contains(&why), "{}", link.why);
        let state = |fabric| status.fabric_states.iter().find(|state| state.fabric() == fabric).expect("its state");
        let (verbs, tcp) = (state(v1::Fabric::Verbs), state(v1::Fabric::Tcp));
        assert_eq!((verbs.available, verbs.why_not.as_str()), (false, OFF));
        assert_eq!((tcp.available, tcp.why_not.as_str()), (true, ""));
    }
}

#[test]
fn required_but_missing_fabric_is_an_error_with_the_reason() {
    let started = |change: fn(&mut Config)| match Node::try_start("a", change) {
        Err(StartError::Config(e)) => e,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("it started"),
    };
    let off = started(|c| c.require = Some(FabricKind::Verbs));
    assert_eq!(off, ConfigError::Require { fabric: FabricKind::Verbs, why: OFF.to_owned() });
    assert_eq!(off.to_string(), format!("--require verbs: {OFF}"));
    let alone = started(|c| {
        c.require = Some(FabricKind::Verbs);
        (c.listen, c.fabrics.verbs.wanted) = (None, UseFabric::Auto);
    });
    assert!(alone.to_string().contains("--listen"), "{alone}");
    let missing = started(|c| {
        c.fabrics.verbs.wanted = UseFabric::On;
        c.fabrics.verbs.devices = vec!["nosuch0".parse().unwrap()];
    });
    assert!(matches!(missing, ConfigError::NoFabric { fabric: FabricKind::Verbs, .. }), "{missing}");
    assert!(missing.to_string().starts_with("--verbs on: "), "{missing}");
}

#[test]
fn invalid_poll_strategy_is_refused() {
    let node = Node::start("a");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut admin = AdminClient::new(over_unix(&node).await);
        let poll = |strategy: v1::PollStrategy, poll_for_ns| v1::Poll { strategy: strategy.into(), poll_for_ns };
        for poll in [None, Some(poll(v1::PollStrategy::Busy, 5)), Some(poll(v1::PollStrategy::Adaptive, u64::MAX))] {
            let refused = admin.set_poll(v1::SetPollRequest { poll }).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
        }
        let event = poll(v1::PollStrategy::Event, 0);
        let answer = admin.set_poll(v1::SetPollRequest { poll: Some(event) }).await.unwrap().into_inner();
        let first = poll(v1::PollStrategy::Adaptive, 200_000);
        assert_eq!((answer.before, answer.now), (Some(first), Some(event)));
        let status = admin.status(v1::StatusRequest {}).await.unwrap().into_inner();
        assert_eq!(status.poll, Some(event));
    });
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn two_nodes_with_a_device_use_it_and_show_how() {
    for isolation in [IsolationChoice::Window, IsolationChoice::Pool] {
        let on = |c: &mut Config| {
            c.fabrics.verbs.wanted = UseFabric::On;
            c.fabrics.verbs.isolation = isolation;
        };
        let a = Node::try_start("a", on).unwrap();
        let b = join("b", &a, on);
        let (mut giver, mut taker) = (a.worker("giver").unwrap(), b.worker("taker").unwrap());
        let bytes: Vec<u8> = (0..200_000).map(|i| (i % 251) as u8).collect();
        giver.push("w", &bytes);
        assert_eq!(taker.fetch_over(Some(FabricKind::Verbs), "w", SOON), Ok((bytes, FabricKind::Verbs)));
        let failure = taker.fetch_over(Some(FabricKind::Tcp), "w", SOON).unwrap_err();
        assert_eq!(failure, "tcp is required, but the link to node \"a\" is verbs");
        for node in [&a, &b] {
            let status = status(node);
            assert_eq!(link(node).fabric(), v1::Fabric::Verbs);
            // Shared memory would be better than verbs, so its absence is mentioned.
            assert!(link(node).why.contains("has no shm") && !link(node).why.contains("verbs"), "{}", link(node).why);
            assert_eq!(status.fabrics, [v1::Fabric::Verbs.into(), i32::from(v1::Fabric::Tcp)]);
            let verbs =
                status.fabric_states.iter().find(|state| state.fabric() == v1::Fabric::Verbs).expect("its state");
            assert!(verbs.available && !verbs.settings.is_empty(), "{verbs:?}");
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_node_with_a_device_and_one_without_use_tcp_and_know_why() {
    let auto = |c: &mut Config| c.fabrics.verbs.wanted = UseFabric::Auto;
    // In turn, the node without a device is called, and calls.
    for (first, second) in [("a", "b"), ("b", "a")] {
        let has = Node::try_start(first, auto).unwrap();
        let lacks = Node::join(second, &has);
        let why = format!("node {second} has no verbs: {OFF}");
        let (mut at_has, mut at_lacks) = (has.worker("x").unwrap(), lacks.worker("y").unwrap());
        at_has.push("k", &[1]);
        at_lacks.push("l", &[2]);
        assert_eq!(at_has.fetch("l", SOON), Ok((vec![2], FabricKind::Tcp)));
        assert_eq!(at_lacks.fetch("k", SOON), Ok((vec![1], FabricKind::Tcp)));
        let failure = at_has.fetch_over(Some(FabricKind::Verbs), "l", SOON).unwrap_err();
        assert!(failure.contains("is tcp, because ") && failure.ends_with(&why), "{failure}");
        for node in [&has, &lacks] {
            assert!(link(node).why.ends_with(&why), "{}", link(node).why);
        }
    }
}
