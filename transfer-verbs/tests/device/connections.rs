//! Connections by librdmacm, both ends in one process.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use transfer_verbs::cm::{Attributes, ConnectParameters, EventChannel, EventKind, Id};
use transfer_verbs::*;

use crate::events::readable;
use crate::setup::{ALL, OPEN, Pages, next_of, options};

const WITHIN: Duration = Duration::from_secs(10);

fn address() -> SocketAddr {
    let ip = std::env::var("RDMA_IP").unwrap_or_else(|_| "10.77.0.1".to_owned());
    SocketAddr::new(ip.parse().unwrap(), 0)
}

fn next(channel: &EventChannel) -> cm::Event {
    assert!(readable(channel.as_fd(), 30), "no event");
    channel.next().unwrap().unwrap()
}

/// A queue pair on the device that an id goes through.
fn pair(id: &Id) -> (QueuePair<Init>, CompletionQueue, ProtectionDomain) {
    let (name, guid) = id.device().unwrap();
    let device = devices().unwrap().into_iter().find(|device| device.name() == name).unwrap();
    assert_eq!((device.guid(), id.port()), (guid, Some(1)));
    let context = device.open().unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    let queue = CompletionQueue::new(&context, 64, None).unwrap();
    let pair = QueuePair::create(&domain, &options(&queue)).unwrap();
    let mut attributes: Attributes<Init> = id.init_attributes().unwrap();
    attributes.set_access(ALL);
    (pair.init_by(&attributes).unwrap(), queue, domain)
}

fn ready(id: &Id, pair: QueuePair<Init>) -> QueuePair<ReadyToSend> {
    let mut receive = id.ready_to_receive_attributes().unwrap();
    receive.set_min_rnr_timer(12);
    receive.set_max_rd_atomic(4);
    let mut send = id.ready_to_send_attributes().unwrap();
    send.set_max_rd_atomic(4);
    send.set_rnr_retry(6);
    pair.ready_to_receive_by(&receive).unwrap().ready_to_send_by(&send).unwrap()
}

fn parameters(queue_pair: u32, private_data: &[u8]) -> ConnectParameters {
    ConnectParameters {
        queue_pair,
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 6,
        rnr_retry: 6,
        private_data: private_data.to_vec(),
    }
}

/// An id that listens, and one that knows the way to it.
fn listener_and_asker(listening: &EventChannel, asking: &EventChannel) -> (Id, Id) {
    let listener = Id::new(listening).unwrap();
    listener.listen(address(), 4).unwrap();
    let destination = listener.local_address().unwrap();
    assert_ne!(destination.port(), 0);
    let asker = Id::new(asking).unwrap();
    assert_eq!((asker.device(), asker.peer_address()), (None, None));
    asker.resolve_address(None, destination, WITHIN).unwrap();
    let event = next(asking);
    assert!(matches!(event.kind, EventKind::AddressResolved), "{}: {}", event.kind.words(), event.status);
    assert_eq!((event.id, asker.peer_address()), (asker.number(), Some(destination)));
    asker.set_type_of_service(96).unwrap();
    asker.set_ack_timeout(14).unwrap();
    asker.resolve_route(WITHIN).unwrap();
    assert!(matches!(next(asking).kind, EventKind::RouteResolved));
    (listener, asker)
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn queue_pairs_of_our_own_are_connected_used_and_disconnected() {
    cm::available().unwrap();
    let (listening, asking) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
    assert!(listening.next().unwrap().is_none());
    let (listener, asker) = listener_and_asker(&listening, &asking);

    let (asking_pair, asking_queue, _) = pair(&asker);
    let asking_number = asking_pair.number();
    asker.connect(&parameters(asking_number, b"who is there?")).unwrap();
    let event = next(&listening);
    assert_eq!(event.id, listener.number());
    assert!(event.private_data.starts_with(b"who is there?"));
    let EventKind::ConnectRequest(request) = event.kind else { panic!("{}", event.kind.words()) };
    assert_eq!(request.peer.queue_pair, asking_number);

    let (asked_pair, asked_queue, domain) = pair(&request.id);
    let asked_number = asked_pair.number();
    let mut asked_pair = ready(&request.id, asked_pair);
    let memory = Pages::new(4096);
    let region = MemoryRegion::register(&domain, memory.clone(), OPEN).unwrap();
    let mut receives = ReceiveList::new();
    receives.push(1, &[region.element(0, 64).unwrap()]);
    asked_pair.post_receive(&mut receives).unwrap();
    request.id.accept(&parameters(asked_number, b"it is me")).unwrap();

    let event = next(&asking);
    assert!(event.private_data.starts_with(b"it is me"));
    let EventKind::ConnectResponse(peer) = event.kind else { panic!("{}", event.kind.words()) };
    assert_eq!(peer.queue_pair, asked_number);
    let mut asking_pair = ready(&asker, asking_pair);
    asker.establish().unwrap();
    let event = next(&listening);
    assert_eq!(event.id, request.id.number());
    assert!(matches!(event.kind, EventKind::Established(_)), "{}", event.kind.words());

    let mut sends = SendList::new();
    let kind = SendKind::Send { data: Data::Inline(&[b"over the wire"]), immediate: None };
    sends.push(SendRequest { work_id: 5, signaled: true, fence: false, kind });
    asking_pair.post_send(&mut sends).unwrap();
    assert_eq!(next_of(&asking_queue).result.unwrap().opcode, Opcode::Send);
    assert_eq!(next_of(&asked_queue).result.unwrap().len_bytes, 13);
    assert_eq!(memory.read(0, 13), b"over the wire");

    asker.disconnect().unwrap();
    let event = next(&listening);
    assert!(matches!(event.kind, EventKind::Disconnected), "{}", event.kind.words());
    request.id.disconnect().unwrap();
    assert!(matches!(next(&asking).kind, EventKind::Disconnected));
    // Ids before their channel, channels before their ids: both may be.
    drop((listening, asked_pair, request));
    drop((asking_pair, listener, asker, asking));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_refusal_carries_its_reason() {
    let channel = EventChannel::new().unwrap();
    let asking = EventChannel::new().unwrap();
    let (_listener, asker) = listener_and_asker(&channel, &asking);
    let (pair, _, _) = pair(&asker);
    asker.connect(&parameters(pair.number(), b"")).unwrap();
    let EventKind::ConnectRequest(request) = next(&channel).kind else { panic!("no request") };
    request.id.reject(b"not today").unwrap();
    let event = next(&asking);
    assert!(matches!(event.kind, EventKind::Rejected), "{}", event.kind.words());
    assert!(event.private_data.starts_with(b"not today"));
    assert_ne!(event.status, 0);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_request_that_is_dropped_and_a_port_where_nobody_listens_are_refusals() {
    let channel = EventChannel::new().unwrap();
    let asking = EventChannel::new().unwrap();
    let (listener, asker) = listener_and_asker(&channel, &asking);
    let (pair, _, _) = pair(&asker);
    asker.connect(&parameters(pair.number(), b"")).unwrap();
    drop(next(&channel));
    assert!(matches!(next(&asking).kind, EventKind::Rejected));

    let destination = listener.local_address().unwrap();
    drop(listener);
    let asker = Id::new(&asking).unwrap();
    asker.resolve_address(None, destination, WITHIN).unwrap();
    assert!(matches!(next(&asking).kind, EventKind::AddressResolved));
    asker.resolve_route(WITHIN).unwrap();
    assert!(matches!(next(&asking).kind, EventKind::RouteResolved));
    asker.connect(&parameters(pair.number(), b"")).unwrap();
    assert!(matches!(next(&asking).kind, EventKind::Rejected));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn an_address_without_a_device_is_an_error() {
    let channel = EventChannel::new().unwrap();
    let id = Id::new(&channel).unwrap();
    match id.resolve_address(None, "203.0.113.9:1".parse().unwrap(), Duration::from_secs(1)) {
        Err(error) => assert!(error.to_string().contains("rdma_resolve_addr"), "{error}"),
        Ok(()) => assert!(matches!(next(&channel).kind, EventKind::AddressError)),
    }
}
