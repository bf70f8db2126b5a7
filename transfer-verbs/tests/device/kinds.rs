//! Unreliable queue pairs, and those for datagrams.

use std::sync::Arc;

use transfer_verbs::*;

use crate::setup::{ALL, OPEN, chosen, init_attributes, next_of, options, receive_attributes};

const LEN: usize = 1 << 14;
const KEY: u32 = 0x1234;

/// What an end of each kind has.
struct Parts {
    queue: CompletionQueue,
    domain: ProtectionDomain,
    memory: Arc<Buffer>,
    region: MemoryRegion,
}

fn parts() -> Parts {
    let context = chosen().context;
    let domain = ProtectionDomain::new(&context).unwrap();
    let queue = CompletionQueue::new(&context, 256, None).unwrap();
    let memory = Buffer::new(LEN).unwrap();
    let region = MemoryRegion::register(&domain, memory.clone(), OPEN).unwrap();
    Parts { queue, domain, memory, region }
}

impl Parts {
    fn element(&self, offset: usize, len: usize) -> Element {
        self.region.element(offset, len).unwrap()
    }

    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    fn receives(&self, offset: usize, len: usize) -> ReceiveList {
        let mut list = ReceiveList::new();
        list.push(9, &[self.element(offset, len)]);
        list
    }

    fn done(&self) -> Done {
        next_of(&self.queue).result.unwrap()
    }

    fn is_idle(&self) -> bool {
        self.queue.poll(&mut [Completion::EMPTY]).unwrap() == 0
    }
}

fn unreliable() -> [(Parts, QueuePair<ReadyToSend, Unreliable>); 2] {
    let made = [(); 2].map(|()| {
        let parts = parts();
        let pair = QueuePair::<Reset, Unreliable>::of_kind(&parts.domain, &options(&parts.queue)).unwrap();
        (
            parts,
            pair.init(&InitAttributes {
                access: RemoteAccess { read: false, atomic: false, ..ALL },
                ..init_attributes()
            })
            .unwrap(),
        )
    });
    let numbers = [made[1].1.number(), made[0].1.number()];
    let mut numbers = numbers.into_iter();
    made.map(|(parts, pair)| {
        let ReceiveAttributes { destination, queue_pair, packet_number, path_mtu, .. } =
            receive_attributes(numbers.next().unwrap());
        let attributes = UnreliableAttributes { destination, queue_pair, packet_number, path_mtu };
        (parts, pair.ready_to_receive(&attributes).unwrap().ready_to_send(packet_number).unwrap())
    })
}

fn request(kind: UnreliableKind<'_>) -> SendList<Unreliable> {
    let mut list = SendList::<Unreliable>::default();
    list.push(UnreliableRequest { work_id: 3, signaled: true, kind });
    list
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn unreliable_queue_pair_sends_and_writes() {
    let [(a, mut sender), (b, mut receiver)] = unreliable();
    a.memory.write(0, &[7; 5000]).unwrap();
    let data = Data::Gather(&[a.element(0, 5000)]);
    let (address, key) = (b.region.address() + 100, b.region.remote_key());

    // Nothing is posted for it: it is dropped, and the sender does not learn so.
    sender.post_send(&mut request(UnreliableKind::Send { data, immediate: Some(1) })).unwrap();
    assert_eq!(a.done().opcode, Opcode::Send);
    receiver.post_receive(&mut b.receives(8000, 6000)).unwrap();
    sender.post_send(&mut request(UnreliableKind::Send { data, immediate: Some(2) })).unwrap();
    assert_eq!(a.done().opcode, Opcode::Send);
    let done = b.done();
    assert_eq!((done.opcode, done.len_bytes, done.immediate), (Opcode::Receive, 5000, Some(2)));
    assert_eq!((b.read(8000, 5000), b.read(13_000, 8)), (vec![7; 5000], vec![0; 8]));

    receiver.post_receive(&mut b.receives(0, 0)).unwrap();
    sender.post_send(&mut request(UnreliableKind::Write { data, address, key, immediate: Some(4) })).unwrap();
    assert_eq!(a.done().opcode, Opcode::Write);
    let done = b.done();
    assert_eq!((done.opcode, done.immediate), (Opcode::ReceiveWriteImmediate, Some(4)));
    assert_eq!((b.read(100, 5000), b.read(0, 100)), (vec![7; 5000], vec![0; 100]));
    assert!(a.is_idle() && b.is_idle());
    assert!(format!("{sender:?}").ends_with("(Unreliable, ReadyToSend)"), "{sender:?}");
    drop(sender.into_error().unwrap());
}

fn datagram() -> (Parts, QueuePair<ReadyToSend, Datagram>) {
    let parts = parts();
    let pair = QueuePair::<Reset, Datagram>::of_kind(&parts.domain, &options(&parts.queue)).unwrap();
    let attributes = DatagramAttributes { port: chosen().port.number, pkey_index: 0, queue_key: KEY };
    let pair = pair.init(&attributes).unwrap().ready_to_receive().unwrap().ready_to_send(5).unwrap();
    (parts, pair)
}

fn handle(domain: &ProtectionDomain) -> AddressHandle {
    AddressHandle::new(domain, chosen().port.number, &receive_attributes(0).destination).unwrap()
}

/// A list with one message.
fn message<'a>(data: Data<'a>, to: &'a AddressHandle, queue_pair: u32, queue_key: u32) -> SendList<Datagram> {
    let mut list = SendList::<Datagram>::default();
    list.push(DatagramRequest { work_id: 3, signaled: true, data, immediate: Some(6), to, queue_pair, queue_key });
    list
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn datagrams_arrive_behind_a_routing_header() {
    let (b, mut receiver) = datagram();
    let full = chosen().port.mtu_active.len_bytes() as usize;
    // From several queue pairs to one.
    for byte in [1, 2, 3] {
        let (a, mut sender) = datagram();
        a.memory.write(0, &vec![byte; full]).unwrap();
        let to = handle(&a.domain);
        receiver.post_receive(&mut b.receives(0, ROUTING_HEADER_BYTES + full)).unwrap();
        let data = Data::Gather(&[a.element(0, full)]);
        let mut list = message(data, &to, receiver.number(), KEY);
        // The list keeps it.
        drop(to);
        sender.post_send(&mut list).unwrap();
        assert_eq!(a.done().opcode, Opcode::Send);
        let done = b.done();
        assert_eq!((done.opcode, done.immediate), (Opcode::Receive, Some(6)));
        assert_eq!(done.len_bytes as usize, ROUTING_HEADER_BYTES + full);
        assert_eq!(b.read(ROUTING_HEADER_BYTES, full), vec![byte; full]);
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn datagrams_with_another_queue_key_are_dropped() {
    let ((a, mut sender), (b, mut receiver)) = (datagram(), datagram());
    let to = handle(&a.domain);
    receiver.post_receive(&mut b.receives(0, 1000)).unwrap();
    for (queue_key, bytes) in [(KEY + 1, b"wrong"), (KEY, b"right")] {
        sender.post_send(&mut message(Data::Inline(&[bytes]), &to, receiver.number(), queue_key)).unwrap();
        assert_eq!(a.done().opcode, Opcode::Send);
    }
    assert_eq!(b.done().len_bytes as usize, ROUTING_HEADER_BYTES + 5);
    assert_eq!(b.read(ROUTING_HEADER_BYTES, 5), b"right");
    assert!(b.is_idle());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn address_handles_are_checked() {
    let ((parts, mut sender), (other, receiver)) = (datagram(), datagram());
    let foreign = handle(&other.domain);
    let mut list = message(Data::Inline(&[b"x"]), &foreign, receiver.number(), KEY);
    let error = sender.post_send(&mut list).unwrap_err();
    assert_eq!((error.taken, error.why.raw_os_error()), (0, Some(libc::EINVAL)));
    assert!(list.is_empty() && parts.is_idle());
    let error = AddressHandle::new(&other.domain, 1, &Destination::default()).unwrap_err().to_string();
    assert!(error.contains("ibv_create_ah") && error.contains("no GID"), "{error}");
}
