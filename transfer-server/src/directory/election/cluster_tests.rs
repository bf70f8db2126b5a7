//! A cluster of a thousand nodes and three hosts in one process: real registries, elections and clients, without gRPC.
//! `TRANSFER_KEYS_PER_NODE=1000` gives it a million keys.

use crate::directory::connection::Place;
use crate::directory::election::{Candidate, Takeover};
use crate::directory::host::Directory;
use crate::directory::item::Hello;
use crate::directory::ledger::{DirectoryCommand, DirectoryEvent};
use crate::directory::places::Places;
use crate::directory::{DirectoryClient, DirectoryState};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use transfer_core::protocol::{Claim, DirectoryNews, DirectoryRequest, Tenants};
use transfer_core::tensor::{Key, Name};

const NODES: usize = 1000;

/// Long after it has to be attached.
const LATE: Duration = Duration::from_secs(120);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// What an engine does for the directory.
struct Node {
    client: DirectoryClient,
    /// Its keys with the numbers of their entries. 0: it is not entered yet.
    keys: Arc<Mutex<BTreeMap<Key, u64>>>,
}

impl Node {
    fn start(places: Places, number: usize) -> Node {
        let node = name(&format!("node-{number}"));
        let hello =
            Hello { node, address: format!("h{number}:1").into(), incarnation: 1, local: "".into(), replace: false };
        let (tell, mut news) = mpsc::unbounded_channel();
        let client = DirectoryClient::start(places, hello, tell);
        let keys: Arc<Mutex<BTreeMap<Key, u64>>> = Arc::default();
        let (recites, has) = (client.clone(), keys.clone());
        tokio::spawn(async move {
            while let Some(event) = news.recv().await {
                match event {
                    DirectoryEvent::Directory(DirectoryNews::Attached) => {
                        has.lock().iter().for_each(|(key, entered)| claim(&recites, key, *entered));
                        recites.ask(DirectoryCommand::Request(DirectoryRequest::Recited));
                    }
                    DirectoryEvent::Directory(DirectoryNews::Claimed { key, result }) => {
                        has.lock().insert(key, result.expect("nobody else has it"));
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        Node { client, keys }
    }
}

fn claim(client: &DirectoryClient, key: &Key, entered: u64) {
    let (owner, tenant) = (name("worker"), Name::of_number(0));
    client.ask(DirectoryCommand::Claim(Claim {
        key: key.clone(),
        owner,
        tenant,
        resident: false,
        takeover: false,
        entered,
    }));
}

struct Cluster {
    hosts: Vec<Directory>,
    nodes: Vec<Node>,
    /// Of each node.
    keys: usize,
}

impl Cluster {
    async fn start() -> Cluster {
        let takeover = Takeover(Duration::from_secs(5));
        let names: Vec<_> = ["a", "b", "c"].map(name).to_vec();
        let hosts: Vec<_> = names
            .iter()
            .map(|node| {
                let me = Candidate { node: node.clone(), incarnation: 1 };
                Directory::among(names.clone(), me, takeover, "".into(), Tenants::default())
            })
            .collect();
        let places: Vec<_> = names.into_iter().zip(hosts.iter().cloned().map(Place::Local)).collect();
        hosts.iter().for_each(|host| host.stand_for_election(&places));
        // Each looks at the hosts by itself.
        let nodes = (0..NODES).map(|i| Node::start(Places::among(places.clone(), takeover), i));
        let keys = std::env::var("TRANSFER_KEYS_PER_NODE").map_or(50, |keys| keys.parse().expect("a number of keys"));
        Cluster { nodes: nodes.collect(), hosts, keys }
    }

    fn leader(&self) -> Option<usize> {
        self.hosts.iter().position(|host| !host.is_closed() && host.answers().is_ok())
    }

    /// Waits until all nodes are attached to one host and have recited, and returns it with the time that it took.
    async fn settled(&self, since: Instant) -> (usize, Duration) {
        loop {
            if let Some(leader) = self.leader() {
                let host = &self.hosts[leader];
                let counts = host.counts();
                let awaited = host.election().expect("it is one of three").awaited;
                if counts.nodes == NODES as u64 && awaited.is_empty() {
                    return (leader, since.elapsed());
                }
            }
            assert!(since.elapsed() < LATE, "they are not attached: {:?}", self.states());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The states of three nodes that are not attached.
    fn states(&self) -> Vec<DirectoryState> {
        self.nodes.iter().map(|node| node.client.state()).filter(|state| !state.attached).take(3).collect()
    }

    /// Each node claims its keys, which are granted.
    async fn claim(&self) {
        for (i, node) in self.nodes.iter().enumerate() {
            for k in 0..self.keys {
                let key = Key::new(&format!("key-{i}-{k}")).unwrap();
                node.keys.lock().insert(key.clone(), 0);
                claim(&node.client, &key, 0);
            }
        }
        while self.nodes.iter().any(|node| node.keys.lock().values().any(|entered| *entered == 0)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Another host has all keys. Where the processor was too busy, some nodes were late to recite theirs.
    async fn has_all(&self, leader: usize) {
        let (host, since) = (&self.hosts[leader], Instant::now());
        while host.counts().keys != (NODES * self.keys) as u64 {
            assert!(since.elapsed() < LATE, "it has {} keys", host.counts().keys);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for (i, node) in self.nodes.iter().enumerate() {
            for key in node.keys.lock().keys() {
                assert_eq!(host.key(key).expect("it is entered").at.node, name(&format!("node-{i}")));
            }
        }
    }
}

// Promise: directory-takeover
#[tokio::test]
async fn a_thousand_nodes_recite_to_another_host_when_one_dies_or_gives_up() {
    let cluster = Cluster::start().await;
    let (_, started) = cluster.settled(Instant::now()).await;
    let began = Instant::now();
    cluster.claim().await;
    let claimed = began.elapsed();

    // Where the one processor was too busy to renew its lead, another host leads now.
    let (first, _) = cluster.settled(Instant::now()).await;
    let gave_up = Instant::now();
    let second = cluster.hosts[first].hand_over(None).await.expect("the others live");
    let (leader, moved) = cluster.settled(gave_up).await;
    assert_eq!(*cluster.hosts[leader].host(), second);
    cluster.has_all(leader).await;

    let died = Instant::now();
    cluster.hosts[leader].close();
    let (last, took_over) = cluster.settled(died).await;
    assert_ne!(last, leader);
    cluster.has_all(last).await;
    println!(
        "{} keys entered in {claimed:?}; all attached and recited after: start {started:?}, hand-over {moved:?}, takeover {took_over:?}",
        NODES * cluster.keys
    );
}
