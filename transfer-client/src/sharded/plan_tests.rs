use super::*;
use crate::bundle::Wanted;
use crate::sharded::absent::Absent;
use crate::sharded::copy::copy_box;
use crate::sharded::plans::{KeptPlans, Plan, PlanOf};
use crate::sharded::records::{Kinds, shard};
use crate::sharded::requests::{Asked, Choice, Output, asks};
use proptest::prelude::*;
use std::time::Instant;
use transfer_core::op::CommittedRank;
use transfer_core::tensor::{DType, Key, Name};

fn name() -> TensorName {
    TensorName::new("w").unwrap()
}

fn layout(dtype: DType, global: &[u64], boxes: &[IndexBox]) -> Arc<RankLayout> {
    let one = |place: &IndexBox| {
        let offset: Vec<u64> = place.0.iter().map(|extent| extent.start).collect();
        let meta = TensorMeta::of(dtype, &place.shape()).unwrap();
        shard(name(), name(), &meta, &offset, global).unwrap()
    };
    Arc::new(RankLayout { shards: boxes.iter().map(one).collect(), ..RankLayout::default() })
}

/// Cuts a box at random, and again what comes of it.
fn tiling(whole: IndexBox, cuts: &[(usize, u64)]) -> Vec<IndexBox> {
    let mut boxes = vec![whole];
    for (dim, at) in cuts {
        let Some(n) = (0..boxes.len()).max_by_key(|n| boxes[*n].volume()) else { break };
        let one = boxes.swap_remove(n);
        if one.0.is_empty() {
            boxes.push(one);
            break;
        }
        let dim = dim % one.0.len();
        let Extent { start, len } = one.0[dim];
        let at = at % (len + 1);
        for (start, len) in [(start, at), (start + at, len - at)] {
            let mut piece = one.clone();
            piece.0[dim] = Extent { start, len };
            boxes.push(piece);
        }
    }
    boxes
}

#[derive(Debug, Clone)]
struct Case {
    global: Vec<u64>,
    boxes: Vec<IndexBox>,
    /// The rank of each box.
    ranks: Vec<usize>,
    slice: Vec<(u64, u64, u64)>,
}

fn cases() -> impl Strategy<Value = Case> {
    let dims = proptest::collection::vec(0_u64..7, 0..=5);
    let cuts = proptest::collection::vec((0_usize..5, 0_u64..7), 0..12);
    (
        dims,
        cuts,
        proptest::collection::vec(0_usize..4, 40),
        proptest::collection::vec((0_u64..7, 0_u64..7, 1_u64..4), 5),
    )
        .prop_map(|(global, cuts, ranks, slice)| {
            let mut boxes = tiling(IndexBox::all(&global), &cuts);
            // Replicas of every third box.
            let replicas: Vec<_> = boxes.iter().step_by(3).cloned().collect();
            boxes.extend(replicas);
            Case { global, boxes, ranks, slice }
        })
}

/// The values of a box of a tensor whose elements are their own places.
fn values(global: &[u64], place: &IndexBox) -> Vec<u16> {
    let mut points = vec![0_u64];
    for (extent, len) in place.0.iter().zip(global) {
        points = points.iter().flat_map(|at| (extent.start..extent.end()).map(move |i| at * len + i)).collect();
    }
    points.into_iter().map(|at| u16::try_from(at).unwrap()).collect()
}

proptest! {
    // Promise: any-layout, seen to fail
    #[test]
    fn every_tiling_gives_every_slice_and_no_element_twice(case in cases()) {
        let Case { global, boxes, ranks, slice } = case;
        let of_rank = |rank| -> Vec<IndexBox> {
            boxes.iter().zip(&ranks).filter(|(_, r)| **r == rank).map(|(b, _)| b.clone()).collect()
        };
        let owned: Vec<_> = (0..4).map(of_rank).collect();
        let layouts: Vec<_> = owned.iter().map(|boxes| layout(DType::U16, &global, boxes)).collect();
        let all = Global::new(&layouts).unwrap();
        all.check().unwrap();
        let tensor = &all.tensors[&name()];
        let bounds = |((start, stop, step), len): (&(u64, u64, u64), &u64)| {
            let (start, stop) = (start % (len + 1), stop % (len + 1));
            (start.min(stop), start.max(stop), *step)
        };
        let bounds: Vec<_> = slice.iter().zip(&global).map(bounds).collect();
        let range = |(start, stop, step): &(u64, u64, u64)| {
            crate::SliceDim::from(SliceRange::from(*start..*stop).step(*step as i64))
        };
        let slice = (!global.is_empty()).then(|| Slice::new(bounds.iter().map(range)));
        let (target, meta) = Target::new(&tensor.meta, slice.as_ref()).unwrap();
        let mut turn = 0;
        let mut pieces = Vec::new();
        tensor.plan(&target, target.all(), |holders, _| {
            turn += 1;
            Some(holders[turn % holders.len()])
        }, |piece| pieces.push(piece)).unwrap();
        // Each piece is cut once more, as for a small pool.
        let mut cut = Vec::new();
        for piece in pieces {
            let mut parts = Vec::new();
            piece.part.clone().cut(5, 1, &mut parts);
            cut.extend(parts.into_iter().map(|part| Piece { part, ..piece.clone() }));
        }
        let counts = target.counts();
        let elements: u64 = counts.iter().product();
        prop_assert_eq!(cut.iter().map(|piece| piece.part.volume()).sum::<u64>(), elements, "each element once");
        let mut found = vec![0_u8; elements as usize * 2];
        for Piece { holder, place, part } in cut {
            prop_assert_eq!(&owned[holder.rank as usize][holder.shard], place);
            let bytes: Vec<u8> = values(&global, place).into_iter().flat_map(u16::to_le_bytes).collect();
            let (first, strides) = match target.local(&part, place) {
                None => {
                    let whole = TensorMeta::of(DType::U16, &place.shape()).unwrap();
                    let dims = whole.shape().dims();
                    let strides = (0..dims.len()).map(|dim| dims[dim + 1..].iter().product()).collect::<Vec<u64>>();
                    (0, strides)
                }
                Some(local) => {
                    let found = local.of(&TensorMeta::of(DType::U16, &place.shape()).unwrap()).unwrap();
                    prop_assert_eq!(found.meta().shape().dims(), &part.shape()[..]);
                    (found.offset() as usize, found.dims().iter().map(|dim| dim.stride).collect())
                }
            };
            copy_box(&mut found, &counts, &part, 2, &bytes[first * 2..], &strides);
        }
        let found: Vec<u16> = found.chunks(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
        let mut expected = vec![0_u64];
        for ((start, stop, step), len) in bounds.iter().zip(&global) {
            let indices: Vec<u64> = (*start..*stop).step_by(*step as usize).collect();
            expected = expected.iter().flat_map(|at| indices.iter().map(move |i| at * len + i)).collect();
        }
        prop_assert_eq!(found, expected.into_iter().map(|at| at as u16).collect::<Vec<_>>());
        prop_assert_eq!(meta.shape().dims().iter().product::<u64>(), elements);
    }
}

#[test]
fn hole_is_named_and_so_are_ranks_that_disagree() {
    let global = [4, 8];
    let left = layout(DType::F32, &global, &[IndexBox::new(&[0, 0], &[4, 4])]);
    let right = layout(DType::F32, &global, &[IndexBox::new(&[0, 4], &[3, 4])]);
    let hole = Global::new(&[left.clone(), right]).unwrap().check().unwrap_err();
    assert_eq!(hole.to_string(), "no rank has [3:4, 4:8] of tensor \"w\", f32[4, 8]");
    let other = layout(DType::BF16, &global, &[IndexBox::new(&[0, 4], &[4, 4])]);
    let conflict = Global::new(&[left, other]).unwrap_err();
    assert_eq!(conflict.to_string(), "tensor \"w\" is f32[4, 8] at rank 0, and bf16[4, 8] at rank 1");
}

#[test]
fn holder_that_may_not_be_asked_is_passed_over() {
    let whole = IndexBox::all(&[4]);
    let layouts = [0, 1].map(|_| layout(DType::U8, &[4], std::slice::from_ref(&whole)));
    let all = Global::new(&layouts).unwrap();
    let tensor = &all.tensors[&name()];
    let (target, _) = Target::new(&tensor.meta, Some(&crate::s![1..3])).unwrap();
    let but = |gone: &'static [u32]| {
        move |holders: &[Holder], _: u64| holders.iter().copied().find(|holder| !gone.contains(&holder.rank))
    };
    let mut asked = Vec::new();
    tensor.plan(&target, target.all(), but(&[0]), |piece| asked.push(piece.holder.rank)).unwrap();
    assert_eq!(asked, [1]);
    assert_eq!(tensor.plan(&target, target.all(), but(&[0, 1]), |_| {}).unwrap_err().to_string(), "[1:3]");
}

/// Ranks with these layouts, of one node.
fn committed(layouts: &[Arc<RankLayout>]) -> Vec<CommittedRank> {
    let rank = |rank| CommittedRank { rank, instance: 0, layout: rank.into(), node: Name::new("n").unwrap() };
    (0..layouts.len() as u32).map(rank).collect()
}

/// The requests for a slice of rows of two ranks, of which deltas may follow: the rank, and whether it is asked for all of its shards.
fn rows_asked(ranks: [&[(u64, u64)]; 2], slice: Option<&Slice>, bucket_bytes: u64) -> Vec<(u32, bool)> {
    let kinds = Kinds { hash: None, has_deltas: true };
    let layouts = ranks.map(|rows| {
        let boxes: Vec<_> = rows.iter().map(|(start, len)| IndexBox::new(&[*start, 0], &[*len, 8])).collect();
        Arc::new(RankLayout { kinds, ..(*layout(DType::U8, &[32, 8], &boxes)).clone() })
    });
    let all = Global::new(&layouts).unwrap();
    let tensor = &all.tensors[&name()];
    let (target, meta) = Target::new(&tensor.meta, slice).unwrap();
    let outputs = vec![Output { name: name(), tensor: tensor.clone(), target, meta, at: 0 }];
    let missing = vec![Asked::all(0, &outputs[0])];
    let (ranks, node, absent) = (committed(&layouts), Name::new("other").unwrap(), Absent::default());
    let choice = Choice::new(&ranks, &node, &absent);
    let asks = asks(&outputs, missing, bucket_bytes, &layouts, choice).unwrap();
    let mut asked: Vec<_> = asks.iter().map(|ask| (ask.rank, ask.is_whole)).collect();
    asked.sort_unstable();
    asked.dedup();
    asked
}

#[test]
fn all_shards_of_a_rank_are_asked_for_together_where_deltas_may_follow() {
    let halves: [&[_]; 2] = [&[(0, 16)], &[(16, 16)]];
    assert_eq!(rows_asked(halves, None, 1 << 20), [(0, true), (1, true)]);
    // However long a bucket is.
    assert_eq!(rows_asked(halves, None, 8), [(0, true), (1, true)]);
    // Of rank 0 a part is wanted.
    assert_eq!(rows_asked(halves, Some(&crate::s![4..32, ..]), 1 << 20), [(0, false), (1, true)]);
    // Of rank 1 an eighth is not wanted, since rank 0 has it, too; then more than that.
    assert_eq!(rows_asked([&[(0, 18)], &[(16, 2), (18, 14)]], None, 1 << 20), [(0, true), (1, true)]);
    assert_eq!(rows_asked([&[(0, 19)], &[(16, 3), (19, 13)]], None, 1 << 20), [(0, true), (1, false)]);
    // All of one replica, and of both where all of neither is wanted.
    let replicas: [&[_]; 2] = [&[(0, 16), (16, 16)]; 2];
    assert_eq!(rows_asked(replicas, None, 1 << 20), [(0, true)]);
    assert_eq!(rows_asked(replicas, Some(&crate::s![4..28, ..]), 1 << 20), [(0, false), (1, false)]);
    // Of what rank 0 is not asked for whole, rank 1 has its part.
    let uneven: [&[_]; 2] = [&[(0, 8), (8, 8), (16, 16)], &[(0, 8), (8, 8)]];
    assert_eq!(rows_asked(uneven, Some(&crate::s![..16, ..]), 1 << 20), [(0, false), (1, false)]);
}

/// Prints how long it takes to plan the fetches of 8 readers from 10,000 shards. docs/performance.md has these times.
#[test]
fn large_layouts_are_planned() {
    let rows: Vec<_> = (0..10_000).map(|row| IndexBox::new(&[row, 0], &[1, 64])).collect();
    let columns: Vec<_> = (0..10_000).map(|column| IndexBox::new(&[0, column], &[64, 1])).collect();
    let grid: Vec<_> =
        (0..100).flat_map(|x| (0..100).map(move |y| IndexBox::new(&[x * 80, y * 8], &[80, 8]))).collect();
    let (node, absent) = (Name::new("other").unwrap(), Absent::default());
    for (what, global, boxes) in
        [("rows", [10_000, 64], rows), ("columns", [64, 10_000], columns), ("grid", [8_000, 800], grid)]
    {
        let layouts: Vec<_> = boxes.chunks(1250).map(|boxes| layout(DType::BF16, &global, boxes)).collect();
        let ranks = committed(&layouts);
        let began = Instant::now();
        let all = Global::new(&layouts).unwrap();
        let (put_together, began) = (began.elapsed(), Instant::now());
        let (tensor, columns) = (&all.tensors[&name()], global[1] / 8);
        let slices: Vec<_> = (0..8).map(|reader| crate::s![.., reader * columns..(reader + 1) * columns]).collect();
        let plan = |slice: &Slice| {
            let (target, meta) = Target::new(&tensor.meta, Some(slice)).unwrap();
            let outputs = vec![Output { name: name(), tensor: tensor.clone(), target, meta, at: 0 }];
            let missing = vec![Asked::all(0, &outputs[0])];
            let asks = asks(&outputs, missing, 32 << 20, &[], Choice::new(&ranks, &node, &absent)).unwrap();
            Arc::new(Plan { layouts: Vec::new(), outputs, memory_bytes: 0, asks })
        };
        let plans: Vec<_> = slices.iter().map(plan).collect();
        let planned = began.elapsed();
        let pieces: usize = plans.iter().flat_map(|plan| &plan.asks).map(|ask| ask.parts.len()).sum();
        let (mut kept, key) = (KeptPlans::default(), Key::new("policy").unwrap());
        let wanted: Vec<_> =
            slices.into_iter().map(|slice| [Wanted { name: name().as_str().to_owned(), slice: Some(slice) }]).collect();
        let of =
            |wanted| PlanOf { key: &key, ranks: &ranks, wanted: Some(wanted), bucket_bytes: 32 << 20, is_into: false };
        wanted.iter().zip(plans).for_each(|(wanted, plan)| kept.keep(&of(wanted), plan));
        let began = Instant::now();
        assert!(wanted.iter().all(|wanted| kept.get(&of(wanted)).is_some()));
        let found = began.elapsed();
        let began = Instant::now();
        all.check().unwrap();
        let checked = began.elapsed();
        println!(
            "{what}: put together in {put_together:?}, {pieces} pieces for 8 readers in {planned:?}, found again in \
             {found:?}; checked in {checked:?}"
        );
    }
}
