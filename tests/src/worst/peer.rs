//! A hostile sidecar of another user on the same host, which is trusted for that user only.

use super::account::Notes;
use super::{Against, Attacker, Deed};
use crate::stranger::{Link, Offer, SEND, WRITE, connect, good_call};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use transfer_client::BlockingClient;
use transfer_core::tensor::{BodyRange, DType, GatheredPart, Name, Select, TensorMeta, Version};
use transfer_core::wire::message::{Body, Message, NameRef, Role};
use transfer_proto::v1::{self, directory_item, node_item};

/// The status codes with which a sidecar may refuse a call, and those of a connection that it closed.
const REFUSED: &[&str] = &[
    "InvalidArgument",
    "FailedPrecondition",
    "Aborted",
    "PermissionDenied",
    "AlreadyExists",
    "ResourceExhausted",
    "Unavailable",
    "NotFound",
];

/// How long one exchange of messages may last.
const EXCHANGE_TIMEOUT: Duration = Duration::from_millis(300);

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Peer {
    against: Against,
    random: SmallRng,
    runtime: Runtime,
    channel: Channel,
    name: String,
    /// The user of this program: the tenant that it may speak for.
    tenant: String,
    /// Its own worker at the sidecar, which has pushed one key once.
    worker: Option<BlockingClient>,
    /// Links that are open and not read, until later deeds close them.
    deaf: Vec<Link>,
    /// The number of the last unused name that was given out.
    next: u64,
}

impl Attacker for Peer {
    const DEEDS: &'static [Deed<Peer>] = &[
        Deed { name: "calls with nonsense", act: Peer::nonsense },
        Deed { name: "calls in another node's name", act: Peer::false_name },
        Deed { name: "calls and does not come", act: Peer::call_only },
        Deed { name: "says what is no frame", act: Peer::garbage },
        Deed { name: "announces a million receive slots and takes nothing", act: Peer::be_deaf },
        Deed { name: "makes thousands of requests that wait", act: Peer::wait },
        Deed { name: "asks in other tenants' names", act: Peer::ask_for_others },
        Deed { name: "asks for slots and answers no PING", act: Peer::prepare },
        Deed { name: "claims keys without end", act: Peer::claim },
        Deed { name: "claims what is another's", act: Peer::claim_others },
        Deed { name: "watches keys without end", act: Peer::watch },
        Deed { name: "enters workers without end", act: Peer::enter_workers },
        Deed { name: "attaches as another node", act: Peer::attach_as_other },
    ];

    fn new(against: Against, mut random: SmallRng) -> Peer {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        // At this socket the kernel reports the user of the caller.
        let url = format!("unix://{}", against.beside(".peers").display());
        let channel = {
            let _entered = runtime.enter();
            Endpoint::from_shared(url).expect("an address").connect_lazy()
        };
        let name = format!("worst-{}", random.random_range(0..u32::MAX));
        let tenant = rustix::process::geteuid().as_raw().to_string();
        Peer { against, random, runtime, channel, name, tenant, worker: None, deaf: Vec::new(), next: 0 }
    }
}

/// Records the result of a call, and returns its value.
fn note<T>(notes: &mut Notes<'_>, result: Result<T, tonic::Status>, may: &[&str]) -> Option<T> {
    match result {
        Ok(value) => {
            notes.done();
            Some(value)
        }
        Err(status) => {
            // This is how tonic reports a connection that was closed.
            let is_transport = status.code() == Code::Unknown && status.message().contains("transport error");
            let code = if is_transport { Code::Unavailable } else { status.code() };
            notes.error(&format!("{code:?}"), status.message(), may);
            None
        }
    }
}

fn name_ref(id: u32) -> NameRef {
    NameRef { id, generation: 0 }
}

impl Peer {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns a name that was not used yet.
    fn fresh(&mut self, between: &str) -> String {
        let next = self.next();
        format!("{}{between}{next}", self.name)
    }

    /// Returns a key of its own tenant, which is published in version 1 if there is room.
    fn key(&mut self) -> String {
        let key = format!("{}/there", self.name);
        if self.worker.as_ref().is_none_or(|worker| worker.gone().is_some()) {
            let connect = BlockingClient::connect(&self.against.socket).name(&self.name).arena_bytes(64 << 10);
            let worker = connect.timeout(TIMEOUT).reconnect(false).call();
            // If other attackers have taken all memory, the key is not published, and is asked for all the same.
            self.worker = worker.ok().filter(|worker| worker.push_slice(&key, [1], &[1_u8]).call().is_ok());
        }
        key
    }

    /// Returns a request for a link, from a node with an unused name.
    fn request(&mut self) -> v1::ConnectRequest {
        v1::ConnectRequest { node: self.fresh("-"), ..good_call() }
    }

    fn connect(&self, request: v1::ConnectRequest) -> Result<Offer, tonic::Status> {
        let channel = self.channel.clone();
        let late = |_| Err(tonic::Status::deadline_exceeded("it does not answer"));
        self.runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, connect(channel, request)).await.unwrap_or_else(late) })
    }

    /// Makes a link with a correct handshake.
    fn link(&self, request: v1::ConnectRequest, notes: &mut Notes<'_>) -> Option<(Link, Offer)> {
        let offer = note(notes, self.connect(request), REFUSED)?;
        let mut link = Link::at(offer.address);
        link.be_brief(TIMEOUT);
        if !link.greet(&offer.token) {
            notes.error("NotWelcome", "", &["NotWelcome"]);
            return None;
        }
        Some((link, offer))
    }

    fn nonsense(&mut self, notes: &mut Notes<'_>) {
        for _ in 0..20 {
            let mut request = self.request();
            let mut offer = vec![0; self.random.random_range(0..100)];
            self.random.fill_bytes(&mut offer);
            match self.random.random_range(0..9) {
                0 => request.offer = offer,
                1 => request.offer.extend(offer),
                2 => request.protocol_version = self.random.random(),
                3 => request.node = String::new(),
                4 => request.node = "n".repeat(10_000),
                5 => request.fabric = self.random.random(),
                6 => request.receive_slots = 0,
                7 => request.to = "somebody else".into(),
                _ => request.incarnation = 0,
            }
            note(notes, self.connect(request), REFUSED);
        }
    }

    /// Calls in the names of the two real nodes, one of which is the callee itself.
    fn false_name(&mut self, notes: &mut Notes<'_>) {
        for node in ["a", "b"] {
            for incarnation in [1, u64::MAX - 1] {
                let request = v1::ConnectRequest { node: node.into(), incarnation, ..good_call() };
                if note(notes, self.connect(request), REFUSED).is_some() {
                    notes.strange(&format!("it can call as {node}"));
                }
            }
        }
    }

    fn call_only(&mut self, notes: &mut Notes<'_>) {
        for _ in 0..10 {
            let request = self.request();
            note(notes, self.connect(request), REFUSED);
        }
    }

    fn garbage(&mut self, notes: &mut Notes<'_>) {
        for way in 0..4 {
            let request = self.request();
            let Some((mut link, _)) = self.link(request, notes) else { continue };
            link.be_brief(EXCHANGE_TIMEOUT);
            let mut bytes = vec![0; 4096];
            self.random.fill_bytes(&mut bytes);
            match way {
                0 => link.raw(&bytes),
                1 => link.frame(WRITE, self.random.random(), self.random.random(), Some(self.random.random()), &bytes),
                2 => link.frame(SEND, 0, 0, None, &bytes[..200]),
                _ => link.frame(self.random.random(), 0, 0, None, &bytes[..100]),
            }
            link.refusal();
        }
    }

    fn be_deaf(&mut self, notes: &mut Notes<'_>) {
        let request = v1::ConnectRequest { receive_slots: 1 << 20, ..self.request() };
        let Some((mut link, offer)) = self.link(request, notes) else { return };
        link.be_brief(EXCHANGE_TIMEOUT);
        let key = self.key();
        let names = Names::of(&mut link, &[&self.tenant, &key]);
        for index in 0..offer.receive_slots.saturating_sub(4) {
            let ask = match index % 2 {
                0 => names.request(1, 0, Select::Latest),
                _ => names.gather(1, 0, "", 70),
            };
            link.send(Role::Pull, index, ask);
        }
        // These messages exceed the peer's credit, so the sidecar ends the link at some time.
        for _ in 0..200 {
            link.send(Role::Pull, 0, Body::Ping);
        }
        self.deaf.push(link);
        if self.deaf.len() > 4 {
            self.deaf.clear();
        }
    }

    fn wait(&mut self, notes: &mut Notes<'_>) {
        let request = self.request();
        let Some((mut link, offer)) = self.link(request, notes) else { return };
        link.be_brief(EXCHANGE_TIMEOUT);
        let key = self.key();
        let names = Names::of(&mut link, &[&self.tenant, &key]);
        let mut free = offer.receive_slots.saturating_sub(4);
        let until = Instant::now() + EXCHANGE_TIMEOUT;
        let mut index = 0;
        while index < 70_000 && Instant::now() < until {
            if free == 0 {
                match link.next_frame() {
                    Some((SEND, body)) => free += credits(&body, notes),
                    Some(_) => {}
                    None => break,
                }
                continue;
            }
            link.send(Role::Pull, index, names.request(1, 0, Select::AtLeast(Version(1 << 40))));
            (index, free) = (index + 1, free - 1);
        }
        self.deaf.push(link);
    }

    /// Fetches, pushes and counts in the name of user 0, the honest user.
    fn ask_for_others(&mut self, notes: &mut Notes<'_>) {
        let request = self.request();
        let Some((mut link, _)) = self.link(request, notes) else { return };
        let victim = self.against.victim.clone();
        let key = format!("{victim}/there/0");
        let target = format!("{victim}-leader");
        let names = Names::of(&mut link, &["0", &key, &format!("{victim}/back/0"), &target, "thief", &victim]);
        let meta = TensorMeta::of(DType::U8, &[1000]).expect("a shape");
        let [tenant, key, _, target, owner, counter] = [0, 1, 2, 3, 4, 5].map(name_ref);
        let asks = [
            (Role::Pull, names.request(1, 0, Select::Latest)),
            (Role::Pull, names.request(2, 0, Select::Latest)),
            (Role::Pull, names.gather(5, 0, "/there/0", 2)),
            (Role::Pull, names.gather(5, 0, "/back/0", 2)),
            (Role::Push, Body::BufferRequest { key: owner, target, owner, tenant, metadata_id: 1, meta: meta.clone() }),
            (Role::Push, Body::BufferRequest { key, target, owner: target, tenant, metadata_id: 1, meta }),
            (Role::Counter, Body::CounterOpen { name: counter, tenant, wants_grant: true }),
        ];
        for (at, (role, ask)) in asks.into_iter().enumerate() {
            let what = format!("{ask:?}");
            link.send(role, 100 + at as u32, ask);
            loop {
                let Some((kind, body)) = link.next_frame() else {
                    return notes.error("NoAnswer", &what, &[]);
                };
                let Some(Ok(message)) = (kind == SEND).then(|| Message::decode(&body)) else { continue };
                match message.body {
                    Body::ErrorStatus(failure) => {
                        // The key or the worker may be at the other sidecar.
                        let may = ["PermissionDenied", "NotOwner", "UnknownWorker"];
                        notes.error(&format!("{:?}", failure.code), &failure.text, &may);
                        break;
                    }
                    Body::Ack | Body::Ping | Body::Pong | Body::Name { .. } => {}
                    other => {
                        notes.strange(&format!("{what} is answered with {other:?}"));
                        break;
                    }
                }
            }
        }
    }

    fn prepare(&mut self, notes: &mut Notes<'_>) {
        let request = self.request();
        let (node, incarnation) = (request.node.clone(), request.incarnation);
        let Some((link, offer)) = self.link(request, notes) else { return };
        let prepare = v1::PrepareBuffersRequest { node, incarnation, link: offer.link, buffers: Vec::new() };
        let calls = self.runtime.block_on(async {
            let calls: Vec<_> = (0..100)
                .map(|flow| {
                    let mut prepare = prepare.clone();
                    prepare.buffers.push(v1::BufferRequest {
                        flow,
                        key: "never".into(),
                        target_worker: "nobody".into(),
                        owner: "thief".into(),
                        tenant: self.tenant.clone(),
                        tensor: Some(v1::TensorDescriptor { dtype: v1::DType::DtypeU8.into(), shape: vec![1000] }),
                    });
                    let mut client = v1::peering_client::PeeringClient::new(self.channel.clone());
                    tokio::spawn(async move { client.prepare_buffers(prepare).await.map(drop) })
                })
                .collect();
            tokio::time::sleep(EXCHANGE_TIMEOUT / 2).await;
            let mut ended = Vec::new();
            for call in calls {
                if call.is_finished() {
                    ended.extend(call.await);
                } else {
                    call.abort();
                }
            }
            ended
        });
        for ended in calls {
            note(notes, ended, REFUSED);
        }
        self.deaf.push(link);
    }

    /// Attaches to the directory, sends these items, and returns the answers that come within a short time.
    fn attach(
        &mut self,
        hello: v1::Hello,
        items: Vec<node_item::Item>,
    ) -> Result<Vec<directory_item::Item>, tonic::Status> {
        let expected = items.len();
        let batch = |items: Vec<node_item::Item>| v1::NodeUpdate {
            items: items.into_iter().map(|item| v1::NodeItem { item: Some(item) }).collect(),
        };
        let (tell, told) = tokio::sync::mpsc::channel(64);
        self.runtime.block_on(async {
            let mut client = v1::directory_client::DirectoryClient::new(self.channel.clone());
            let _ = tell.try_send(batch(vec![node_item::Item::Hello(hello)]));
            for items in items.chunks(1024) {
                let _ = tell.try_send(batch(items.to_vec()));
            }
            let mut answers = client.attach(ReceiverStream::new(told)).await?.into_inner();
            let mut heard = Vec::new();
            let listen = async {
                // The welcome is the first answer.
                while heard.len() <= expected {
                    match answers.message().await? {
                        Some(update) => heard.extend(update.items.into_iter().filter_map(|item| item.item)),
                        None => break,
                    }
                }
                Ok::<_, tonic::Status>(())
            };
            match tokio::time::timeout(EXCHANGE_TIMEOUT, listen).await {
                Ok(Err(status)) => Err(status),
                _ => Ok(heard),
            }
        })
    }

    fn hello(&mut self) -> v1::Hello {
        let address = "127.0.0.1:1".into();
        v1::Hello { node: self.fresh("-"), address, incarnation: 1, version: 5, ..Default::default() }
    }

    /// Attaches under an unused name, sends these items, and returns the answers.
    fn say(&mut self, items: Vec<node_item::Item>, notes: &mut Notes<'_>) -> Vec<directory_item::Item> {
        let hello = self.hello();
        let heard = self.attach(hello, items);
        // Only one of the sidecars hosts the directory. The other one answers `Unimplemented`.
        note(notes, heard, &[REFUSED, &["Unimplemented"]].concat()).unwrap_or_default()
    }

    fn claim_of(&mut self, key: String, tenant: &str, takeover: bool) -> node_item::Item {
        let (claim, owner) = (self.next(), format!("{}-worker", self.name));
        node_item::Item::Claim(v1::Claim {
            claim,
            key,
            owner,
            tenant: tenant.into(),
            resident: true,
            takeover,
            entered: 0,
        })
    }

    fn claim(&mut self, notes: &mut Notes<'_>) {
        let claims = (0..6000).map(|_| {
            let key = self.fresh("/");
            let tenant = self.tenant.clone();
            self.claim_of(key, &tenant, false)
        });
        let claims = claims.collect();
        for item in self.say(claims, notes) {
            match item {
                directory_item::Item::ClaimFull(_) => notes.error("ClaimFull", "", &["ClaimFull"]),
                directory_item::Item::ClaimRefused(refused) => {
                    notes.error("ClaimRefused", &refused.denied, &[]);
                }
                _ => {}
            }
        }
    }

    fn claim_others(&mut self, notes: &mut Notes<'_>) {
        let victim = self.against.victim.clone();
        let mut claims = Vec::new();
        for key in ["there/0", "back/0", "nobody's yet"].map(|key| format!("{victim}/{key}")) {
            claims.push(self.claim_of(key.clone(), "0", true));
            claims.push(self.claim_of(key, "0", false));
        }
        for key in ["there/0", "back/0"].map(|key| format!("{victim}/{key}")) {
            let tenant = self.tenant.clone();
            claims.push(self.claim_of(key.clone(), &tenant, true));
            claims.push(self.claim_of(key, &tenant, false));
        }
        for item in self.say(claims, notes) {
            match item {
                directory_item::Item::ClaimRefused(_) => notes.error("ClaimRefused", "", &["ClaimRefused"]),
                directory_item::Item::Claimed(claimed) => notes.strange(&format!("{claimed:?}")),
                _ => {}
            }
        }
    }

    fn watch(&mut self, notes: &mut Notes<'_>) {
        let keys = (0..20_000).map(|_| self.fresh("/never/"));
        let resolve = |key| node_item::Item::Resolve(v1::Resolve { key, newer_than: 0 });
        let watches = keys.map(resolve).collect();
        self.say(watches, notes);
    }

    fn enter_workers(&mut self, notes: &mut Notes<'_>) {
        let victim = self.against.victim.clone();
        let names = ["leader", "follower"].map(|worker| format!("{victim}-{worker}"));
        let own = self.tenant.clone();
        let mut workers: Vec<_> = (0..10_000).map(|_| (self.fresh("-"), own.clone())).collect();
        workers.extend(names.clone().map(|name| (name, "0".to_owned())));
        let up = |(worker, tenant)| node_item::Item::WorkerUp(v1::WorkerUp { worker, tenant, entered: 1 });
        // Its own tenant may have workers of these names, which are others than the job's.
        self.say(names.map(|name| up((name, own.clone()))).into(), notes);
        let heard = self.say(workers.into_iter().map(up).collect(), notes);
        for item in heard {
            match item {
                directory_item::Item::WorkerRefused(_) => notes.error("WorkerRefused", "", &["WorkerRefused"]),
                directory_item::Item::WorkerDenied(_) => notes.error("WorkerDenied", "", &["WorkerDenied"]),
                directory_item::Item::WorkerAdmitted(admitted) if admitted.worker.starts_with(&victim) => {
                    notes.strange(&format!("it can be {}", admitted.worker));
                }
                _ => {}
            }
        }
    }

    fn attach_as_other(&mut self, notes: &mut Notes<'_>) {
        for (node, replace) in [("a", false), ("a", true), ("b", false), ("b", true)] {
            let hello = v1::Hello { node: node.into(), replace, incarnation: u64::MAX - 1, ..self.hello() };
            let heard = self.attach(hello, Vec::new());
            let may = [REFUSED, &["Unimplemented"]].concat();
            if note(notes, heard, &may).is_some_and(|heard| !heard.is_empty()) {
                notes.strange(&format!("it can attach as {node}, replace: {replace}"));
            }
        }
    }
}

/// Marks a link over which names were sent. The id of a name is its index.
struct Names;

impl Names {
    /// Sends the names over a link.
    fn of(link: &mut Link, names: &[&str]) -> Names {
        for (id, text) in names.iter().enumerate() {
            let text = Name::new(text).expect("a name");
            link.send(Role::Pull, 0, Body::Name { name: name_ref(id as u32), text });
        }
        Names
    }

    /// Returns a request for a version of a key, in the name of that tenant.
    fn request(&self, key: u32, tenant: u32, select: Select) -> Body {
        let (key, tenant) = (name_ref(key), name_ref(tenant));
        Body::TensorRequest {
            key,
            select,
            metadata_id: 0,
            tenant,
            excerpt: None,
            slot: None,
            held: None,
            direct: false,
            trace: None,
        }
    }

    /// Returns a request for the same range of a key this many times, in the name of that tenant.
    fn gather(&self, stem: u32, tenant: u32, rest: &str, times: usize) -> Body {
        let part = GatheredPart::new(rest, BodyRange { offset: 0, len: 64 }).expect("a range");
        let (stem, tenant) = (name_ref(stem), name_ref(tenant));
        Body::GatherRequest { stem, tenant, parts: vec![part; times], trace: None }
    }
}

/// Returns how many receive slots a message gives back, and records the error that it carries.
fn credits(message: &[u8], notes: &mut Notes<'_>) -> u32 {
    match Message::decode(message) {
        Ok(message) => {
            if let Body::ErrorStatus(failure) = &message.body {
                let may = ["Busy", "UnknownKey", "NotOwner"];
                notes.error(&format!("{:?}", failure.code), &failure.text, &may);
            }
            message.credits.into()
        }
        Err(error) => {
            notes.strange(&format!("it says what is no message: {error}"));
            0
        }
    }
}
