//! Workers that push false tables of record batches and bundles: the sidecar refuses them, or the reader does, and no
//! other worker is affected. And readers that look at raw memory: they find nothing but the pushed bytes.

use std::time::{Duration, Instant};
use transfer_client::{BatchError, BlockingClient, BundleError, Error};
use transfer_core::op::{Answer, Command, Fetch, FetchedTensor, OpId, Push, Reply};
use transfer_core::tensor::{DType, Key, Name, Select, TensorMeta, TensorName, Version};
use transfer_core::wire::Writer;
use transfer_core::wire::bundle::BundleTable;
use transfer_core::wire::ranges::{ArenaRange, MAX_RANGES, write_range};
use transfer_core::wire::session::{read_reply, write_command};
use transfer_memory::ring::MAX_RECORD_BYTES;
use transfer_memory::session::{FromSidecar, WorkerEnd, WorkerOptions};
use transfer_tests::{Scene, Sidecar, WAIT_LIMIT, poll};

const ARENA: u64 = 1 << 20;
const HEAD: u64 = 4096;
/// 48 bytes, padded to 64, so that the table follows at `HEAD + 64`.
const METADATA: &[u8] = &[0xff; 48];

/// A worker that writes its rings and its arena directly.
struct Liar {
    end: WorkerEnd,
    next: u64,
}

impl Liar {
    fn start(sidecar: &Sidecar) -> Liar {
        let name = Name::new("liar").expect("a name");
        let options = WorkerOptions { name, arena_bytes: ARENA, timeout: WAIT_LIMIT };
        let end = WorkerEnd::connect(&sidecar.socket(), &options).expect("it may come in");
        end.arena.copy_in(HEAD, METADATA).expect("it is its arena");
        Liar { end, next: 0 }
    }

    fn write_table(&self, ranges: &[(u64, u64)]) {
        let mut table = Vec::new();
        ranges.iter().for_each(|(offset, len)| write_range(&mut table, ArenaRange { offset: *offset, len: *len }));
        self.end.arena.copy_in(HEAD + 64, &table).expect("it is its arena");
    }

    /// Pushes a body of `body` bytes, declared to consist of `ranges` ranges, and waits for the answer.
    fn push(&mut self, key: &str, offset: u64, body: u64, ranges: u32) -> Answer {
        self.ask(&Command::Push(Push { offset, ranges, ..a_push(key, body, METADATA.len()) }))
    }

    fn ask(&mut self, command: &Command) -> Answer {
        self.send(command);
        self.answer().1
    }

    /// Sends a command, and does not wait.
    fn send(&mut self, command: &Command) -> OpId {
        self.next += 1;
        let mut record = Writer::new();
        write_command(&mut record, OpId(self.next), command);
        assert!(self.end.submission.try_push(record.as_slice()).expect("the sidecar keeps to the rules"));
        self.end.submission.publish();
        self.end.socket.ring().expect("the session goes on");
        OpId(self.next)
    }

    /// Waits for the next answer.
    fn answer(&mut self) -> (OpId, Answer) {
        let mut buffer = [0; MAX_RECORD_BYTES];
        poll(|| {
            loop {
                let Some(bytes) = self.end.completion.try_pop(&mut buffer).expect("the sidecar keeps to the rules")
                else {
                    return Err("no answer");
                };
                if let Reply::Answer { op, answer } = read_reply(bytes).expect("a reply") {
                    return Ok((op, answer));
                }
            }
        })
        .expect("an answer")
    }
}

/// A push of a body of `body` bytes behind metadata of so many.
fn a_push(key: &str, body: u64, metadata: usize) -> Push {
    let meta = TensorMeta::of(DType::U8, &[body]).and_then(|meta| meta.with_metadata(metadata as u32));
    Push { timeout: WAIT_LIMIT, ..Push::new(Key::new(key).expect("a key"), meta.expect("a description"), 0) }
}

fn refused(answer: Answer, what: &str) {
    let Answer::Failed { failure, .. } = answer else { panic!("{what}: {answer:?}") };
    assert!(failure.text.contains(what), "{what}: {failure}");
}

// Promise: false-metadata, seen to fail
#[test]
fn invalid_range_table_is_refused_by_the_sidecar() {
    let mut scene = Scene::two().with_bystanders();
    let mut liar = Liar::start(scene.a());
    for table in [[(0, 64), (ARENA - 63, 64)], [(0, 64), (u64::MAX - 10, 64)], [(0, u64::MAX), (0, 129)]] {
        liar.write_table(&table);
        refused(liar.push("k", HEAD, 128, 2), "within the arena");
    }
    liar.write_table(&[(0, 64), (64, 64)]);
    refused(liar.push("k", HEAD, 129, 2), "come to Some(128) bytes");
    // The bytes behind the table are read as further entries.
    liar.end.arena.copy_in(HEAD + 64 + 32, &[0xff; 16]).expect("it is its arena");
    refused(liar.push("k", HEAD, 128, MAX_RANGES), "within the arena");
    // The table is not in the arena.
    refused(liar.push("k", ARENA - 64, 128, 2), "end within the arena");
    refused(liar.push("k", u64::MAX - 63, 128, 2), "end within the arena");
    assert!(matches!(liar.push("k", HEAD, 128, 2), Answer::Pushed { .. }));
    scene.others_go_on();
    drop(liar);
    scene.a().until("it is gone", |s| s.sessions.iter().all(|s| s.worker != "liar"));
    scene.end();
}

// Promise: false-metadata
#[test]
fn invalid_range_table_or_metadata_fails_at_the_reader() {
    let mut scene = Scene::two().with_bystanders();
    let mut liar = Liar::start(scene.a());
    let connect =
        |sidecar: &Sidecar, name| BlockingClient::connect(sidecar.socket()).name(name).call().expect("a session");
    let (near, far) = (connect(scene.a(), "near"), connect(scene.b(), "far"));
    liar.write_table(&[(0, 64), (64, 64)]);
    assert!(matches!(liar.push("k", HEAD, 128, 2), Answer::Pushed { .. }));
    // The sidecar has checked the table. Now the worker changes it.
    for table in
        [[(0, 64), (ARENA - 63, 64)], [(u64::MAX, 64), (0, 64)], [(0, 64), (64, 63)], [(0, 64), (64, u64::MAX)]]
    {
        liar.write_table(&table);
        let e = near.fetch_batch("k").timeout(Duration::from_secs(20)).call().expect_err("it lies");
        assert!(matches!(e, Error::Batch(BatchError::OutOfBody { .. })), "{table:?}: {e}");
    }
    // The ranges are right, and the metadata is not.
    liar.write_table(&[(0, 64), (64, 64)]);
    for client in [&near, &far] {
        let e = client.fetch_batch("k").call().expect_err("it lies");
        assert!(matches!(e, Error::Batch(BatchError::Cut { .. } | BatchError::Metadata { .. })), "{e}");
        let e = client.fetch("k").call().expect_err("no tensor");
        assert!(matches!(e, Error::Batch(BatchError::NotATensor { .. })), "{e}");
        // The client's session continues.
        client.push_slice(format!("of {}", client.name()), [1], &[1_u8]).call().expect("pushed");
    }
    scene.others_go_on();
    drop((liar, near, far));
    for node in [scene.a(), scene.b()] {
        node.until("they are gone", |s| s.sessions.iter().all(|s| s.worker.starts_with("bystander")));
    }
    scene.end();
}

// Promise: false-tables, seen to fail
#[test]
fn invalid_bundle_table_fails_at_the_reader() {
    let mut scene = Scene::two().with_bystanders();
    let mut liar = Liar::start(scene.a());
    let connect =
        |sidecar: &Sidecar, name| BlockingClient::connect(sidecar.socket()).name(name).call().expect("a session");
    let (near, far) = (connect(scene.a(), "near"), connect(scene.b(), "far"));
    let entry = |name: &str, len: u64| {
        (TensorName::new(name).expect("a name"), TensorMeta::of(DType::U8, &[len]).expect("a description"))
    };
    let table = BundleTable::new(vec![entry("abc", 64), entry("def", 64)]).expect("a table").to_bytes();
    assert_eq!(table.len(), METADATA.len());
    let write = |liar: &Liar, table: &[u8]| liar.end.arena.copy_in(HEAD, table).expect("it is its arena");
    write(&liar, &table);
    liar.write_table(&[(0, 64), (64, 64)]);
    assert!(matches!(liar.push("k", HEAD, 128, 2), Answer::Pushed { .. }));
    for client in [&near, &far] {
        assert_eq!(client.fetch_bundle("k").call().expect("it is true").len(), 2);
    }
    // A table that lies when it is pushed is refused by the sidecar.
    for (at, value, says) in [
        (0, 0, None),
        (4, 2, Some("layout is 2, expected 3")),
        (5, 3, Some("cut short")),
        (8, 9, Some("at most 131072")),
    ] {
        let mut lie = table.clone();
        lie[at] = value;
        write(&liar, &lie);
        match says {
            Some(says) => refused(liar.push("k", HEAD, 128, 2), says),
            // Metadata of another kind is the reader's concern.
            None => assert!(matches!(liar.push("other", HEAD, 128, 2), Answer::Pushed { .. })),
        }
    }
    write(&liar, &table);
    liar.write_table(&[(0, 64), (64, 128)]);
    refused(liar.push("k", HEAD, 192, 2), "have 128 bytes, its body has 192");
    liar.write_table(&[(0, 64), (64, 64)]);
    // Each byte of the table is replaced after the push. The table is refused, or describes a body of the same length.
    for at in 0..table.len() {
        for value in [0, 1, table[at] ^ 0x80, table[at].wrapping_add(1), 0xff] {
            let mut lie = table.clone();
            lie[at] = value;
            write(&liar, &lie);
            for client in [&near, &far] {
                match client.fetch_bundle("k").call() {
                    Ok(bundle) => {
                        let padded = bundle.iter().map(|(_, t)| t.as_bytes().len().next_multiple_of(64));
                        assert_eq!(padded.sum::<usize>(), 128, "byte {at} is {value}");
                    }
                    Err(e) => assert!(matches!(e, Error::Bundle(_)), "byte {at} is {value}: {e}"),
                }
            }
        }
    }
    // A tensor that lies in two pieces, for a reader that maps them.
    write(&liar, &table);
    liar.write_table(&[(0, 32), (256, 96)]);
    let e = near.fetch_bundle("k").call().expect_err("not in one piece");
    assert!(matches!(e, Error::Bundle(BundleError::OutOfBody { .. })), "{e}");
    scene.others_go_on();
    drop((liar, near, far));
    for node in [scene.a(), scene.b()] {
        node.until("they are gone", |s| s.sessions.iter().all(|s| s.worker.starts_with("bystander")));
    }
    scene.end();
}

/// The sidecar reads a long table over several rounds. What its worker asks for meanwhile waits, so that versions rise, and a
/// worker may end then.
// Promise: long-tables, seen to fail
#[test]
fn long_bundle_table_is_checked_before_later_requests() {
    const TENSORS: u64 = 20_000;
    let mut scene = Scene::two().with_bystanders();
    let meta = TensorMeta::of(DType::U8, &[0]).expect("a description");
    let names = (0..TENSORS).map(|n| TensorName::new(&format!("{n:05}")).expect("a name"));
    let table = BundleTable::new(names.map(|name| (name, meta.clone())).collect()).expect("a table").to_bytes();
    let push = |version, metadata| Push { version: Some(Version(version)), ..a_push("k", 0, metadata) };
    let mut liar = Liar::start(scene.a());
    let mut lie = table.clone();
    // Behind the last entry: that there are no digests.
    let (last, entry) = (lie.len() - 1 - 15, 2 + 5 + 2 + 8);
    assert_eq!(lie.len(), 17 + TENSORS as usize * entry + 1);
    lie.copy_within(17 + 2..17 + 2 + 5, last);
    liar.end.arena.copy_in(0, &lie).expect("it is its arena");
    refused(liar.ask(&Command::Push(push(1, lie.len()))), "\"00000\" twice");
    liar.end.arena.copy_in(0, &table).expect("it is its arena");
    // A version with a long table and one with none, one behind the other.
    let ops = [liar.send(&Command::Push(push(1, table.len()))), liar.send(&Command::Push(push(2, 0)))];
    for (op, version) in ops.into_iter().zip([1, 2]) {
        match liar.answer() {
            (answered, Answer::Pushed { version: found, .. }) => assert_eq!((answered, found), (op, Version(version))),
            (op, answer) => panic!("{op:?}: {answer:?}"),
        }
    }
    // It ends while its table is read.
    liar.send(&Command::Push(push(3, table.len())));
    drop(liar);
    scene.a().until("it is gone", |s| s.sessions.iter().all(|s| s.worker != "liar"));
    scene.others_go_on();
    scene.end();
}

/// A slice of an array is sent to another node without the array's other bytes, though all of the array lies in the
/// arena.
#[test]
fn padding_behind_a_slice_is_zero() {
    let scene = Scene::two();
    let pusher = BlockingClient::connect(scene.a().socket()).name("pusher").call().expect("a session");
    let mut secret = pusher.allocate(DType::U8, [4096]).expect("room");
    secret.as_mut_bytes().fill(0x55);
    let array = secret.freeze().to_array().expect("an array").slice(100, 100);
    let batch = arrow_array::RecordBatch::try_from_iter([("bytes", array)]).expect("a batch");
    assert_eq!(pusher.push_batch("slice", &batch).call().expect("pushed").report.copied, 0);
    // A reader that looks directly at the memory in which the slice landed.
    let mut reader = Liar::start(scene.b());
    let fetch = Fetch {
        key: Key::new("slice").expect("a key"),
        select: Select::Latest,
        timeout: WAIT_LIMIT,
        require: None,
        trace: None,
        watches: false,
        excerpt: None,
        base: None,
    };
    let Answer::Fetched { tensor: FetchedTensor { slice, meta, ranges: 0, .. }, .. } =
        reader.ask(&Command::Fetch(fetch))
    else {
        panic!("no tensor")
    };
    // Doorbells arrive on the same socket.
    let passed = loop {
        if let FromSidecar::Segment(passed) = reader.end.socket.receive(Instant::now() + WAIT_LIMIT).expect("a segment")
        {
            break passed;
        }
    };
    let landed = reader.end.segments.adopt(passed).expect("it can be mapped");
    let mut body = vec![1; (meta.len_bytes() - meta.body_offset()) as usize];
    landed.copy_out(slice.offset + meta.body_offset(), &mut body).expect("it is there");
    assert_eq!(body, [vec![0x55; 100], vec![0; 28]].concat());
    drop((reader, batch, pusher));
    scene.end();
}
