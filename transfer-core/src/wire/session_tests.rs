//! Tests of ring records: round trips, limits, and untrusted bytes.

use super::*;
use crate::fabric::AtomicOp;
use crate::op::{Content, DeltaOf, Deltas};
use crate::tensor::{
    BodyBox, BodyRange, DType, Excerpt, GatheredPart, Life, MAX_GATHERED_BYTES, Repeat, Rows, Select, Slice, SliceDim,
    SliceRange, TensorMeta, Until,
};
use proptest::prelude::*;
use std::num::NonZeroU32;

fn report() -> Report {
    Report {
        fabric: FabricKind::Tcp,
        bytes: 1,
        copied: 2,
        verified: 0,
        relayed: 77,
        delta: 3,
        queued: Duration::from_nanos(3),
        waited: Duration::from_nanos(4),
        in_flight: Duration::from_nanos(5),
        origin: None,
    }
}

fn context() -> Option<TraceContext> {
    TraceContext::new([7; 16], [8; 8], 1).ok()
}

/// As many parts as a request may have, and the longest keys.
fn most_parts() -> Gather {
    let range = BodyRange { offset: 0, len: 1 << 30 };
    let part = |n: usize| GatheredPart::new(&format!("{n:06}"), range).unwrap();
    let parts = (0..MAX_GATHERED_BYTES / part(0).wire_bytes()).map(part).collect();
    let gathered = Gathered::new(Name::new(&"n".repeat(506)).unwrap(), parts).unwrap();
    Gather { gathered, timeout: Duration::from_secs(1), require: Some(FabricKind::Tcp), trace: context() }
}

fn examples() -> (Vec<Request>, Vec<Reply>) {
    let key = Key::new(&"k".repeat(512)).unwrap();
    let meta = TensorMeta::of(DType::U8, &[1; 32]).unwrap();
    let long = Name::new(&"n".repeat(512)).unwrap();
    let counter = |ask| {
        let (name, timeout) = (long.clone(), Duration::from_secs(2));
        Command::Counter(CounterCommand { name, ask, timeout })
    };
    let counted = CounterReport {
        path: CounterPath::OneSided,
        fabric: FabricKind::Verbs,
        queued: Duration::from_nanos(1),
        in_flight: Duration::from_nanos(2),
    };
    let (select, timeout) = (Select::AtLeast(Version(9)), Duration::ZERO);
    let (require, trace, excerpt, base) = (None, None, None, None);
    let fetch = Fetch { key: key.clone(), select, timeout, require, trace, watches: true, excerpt, base };
    let slice = Slice::new([(-4..).into(), 3.into(), (..).into(), SliceRange::from(1..9).step(2).into()]);
    let whole = Slice::new([SliceDim::from(..); 32]);
    let rows = Rows::new((0..700).chain([1 << 20, 1 << 62, i64::MAX]).collect()).unwrap();
    let column = BodyBox::new(4, 4, [Repeat { count: 5, stride: 64 }].into_iter().collect()).unwrap();
    let commands = vec![
        Command::Push(Push {
            key: key.clone(),
            version: Some(Version(0)),
            meta: meta.clone(),
            offset: 64,
            to: Some(Name::new(&"n".repeat(512)).unwrap()),
            timeout: Duration::from_secs(1),
            require: Some(FabricKind::Shm),
            retention: Retention {
                until: Until::Fetched(NonZeroU32::MAX),
                life: Life::Sidecar,
                ..Retention::default()
            },
            takeover: true,
            more_follow: true,
            readable_by: vec![Name::new("7").unwrap(), Name::new("train").unwrap()],
            ranges: MAX_RANGES,
            trace: context(),
            announced: Some(Announced { notice: MAX_NOTICES - 1, count: 1 << 40 }),
            deltas: Deltas::Of(DeltaOf {
                base: Version(1),
                base_offset: 2,
                offset: 3,
                len: u64::MAX,
                earlier: [(4, 5), (6, 7)].into(),
            }),
            content: Some(Content::of_digest(8)),
        }),
        Command::Push(Push { deltas: Deltas::Follow, ..Push::new(key.clone(), meta.clone(), 0) }),
        Command::Push(Push { deltas: Deltas::Base, ..Push::new(key.clone(), meta.clone(), 0) }),
        Command::Fetch(Fetch { base: Some(OpId(u64::MAX)), ..fetch.clone() }),
        Command::Fetch(Fetch { select: Select::Latest, trace: context(), watches: false, ..fetch.clone() }),
        Command::Fetch(Fetch { excerpt: Some(Box::new(Excerpt::slice(slice).unwrap())), ..fetch.clone() }),
        Command::Fetch(Fetch { excerpt: Some(Box::new(Excerpt::new(true, vec![column]).unwrap())), ..fetch.clone() }),
        Command::Fetch(Fetch { excerpt: Some(Box::new(Excerpt::rows(rows))), ..fetch.clone() }),
        Command::FetchInto(FetchInto {
            fetch: Fetch {
                excerpt: Some(Box::new(Excerpt::slice(whole).unwrap())),
                trace: context(),
                base: Some(OpId(u64::MAX)),
                ..fetch.clone()
            },
            to: Destination {
                ranges: vec![ArenaRange { offset: u64::MAX, len: 1 << 62 }; MAX_LANDING_RANGES],
                meta: TensorMeta::of(DType::U8, &[1; 32]).unwrap(),
                otherwise: Otherwise::LandBeside,
            },
        }),
        Command::Fetch(fetch),
        Command::Gather(most_parts()),
        Command::Reserve(Reserve {
            key: key.clone(),
            meta: TensorMeta::of(DType::C64, &[7; 3]).unwrap(),
            to: Name::new("ps").unwrap(),
            timeout: Duration::from_millis(5),
        }),
        Command::TakeBack(TakeBack { key: key.clone(), version: Some(Version(0)), timeout: Duration::from_secs(3) }),
        Command::Delete { key: key.clone() },
        counter(CounterAsk::Open),
        counter(CounterAsk::Wait { members: 3 }),
        counter(CounterAsk::Operate { home: long.clone(), identity: 4, op: AtomicOp::Load }),
        counter(CounterAsk::Operate {
            home: long.clone(),
            identity: 4,
            op: AtomicOp::CompareSwap { expected: 5, new: 6 },
        }),
    ];
    let begin = |(n, command)| Request::Command { op: OpId(n), command };
    let mut requests: Vec<_> = (1..).zip(commands).map(begin).collect();
    requests.extend([
        Request::Release { lease: LeaseId(3) },
        Request::Unmarked { ticket: 1 << 40 },
        Request::CountUnfetched { number: 3, key: key.clone() },
        Request::Unannounce { key },
        Request::WrongDigest { text: "chunk 2 of version 7".to_owned() },
        Request::Cancel { op: OpId(4) },
    ]);
    let replies = vec![
        Reply::Answer { op: OpId(1), answer: Answer::Pushed { version: Version(2), link_rate: 3, report: report() } },
        Reply::Answer {
            op: OpId(1),
            answer: Answer::Fetched {
                lease: LeaseId(7),
                tensor: FetchedTensor {
                    version: Version(2),
                    meta,
                    slice: LocalSlice { segment: SegmentId(3), offset: 4, len: 5 },
                    ranges: 2,
                    is_part: true,
                    publication: 1 << 63,
                    report: Report { origin: context(), ..report() },
                },
            },
        },
        Reply::Answer { op: OpId(8), answer: Answer::Landed { version: Version(3), report: report() } },
        Reply::Answer { op: OpId(9), answer: Answer::Torn { failure: Failure::new(FailureCode::Deadline, "late") } },
        Reply::Answer { op: OpId(8), answer: Answer::Deleted },
        Reply::Answer { op: OpId(10), answer: Answer::Reserved },
        Reply::Answer {
            op: OpId(9),
            answer: Answer::Failed { failure: Failure::new(FailureCode::Busy, "é".repeat(450)), kept: true },
        },
        Reply::Returned { pushed: OpId(3), offset: 128 },
        Reply::Watched { pushed: OpId(3) },
        Reply::Unfetched { number: 3, left: Some(20) },
        Reply::Unfetched { number: 4, left: None },
        Reply::Answer { op: OpId(1), answer: Answer::TakenBack { version: Version(2), pushed: OpId(3), offset: 4 } },
        Reply::Answer { op: OpId(1), answer: Answer::CounterOpened { home: long.clone(), identity: 2 } },
        Reply::Answer { op: OpId(1), answer: Answer::Counted { old: 2, report: counted } },
        Reply::Answer { op: OpId(1), answer: Answer::Released { round: 2, leader: true, report: counted } },
    ];
    (requests, replies)
}

#[test]
fn requests_and_replies_read_back_and_fit() {
    let (requests, replies) = examples();
    for c in requests {
        let mut w = Writer::new();
        write_request(&mut w, &c);
        assert!(w.as_slice().len() <= MAX_RECORD_BYTES);
        assert_eq!(read_request(w.as_slice()), Ok(c));
        assert!(read_request(&w.as_slice()[..w.as_slice().len() - 1]).is_err());
    }
    for c in replies {
        let mut w = Writer::new();
        write_reply(&mut w, &c);
        assert!(w.as_slice().len() <= MAX_RECORD_BYTES);
        assert_eq!(read_reply(w.as_slice()), Ok(c));
    }
}

// Promise: bytes-from-outside, seen to fail
#[test]
fn fuzz_submission_record() {
    let bytes_of = |request: &Request| {
        let mut w = Writer::new();
        write_request(&mut w, request);
        w.into_vec()
    };
    let target = transfer_fuzz::Target::new("submission-record", examples().0.iter().map(bytes_of));
    target.max_len(MAX_RECORD_BYTES).run(|bytes| match read_request(bytes) {
        Ok(request) => {
            assert_eq!(bytes_of(&request), bytes);
            format!("kind {}", char::from(b'a' + bytes[0]))
        }
        Err(e) => e.to_string(),
    });
}

// Promise: bytes-from-outside, seen to fail
#[test]
fn fuzz_completion_record() {
    let bytes_of = |reply: &Reply| {
        let mut w = Writer::new();
        write_reply(&mut w, reply);
        w.into_vec()
    };
    let target = transfer_fuzz::Target::new("completion-record", examples().1.iter().map(bytes_of));
    target.max_len(MAX_RECORD_BYTES).run(|bytes| match read_reply(bytes) {
        Ok(reply) => {
            // An error text may be cut, and a code that is not known here becomes "unknown".
            if !matches!(reply, Reply::Answer { answer: Answer::Failed { .. } | Answer::Torn { .. }, .. }) {
                assert_eq!(bytes_of(&reply), bytes);
            }
            format!("kind {}", char::from(b'g' + (bytes[0] - 65)))
        }
        Err(e) => e.to_string(),
    });
}

proptest! {
    #[test]
    fn garbage_records_never_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..80) {
        let mut bytes = bytes;
        if let Some(b) = bytes.first_mut() { *b = kind; }
        let _ = read_request(&bytes);
        let _ = read_reply(&bytes);
    }
}

#[test]
fn record_kinds_are_named_in_the_errors() {
    assert_eq!(REQUEST_KINDS, format!("{PUSH} to {WRONG_DIGEST}"));
    assert_eq!(REPLY_KINDS, format!("{PUSHED} to {ROSTER}"));
    let unknown = |e: WireError| e.to_string();
    let command = read_request(&[WRONG_DIGEST + 1]).map_err(unknown).unwrap_err();
    let reply = read_reply(&[ROSTER + 1]).map_err(unknown).unwrap_err();
    assert!(command.contains(REQUEST_KINDS) && reply.contains(REPLY_KINDS), "{command}; {reply}");
}

#[test]
fn limits_are_named_in_the_errors() {
    let (mut commands, _) = examples();
    let Some(Request::Command { command: Command::Push(push), .. }) = commands.first_mut() else {
        panic!("{commands:?}")
    };
    let mut text = |ranges, notice| {
        push.ranges = ranges;
        push.announced = Some(Announced { notice, count: 1 });
        let mut w = Writer::new();
        write_request(&mut w, &Request::Command { op: OpId(1), command: Command::Push(push.clone()) });
        read_request(w.as_slice()).unwrap_err().to_string()
    };
    let (ranges, notice) = (text(MAX_RANGES + 1, 0), text(0, MAX_NOTICES));
    assert!(ranges.contains(&format!("at most {MAX_RANGES}")), "{ranges}");
    assert!(notice.contains(&format!("below {MAX_NOTICES}")), "{notice}");
}
