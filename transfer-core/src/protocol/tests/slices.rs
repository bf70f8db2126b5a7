//! Tests of slices of tensors, between two nodes and at one.

use super::pair::{Pair, Worker, key, name};
use crate::op::{Answer, Command, FailureCode, FetchedTensor, OpId, Push, Reply, Report, Request};
use crate::protocol::{SpillConfig, Tenant};
use crate::tensor::{
    BodyBox, DType, Excerpt, Packing, Repeat, Retention, Rows, Select, Slice, SliceDim, SliceRange, Spill, TensorMeta,
    Until, Version,
};
use crate::time::Time;
use crate::wire::ranges::ArenaRange;
use smallvec::smallvec;
use std::num::NonZeroU32;
use std::time::Duration;

/// The most parts of one peer that are packed at a time, as docs/protocol.md has it.
const PLACES: usize = 8;

fn columns(count: i64) -> Option<Box<Excerpt>> {
    slice([SliceRange::ALL.into(), (0..count).into()])
}

fn slice(dims: impl IntoIterator<Item = SliceDim>) -> Option<Box<Excerpt>> {
    Some(Box::new(Excerpt::slice(Slice::new(dims)).unwrap()))
}

fn rows(indices: &[i64]) -> Option<Box<Excerpt>> {
    Some(Box::new(Excerpt::rows(Rows::new(indices.to_vec()).unwrap())))
}

fn tensor(dims: &[u64]) -> TensorMeta {
    TensorMeta::of(DType::U8, dims).unwrap()
}

/// Publishes a tensor whose bytes differ, and returns them.
fn publish(pair: &mut Pair, w: Worker, text: &str, meta: &TensorMeta) -> Vec<u8> {
    let content: Vec<_> = (0..meta.len_bytes()).map(|n| (n * 7 + n / 251) as u8).collect();
    let op = pair.push(w, text, meta.clone(), 0, None);
    pair.world.write(w.arena, (op.0 % 8) * (super::pair::ARENA_BYTES / 8), &content);
    pair.settle();
    assert!(matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }, ..]));
    content
}

/// Returns the bytes of a part.
fn part_of(content: &[u8], meta: &TensorMeta, excerpt: Option<&Excerpt>) -> Vec<u8> {
    let packing: Packing = excerpt.unwrap().of(meta).unwrap().packing;
    let mut part = Vec::new();
    for run in packing {
        part.resize(run.to as usize, 0);
        part.extend(&content[run.from as usize..][..run.len as usize]);
    }
    part
}

/// Returns the only answer of a worker, and its bytes. Releases the lease.
fn fetched(pair: &mut Pair, r: Worker) -> (FetchedTensor, Vec<u8>) {
    let replies = pair.replies(r);
    let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else { panic!("{replies:?}") };
    let bytes = pair.memories[r.node].read(tensor.slice).unwrap_or_default();
    pair.release(r, *lease);
    pair.settle();
    (tensor.clone(), bytes)
}

fn copied(report: &Report) -> (u64, u64) {
    (report.bytes, report.copied)
}

// Promise: slices, seen to fail
#[test]
fn slice_moves_alone_packed_or_from_where_it_lies() {
    let mut pair = Pair::new();
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    let meta = tensor(&[3, 5000]);
    let content = publish(&mut pair, w, "k", &meta);
    pair.posted();
    let cases = [
        (columns(64), [3, 64], 192),
        (columns(4500), [3, 4500], 0),
        (slice([(1..3).into()]), [2, 5000], 0),
        (slice([SliceRange::from(0..).step(2).into(), SliceRange::from(-20..).step(3).into()]), [2, 7], 14),
        (slice([SliceRange { start: Some(2), stop: Some(1), step: 1 }.into()]), [0, 5000], 0),
    ];
    for (n, (part, shape, packed)) in cases.into_iter().enumerate() {
        let expected = part_of(&content, &meta, part.as_deref());
        pair.fetch_part(far, "k", Select::Latest, part);
        pair.settle();
        let posted = pair.posted();
        let one_round_trip = ["TENSOR_REQUEST", "META_DATA_UPDATE", "TENSOR_RE_REQUEST", "WRITE"];
        assert_eq!(posted[if n == 0 { 2 } else { 0 }..], one_round_trip);
        let (got, bytes) = fetched(&mut pair, far);
        assert_eq!((got.meta, got.is_part, bytes.len()), (tensor(&shape), true, expected.len()));
        assert_eq!(bytes, expected);
        assert_eq!(copied(&got.report), (bytes.len() as u64, packed));
    }
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}

// Promise: rows, seen to fail
#[test]
fn rows_move_alone_packed_or_from_where_they_lie() {
    let mut pair = Pair::new();
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    let (narrow, wide) = (tensor(&[40, 100]), tensor(&[3, 5000]));
    let contents = [("narrow", &narrow), ("wide", &wide)].map(|(key, meta)| publish(&mut pair, w, key, meta));
    for (key, part, shape, packed) in [
        ("narrow", rows(&[0, 7, 39]), [3, 100], 300),
        ("narrow", rows(&[3, 4, 5]), [3, 100], 0),
        ("narrow", rows(&[]), [0, 100], 0),
        ("wide", rows(&[0, 2]), [2, 5000], 0),
    ] {
        let (meta, content) = if key == "wide" { (&wide, &contents[1]) } else { (&narrow, &contents[0]) };
        let expected = part_of(content, meta, part.as_deref());
        pair.fetch_part(far, key, Select::Latest, part);
        pair.settle();
        let (got, bytes) = fetched(&mut pair, far);
        assert_eq!((got.meta, got.is_part), (tensor(&shape), true));
        assert_eq!(bytes, expected);
        assert_eq!(copied(&got.report), (shape.iter().product(), packed));
    }
    for (index, text) in
        [(40, "slice [40] does not fit shape [40, 100]"), (-1, "slice [-1] does not fit shape [40, 100]")]
    {
        pair.fetch_part(far, "narrow", Select::Latest, rows(&[index]));
        pair.settle();
        let replies = pair.replies(far);
        let [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] = &replies[..] else {
            panic!("{replies:?}")
        };
        assert!(failure.code == FailureCode::Invalid && failure.text.contains(text), "{failure:?}");
        assert!(failure.text.contains("0 to 39 would fit"), "{failure:?}");
    }
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}

// Promise: slice-views, seen to fail
#[test]
fn slice_at_its_node_or_of_shared_memory_is_the_version_by_reference_whatever_room_there_is() {
    let mut pair = Pair::with_references(|_| {});
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    // More than a landing pool has.
    let meta = tensor(&[4, 1 << 12]);
    let content = publish(&mut pair, w, "k", &meta);
    for reader in [near, far] {
        pair.fetch_part(reader, "k", Select::Latest, columns(4000));
        pair.settle();
        let replies = pair.replies(reader);
        let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else {
            panic!("{replies:?}")
        };
        assert_eq!((&tensor.meta, tensor.is_part, copied(&tensor.report)), (&meta, false, (16_000, 0)));
        assert_eq!(pair.world.read(w.arena, tensor.slice.offset, tensor.slice.len), content);
        pair.release(reader, *lease);
        pair.settle();
    }
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

// Promise: slices-that-do-not-fit, seen to fail
#[test]
fn slice_that_does_not_fit_is_refused_with_shape_and_slice() {
    let mut pair = Pair::new();
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    publish(&mut pair, w, "k", &tensor(&[3, 4]));
    publish(&mut pair, w, "scalar", &tensor(&[]));
    publish(&mut pair, w, "bundle", &tensor(&[640]).with_metadata(70).unwrap());
    pair.retention = Retention { until: Until::Fetched(NonZeroU32::MIN), ..Retention::default() };
    publish(&mut pair, w, "counted", &tensor(&[3, 4]));
    let cases = [
        ("k", columns(5), "slice [:, 0:5] does not fit shape [3, 4]"),
        ("k", slice([SliceRange::ALL.step(0).into()]), "step 0 of dimension 0"),
        ("k", slice([SliceDim::Index(3)]), "slice [3] does not fit shape [3, 4]"),
        ("scalar", slice([]), "without dimensions has no slices"),
        ("bundle", columns(1), "by their names"),
        ("counted", columns(1), "a number of times"),
    ];
    for (text, part, says) in cases {
        for reader in [near, far] {
            pair.fetch_part(reader, text, Select::Latest, part.clone());
            pair.settle();
            let failure = pair.failed(reader);
            assert_eq!(failure.code, FailureCode::Invalid);
            assert!(failure.text.contains(says), "{failure}");
        }
    }
    assert_eq!(pair.downs, [""; 0], "the link stays");
    pair.fetch(far, "counted", Select::Latest);
    pair.settle();
    fetched(&mut pair, far);
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

// Promise: packed-parts, seen to fail
#[test]
fn boxes_of_a_bundle_land_aligned_with_zeros_between_them() {
    let mut pair = Pair::new();
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    // The pool of the owner is full of other bytes before.
    publish(&mut pair, w, "before", &tensor(&[3, 5000]));
    pair.fetch_part(far, "before", Select::Latest, columns(4000));
    pair.settle();
    fetched(&mut pair, far);
    pair.fetch_part(far, "before", Select::Latest, columns(64));
    pair.settle();
    fetched(&mut pair, far);
    let meta = tensor(&[2000]).with_metadata(70).unwrap();
    let ranges = [(8192, 64), (8, 100), (12_000, 1836)].map(|(offset, len)| ArenaRange { offset, len });
    let content: Vec<u8> = (0..meta.len_bytes()).map(|n| (n % 251) as u8 + 1).collect();
    pair.world.write(w.arena, 4096, &content[..128]);
    let mut at = 128;
    for range in ranges {
        pair.world.write(w.arena, range.offset, &content[at..][..range.len as usize]);
        at += range.len as usize;
    }
    let push = Push { timeout: Duration::from_secs(1), ranges: 3, ..Push::new(key("k"), meta.clone(), 4096) };
    pair.push_ranges(w, 100, push, &ranges);
    pair.settle();
    pair.replies(w);
    let boxes = || {
        vec![
            BodyBox::new(60, 10, smallvec![Repeat { count: 3, stride: 20 }]).unwrap(),
            BodyBox::new(130, 70, smallvec![]).unwrap(),
            BodyBox::new(500, 1, smallvec![Repeat { count: 5, stride: 300 }]).unwrap(),
        ]
    };
    for with_metadata in [false, true] {
        let part = Box::new(Excerpt::new(with_metadata, boxes()).unwrap());
        let expected = part_of(&content, &meta, Some(&part));
        pair.fetch_part(far, "k", Select::Latest, Some(part));
        pair.settle();
        let (got, bytes) = fetched(&mut pair, far);
        assert_eq!(bytes, expected, "with zeros in front of each box");
        assert_eq!((got.is_part, got.meta.shape().dims()), (true, &[64 + 128 + 5][..]));
        assert_eq!(copied(&got.report), (expected.len() as u64, expected.len() as u64));
    }
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}

// Promise: packed-parts, seen to fail
#[test]
fn peer_packs_a_limited_number_of_parts_at_a_time_whatever_it_gives_up() {
    let mut pair = Pair::new();
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    let meta = tensor(&[3, 5000]);
    let content = publish(&mut pair, w, "k", &meta);
    pair.hold_copies = true;
    let link = |pair: &Pair| pair.links[0].unwrap();
    // Fetches of the same part would share a request.
    let mut counts = 2..;
    let mut fetch = |pair: &mut Pair| {
        let op = pair.fetch_part(far, "k", Select::Latest, columns(counts.next().unwrap()));
        pair.settle();
        op
    };
    let ops: Vec<OpId> = (0..PLACES + 3).map(|_| fetch(&mut pair)).collect();
    assert_eq!(pair.held_copies(), PLACES);
    // Those whose copies are made keep their places; the others leave the line.
    for op in &ops[..PLACES] {
        pair.request(far, Request::Cancel { op: *op });
    }
    pair.request(far, Request::Cancel { op: ops[PLACES] });
    pair.settle();
    pair.replies(far);
    let more: Vec<OpId> = (0..3).map(|_| fetch(&mut pair)).collect();
    assert_eq!((pair.held_copies(), pair.nodes[0].node.places_taken(link(&pair))), (PLACES, PLACES));
    pair.copy_all();
    pair.settle();
    assert_eq!(pair.held_copies(), 5);
    pair.copy_all();
    pair.settle();
    let replies = pair.replies(far);
    assert_eq!(replies.len(), 2 + more.len());
    for reply in replies {
        let Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. } = reply else { panic!("{reply:?}") };
        let part = columns(tensor.meta.len_bytes() as i64 / 3);
        assert_eq!(pair.memories[1].read(tensor.slice).unwrap(), part_of(&content, &meta, part.as_deref()));
        pair.release(far, lease);
    }
    pair.settle();
    assert_eq!(pair.nodes[0].node.places_taken(link(&pair)), 0);
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}

// Promise: packed-parts
#[test]
fn without_room_to_pack_a_part_is_sent_from_where_it_lies() {
    let mut pair = Pair::new();
    let (w, v) = (pair.worker(0, "w"), pair.worker(1, "v"));
    let meta = tensor(&[3, 5000]);
    let content = publish(&mut pair, w, "mine", &meta);
    publish(&mut pair, v, "other", &meta);
    // The owner's pool is full of what it has fetched itself.
    pair.fetch_part(w, "other", Select::Latest, slice([(0..3).into()]));
    pair.settle();
    let replies = pair.replies(w);
    let [Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }] = &replies[..] else { panic!("{replies:?}") };
    for packed in [0, 1800] {
        pair.fetch_part(v, "mine", Select::Latest, columns(600));
        pair.settle();
        let (got, bytes) = fetched(&mut pair, v);
        assert_eq!(bytes, part_of(&content, &meta, columns(600).as_deref()));
        assert_eq!(copied(&got.report), (1800, packed));
        if packed == 0 {
            pair.release(w, *lease);
            pair.settle();
        }
    }
    pair.ends_clean(&[(w, "w"), (v, "v")]);
}

// Promise: packed-parts, seen to fail
#[test]
fn part_with_too_many_runs_waits_for_room_for_a_limited_time() {
    let mut pair = Pair::new();
    let (w, v) = (pair.worker(0, "w"), pair.worker(1, "v"));
    let meta = tensor(&[3, 5000]);
    publish(&mut pair, v, "other", &meta);
    pair.fetch_part(w, "other", Select::Latest, slice([(0..3).into()]));
    pair.settle();
    let replies = pair.replies(w);
    let [Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }] = &replies[..] else { panic!("{replies:?}") };
    let many = tensor(&[1 << 13]);
    // A box of many runs of a bundle, with a gap: it cannot be sent from where it lies.
    let meta = many.with_metadata(1).unwrap();
    publish(&mut pair, w, "k", &meta);
    let boxes = vec![
        BodyBox::new(0, 1, smallvec![Repeat { count: 1500, stride: 2 }]).unwrap(),
        BodyBox::new(4000, 1, smallvec![]).unwrap(),
    ];
    pair.timeout = Duration::from_secs(60);
    pair.fetch_part(v, "k", Select::Latest, Some(Box::new(Excerpt::new(false, boxes.clone()).unwrap())));
    pair.settle();
    assert_eq!(pair.replies(v).len(), 0);
    pair.wait(Duration::from_secs(9));
    assert_eq!(pair.replies(v).len(), 0);
    pair.wait(Duration::from_secs(1));
    let failure = pair.failed(v);
    assert_eq!(failure.code, FailureCode::PoolFull);
    assert!(failure.text.contains("node \"a\", which packs them"), "{failure}");
    // With room it goes on.
    pair.fetch_part(v, "k", Select::Latest, Some(Box::new(Excerpt::new(false, boxes).unwrap())));
    pair.settle();
    assert_eq!(pair.replies(v).len(), 0);
    pair.release(w, *lease);
    pair.settle();
    fetched(&mut pair, v);
    pair.ends_clean(&[(w, "w"), (v, "v")]);
}

// Promise: slices
#[test]
fn slices_of_versions_on_disk_are_read_back_and_a_damaged_one_keeps_no_place() {
    let config = SpillConfig { high_percent: 60, low_percent: 20, tenant_bytes: 1 << 20, total_bytes: 1 << 20 };
    let mut pair = Pair::with(|c| c.spill = Some(config));
    pair.retention.spill = Spill::Now;
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    let meta = tensor(&[3, 5000]);
    let op = pair.push(w, "k", meta.clone(), 7, None);
    pair.settle();
    assert!(pair.replies(w).iter().any(|reply| matches!(reply, Reply::Returned { pushed, .. } if *pushed == op)));
    for reader in [near, far] {
        for part in [columns(64), columns(4500), slice([(1..2).into()]), slice([(0..0).into()]), rows(&[0, 2])] {
            let len = part.as_ref().unwrap().of(&meta).unwrap().meta.len_bytes();
            pair.fetch_part(reader, "k", Select::Latest, part);
            pair.settle();
            let (got, bytes) = fetched(&mut pair, reader);
            assert_eq!((bytes, got.is_part, got.report.bytes), (vec![7; len as usize], true, len));
        }
    }
    pair.disk_is_damaged = true;
    pair.fetch_part(far, "k", Select::Latest, columns(64));
    pair.settle();
    assert_eq!(pair.failed_with(far), FailureCode::VersionGone);
    assert_eq!(pair.nodes[0].node.places_taken(pair.links[0].unwrap()), 0);
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

// Promise: slices, seen to fail
#[test]
fn worker_of_another_tenant_gets_a_copy_of_the_slice_alone() {
    let mut pair = Pair::new();
    let w = pair.worker(0, "w");
    let (near, far) = (pair.worker_of(Tenant::User(1), 0, "near"), pair.worker_of(Tenant::User(1), 1, "far"));
    pair.readable_by = vec![name("1")];
    let meta = tensor(&[3, 5000]);
    let content = publish(&mut pair, w, "k", &meta);
    for reader in [near, far] {
        pair.fetch_part(reader, "k", Select::Latest, columns(64));
        pair.settle();
        let (got, bytes) = fetched(&mut pair, reader);
        assert_eq!(bytes, part_of(&content, &meta, columns(64).as_deref()));
        assert_eq!((got.is_part, copied(&got.report)), (true, (192, 192)));
        pair.fetch_part(reader, "k", Select::Latest, rows(&[0, 2]));
        pair.settle();
        let (got, bytes) = fetched(&mut pair, reader);
        assert_eq!((got.is_part, bytes), (true, part_of(&content, &meta, rows(&[0, 2]).as_deref())));
    }
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

// Promise: slices
#[test]
fn parts_of_one_publication_have_its_number_and_no_other_has() {
    let mut pair = Pair::new();
    let w = pair.worker(0, "w");
    let readers = [pair.worker_of(Tenant::User(1), 0, "near"), pair.worker_of(Tenant::User(1), 1, "far")];
    pair.readable_by = vec![name("1")];
    let publications = [5, 6].map(|op| {
        // The same number of version, published once more.
        pair.push_version(w, "k", Some(1), tensor(&[3, 5000]), 7, None);
        pair.settle();
        let numbers = readers.map(|reader| {
            [columns(64), rows(&[0, 2])].map(|excerpt| {
                pair.fetch_part(reader, "k", Select::Exactly(Version(1)), excerpt);
                pair.settle();
                fetched(&mut pair, reader).0.publication
            })
        });
        pair.command(w, OpId(op << 32), Command::Delete { key: key("k") });
        pair.settle();
        pair.replies(w);
        assert_eq!(numbers, [[numbers[0][0]; 2]; 2]);
        numbers[0][0]
    });
    assert!(publications[0] != publications[1] && !publications.contains(&0), "{publications:x?}");
    pair.ends_clean(&[(w, "w"), (readers[0], "near"), (readers[1], "far")]);
}

#[test]
fn part_that_is_packed_ends_with_its_link() {
    let mut pair = Pair::new();
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    publish(&mut pair, w, "k", &tensor(&[3, 5000]));
    pair.hold_copies = true;
    (0..PLACES + 2).for_each(|_| {
        pair.fetch_part(far, "k", Select::Latest, columns(2));
    });
    pair.settle();
    pair.world.break_connection(0, "the cable was pulled");
    pair.settle();
    pair.replies(far);
    pair.copy_all();
    pair.settle();
    assert_eq!(pair.nodes[0].node.state().snapshot(Time(0)).pools.iter().map(|p| p.used).sum::<u64>(), 0);
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}
