//! The gRPC services, over TCP and over a Unix socket.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Node, SOON, name, over_unix};
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
use tonic_reflection::pb::v1 as reflect;
use tonic_reflection::pb::v1alpha as reflect_alpha;
use transfer_proto::v1;
use transfer_server::config::{Config, ConfigError};
use transfer_server::{Sidecar, StartError};
use v1::admin_client::AdminClient;
use v1::directory_client::DirectoryClient;
use v1::peering_client::PeeringClient;
use v1::resolve_request::What;

async fn over_tcp(node: &Node) -> Channel {
    Endpoint::from_shared(node.url()).unwrap().connect_timeout(SOON).connect().await.unwrap()
}

#[tokio::test]
async fn health_and_reflection_are_served() {
    let node = Node::start("a");
    for channel in [over_tcp(&node).await, over_unix(&node).await] {
        let mut health = HealthClient::new(channel.clone());
        for service in ["", "transfer.v1.Peering", "transfer.v1.Directory", "transfer.v1.Admin"] {
            let request = HealthCheckRequest { service: service.to_owned() };
            let answer = health.check(request).await.unwrap().into_inner();
            assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
        }

        let mut client = reflect::server_reflection_client::ServerReflectionClient::new(channel.clone());
        let list = reflect::server_reflection_request::MessageRequest::ListServices(String::new());
        let request = reflect::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
        let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
        let answer = answers.next().await.unwrap().unwrap().message_response.unwrap();
        let reflect::server_reflection_response::MessageResponse::ListServicesResponse(list) = answer else { panic!() };
        let names: Vec<_> = list.service.into_iter().map(|s| s.name).collect();
        for service in ["transfer.v1.Peering", "transfer.v1.Directory", "transfer.v1.Admin", "grpc.health.v1.Health"] {
            assert!(names.iter().any(|n| n == service), "{service} in {names:?}");
        }

        let mut client = reflect_alpha::server_reflection_client::ServerReflectionClient::new(channel);
        let symbol = "transfer.v1.Admin".to_owned();
        let ask = reflect_alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol);
        let request = reflect_alpha::ServerReflectionRequest { host: String::new(), message_request: Some(ask) };
        let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
        let answer = answers.next().await.unwrap().unwrap().message_response.unwrap();
        use reflect_alpha::server_reflection_response::MessageResponse;
        assert!(matches!(answer, MessageResponse::FileDescriptorResponse(_)), "{answer:?}");
    }
}

#[tokio::test]
async fn status_counts_and_tensors_are_listed_by_page() {
    let node = Node::start("a");
    let channel = over_unix(&node).await;
    let mut admin = AdminClient::new(channel);
    let before = admin.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((before.node.as_str(), before.incarnation), ("a", node.sidecar.addresses().incarnation));
    assert_eq!((before.counters.unwrap().sessions, before.pools.len()), (0, 0));
    assert!(before.pinned_bytes > 0 && before.pinned_bytes < before.pinned_limit_bytes);
    assert_eq!(before.fabrics, [i32::from(v1::Fabric::Tcp)]);
    let directory = before.directory.unwrap();
    assert!(directory.attached && directory.hosted_here && directory.why_not.is_empty(), "{directory:?}");
    assert_eq!((directory.location.as_str(), directory.nodes), ("embedded", 1));

    let mut worker = node.worker("trainer").unwrap();
    for i in 0..25 {
        let reply = worker.push(&format!("w/{i:02}"), &[7; 100]);
        assert!(matches!(reply, transfer_core::op::Answer::Pushed { .. }), "{reply:?}");
    }
    worker.push("other", &[1]);
    let status = admin.status(v1::StatusRequest {}).await.unwrap().into_inner();
    let sessions = admin.sessions(v1::SessionsRequest::default()).await.unwrap().into_inner().sessions;
    assert_eq!((sessions[0].worker.as_str(), sessions[0].arena_bytes), ("trainer", 1 << 20));
    assert_eq!((status.pools[0].bytes, status.pools[0].used_bytes), (4 << 20, 0));
    let counters = status.counters.unwrap();
    assert_eq!((counters.tensors, counters.sessions), (26, 1));
    let directory = status.directory.unwrap();
    assert_eq!((directory.keys, directory.workers), (26, 1));
    assert!(status.pinned_bytes >= before.pinned_bytes + (5 << 20));

    let mut keys = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::TensorsRequest { prefix: "w/".into(), page_size: 10, page_token, ..Default::default() };
        let page = admin.tensors(request).await.unwrap().into_inner();
        assert!(page.tensors.len() <= 10);
        for tensor in page.tensors {
            assert_eq!((tensor.owner.as_str(), tensor.len_bytes, tensor.readers), ("trainer", 100, 0));
            assert_eq!(tensor.tensor.unwrap(), v1::TensorDescriptor { dtype: 3, shape: vec![100] });
            keys.push(tensor.key);
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    keys.sort();
    assert_eq!(keys, (0..25).map(|i| format!("w/{i:02}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn lookup_and_resolve_agree() {
    let a = Node::start("a");
    let b = Node::join("b", &a);
    let mut worker = b.worker("trainer").unwrap();
    worker.push("w", &[1, 2, 3]);
    let ask = |what| v1::ResolveRequest { what: Some(what) };
    let mut lookup = DirectoryClient::new(over_tcp(&a).await);
    let found = lookup.lookup(ask(What::Key("w".into()))).await.unwrap().into_inner();
    assert_eq!((found.node.as_str(), found.owner.as_str()), ("b", "trainer"));
    assert_eq!(found.address, b.sidecar.addresses().grpc.unwrap().to_string());
    assert!(found.sequence > 0);
    // Either node's Peering service gives the same answer; b asks a.
    for node in [&a, &b] {
        let mut peering = PeeringClient::new(over_unix(node).await);
        assert_eq!(peering.resolve(ask(What::Key("w".into()))).await.unwrap().into_inner(), found);
        let worker = peering.resolve(ask(What::Worker("trainer".into()))).await.unwrap().into_inner();
        assert_eq!((worker.node.as_str(), worker.incarnation), ("b", b.sidecar.addresses().incarnation));
        let missing = peering.resolve(ask(What::Key("nothing".into()))).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{missing}");
        let senseless = peering.resolve(ask(What::Key("k".repeat(513)))).await.unwrap_err();
        assert_eq!(senseless.code(), Code::InvalidArgument, "{senseless}");
    }
    // Only the host serves the directory.
    let mut not_here = DirectoryClient::new(over_tcp(&b).await);
    assert_eq!(not_here.lookup(ask(What::Key("w".into()))).await.unwrap_err().code(), Code::Unimplemented);
}

#[test]
fn failed_start_says_why_and_leaves_nothing_behind() {
    let beyond = Node::try_start("a", |c| c.listen = Some("0.0.0.0:0".parse().unwrap()));
    assert!(matches!(beyond, Err(StartError::Config(ConfigError::BeyondLoopback { flag: "--listen", .. }))));
    let beyond = Node::try_start("a", |c| c.data_listen = Some("0.0.0.0:0".parse().unwrap()));
    assert!(matches!(beyond, Err(StartError::Config(ConfigError::BeyondLoopback { flag: "--data-listen", .. }))));

    let first = Node::start("a");
    let taken = first.sidecar.addresses().clone();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("worker.sock");
    let mut config = Config::single(name("b"), &socket);
    config.listen = taken.grpc;
    let e = Sidecar::start(config).unwrap_err().to_string();
    assert!(e.contains("--listen") && e.contains("in use") && e.contains(&taken.grpc.unwrap().to_string()), "{e}");
    assert!(!socket.exists());
    let e = Sidecar::start(Config::single(name("b"), &taken.socket)).unwrap_err().to_string();
    assert!(e.contains("--socket") && e.contains("listens"), "{e}");
    let mut config = Config::single(name("b"), &socket);
    config.require = Some(transfer_core::fabric::FabricKind::Tcp);
    let e = Sidecar::start(config).unwrap_err().to_string();
    assert!(e.contains("--require tcp") && e.contains("--listen"), "{e}");
}

#[test]
fn a_stop_removes_the_sockets() {
    let node = Node::start("a");
    let addresses = node.sidecar.addresses().clone();
    let admin = addresses.admin_socket.unwrap();
    assert!(addresses.socket.exists() && admin.exists());
    node.sidecar.stop();
    assert!(!addresses.socket.exists() && !admin.exists());
    assert!(std::net::TcpStream::connect(addresses.grpc.unwrap()).is_err());

    let embedded = Sidecar::embedded(name("here")).unwrap();
    let socket = embedded.addresses().socket.clone();
    assert!(socket.exists() && embedded.addresses().grpc.is_none());
    drop(embedded);
    assert!(!socket.parent().unwrap().exists());
}
