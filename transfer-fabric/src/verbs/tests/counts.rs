//! The number of work requests, doorbells and completions that operations take.

use super::*;

fn slice(offset: u64, len: u64) -> LocalSlice {
    Pair::<VerbsRig>::slice(offset, len)
}

/// Keeps up to `window` writes of `len` bytes in flight until `total` are done. Returns the difference of the sender's
/// counters.
fn stream(pair: &mut Pair<VerbsRig>, window: u64, len: u64, total: u64) -> Counters {
    let link = pair.connect(0);
    let remote = pair.grant(1, link, slice(0, len));
    let before = pair.fabric(0).counters();
    let (mut posted, mut done) = (0, 0);
    while done < total {
        while posted < total && posted - done < window {
            pair.post_write(0, link, &[slice(0, len)], remote, None).unwrap();
            posted += 1;
        }
        pair.round();
        let heard = &mut pair.sides[0].heard;
        done += heard.extract_if(.., |h| matches!(h, Heard::WriteDone(..))).count() as u64;
    }
    let now = pair.fabric(0).counters();
    Counters {
        doorbells: now.doorbells - before.doorbells,
        writes: now.writes - before.writes,
        signaled: now.signaled - before.signaled,
        probes: now.probes - before.probes,
        ..Counters::default()
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_stream_takes_one_doorbell_and_one_completion_for_sixteen_writes() {
    let mut pair = Pair::new(VerbsRig(config()), 1 << 16);
    for window in [64, 256] {
        let counted = stream(&mut pair, window, 4096, 2000);
        println!("{window} writes of 4 KiB in flight: {counted:?}");
        assert_eq!(counted.writes, 2000);
        assert!(counted.doorbells * 16 <= counted.writes, "{counted:?}");
        assert!(counted.signaled * 16 <= counted.writes, "{counted:?}");
    }
}

/// A worker's push of 4 KiB takes one WRITE behind one doorbell, once its slot is open. The peer takes one receive,
/// and posts nothing.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_steady_push_is_one_write() {
    let mut pair = Pair::new(VerbsRig(VerbsConfig { probe_interval: Duration::from_secs(3600), ..config() }), 1 << 16);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, slice(0, 4096));
    for round in 0..20 {
        let before = [0, 1].map(|side| pair.fabric(side).counters());
        let work = pair.post_write(0, link, &[slice(0, 64), slice(4096, 4032)], remote, Some(round)).unwrap();
        assert_eq!(pair.immediate(1, link), round);
        pair.write_done(0, link, work);
        let now = [0, 1].map(|side| pair.fabric(side).counters());
        let [ours, theirs] = [0, 1].map(|side| now[side].work_requests() - before[side].work_requests());
        assert_eq!((ours, now[0].writes - before[0].writes, now[0].doorbells - before[0].doorbells), (1, 1, 1));
        assert_eq!((theirs, now[1].receives - before[1].receives), (0, 1));
    }
}

/// A message that is alone leaves with the first poll, and so does the next one.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_lone_message_leaves_at_once() {
    let mut pair = Pair::new(VerbsRig(config()), 1 << 16);
    let link = pair.connect(0);
    // The requests that connecting has posted are completed.
    pair.until("silence", |pair| pair.fabric(0).links.get(link.0[0]).unwrap().sends.len() == 0);
    for _ in 0..2 {
        let before = pair.fabric(0).counters();
        pair.post_send(0, link, b"alone").unwrap();
        pair.fabric(0).ring();
        let now = pair.fabric(0).counters();
        assert_eq!((now.doorbells - before.doorbells, now.inline - before.inline), (1, 1));
    }
}

/// A gather list takes one work request, and copies nothing, as long as the device's elements suffice.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn forty_buffers_take_as_few_writes_as_elements_allow() {
    let len = 1 << 20;
    let mut pair = Pair::new(VerbsRig(config()), 2 * len);
    let link = pair.connect(0);
    let capabilities = pair.fabric(0).capabilities().clone();
    assert_eq!((capabilities.sender_copies, capabilities.receiver_copies), (0, 0));
    let remote = pair.grant(1, link, slice(0, len));
    let slot = transfer_core::wire::landing::SlotGrant {
        number: transfer_core::wire::landing::SlotNumber(7),
        capacity: len - 64,
        remote,
        body: Vec::new(),
    };
    let bytes = pair.fill(0, len, len, 3);
    let header = slice(len, 64);
    let body: Vec<LocalSlice> = (0..40).map(|i| slice(len + 64 + i * 8192, 5000)).collect();
    let pieces = transfer_core::plan::pieces(header, &body, &slot, &capabilities).unwrap();
    assert_eq!(pieces.len(), 41_usize.div_ceil(capabilities.max_sge));
    let before = pair.fabric(0).counters();
    let last = pieces.len() - 1;
    for (i, piece) in pieces.iter().enumerate() {
        pair.post_write(0, link, &piece.sgl, piece.remote, (i == last).then_some(7)).unwrap();
    }
    assert_eq!(pair.immediate(1, link), 7);
    let now = pair.fabric(0).counters();
    assert_eq!((now.writes - before.writes, now.inline - before.inline), (pieces.len() as u64, 0));
    assert!(pair.read(1, 0, 64) == bytes[..64]);
    for i in 0..40 {
        let from = 64 + i * 8192;
        assert!(pair.read(1, 64 + i as u64 * 5000, 5000) == bytes[from..from + 5000], "buffer {i}");
    }
}

/// A write that is longer than the port's longest message is refused before it is posted, even if the sum would wrap
/// at 2^32. The planner cuts a tensor beyond 4 GiB by the same limit.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn long_writes_are_cut_and_never_wrap() {
    // A segment of that size takes no memory before it is touched, but the device would pin it. So the slices overlap.
    let len = 16 << 20;
    let mut pair = Pair::new(VerbsRig(config()), len);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, slice(0, len));
    let max = pair.fabric(0).capabilities().max_write_bytes;
    let too_long = RemoteSlice { len: max + 1, ..remote };
    let posted = pair.post_write(0, link, &[slice(0, max), slice(0, 1)], too_long, None);
    assert_eq!(posted, Err(PostError::Limit { what: "bytes", value: max + 1, limit: max }));
    // To the device, 2^32 + 64 bytes would be 64.
    let id = link.0[0];
    let limit = pair.fabric(0).capabilities.max_write_bytes;
    pair.fabric(0).capabilities.max_write_bytes = u64::MAX;
    pair.fabric(0).capabilities.max_sge = 1024;
    let mut sgl = vec![slice(0, len); 256];
    sgl.push(slice(0, 64));
    let wrapped = RemoteSlice { len: 64, ..remote };
    let posted = pair.fabric(0).post_write(id, WorkId(1), &sgl, wrapped, None);
    assert_eq!(posted, Err(PostError::Limit { what: "gathered bytes", value: (1 << 32) + 64, limit: 64 }));
    pair.fabric(0).capabilities.max_write_bytes = limit;
    pair.works(link);
}

/// More load than the queues hold: each post is taken or refused as full, and none is lost. If the links need more
/// room than one completion queue has, another one is made.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn overload_is_refused_and_nothing_is_lost() {
    let small = VerbsConfig { send_queue: 32, receive_slots: 32, signaled_every: 8, completion_queue: 140, ..config() };
    let len = 1 << 16;
    let mut pair = Pair::new(VerbsRig(small), len);
    let links: Vec<_> = (0..5).map(|i| pair.connect(i % 2)).collect();
    assert_eq!(pair.fabric(0).counters().completion_queues, 3, "two links share a queue");
    let remotes: Vec<_> = links.iter().map(|link| pair.grant(1, *link, slice(0, len))).collect();
    let (mut posted, mut done, mut full) = (0, 0, 0);
    while done < 3000 {
        for (link, remote) in links.iter().zip(&remotes) {
            while posted < 3000 {
                match pair.post_write(0, *link, &[slice(0, 2048)], remote.sub(0, 2048).unwrap(), None) {
                    Ok(_) => posted += 1,
                    Err(PostError::Full(_)) => {
                        full += 1;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        pair.round();
        done += pair.sides[0].heard.extract_if(.., |h| matches!(h, Heard::WriteDone(..))).count();
    }
    assert!(full > 10, "the queues were never full");
    for link in links {
        pair.works(link);
    }
}
