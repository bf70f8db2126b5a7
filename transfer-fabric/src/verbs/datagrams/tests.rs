//! Datagrams between two sides of one process, and from a stranger who knows a queue pair and its key.

use super::message::{Kind, LEN_BYTES, Message};
use super::*;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;
use transfer_verbs::{
    Access, AddressHandle, Buffer, Completion, CompletionQueue, Data, Datagram, DatagramAttributes, DatagramRequest,
    Destination, MemoryRegion, QueuePair, QueuePairOptions, ROUTING_HEADER_BYTES, ReadyToSend, ReceiveList, SendList,
    choose,
};

const PATIENCE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn start() -> Datagrams {
    Datagrams::start(&VerbsConfig::default()).unwrap()
}

/// Sends a request, and returns what its end is told to.
fn send(
    from: &Datagrams,
    to: &DatagramEndpoint,
    token: [u8; TOKEN_BYTES],
    timeout: Duration,
) -> Receiver<Result<Duration, DatagramError>> {
    let (tell, told) = channel();
    from.send(to, token, timeout, Box::new(move |took| drop(tell.send(took)))).unwrap();
    told
}

#[track_caller]
fn echoed(told: &Receiver<Result<Duration, DatagramError>>) {
    assert!(told.recv_timeout(PATIENCE).expect("an end").expect("an answer") > Duration::ZERO);
}

#[track_caller]
fn lost(told: &Receiver<Result<Duration, DatagramError>>) {
    assert!(matches!(told.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected)));
}

fn count(of: &Datagrams, name: &str) -> u64 {
    of.counts().into_iter().find(|(known, _)| *known == name).expect("it is counted").1
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// A queue pair of somebody else.
struct Stranger {
    pair: QueuePair<ReadyToSend, Datagram>,
    queue: CompletionQueue,
    memory: Arc<Buffer>,
    region: MemoryRegion,
    chosen: choose::Chosen,
    to: AddressHandle,
}

impl Stranger {
    const KEY: u32 = 0x77;

    fn new() -> Stranger {
        let chosen = choose::port(&choose::Wanted::default()).unwrap();
        let domain = ProtectionDomain::new(&chosen.context).unwrap();
        let queue = CompletionQueue::new(&chosen.context, 64, None).unwrap();
        let memory = Buffer::new(8192).unwrap();
        let access = Access { local_write: true, ..Access::default() };
        let region = MemoryRegion::register(&domain, memory.clone(), access).unwrap();
        let options = QueuePairOptions {
            send_queue: queue.clone(),
            receive_queue: queue.clone(),
            shared_receives: None,
            max_send: 32,
            max_receive: 32,
            max_send_elements: 1,
            max_receive_elements: 1,
            max_inline: 0,
        };
        let attributes = DatagramAttributes { port: chosen.port.number, pkey_index: 0, queue_key: Self::KEY };
        let pair = QueuePair::<_, Datagram>::of_kind(&domain, &options).unwrap().init(&attributes).unwrap();
        let pair = pair.ready_to_receive().unwrap().ready_to_send(0).unwrap();
        let gid = chosen.gid.clone().unwrap();
        let destination =
            Destination { gid: Some(gid.gid), gid_index: u8::try_from(gid.index).unwrap(), ..Destination::default() };
        let to = AddressHandle::new(&domain, chosen.port.number, &destination).unwrap();
        Stranger { pair, queue, memory, region, chosen, to }
    }

    fn endpoint(&self) -> DatagramEndpoint {
        let gid = self.chosen.gid.as_ref().unwrap();
        DatagramEndpoint {
            device: self.chosen.context.device_name().to_owned(),
            port: self.chosen.port.number,
            kind: gid.kind,
            gid: gid.gid,
            lid: self.chosen.port.lid,
            queue_pair: self.pair.number(),
            queue_key: Self::KEY,
        }
    }

    /// Sends bytes to a queue pair of the same port, with its key, and waits until they have left.
    fn send(&mut self, bytes: &[u8], to: &DatagramEndpoint) {
        self.memory.write(0, bytes).unwrap();
        let mut list = SendList::<Datagram>::default();
        list.push(DatagramRequest {
            work_id: 0,
            signaled: true,
            data: Data::Gather(&[self.region.element(0, bytes.len()).unwrap()]),
            immediate: None,
            to: &self.to,
            queue_pair: to.queue_pair,
            queue_key: to.queue_key,
        });
        self.pair.post_send(&mut list).unwrap();
        self.completed();
    }

    fn completed(&self) -> Completion {
        let mut done = [Completion::EMPTY];
        until("a completion", || self.queue.poll(&mut done).unwrap() == 1);
        assert!(done[0].result.is_ok(), "{done:?}");
        done[0]
    }

    fn post_receive(&mut self) {
        let mut list = ReceiveList::new();
        list.push(1, &[self.region.element(4096, 4096).unwrap()]);
        self.pair.post_receive(&mut list).unwrap();
    }

    fn has_heard(&self) -> bool {
        self.queue.poll(&mut [Completion::EMPTY]).unwrap() > 0
    }
}

fn request(token: [u8; TOKEN_BYTES]) -> [u8; LEN_BYTES] {
    Message { kind: Kind::Request, token: Token(token), number: 5 }.encode()
}

// Promise: datagram-ping, seen to fail
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn datagrams_are_echoed_to_admitted_peers_only() {
    let (a, b) = (start(), start());
    let (to, token) = a.admit("b", &b.endpoint().unwrap()).unwrap();
    assert_eq!(to, a.endpoint().unwrap());
    for _ in 0..3 {
        echoed(&send(&b, &to, token, PATIENCE));
    }
    // They are counted behind the call.
    until("all are counted", || (count(&a, "answered"), count(&b, "round_trip")) == (3, 3));
    lost(&send(&b, &to, [0; TOKEN_BYTES], SHORT));
    until("it is counted", || count(&a, "unknown_token") == 1);
    // The other way needs a call of its own.
    let (back, other) = b.admit("a", &a.endpoint().unwrap()).unwrap();
    assert_ne!(token, other);
    echoed(&send(&a, &back, other, PATIENCE));
    until("it is counted", || count(&b, "answered") == 1);
}

// Promise: datagram-ping, seen to fail
// Promise: attacker-with-datagrams
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn malformed_datagrams_are_counted_and_dropped() {
    let (a, b, mut stranger) = (start(), start(), Stranger::new());
    let (to, token) = a.admit("b", &b.endpoint().unwrap()).unwrap();
    stranger.post_receive();
    let full = stranger.chosen.port.mtu_active.len_bytes() as usize;
    let right = request([9; TOKEN_BYTES]);
    let bad: [&[u8]; 5] = [&[], &right[..31], &[&right[..], &[0]].concat(), &vec![7; full], &[0; LEN_BYTES]];
    for bytes in bad {
        stranger.send(bytes, &to);
    }
    until("all are looked at", || count(&a, "malformed") == bad.len() as u64);
    stranger.send(&right, &to);
    until("it has no token", || count(&a, "unknown_token") == 1);
    // An answer that nobody waits for is not answered, whoever's token it has.
    stranger.send(&Message { kind: Kind::Answer, token: Token(token), number: 1 }.encode(), &to);
    until("nobody waits", || count(&a, "unasked_answer") == 1);
    echoed(&send(&b, &to, token, PATIENCE));
    until("it is counted", || count(&a, "answered") == 1);
    assert!(!stranger.has_heard());
}

/// A stranger who has read a token makes the sidecar answer the peer that it was given to, and nobody else.
// Promise: datagram-ping, seen to fail
// Promise: attacker-with-datagrams
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn answers_go_to_the_admitted_queue_pair() {
    let (a, b, mut stranger) = (start(), start(), Stranger::new());
    let (to, token) = a.admit("b", &b.endpoint().unwrap()).unwrap();
    stranger.post_receive();
    stranger.send(&request(token), &to);
    until("b has it", || count(&b, "unasked_answer") == 1);
    assert!(!stranger.has_heard());
    // Once it is admitted itself, it is answered, with as many bytes as it has sent.
    let (to, token) = a.admit("stranger", &stranger.endpoint()).unwrap();
    stranger.send(&request(token), &to);
    let done = stranger.completed().result.unwrap();
    assert_eq!(done.len_bytes as usize, ROUTING_HEADER_BYTES + LEN_BYTES);
    let mut bytes = [0; LEN_BYTES];
    stranger.memory.read(4096 + ROUTING_HEADER_BYTES, &mut bytes).unwrap();
    assert_eq!(Message::decode(&bytes), Some(Message { kind: Kind::Answer, token: Token(token), number: 5 }));
}

// Promise: datagram-ping
// Promise: attacker-with-datagrams
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn round_trips_go_on_after_a_flood() {
    let (a, b, mut stranger) = (start(), start(), Stranger::new());
    let (to, token) = a.admit("b", &b.endpoint().unwrap()).unwrap();
    let started = Instant::now();
    for _ in 0..3000 {
        stranger.send(&request([1; TOKEN_BYTES]), &to);
    }
    let intervals = 2 + started.elapsed().as_millis() as u64 / 10;
    assert!(count(&a, "unknown_token") <= intervals * u64::from(budget::DATAGRAMS));
    // What still lies in the queue may make the first ones late.
    until("it is answered", || send(&b, &to, token, SHORT * 10).recv().is_ok_and(|end| end.is_ok()));
}

// Promise: datagram-ping
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn unanswered_requests_are_bounded() {
    let (a, b) = (start(), start());
    let to = b.endpoint().unwrap();
    let told: Vec<_> = (0..=MAX_TRIPS).map(|_| send(&a, &to, [3; TOKEN_BYTES], Duration::from_secs(5))).collect();
    let refused = told.iter().filter(|told| matches!(told.recv_timeout(PATIENCE), Ok(Err(DatagramError::TooMany))));
    assert_eq!(refused.count(), 1);
}

/// A work request that the device does not take stands for a queue pair that has failed.
// Promise: datagram-ping, seen to fail
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_failed_queue_pair_is_made_again() {
    let (a, b, stranger) = (start(), start(), Stranger::new());
    let (to, token) = a.admit("b", &b.endpoint().unwrap()).unwrap();
    echoed(&send(&b, &to, token, PATIENCE));
    let waiting = send(&a, &b.endpoint().unwrap(), [0; TOKEN_BYTES], PATIENCE);
    let (tell, told) = channel();
    let answered: Answered = Box::new(move |took| drop(tell.send(took)));
    // The handle is of another domain.
    let route = Route { handle: stranger.to.clone(), queue_pair: 2, queue_key: 0 };
    let trip = Trip { route, token: Token(token), timeout: PATIENCE, answered };
    assert!(a.0.commands.send(Command::Send(trip)).is_ok());
    a.0.ring();
    for told in [told, waiting] {
        assert!(matches!(told.recv_timeout(PATIENCE), Ok(Err(DatagramError::Down { .. }))));
    }
    until("there is another one", || a.endpoint().is_ok_and(|again| again != to));
    // Who is admitted stays so; only the address has changed.
    let again = a.endpoint().unwrap();
    lost(&send(&b, &to, token, SHORT));
    echoed(&send(&b, &again, token, PATIENCE));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn stopped_datagrams_say_so() {
    let (a, b) = (start(), start());
    let (to, token) = a.admit("b", &b.endpoint().unwrap()).unwrap();
    a.stop();
    a.stop();
    assert!(matches!(a.endpoint(), Err(DatagramError::Down { why }) if why.contains("stopping")));
    lost(&send(&b, &to, token, SHORT));
    let waiting = send(&b, &to, token, PATIENCE);
    b.stop();
    assert!(!matches!(waiting.recv_timeout(PATIENCE), Ok(Ok(_)) | Err(RecvTimeoutError::Timeout)));
}
