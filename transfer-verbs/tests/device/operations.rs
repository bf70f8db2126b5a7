//! What queue pairs do.

use transfer_verbs::*;

use crate::setup::{End, LEN, OPEN, Pages, ends, ends_with, next_of};

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn messages_arrive_with_their_immediate() {
    let (mut a, mut b) = ends();
    b.receive(7, 0, 100);
    a.memory.write(0, b"hello");
    let data = Data::Gather(&[a.element(0, 5)]);
    assert_eq!(a.run(SendKind::Send { data, immediate: Some(0x0102_0304) }).opcode, Opcode::Send);
    let completion = b.completion();
    let done = completion.result.unwrap();
    assert_eq!((completion.work_id, completion.queue_pair), (7, b.pair.number()));
    assert_eq!((done.opcode, done.len_bytes, done.immediate), (Opcode::Receive, 5, Some(0x0102_0304)));
    assert_eq!(b.memory.read(0, 6), b"hello\0");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn writes_land_gathered_and_tell_their_length() {
    let (mut a, mut b) = ends();
    a.memory.write(0, b"abc");
    a.memory.write(5000, b"defgh");
    let elements = [a.element(0, 3), a.element(100, 1), a.element(5000, 5)];
    let data = Data::Gather(&elements);
    let (address, key) = (b.at(10), b.region.remote_key());
    assert_eq!(a.run(SendKind::Write { data, address, key, immediate: None }).opcode, Opcode::Write);
    assert_eq!(b.memory.read(9, 11), b"\0abc\0defgh\0");
    b.receive(3, 0, 0);
    a.run(SendKind::Write { data, address: b.at(40), key, immediate: Some(9) });
    let done = b.done();
    assert_eq!((done.opcode, done.len_bytes, done.immediate), (Opcode::ReceiveWriteImmediate, 9, Some(9)));
    assert_eq!(b.memory.read(40, 9), b"abc\0defgh");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn inline_bytes_need_no_registered_memory() {
    let (mut a, mut b) = ends();
    assert!(a.pair.max_inline() >= 128);
    b.receive(1, 0, 100);
    let (address, key) = (b.at(200), b.region.remote_key());
    let mut words = *b"written";
    let mut list = SendList::new();
    for (work_id, kind) in [
        (1, SendKind::Write { data: Data::Inline(&[&words[..3], &words[3..]]), address, key, immediate: None }),
        (2, SendKind::Send { data: Data::Inline(&[]), immediate: None }),
    ] {
        list.push(SendRequest { work_id, signaled: true, fence: false, kind });
    }
    words.fill(0);
    a.pair.post_send(&mut list).unwrap();
    a.done();
    a.done();
    assert_eq!(b.done().len_bytes, 0);
    assert_eq!((b.memory.read(200, 7), words), (b"written".to_vec(), [0; 7]));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn reads_and_atomics_bring_what_was_there() {
    let (mut a, b) = ends();
    b.memory.write(0, b"remote bytes");
    let (address, key) = (b.at(0), b.region.remote_key());
    let into = [a.element(64, 6), a.element(128, 6)];
    assert_eq!(a.run(SendKind::Read { into: &into, address, key }).opcode, Opcode::Read);
    assert_eq!((a.memory.read(64, 6), a.memory.read(128, 6)), (b"remote".to_vec(), b" bytes".to_vec()));

    b.memory.write(512, &41u64.to_ne_bytes());
    let (into, address) = (a.element(0, 8), b.at(512));
    assert_eq!(a.run(SendKind::FetchAdd { into, address, key, add: 1 }).opcode, Opcode::FetchAdd);
    assert_eq!((a.memory.word(0), b.memory.word(512)), (41, 42));
    for (compare, before, after) in [(7, 42, 42), (42, 42, 100)] {
        let done = a.run(SendKind::CompareSwap { into, address, key, compare, swap: 100 });
        assert_eq!((done.opcode, a.memory.word(0), b.memory.word(512)), (Opcode::CompareSwap, before, after));
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_list_is_carried_out_in_order_and_completes_where_it_is_asked_to() {
    let (mut a, b) = ends();
    let (address, key) = (b.at(0), b.region.remote_key());
    let mut list = SendList::new();
    for work_id in 0..20u64 {
        let bytes = work_id.to_ne_bytes();
        let data = Data::Inline(&[&bytes]);
        let kind = SendKind::Write { data, address, key, immediate: None };
        list.push(SendRequest { work_id, signaled: work_id == 19, fence: false, kind });
    }
    a.pair.post_send(&mut list).unwrap();
    assert_eq!(a.completion().work_id, 19);
    assert_eq!(b.memory.word(0), 19);
    assert_eq!(a.queue.poll(&mut [Completion::EMPTY; 20]).unwrap(), 0);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn one_pool_of_receives_serves_a_queue_pair() {
    let shared = std::cell::RefCell::new(Vec::new());
    let (mut a, b) = ends_with(
        |_| None,
        |domain, options| {
            let size = SharedReceiveQueueOptions { max_receive: 16, max_receive_elements: 1 };
            let queue = SharedReceiveQueue::new(domain, size).unwrap();
            shared.borrow_mut().push(queue.clone());
            (options.shared_receives, options.max_receive) = (Some(queue), 0);
        },
    );
    let mut list = ReceiveList::new();
    (0..4).for_each(|work_id| list.push(work_id, &[b.element(work_id as usize * 8, 8)]));
    shared.borrow()[1].post_receive(&mut list).unwrap();
    for n in 0..4u64 {
        a.run(SendKind::Send { data: Data::Inline(&[&(n + 5).to_ne_bytes()]), immediate: None });
        let completion = b.completion();
        let place = completion.work_id as usize * 8;
        assert_eq!((completion.result.unwrap().len_bytes, b.memory.word(place)), (8, n + 5));
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn parents_may_be_dropped_first() {
    for round in 0..8 {
        let (mut a, b) = ends();
        let End { pair, queue, domain, memory, region } = b;
        let window = MemoryWindow::allocate(&domain).unwrap();
        let (address, key) = (region.address(), region.remote_key());
        drop(domain);
        drop(memory);
        let last = region.clone();
        if round % 2 == 0 {
            drop((queue.clone(), region))
        } else {
            drop((region, queue.clone()))
        }
        drop(window);
        // The queue pair and one clone of its region are left, and work.
        a.run(SendKind::Write { data: Data::Inline(&[b"alive"]), address, key, immediate: None });
        assert_eq!(last.len(), LEN);
        let End { pair: sender, queue: completions, domain, region: ours, .. } = a;
        drop((ours, domain));
        let sender = sender.into_error().unwrap();
        if round % 3 == 0 {
            drop((queue, completions, pair, sender, last))
        } else {
            drop((last, sender, pair, completions, queue))
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_region_that_is_gone_fails_the_work_request_and_nothing_else() {
    let (mut a, b) = ends();
    let gone = MemoryRegion::register(&a.domain, Pages::new(LEN), OPEN).unwrap();
    let element = gone.element(0, 64).unwrap();
    drop(gone);
    let (address, key) = (b.at(0), b.region.remote_key());
    a.post(&[SendKind::Write { data: Data::Gather(&[element]), address, key, immediate: None }]);
    assert!(matches!(a.completion().result, Err(Status::LocalQueuePairOperation | Status::LocalProtection)));
    assert_eq!(b.memory.read(0, 64), [0; 64]);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn what_is_under_way_is_flushed_on_the_way_to_error() {
    let (mut a, _b) = ends();
    // Nobody receives: it waits.
    a.post(&[SendKind::Send { data: Data::Inline(&[b"never"]), immediate: None }; 3]);
    let End { pair, queue, .. } = a;
    let _errored = pair.into_error().unwrap();
    let statuses: Vec<_> = (0..3).map(|_| next_of(&queue).result.unwrap_err()).collect();
    assert!(statuses.contains(&Status::Flushed), "{statuses:?}");
}
