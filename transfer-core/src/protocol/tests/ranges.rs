//! Tests of bodies that consist of several ranges of an arena.

use super::pair::{ARENA_BYTES, Pair, Worker, key, name};
use crate::op::{Answer, Command, FailureCode, FetchedTensor, OpId, Push, Reply};
use crate::tensor::{BodyRange, DType, Excerpt, Retention, Select, TensorMeta, Until};
use crate::wire::ranges::ArenaRange;
use std::num::NonZeroU32;
use std::time::Duration;

const HEAD: u64 = 4096;

/// Makes a push of `k` with 70 bytes of metadata, whose body consists of these ranges.
fn gathered(ranges: &[(u64, u64)], to: Option<&str>) -> (Push, Vec<ArenaRange>) {
    let ranges: Vec<_> = ranges.iter().map(|(offset, len)| ArenaRange { offset: *offset, len: *len }).collect();
    let body = ranges.iter().map(|r| r.len).fold(0, u64::saturating_add).min(1 << 40);
    let push = Push {
        to: to.map(name),
        timeout: Duration::from_secs(1),
        ranges: u32::try_from(ranges.len()).unwrap(),
        ..Push::new(key("k"), TensorMeta::of(DType::U8, &[body]).unwrap().with_metadata(70).unwrap(), HEAD)
    };
    (push, ranges)
}

/// Writes the metadata, filled with 1, and the ranges, each filled with 10 plus its index. Returns the bytes that
/// should land.
fn fill(pair: &mut Pair, w: Worker, ranges: &[ArenaRange]) -> Vec<u8> {
    pair.world.write(w.arena, HEAD, &[&[1; 70][..], &[0; 58]].concat());
    let mut landed = [&[1; 70][..], &[0; 58]].concat();
    for (n, range) in ranges.iter().enumerate() {
        let bytes = vec![10 + n as u8; range.len as usize];
        pair.world.write(w.arena, range.offset, &bytes);
        landed.extend(bytes);
    }
    landed
}

#[test]
fn ranges_are_read_in_place_on_another_node_that_shares_the_memory() {
    let mut pair = Pair::with_references(|_| {});
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    let (push, ranges) = gathered(&[(8192, 64), (8, 100), (9001, 28)], None);
    fill(&mut pair, w, &ranges);
    pair.push_ranges(w, 100, push.clone(), &ranges);
    pair.settle();
    pair.replies(w);
    pair.posted();
    pair.fetch(far, "k", Select::Latest);
    pair.settle();
    assert_eq!(pair.posted(), ["NAME", "NAME", "TENSOR_REQUEST", "BY_REFERENCE"]);
    let replies = pair.replies(far);
    let [
        Reply::Answer {
            answer: Answer::Fetched { lease, tensor: FetchedTensor { slice, ranges: 3, meta, report, .. } },
            ..
        },
    ] = &replies[..]
    else {
        panic!("{replies:?}")
    };
    let (segment, memory) = pair.kept[1][0];
    assert_eq!((slice.segment, memory, slice.offset, slice.len), (segment, w.arena, HEAD, 128 + 3 * 16));
    assert_eq!((meta, report.bytes, report.copied), (&push.meta, push.meta.len_bytes(), 0));
    pair.release(far, *lease);
    pair.settle();
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}

#[test]
fn ranges_land_as_one_body_behind_their_metadata() {
    let mut pair = Pair::new();
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    let (push, ranges) = gathered(&[(8192, 64), (8, 100), (9000, 0), (9001, 28)], None);
    let landed = fill(&mut pair, w, &ranges);
    let table = pair.nodes[0].node.table_of(w.session, &push).unwrap();
    assert_eq!((table.offset, table.len), (HEAD + 128, 4 * 16));
    pair.push_ranges(w, 100, push.clone(), &ranges);
    pair.settle();
    assert!(matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]));
    // On this node the fetch is by reference: it returns the place of the metadata and the table.
    pair.fetch(near, "k", Select::Latest);
    pair.settle();
    let [
        Reply::Answer {
            answer: Answer::Fetched { lease, tensor: FetchedTensor { slice, ranges: 4, meta, .. } }, ..
        },
    ] = &pair.replies(near)[..]
    else {
        panic!()
    };
    assert_eq!((slice.offset, slice.len, meta), (HEAD, 128 + 4 * 16, &push.meta));
    pair.release(near, *lease);
    // On the other node the body arrives as one, by pull and by push.
    pair.fetch(far, "k", Select::Latest);
    pair.settle();
    let [Reply::Answer { answer: Answer::Fetched { tensor: FetchedTensor { slice, ranges: 0, .. }, .. }, .. }] =
        pair.replies(far)[..]
    else {
        panic!()
    };
    assert_eq!(pair.memories[1].read(slice).unwrap(), landed);
    let (mut push, ranges) = gathered(&[(64, 192)], Some("far"));
    let landed = fill(&mut pair, w, &ranges);
    push.key = key("there");
    pair.push_ranges(w, 101, push, &ranges);
    pair.settle();
    pair.fetch(far, "there", Select::Latest);
    pair.settle();
    let replies = pair.replies(far);
    let [Reply::Answer { answer: Answer::Fetched { tensor: FetchedTensor { slice, ranges: 0, .. }, .. }, .. }] =
        replies[..]
    else {
        panic!("{replies:?}")
    };
    assert_eq!(pair.memories[1].read(slice).unwrap(), landed);
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

/// Waiting pushes and published versions keep their tables. The total for each worker is limited.
#[test]
fn ranges_of_a_worker_have_a_quota_until_they_are_returned() {
    let mut pair = Pair::with(|config| config.max_ranges_per_session = 6);
    let (w, near) = (pair.worker(0, "w"), pair.worker(0, "near"));
    let push = |pair: &mut Pair, op: u64| {
        let (mut push, ranges) = gathered(&[(8192, 64), (8256, 64), (8320, 64)], None);
        push.key = key(&format!("k{op}"));
        pair.push_ranges(w, op, push, &ranges);
        pair.settle();
    };
    for op in [1, 2] {
        push(&mut pair, op);
        assert!(matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]));
    }
    push(&mut pair, 3);
    let failure = pair.failed(w);
    assert_eq!(failure.code, FailureCode::Busy);
    assert!(failure.text.contains("made of 6 ranges") && failure.text.contains("the limit of 6"), "{failure}");
    // A body in one piece does not count.
    pair.push(w, "plain", super::pair::bytes(64), 1, None);
    pair.settle();
    assert!(matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]));
    // A version counts until its last reader is done.
    pair.fetch(near, "k1", Select::Latest);
    pair.settle();
    let [Reply::Answer { answer: Answer::Fetched { lease, tensor: FetchedTensor { ranges: 3, .. } }, .. }] =
        pair.replies(near)[..]
    else {
        panic!("k1 is there")
    };
    pair.command(w, OpId(90), Command::Delete { key: key("k1") });
    pair.settle();
    assert!(matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Deleted, .. }]));
    push(&mut pair, 4);
    assert_eq!(pair.failed_with(w), FailureCode::Busy);
    pair.release(near, lease);
    pair.settle();
    assert!(matches!(pair.replies(w)[..], [Reply::Returned { .. }]));
    push(&mut pair, 5);
    assert!(matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]));
    pair.ends_clean(&[(w, "w"), (near, "near")]);
}

#[test]
fn inconsistent_ranges_are_refused() {
    let mut pair = Pair::new();
    let w = pair.worker(0, "w");
    let mut refused = |push: Push, ranges: &[ArenaRange], what: &str| {
        pair.push_ranges(w, 1, push, ranges);
        pair.settle();
        let failure = pair.failed(w);
        assert_eq!(failure.code, FailureCode::Invalid);
        assert!(failure.text.contains(what), "{failure}");
    };
    for outside in [(ARENA_BYTES - 63, 64), (u64::MAX, 2), (0, u64::MAX)] {
        let (push, ranges) = gathered(&[(0, 64), outside], None);
        refused(push, &ranges, "within the arena");
    }
    let (push, ranges) = gathered(&[(0, 64), (64, 64)], None);
    refused(Push { ranges: 3, ..push.clone() }, &ranges, "of which 2 were read");
    refused(Push { ranges: 0, ..push.clone() }, &ranges, "of which 2 were read");
    refused(push.clone(), &[], "of which 0 were read");
    refused(push.clone(), &[ranges[0], ArenaRange { offset: 0, len: 65 }], "come to Some(129) bytes");
    // The table itself must lie within the arena.
    refused(Push { offset: ARENA_BYTES - 128, ..push.clone() }, &ranges, "end within the arena");
    refused(Push { offset: 8, ..push }, &ranges, "multiple of 64");
    pair.ends_clean(&[(w, "w")]);
}

fn part(metadata: bool, ranges: &[(u64, u64)]) -> Option<Box<Excerpt>> {
    let ranges = ranges.iter().map(|(offset, len)| BodyRange { offset: *offset, len: *len });
    Some(Box::new(Excerpt::of_ranges(metadata, ranges).unwrap()))
}

/// The metadata, the table of its ranges and the body of the only fetch that this worker has an answer to.
fn fetched(pair: &mut Pair, w: Worker) -> FetchedTensor {
    match &pair.replies(w)[..] {
        [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] => {
            let (lease, tensor) = (*lease, tensor.clone());
            pair.release(w, lease);
            tensor
        }
        replies => panic!("{replies:?}"),
    }
}

// Promise: parts-of-bundles, seen to fail
#[test]
fn part_of_a_version_moves_alone() {
    let mut pair = Pair::new();
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    let (push, ranges) = gathered(&[(8192, 64), (128, 128), (9024, 64)], None);
    let landed = fill(&mut pair, w, &ranges);
    pair.push_ranges(w, 100, push.clone(), &ranges);
    pair.settle();
    pair.replies(w);
    // On this node all of it is handed over by reference, and the report counts the part.
    pair.fetch_part(near, "k", Select::Latest, part(true, &[(64, 64)]));
    pair.settle();
    let tensor = fetched(&mut pair, near);
    assert_eq!((tensor.ranges, &tensor.meta, tensor.report.bytes), (3, &push.meta, 128 + 64));
    // At the other node only the part lands.
    for (metadata, wanted) in
        [(true, &[][..]), (true, &[(64, 64), (192, 64)]), (false, &[(0, 128)]), (false, &[(128, 64)])]
    {
        pair.fetch_part(far, "k", Select::Latest, part(metadata, wanted));
        pair.settle();
        let tensor = fetched(&mut pair, far);
        let mut expected = if metadata { landed[..128].to_vec() } else { Vec::new() };
        for (offset, len) in wanted {
            expected.extend(&landed[128 + *offset as usize..][..*len as usize]);
        }
        let (bytes, metadata_bytes) = (expected.len() as u64, if metadata { 70 } else { 0 });
        assert_eq!(
            (tensor.report.bytes, tensor.meta.len_bytes(), tensor.meta.metadata_bytes()),
            (bytes, bytes, metadata_bytes)
        );
        assert_eq!(pair.memories[1].read(tensor.slice).unwrap(), expected);
    }
    // All of it has the description that it had: a part changes nothing for whole fetches.
    pair.fetch(far, "k", Select::Latest);
    pair.settle();
    let tensor = fetched(&mut pair, far);
    assert_eq!(tensor.meta, push.meta);
    assert_eq!(pair.memories[1].read(tensor.slice).unwrap(), landed);
    pair.settle();
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

#[test]
fn part_beyond_the_body_is_the_metadata_alone() {
    let mut pair = Pair::new();
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    let (push, ranges) = gathered(&[(8192, 64)], None);
    let landed = fill(&mut pair, w, &ranges);
    pair.push_ranges(w, 100, push, &ranges);
    pair.settle();
    pair.replies(w);
    pair.fetch_part(far, "k", Select::Latest, part(true, &[(0, 64), (64, 64)]));
    pair.settle();
    let tensor = fetched(&mut pair, far);
    assert_eq!(pair.memories[1].read(tensor.slice).unwrap(), landed[..128]);
    pair.settle();
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}

#[test]
fn part_of_a_tensor_or_of_a_counted_version_is_refused() {
    let mut pair = Pair::new();
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    pair.push(w, "dense", TensorMeta::of(DType::U8, &[64]).unwrap(), 1, None);
    let (mut push, ranges) = gathered(&[(8192, 64)], None);
    push.retention = Retention { until: Until::Fetched(NonZeroU32::MIN), ..Retention::default() };
    fill(&mut pair, w, &ranges);
    pair.push_ranges(w, 100, push, &ranges);
    pair.settle();
    pair.replies(w);
    for (key, says) in [("dense", "slice it"), ("k", "a number of times")] {
        for reader in [near, far] {
            pair.fetch_part(reader, key, Select::Latest, part(true, &[]));
            pair.settle();
            match &pair.replies(reader)[..] {
                [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] => {
                    assert_eq!(failure.code, FailureCode::Invalid);
                    assert!(failure.text.contains(says), "{failure}");
                }
                replies => panic!("{replies:?}"),
            }
        }
    }
    // The counted fetch is still there.
    pair.fetch(far, "k", Select::Latest);
    pair.settle();
    fetched(&mut pair, far);
    pair.settle();
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}
