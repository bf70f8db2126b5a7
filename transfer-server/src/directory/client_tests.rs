use super::super::host::Directory;
use super::super::service::DirectoryService;
use super::*;
use crate::security::{self, Security};
use tonic::transport::Server;
use transfer_core::protocol::{Claim, ClaimRefused, DirectoryNews, DirectoryRequest};
use transfer_core::tensor::Key;
use transfer_proto::v1::directory_server::DirectoryServer;

const SOON: Duration = Duration::from_secs(10);

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn hello(node: &str) -> Hello {
    Hello { node: name(node), address: format!("{node}:1").into(), incarnation: 1, local: "".into(), replace: false }
}

struct Node {
    client: DirectoryClient,
    news: mpsc::UnboundedReceiver<DirectoryEvent>,
}

impl Node {
    fn start(place: Place, node: &str) -> Node {
        let (tell, news) = mpsc::unbounded_channel();
        Node { client: DirectoryClient::start(place, hello(node), tell), news }
    }

    /// Returns the next news. The number of an entry is 1, since the directory begins with the time of day.
    async fn hear(&mut self) -> DirectoryEvent {
        let mut news = tokio::time::timeout(SOON, self.news.recv()).await.unwrap().unwrap();
        if let DirectoryEvent::Directory(DirectoryNews::Claimed { result: Ok(entered), .. }) = &mut news {
            *entered = (*entered).min(1);
        }
        news
    }

    fn claim(&self, k: &str, owner: &str) {
        self.client.ask(DirectoryCommand::Claim(Claim {
            key: key(k),
            owner: name(owner),
            tenant: Name::of_number(0),
            resident: true,
            takeover: false,
            entered: 0,
        }));
    }
}

fn claimed(k: &str) -> DirectoryEvent {
    DirectoryEvent::Directory(DirectoryNews::Claimed { key: key(k), result: Ok(1) })
}

/// A key that is granted without the directory.
fn granted(k: &str) -> DirectoryEvent {
    DirectoryEvent::Directory(DirectoryNews::Claimed { key: key(k), result: Ok(0) })
}

/// Serves a directory by gRPC on `address` until the sender is dropped.
async fn serve(directory: &Directory, address: &str) -> (std::net::SocketAddr, oneshot::Sender<()>) {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let service = DirectoryServer::new(DirectoryService::new(directory.clone(), crate::security::Security::of_all()));
    let directory = directory.clone();
    tokio::spawn(async move {
        let serving = Server::builder().add_service(service).serve_with_incoming(security::over_plain(listener));
        tokio::select! {
            done = serving => done.unwrap(),
            _ = stopped => directory.close(),
        }
    });
    (address, stop)
}

/// Serves another directory at an address that has just been served.
async fn serve_again(directory: &Directory, address: std::net::SocketAddr) -> oneshot::Sender<()> {
    // Connections that are ending may hold the port for a moment.
    for _ in 0..100 {
        match tokio::net::TcpListener::bind(address).await {
            Ok(listener) => {
                drop(listener);
                return serve(directory, &address.to_string()).await.1;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    panic!("{address} is never free");
}

fn there(address: std::net::SocketAddr) -> Place {
    Place::there(&format!("http://{address}"), Security::none()).unwrap()
}

#[tokio::test]
async fn two_nodes_share_a_directory_one_of_them_over_grpc() {
    let directory = Directory::new(name("a"));
    let (address, _serving) = serve(&directory, "127.0.0.1:0").await;
    let mut a = Node::start(Place::Local(directory.clone()), "a");
    let mut b = Node::start(there(address), "b");
    assert_eq!(a.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    assert_eq!(b.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));

    b.client.ask(DirectoryCommand::Request(DirectoryRequest::Resolve { key: key("w"), newer_than: 0 }));
    // Everything that b sends from now on arrives after its request.
    b.client.worker_up(&name("trainer"), Name::of_number(0), SOON).await.unwrap();
    a.claim("w", "ps");
    assert_eq!(a.hear().await, claimed("w"));
    let DirectoryEvent::Directory(DirectoryNews::Located { node, .. }) = b.hear().await else { panic!() };
    assert_eq!(node, name("a"));

    b.claim("w", "trainer");
    let owned = ClaimRefused::Owned { owner: name("ps"), node: name("a") };
    assert_eq!(b.hear().await, DirectoryEvent::Directory(DirectoryNews::Claimed { key: key("w"), result: Err(owned) }));

    a.client.ask(DirectoryCommand::Request(DirectoryRequest::ResolveWorker {
        worker: name("trainer"),
        tenant: Name::of_number(0),
    }));
    assert_eq!(
        a.hear().await,
        DirectoryEvent::Directory(DirectoryNews::WorkerLocated {
            worker: name("trainer"),
            tenant: Name::of_number(0),
            node: Some(name("b"))
        })
    );
    let elsewhere = a.client.worker_up(&name("trainer"), Name::of_number(0), SOON).await.unwrap_err();
    assert!(elsewhere.to_string().contains("connected at node b"), "{elsewhere}");
    let at = a.client.node(&name("b"), SOON).await.unwrap().unwrap();
    assert_eq!(&*at.address, "b:1");
    assert_eq!(a.client.node(&name("z"), SOON).await, Ok(None));

    // The entries of b end with b.
    drop(b);
    while directory.counts().nodes > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(directory.counts().workers, 0);
    a.client.worker_up(&name("trainer"), Name::of_number(0), SOON).await.unwrap();
}

#[tokio::test]
async fn restarted_directory_is_told_everything_again() {
    let first = Directory::new(name("a"));
    let (address, serving) = serve(&first, "127.0.0.1:0").await;
    let mut b = Node::start(there(address), "b");
    assert_eq!(b.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    b.client.worker_up(&name("trainer"), Name::of_number(0), SOON).await.unwrap();
    b.claim("k", "trainer");
    assert_eq!(b.hear().await, claimed("k"));
    b.client.ask(DirectoryCommand::Request(DirectoryRequest::Resolve { key: key("w"), newer_than: 0 }));

    drop(serving);
    while b.client.state().attached {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!b.client.state().why_not.is_empty());
    // b asks while the directory is away.
    b.claim("l", "trainer");
    b.client.ask(DirectoryCommand::Request(DirectoryRequest::Unclaim { key: key("l") }));

    let second = Directory::new(name("a"));
    let _serving = serve_again(&second, address).await;
    // The engine claims its published keys again after this news.
    assert_eq!(b.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    b.claim("k", "trainer");
    assert_eq!(b.hear().await, claimed("l"));
    assert_eq!(b.hear().await, claimed("k"));
    let node = second.worker(&name("trainer")).unwrap();
    assert_eq!(node.node, name("b"));
    let counts = second.counts();
    assert_eq!((counts.keys, counts.watches), (1, 1));
    assert_eq!(b.client.state().attachments, 2);
}

/// The directory restarts, and another node enters a worker of the same name before the one that had it is back.
// Promise: name-at-two-nodes, seen to fail
#[tokio::test]
async fn worker_that_was_entered_before_a_restart_keeps_its_name() {
    let first = Directory::new(name("a"));
    let (address, serving) = serve(&first, "127.0.0.1:0").await;
    let mut b = Node::start(there(address), "b");
    assert_eq!(b.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    b.client.worker_up(&name("w"), Name::of_number(0), SOON).await.unwrap();
    drop(serving);
    while b.client.state().attached {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let second = Directory::new(name("a"));
    let mut a = Node::start(Place::Local(second.clone()), "a");
    assert_eq!(a.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    a.client.worker_up(&name("w"), Name::of_number(0), SOON).await.unwrap();
    assert_eq!(second.worker(&name("w")).unwrap().node, name("a"));
    let _serving = serve_again(&second, address).await;
    assert_eq!(b.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    assert_eq!(a.hear().await, DirectoryEvent::NameLost { worker: name("w"), node: name("b") });
    assert_eq!(second.worker(&name("w")).unwrap().node, name("b"));
}

/// Returns an address without a listener.
async fn nowhere() -> std::net::SocketAddr {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn node_without_a_directory_grants_keys_and_names_itself() {
    let address = nowhere().await;
    let mut b = Node::start(there(address), "b");
    b.claim("k", "w");
    let counter = Key::of_directory("\0csteps").unwrap();
    b.client.ask(DirectoryCommand::Claim(Claim {
        key: counter.clone(),
        owner: name("b"),
        tenant: Name::of_number(0),
        resident: false,
        takeover: false,
        entered: 0,
    }));
    b.client.worker_up(&name("w"), Name::of_number(0), SOON).await.unwrap();
    assert_eq!(b.hear().await, granted("k"));
    // A counter exists once in the job, so only the directory can grant it.
    let DirectoryEvent::Directory(DirectoryNews::Claimed { key: which, result: Err(ClaimRefused::Unreachable(why)) }) =
        b.hear().await
    else {
        panic!()
    };
    assert_eq!(which, counter);
    assert!(why.contains("refused") && why.contains(&address.to_string()), "{why}");
    let e = b.client.node(&name("a"), Duration::from_millis(50)).await.unwrap_err();
    assert!(e.to_string().contains("refused"), "{e}");

    // A directory that is reached again decides: it knows another worker of that name.
    let directory = Directory::new(name("a"));
    let mut a = Node::start(Place::Local(directory.clone()), "a");
    assert_eq!(a.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    a.client.worker_up(&name("w"), Name::of_number(0), SOON).await.unwrap();
    a.claim("k", "w");
    assert_eq!(a.hear().await, claimed("k"));
    let _serving = serve(&directory, &address.to_string()).await;
    assert_eq!(b.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    b.claim("k", "w");
    assert_eq!(b.hear().await, DirectoryEvent::NameLost { worker: name("w"), node: name("a") });
    let owned = ClaimRefused::Owned { owner: name("w"), node: name("a") };
    assert_eq!(b.hear().await, DirectoryEvent::Directory(DirectoryNews::Claimed { key: key("k"), result: Err(owned) }));
    assert_eq!(directory.key(&key("k")).unwrap().at.node, name("a"));
}

#[tokio::test]
async fn name_of_a_live_sidecar_is_refused_with_the_way_to_take_it() {
    let directory = Directory::new(name("a"));
    let (address, _serving) = serve(&directory, "127.0.0.1:0").await;
    let mut old = Node::start(there(address), "b");
    assert_eq!(old.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    let start = |hello| {
        let (tell, news) = mpsc::unbounded_channel();
        Node { client: DirectoryClient::start(there(address), hello, tell), news }
    };
    let second = Hello { incarnation: 2, ..hello("b") };
    let refused = start(second.clone()).client.first_word(SOON).await;
    assert!(refused.refused && !refused.attached, "{refused:?}");
    assert!(
        ["\"b\"", "incarnation 1", "b:1", "--replace"].iter().all(|part| refused.why_not.contains(part)),
        "{refused:?}"
    );
    assert_eq!(old.client.state().attachments, 1);
    // No other node can take the host's name.
    let hosts = start(Hello { incarnation: 2, replace: true, ..hello("a") }).client.first_word(SOON).await;
    assert!(hosts.refused && hosts.why_not.contains("hosts this directory"), "{hosts:?}");

    let mut new = start(Hello { replace: true, ..second });
    assert_eq!(new.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    // The replaced node tries again, and does not win the name back.
    let mut state = old.client.state.clone();
    let replaced = tokio::time::timeout(SOON, state.wait_for(|s| s.refused)).await.unwrap().unwrap().clone();
    assert!(replaced.why_not.contains("incarnation 2"), "{replaced:?}");
    assert_eq!((new.client.state().attachments, directory.node(&name("b")).unwrap().incarnation), (1, 2));
}

// Promise: directory-version, seen to fail
#[tokio::test]
async fn a_directory_of_another_version_is_refused_by_both_sides() {
    let directory = Directory::new(name("a"));
    let (address, _serving) = serve(&directory, "127.0.0.1:0").await;
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = v1::directory_client::DirectoryClient::new(channel);
    let mut first = super::super::convert::hello_update(&hello("b"), false);
    let Some(v1::node_item::Item::Hello(hello)) = &mut first.items[0].item else { panic!() };
    // A node that knows no versions sends this.
    hello.version = 0;
    let status = client.attach(tokio_stream::iter([first])).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    let text = status.message();
    assert!(["node \"a\" speaks version 5", "node \"b\" version 0"].iter().all(|part| text.contains(part)), "{text}");
    assert_eq!(directory.counts().nodes, 0);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let old = DirectoryServer::new(OldDirectory);
    tokio::spawn(Server::builder().add_service(old).serve_with_incoming(security::over_plain(listener)));
    let refused = Node::start(there(address), "b").client.first_word(SOON).await;
    let text = &refused.why_not;
    assert!(refused.refused && !refused.attached, "{refused:?}");
    assert!(["node \"a\" speaks version 0", "node \"b\" version 5"].iter().all(|part| text.contains(part)), "{text}");
}

/// A directory that knows no versions, and accepts every node.
struct OldDirectory;

#[tonic::async_trait]
impl v1::directory_server::Directory for OldDirectory {
    type AttachStream = tokio_stream::Iter<std::vec::IntoIter<Result<v1::DirectoryUpdate, tonic::Status>>>;

    async fn attach(
        &self,
        _: tonic::Request<tonic::Streaming<v1::NodeUpdate>>,
    ) -> Result<tonic::Response<Self::AttachStream>, tonic::Status> {
        let welcome = v1::directory_item::Item::Welcome(v1::Welcome { host: "a".into(), version: 0, silence_ms: 0 });
        let update = v1::DirectoryUpdate { items: vec![v1::DirectoryItem { item: Some(welcome) }] };
        Ok(tonic::Response::new(tokio_stream::iter(vec![Ok(update)])))
    }

    async fn vote(
        &self,
        _: tonic::Request<v1::VoteRequest>,
    ) -> Result<tonic::Response<v1::VoteResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented("it is old"))
    }

    async fn lookup(
        &self,
        _: tonic::Request<v1::ResolveRequest>,
    ) -> Result<tonic::Response<v1::ResolveResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented("it is old"))
    }

    async fn nodes(
        &self,
        _: tonic::Request<v1::NodesRequest>,
    ) -> Result<tonic::Response<v1::NodesResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented("it is old"))
    }
}

#[tokio::test]
async fn many_claims_at_once_are_all_answered() {
    let directory = Directory::new(name("a"));
    let (address, _serving) = serve(&directory, "127.0.0.1:0").await;
    let mut b = Node::start(there(address), "b");
    assert_eq!(b.hear().await, DirectoryEvent::Directory(DirectoryNews::Attached));
    for i in 0..50_000 {
        b.claim(&format!("k{i}"), "w");
    }
    for i in 0..50_000 {
        assert_eq!(b.hear().await, claimed(&format!("k{i}")));
    }
    assert_eq!(directory.counts().keys, 50_000);
}
