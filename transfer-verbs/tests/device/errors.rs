//! Refusals, and what they say.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use transfer_verbs::*;

use crate::setup::{OPEN, Pages, SEND, chosen, ends, fresh, init_attributes, options, receive_attributes};

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_refused_transition_names_the_step_the_attribute_and_the_value_and_gives_the_queue_pair_back() {
    let pair = fresh().pair;
    let number = pair.number();
    let refused = pair.init(&InitAttributes { port: 9, ..init_attributes() }).unwrap_err();
    let words = format!("queue pair {number}, RESET to INIT: port = 9 (1 to 1 would be right)");
    assert!(refused.to_string().contains(&words), "{refused}");
    let refused = refused.queue_pair.init(&InitAttributes { pkey_index: 77, ..init_attributes() }).unwrap_err();
    assert_eq!((refused.error.transition, refused.error.attribute), (Transition::ResetToInit, "pkey_index"));
    assert!(refused.error.value.starts_with("77 "), "{refused}");

    let mut pair = refused.queue_pair.init(&init_attributes()).unwrap();
    let good = receive_attributes(number);
    let with = |change: &dyn Fn(&mut Destination)| {
        let mut wanted = good;
        change(&mut wanted.destination);
        wanted
    };
    for (wanted, attribute, value) in [
        (with(&|to| to.gid_index = 200), "gid_index", "200 (port 1 has an address at 0, 1"),
        (with(&|to| to.gid = None), "gid", "none"),
        (ReceiveAttributes { max_rd_atomic: 255, ..good }, "max_rd_atomic", "255 (0 to 128"),
    ] {
        let refused = pair.ready_to_receive(&wanted).unwrap_err();
        assert_eq!(refused.error.transition, Transition::InitToReadyToReceive);
        assert_eq!(refused.error.attribute, attribute, "{refused}");
        assert!(refused.error.value.starts_with(value), "{refused}");
        pair = refused.queue_pair;
    }
    let pair = pair.ready_to_receive(&good).unwrap();
    let refused = pair.ready_to_send(&SendAttributes { retry_count: 7, ..SEND }).unwrap_err();
    assert_eq!(refused.error.attribute, "retry_count");
    assert!(refused.queue_pair.ready_to_send(&SEND).is_ok());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn what_is_more_than_the_device_has_is_refused_with_its_limit() {
    let made = fresh();
    let limits = made.context.limits();
    let name = |error: VerbsError| match error {
        VerbsError::Limit { limit_name, .. } => limit_name,
        other => panic!("{other}"),
    };
    let of = |change: &dyn Fn(&mut QueuePairOptions)| {
        let mut options = options(&made.queue);
        change(&mut options);
        name(QueuePair::create(&made.domain, &options).unwrap_err())
    };
    assert_eq!(of(&|options| options.max_send = limits.max_qp_wr + 1), "max_qp_wr");
    assert_eq!(of(&|options| options.max_send_elements = limits.max_sge + 1), "max_sge");
    assert_eq!(name(CompletionQueue::new(&made.context, limits.max_cqe + 1, None).unwrap_err()), "max_cqe");
    assert_eq!(name(CompletionQueue::new(&made.context, 0, None).unwrap_err()), "max_cqe");
    let size = SharedReceiveQueueOptions { max_receive: limits.max_srq_wr + 1, max_receive_elements: 1 };
    assert_eq!(name(SharedReceiveQueue::new(&made.domain, size).unwrap_err()), "max_srq_wr");
    let mut options = options(&made.queue);
    options.max_inline = 1 << 20;
    assert!(QueuePair::create(&made.domain, &options).unwrap_err().to_string().contains("ibv_create_qp"));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn objects_of_two_contexts_do_not_mix() {
    let (one, two) = (fresh(), fresh());
    let error = QueuePair::create(&one.domain, &options(&two.queue)).unwrap_err();
    assert!(matches!(error, VerbsError::Foreign { what: "completion queue", .. }), "{error}");
    let size = SharedReceiveQueueOptions { max_receive: 4, max_receive_elements: 1 };
    let mut options = options(&one.queue);
    options.shared_receives = Some(SharedReceiveQueue::new(&two.domain, size).unwrap());
    assert!(matches!(
        QueuePair::create(&one.domain, &options).unwrap_err(),
        VerbsError::Foreign { what: "shared receive queue", .. }
    ));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_list_that_does_not_fit_is_taken_up_to_where_it_does_not() {
    let (mut a, b) = ends();
    let (address, key) = (b.at(0), b.region.remote_key());
    let long = [a.element(0, 8); 9];
    let mut list = SendList::new();
    for elements in [&long[..1], &long[..8], &long[..], &long[..1]] {
        let kind = SendKind::Write { data: Data::Gather(elements), address, key, immediate: None };
        list.push(SendRequest { work_id: 0, signaled: true, fence: false, kind });
    }
    let error = a.pair.post_send(&mut list).unwrap_err();
    assert_eq!((error.taken, error.of), (2, 4));
    assert!(error.to_string().contains(&format!("queue pair {} took 2 of 4", a.pair.number())), "{error}");
    a.done();
    a.done();
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn read_only_memory_is_registered_for_reading_only() {
    let domain = fresh().domain;
    let memory = Pages::with(4096, false);
    let error = MemoryRegion::register(&domain, memory.clone(), OPEN).unwrap_err();
    assert!(matches!(error, RegisterError::ReadOnly { len_bytes: 4096 }), "{error}");
    let region = MemoryRegion::register(&domain, memory, Access::default()).unwrap();
    assert!(region.element(0, 4096).is_some() && region.element(1, 4096).is_none());
    assert!(region.element(usize::MAX, 2).is_none());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn the_locked_memory_limit_is_named() {
    let domain = fresh().domain;
    // The capability is a thread's, the limit the process's; the other tests' threads keep the capability.
    std::thread::spawn(move || {
        let before = getrlimit(Resource::Memlock);
        setrlimit(Resource::Memlock, Rlimit { current: Some(65_536), maximum: before.maximum }).unwrap();
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        let error = MemoryRegion::register(&domain, Pages::new(1 << 20), OPEN).unwrap_err();
        setrlimit(Resource::Memlock, before).unwrap();
        let words = error.to_string();
        assert!(matches!(error, RegisterError::LockedMemory { limit: LockedLimit(Some(65_536)), .. }), "{words}");
        assert!(words.contains("1048576 bytes") && words.contains("ulimit -l"), "{words}");
    })
    .join()
    .unwrap();
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_choice_that_is_not_there_is_refused_with_what_there_is() {
    let device = chosen().context.device_name().to_owned();
    let wanted = choose::Wanted { device: Some("mlx5_9".to_owned()), ..Default::default() };
    let words = choose::port(&wanted).unwrap_err().to_string();
    assert!(words.contains("no RDMA device mlx5_9") && words.contains(&format!("{device} port 1 active")), "{words}");
    let wanted = choose::Wanted { gid_index: Some(0), ..Default::default() };
    assert_eq!(choose::port(&wanted).unwrap().gid.unwrap().index, 0);
    assert_eq!(chosen().gid.unwrap().kind, GidKind::RoceV2Ipv4);
}
