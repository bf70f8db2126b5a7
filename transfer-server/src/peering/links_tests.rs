use super::*;
use crate::directory::{Directory, Hello, Place};
use crate::events::Events;
use crate::peering::{Echo, PeeringService};
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tonic::transport::Server;
use v1::peering_server::PeeringServer;

/// The way in which the nodes of these tests connect.
const BY_TCP: Caller = Caller::Plain { loopback: true };

const SOON: Duration = Duration::from_secs(10);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// The commands that the tests' engine receives.
#[derive(Debug, PartialEq)]
enum Command {
    Begin(LinkId),
    Accept(LinkId, PeerInfo, Vec<u8>),
    Finish(LinkId, PeerInfo, Vec<u8>),
    Abandoned(LinkId),
    Failed(Name, Option<LinkId>, String),
}

struct Node {
    links: Links,
    told: mpsc::UnboundedReceiver<Command>,
    address: SocketAddr,
}

/// Makes an engine that accepts every command, numbers links from `first` on, and offers its own name.
fn engine(node: &str, first: u32) -> (EngineClient, mpsc::UnboundedReceiver<Command>) {
    let (tell, told) = mpsc::unbounded_channel();
    let next = std::sync::atomic::AtomicU32::new(first);
    let own = Offer(node.as_bytes().to_vec());
    let client = EngineClient::new(move |command| {
        let number = || LinkId(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let note = match command {
            EngineCommand::BeginLink { answer, .. } => {
                let link = number();
                answer(Ok((link, own.clone(), 64)));
                Command::Begin(link)
            }
            EngineCommand::AcceptLink { peer, offer, answer, .. } => {
                let link = number();
                answer(Ok((link, own.clone(), 32)));
                Command::Accept(link, peer, offer.0)
            }
            EngineCommand::AbandonLink { link, .. } => Command::Abandoned(link),
            EngineCommand::FinishLink { link, peer, offer, answer } => {
                answer(Ok(()));
                Command::Finish(link, peer, offer.0)
            }
            EngineCommand::ConnectFailed { peer, link, why } => Command::Failed(peer, link, why),
            _ => panic!("not a command of these tests"),
        };
        let _ = tell.send(note);
        Ok(())
    });
    (client, told)
}

impl Node {
    /// Starts a node that is attached to `directory` and answers calls.
    async fn start(directory: &Directory, node: &str, me: impl FnOnce(&mut Identity)) -> Node {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let hello = Hello {
            node: name(node),
            address: address.to_string().into(),
            incarnation: 5,
            local: "".into(),
            replace: false,
        };
        let (news, _) = mpsc::unbounded_channel();
        let client = DirectoryClient::start(Place::Local(directory.clone()), hello, news);
        assert!(client.first_word(SOON).await.attached);
        let (engine, told) = engine(node, 100);
        let mut identity = Identity {
            node: name(node),
            incarnation: 5,
            fabrics: vec![FabricKind::Tcp],
            lacking: Vec::new(),
            require: None,
        };
        me(&mut identity);
        let drain = Drain::new(engine.clone(), Events::new());
        let links = Links::new(identity, engine, client.clone(), drain, crate::security::Security::none());
        let service = PeeringServer::new(PeeringService::new(
            links.clone(),
            client,
            Echo::new(links.clone(), Err(format!("node {node} has no verbs"))),
        ));
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(crate::security::over_plain(listener)));
        Node { links, told, address }
    }

    async fn hear(&mut self) -> Command {
        tokio::time::timeout(SOON, self.told.recv()).await.unwrap().unwrap()
    }

    async fn why(&mut self) -> String {
        loop {
            if let Command::Failed(_, _, why) = self.hear().await {
                return why;
            }
        }
    }
}

fn info(node: &str, receive_slots: u32) -> PeerInfo {
    PeerInfo {
        name: name(node),
        incarnation: 5,
        receive_slots,
        vouches: crate::security::Security::none().vouches(node, &BY_TCP),
        passed_over: Vec::new(),
    }
}

#[test]
fn fabrics_have_the_same_numbers_in_messages() {
    for kind in FabricKind::ALL {
        let message = v1::Fabric::from(Kind(kind));
        assert_eq!(message.as_str_name(), format!("FABRIC_{}", kind.name().to_uppercase()));
        assert_eq!(Kind::of(message).unwrap().0, kind);
    }
    assert!(Kind::of(v1::Fabric::Unspecified).is_none());
}

#[tokio::test]
async fn a_call_makes_a_link() {
    let directory = Directory::new(name("a"));
    let mut a = Node::start(&directory, "a", |_| ()).await;
    let mut b = Node::start(&directory, "b", |_| ()).await;
    a.links.wanted(&name("b"));
    a.links.wanted(&name("b"));
    assert_eq!(a.hear().await, Command::Begin(LinkId(100)));
    assert_eq!(b.hear().await, Command::Accept(LinkId(100), info("a", 64), b"a".to_vec()));
    assert_eq!(a.hear().await, Command::Finish(LinkId(100), info("b", 32), b"b".to_vec()));
    // The other side does not call until the link is up or dead.
    b.links.wanted(&name("a"));
    a.links.link_up(&name("b"), LinkId(100));
    b.links.link_up(&name("a"), LinkId(100));
    a.links.link_down(&name("b"), LinkId(100), "reset");
    a.links.wanted(&name("b"));
    assert!(matches!(a.hear().await, Command::Begin(_)));
    assert!(a.told.try_recv().is_err());
}

#[tokio::test]
async fn calls_that_cross_make_one_link() {
    for _ in 0..20 {
        let directory = Directory::new(name("a"));
        let mut a = Node::start(&directory, "a", |_| ()).await;
        let mut b = Node::start(&directory, "b", |_| ()).await;
        a.links.wanted(&name("b"));
        b.links.wanted(&name("a"));
        // Exactly one side finishes a link that the other side accepted, whichever called first.
        let (mut finished, mut accepted) = (None, None);
        while finished.is_none() || accepted.is_none() {
            let (side, told) = tokio::select! {
                told = a.told.recv() => ("a", told.unwrap()),
                told = b.told.recv() => ("b", told.unwrap()),
                () = tokio::time::sleep(SOON) => panic!("no link"),
            };
            match told {
                Command::Begin(_) | Command::Abandoned(_) => {}
                Command::Accept(..) => assert_eq!(accepted.replace(side), None),
                Command::Finish(..) => assert_eq!(finished.replace(side), None),
                Command::Failed(_, _, why) => panic!("{side}: {why}"),
            }
        }
        assert_ne!(finished, accepted);
        a.links.link_up(&name("b"), LinkId(1));
        b.links.link_up(&name("a"), LinkId(1));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!matches!(a.told.try_recv(), Ok(Command::Accept(..) | Command::Finish(..) | Command::Failed(..))));
        assert!(!matches!(b.told.try_recv(), Ok(Command::Accept(..) | Command::Finish(..) | Command::Failed(..))));
    }
}

#[tokio::test]
async fn failures_say_why() {
    let directory = Directory::new(name("a"));
    let mut a = Node::start(&directory, "a", |_| ()).await;

    a.links.wanted(&name("nowhere"));
    let why = a.why().await;
    assert!(why.contains("not attached to the directory"), "{why}");

    a.links.wanted(&name("a"));
    assert!(a.why().await.contains("this node itself"));

    let silent = Hello { node: name("silent"), address: "".into(), incarnation: 1, local: "".into(), replace: false };
    let _silent = directory.attach(&silent, Vouches::ForAll).await.unwrap();
    a.links.wanted(&name("silent"));
    let why = a.why().await;
    assert!(why.contains("--listen"), "{why}");

    let dead =
        Hello { node: name("dead"), address: "127.0.0.1:1".into(), incarnation: 1, local: "".into(), replace: false };
    let _dead = directory.attach(&dead, Vouches::ForAll).await.unwrap();
    a.links.wanted(&name("dead"));
    let why = a.why().await;
    assert!(why.contains("at 127.0.0.1:1:") && why.contains("refused"), "{why}");

    // Another node answers at the address that the directory has for b.
    let taken = Hello {
        node: name("b"),
        address: a.address.to_string().into(),
        incarnation: 1,
        local: "".into(),
        replace: false,
    };
    let _taken = directory.attach(&taken, Vouches::ForAll).await.unwrap();
    let mut c = Node::start(&directory, "c", |_| ()).await;
    c.links.wanted(&name("b"));
    let why = c.why().await;
    assert!(why.contains("this is node a, not b"), "{why}");
}

#[tokio::test]
async fn unavailable_fabric_is_named() {
    let directory = Directory::new(name("a"));
    let mut a = Node::start(&directory, "a", |me| me.require = Some(FabricKind::Tcp)).await;
    let mut b = Node::start(&directory, "b", |me| {
        me.fabrics = vec![FabricKind::Shm, FabricKind::Tcp];
        me.require = Some(FabricKind::Shm);
    })
    .await;
    a.links.wanted(&name("b"));
    let why = a.why().await;
    assert!(why.contains("node b requires shm, not tcp"), "{why}");
    b.links.wanted(&name("a"));
    let why = b.why().await;
    assert!(why.contains("node a requires tcp, not shm"), "{why}");
    let mut c = Node::start(&directory, "c", |me| me.require = Some(FabricKind::Verbs)).await;
    c.links.wanted(&name("a"));
    let why = c.why().await;
    assert!(why.contains("node c has no verbs, only tcp"), "{why}");
}

const BOTH: [FabricKind; 2] = [FabricKind::Verbs, FabricKind::Tcp];

fn lacks(why: &str) -> Vec<PassedOver> {
    vec![PassedOver { fabric: FabricKind::Verbs, why: why.to_owned() }]
}

#[tokio::test]
async fn best_common_fabric_carries_the_link_and_both_sides_know_why() {
    let directory = Directory::new(name("a"));
    let mut a = Node::start(&directory, "a", |me| me.fabrics = BOTH.to_vec()).await;
    let mut b = Node::start(&directory, "b", |me| me.fabrics = BOTH.to_vec()).await;
    let mut c = Node::start(&directory, "c", |me| me.lacking = lacks("no RDMA device")).await;
    a.links.wanted(&name("b"));
    assert_eq!(a.hear().await, Command::Begin(LinkId(100)));
    assert_eq!(b.hear().await, Command::Accept(LinkId(100), info("a", 64), b"a".to_vec()));
    assert_eq!(a.hear().await, Command::Finish(LinkId(100), info("b", 32), b"b".to_vec()));

    // Verbs is missing at the called node, or at the calling node.
    let because = |node, receive_slots| {
        let why = "node c has no verbs: no RDMA device";
        let passed_over = vec![PassedOver { fabric: FabricKind::Verbs, why: why.into() }];
        PeerInfo { passed_over, ..info(node, receive_slots) }
    };
    a.links.wanted(&name("c"));
    assert_eq!(a.hear().await, Command::Begin(LinkId(101)));
    assert_eq!(a.hear().await, Command::Abandoned(LinkId(101)));
    assert_eq!(a.hear().await, Command::Begin(LinkId(102)));
    assert_eq!(a.hear().await, Command::Finish(LinkId(102), because("c", 32), b"c".to_vec()));
    assert_eq!(c.hear().await, Command::Accept(LinkId(100), because("a", 64), b"a".to_vec()));
    c.links.wanted(&name("b"));
    assert_eq!(c.hear().await, Command::Begin(LinkId(101)));
    assert_eq!(c.hear().await, Command::Finish(LinkId(101), because("b", 32), b"b".to_vec()));
    assert_eq!(b.hear().await, Command::Accept(LinkId(101), because("c", 64), b"c".to_vec()));
}

#[tokio::test]
async fn a_link_that_does_not_come_up_is_made_over_the_next_fabric() {
    let directory = Directory::new(name("a"));
    let mut a = Node::start(&directory, "a", |me| me.fabrics = BOTH.to_vec()).await;
    let mut b = Node::start(&directory, "b", |me| me.fabrics = BOTH.to_vec()).await;
    a.links.wanted(&name("b"));
    assert_eq!(a.hear().await, Command::Begin(LinkId(100)));
    assert_eq!(a.hear().await, Command::Finish(LinkId(100), info("b", 32), b"b".to_vec()));
    a.links.link_down(&name("b"), LinkId(100), "transport retry counter exceeded");
    assert_eq!(a.hear().await, Command::Begin(LinkId(101)));
    let Command::Finish(LinkId(101), info, _) = a.hear().await else { panic!() };
    let why = "the verbs link did not come up: transport retry counter exceeded";
    assert_eq!(info.passed_over, lacks(why));
    assert!(matches!(b.hear().await, Command::Accept(LinkId(100), ..)));
    let Command::Accept(LinkId(101), info, _) = b.hear().await else { panic!() };
    assert_eq!(info.passed_over, lacks(why));
    a.links.link_up(&name("b"), LinkId(101));
    // A new request tries the best fabric again.
    a.links.link_down(&name("b"), LinkId(101), "gone");
    a.links.wanted(&name("b"));
    assert_eq!(a.hear().await, Command::Begin(LinkId(102)));
    let Command::Finish(LinkId(102), info, _) = a.hear().await else { panic!() };
    assert_eq!(info.passed_over, []);
}

#[tokio::test]
async fn required_fabric_has_no_fallback() {
    let directory = Directory::new(name("a"));
    let mut a = Node::start(&directory, "a", |me| {
        me.fabrics = BOTH.to_vec();
        me.require = Some(FabricKind::Verbs);
    })
    .await;
    let mut b = Node::start(&directory, "b", |me| me.lacking = lacks("no libibverbs.so.1 on this host")).await;
    a.links.wanted(&name("b"));
    let why = a.why().await;
    assert!(why.ends_with("node b has no verbs: no libibverbs.so.1 on this host"), "{why}");
    b.links.wanted(&name("a"));
    let why = b.why().await;
    let both = "node a requires verbs, not tcp; node b has no verbs: no libibverbs.so.1 on this host";
    assert!(why.ends_with(both), "{why}");
}

#[tokio::test]
async fn invalid_call_is_refused() {
    let directory = Directory::new(name("a"));
    let a = Node::start(&directory, "a", |_| ()).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", a.address)).unwrap();
    let mut client = PeeringClient::new(endpoint.connect().await.unwrap());
    let good = v1::ConnectRequest {
        protocol_version: PROTOCOL_VERSION,
        node: "b".into(),
        incarnation: 1,
        fabric: v1::Fabric::Tcp.into(),
        offer: vec![1],
        receive_slots: 8,
        link: 1,
        to: "a".into(),
        passed_over: Vec::new(),
    };
    let bad = [
        (v1::ConnectRequest { protocol_version: 99, ..good.clone() }, Code::FailedPrecondition, "version 99"),
        (v1::ConnectRequest { node: "a".into(), ..good.clone() }, Code::InvalidArgument, "--node"),
        (v1::ConnectRequest { node: String::new(), ..good.clone() }, Code::InvalidArgument, "node"),
        (v1::ConnectRequest { to: "z".into(), ..good.clone() }, Code::FailedPrecondition, "not z"),
        (v1::ConnectRequest { fabric: 77, ..good.clone() }, Code::InvalidArgument, "77"),
        (v1::ConnectRequest { fabric: v1::Fabric::Verbs.into(), ..good.clone() }, Code::FailedPrecondition, "verbs"),
        (v1::ConnectRequest { receive_slots: 0, ..good.clone() }, Code::InvalidArgument, "receive_slots"),
    ];
    for (request, code, word) in bad {
        let status = client.connect(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(word), "{status}");
    }
    let answer = client.connect(good).await.unwrap().into_inner();
    assert_eq!((answer.node.as_str(), answer.incarnation, answer.receive_slots), ("a", 5, 32));
}

/// Any process that reaches the port may send any bytes in a Connect call, and in the details of a refusal.
// Promise: bytes-from-outside, seen to fail
#[test]
fn fuzz_connect() {
    use prost::Message;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let node = runtime.block_on(Node::start(&Directory::new(name("a")), "b", |_| ()));
    let good = v1::ConnectRequest {
        protocol_version: PROTOCOL_VERSION,
        node: "c".into(),
        incarnation: 5,
        fabric: v1::Fabric::Tcp.into(),
        offer: vec![1; 22],
        receive_slots: 256,
        link: 9,
        to: "b".into(),
        passed_over: vec![v1::PassedOver { fabric: v1::Fabric::Verbs.into(), why: "no device".into() }],
    };
    let refusal = v1::FabricRefusal { fabric: v1::Fabric::Tcp.into() };
    let examples = [good.encode_to_vec(), refusal.encode_to_vec()];
    transfer_fuzz::Target::new("grpc-connect", examples).run(|bytes| {
        let refusal = tonic::Status::with_details(Code::Internal, "", bytes.to_vec().into());
        let refuses = choice::is_refusal(&refusal, FabricKind::Tcp);
        let Ok(request) = v1::ConnectRequest::decode(bytes) else { return format!("no message; {refuses}") };
        match node.links.check(request.clone(), &BY_TCP) {
            Ok((info, fabric, offer)) => {
                assert!(info.receive_slots > 0 && info.name != name("b") && fabric == FabricKind::Tcp);
                assert_eq!((offer.0, info.incarnation), (request.offer, request.incarnation));
                assert!(info.passed_over.iter().all(|passed| !passed.why.chars().any(char::is_control)));
                format!("{} reasons", if info.passed_over.is_empty() { "no" } else { "some" })
            }
            // The error text may contain the peer's name and its reasons, so only the code is recorded.
            Err(status) => format!("{:?}", status.code()),
        }
    });
}

/// A caller may claim any name. A call with weaker proof than the proof of an existing link does not end that link.
// Promise: weaker-proof, seen to fail
// Promise: attacker-as-another-user
// Promise: item-connect
#[tokio::test]
async fn link_is_not_replaced_by_a_caller_with_weaker_proof() {
    let directory = Directory::new(name("a"));
    let a = Node::start(&directory, "a", |_| ()).await;
    let request = |node: &str| v1::ConnectRequest {
        protocol_version: PROTOCOL_VERSION,
        node: node.into(),
        incarnation: 1,
        fabric: v1::Fabric::Tcp.into(),
        offer: b"x".to_vec(),
        receive_slots: 8,
        link: 1,
        ..Default::default()
    };
    // Root has proved its user to every sidecar. Another user, and a caller over TCP, have proved less.
    let (root, other) = (Caller::Local { uid: 0, gid: 0 }, Caller::Local { uid: 54_321, gid: 54_321 });
    let link = a.links.accept(request("b"), &root).await.unwrap().link;
    a.links.link_up(&name("b"), LinkId(link));
    for (caller, free) in [(&other, "c"), (&BY_TCP, "e")] {
        let refused = a.links.accept(request("b"), caller).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        a.links.accept(request(free), caller).await.unwrap();
    }
    // The same caller may call again, and so may a caller with stronger proof.
    a.links.accept(request("b"), &root).await.unwrap();
    a.links.accept(request("c"), &other).await.unwrap();
    a.links.accept(request("c"), &root).await.unwrap();
    // A name whose link has ended is free.
    let ended = a.links.accept(request("d"), &root).await.unwrap().link;
    a.links.link_down(&name("d"), LinkId(ended), "reset");
    a.links.accept(request("d"), &other).await.unwrap();
}
