use super::super::host::Directory;
use super::super::ledger::Refused;
use super::super::service::DirectoryService;
use super::*;
use crate::security::{self, Security};
use tonic::transport::Server;
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
    Hello { node: name(node), address: format!("{node}:1").into(), incarnation: 1 }
}

struct Node {
    client: DirectoryClient,
    news: mpsc::UnboundedReceiver<News>,
}

impl Node {
    fn start(place: Place, node: &str) -> Node {
        let (tell, news) = mpsc::unbounded_channel();
        Node { client: DirectoryClient::start(place, hello(node), tell), news }
    }

    async fn hear(&mut self) -> News {
        tokio::time::timeout(SOON, self.news.recv()).await.unwrap().unwrap()
    }

    fn claim(&self, k: &str, owner: &str) {
        self.client.ask(Ask::Claim { key: key(k), owner: name(owner), takeover: false });
    }
}

fn claimed(k: &str) -> News {
    News::Claimed { key: key(k), result: Ok(()) }
}

/// A directory behind gRPC on `address`, until the sender is dropped.
async fn serve(directory: &Directory, address: &str) -> (std::net::SocketAddr, oneshot::Sender<()>) {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let service = DirectoryServer::new(DirectoryService::new(directory.clone()));
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

fn there(address: std::net::SocketAddr) -> Place {
    Place::there(&format!("http://{address}"), Security::none()).unwrap()
}

#[tokio::test]
async fn two_nodes_meet_in_one_directory_one_of_them_by_grpc() {
    let directory = Directory::new(name("a"));
    let (address, _serving) = serve(&directory, "127.0.0.1:0").await;
    let mut a = Node::start(Place::Here(directory.clone()), "a");
    let mut b = Node::start(there(address), "b");
    assert_eq!(a.hear().await, News::Attached);
    assert_eq!(b.hear().await, News::Attached);

    b.client.ask(Ask::Resolve { key: key("w"), newer_than: 0 });
    // Whatever b says from here on comes behind its question.
    b.client.worker_up(&name("trainer"), SOON).await.unwrap();
    a.claim("w", "ps");
    assert_eq!(a.hear().await, claimed("w"));
    let News::Located { node, .. } = b.hear().await else { panic!() };
    assert_eq!(node, name("a"));

    b.claim("w", "trainer");
    let owned = Refused::Owned { owner: name("ps"), node: name("a") };
    assert_eq!(b.hear().await, News::Claimed { key: key("w"), result: Err(owned) });

    a.client.ask(Ask::ResolveWorker { worker: name("trainer") });
    assert_eq!(a.hear().await, News::WorkerLocated { worker: name("trainer"), node: Some(name("b")) });
    let elsewhere = a.client.worker_up(&name("trainer"), SOON).await.unwrap_err();
    assert!(elsewhere.to_string().contains("connected at node b"), "{elsewhere}");
    let at = a.client.node(&name("b"), SOON).await.unwrap().unwrap();
    assert_eq!(&*at.address, "b:1");
    assert_eq!(a.client.node(&name("z"), SOON).await, Ok(None));

    // Everything of b goes with b.
    drop(b);
    while directory.counts().nodes > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(directory.counts().workers, 0);
    a.client.worker_up(&name("trainer"), SOON).await.unwrap();
}

#[tokio::test]
async fn a_restarted_directory_hears_everything_again() {
    let first = Directory::new(name("a"));
    let (address, serving) = serve(&first, "127.0.0.1:0").await;
    let mut b = Node::start(there(address), "b");
    assert_eq!(b.hear().await, News::Attached);
    b.client.worker_up(&name("trainer"), SOON).await.unwrap();
    b.claim("k", "trainer");
    assert_eq!(b.hear().await, claimed("k"));
    b.client.ask(Ask::Resolve { key: key("w"), newer_than: 0 });

    drop(serving);
    while b.client.state().attached {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!b.client.state().why_not.is_empty());
    // Asked while nobody hears it.
    b.claim("l", "trainer");
    b.client.ask(Ask::Unclaim { key: key("l") });

    let second = Directory::new(name("a"));
    let mut serving = None;
    // The port may be taken for a moment by connections that end.
    for _ in 0..100 {
        match tokio::net::TcpListener::bind(address).await {
            Ok(listener) => {
                drop(listener);
                serving = Some(serve(&second, &address.to_string()).await);
                break;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    let _serving = serving.unwrap();
    // The engine claims again what it published, when it hears this.
    assert_eq!(b.hear().await, News::Attached);
    b.claim("k", "trainer");
    assert_eq!(b.hear().await, claimed("l"));
    assert_eq!(b.hear().await, claimed("k"));
    let node = second.worker(&name("trainer")).unwrap();
    assert_eq!(node.node, name("b"));
    let counts = second.counts();
    assert_eq!((counts.keys, counts.watches), (1, 1));
    assert_eq!(b.client.state().attachments, 2);
}

#[tokio::test]
async fn without_a_directory_a_claim_is_refused_with_the_reason() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut b = Node::start(there(address), "b");
    b.claim("k", "w");
    let News::Claimed { result: Err(Refused::Unreachable(why)), .. } = b.hear().await else { panic!() };
    assert!(why.contains("refused") && why.contains(&address.to_string()), "{why}");
    let e = b.client.worker_up(&name("w"), Duration::from_millis(50)).await.unwrap_err();
    assert!(e.to_string().contains("refused"), "{e}");
}

#[tokio::test]
async fn many_claims_at_once_are_all_answered() {
    let directory = Directory::new(name("a"));
    let (address, _serving) = serve(&directory, "127.0.0.1:0").await;
    let mut b = Node::start(there(address), "b");
    assert_eq!(b.hear().await, News::Attached);
    for i in 0..50_000 {
        b.claim(&format!("k{i}"), "w");
    }
    for i in 0..50_000 {
        assert_eq!(b.hear().await, claimed(&format!("k{i}")));
    }
    assert_eq!(directory.counts().keys, 50_000);
}
