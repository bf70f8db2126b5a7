use super::*;
use crate::segment::{Access, Lock, Pages, PinnedBudget, Segment, SegmentOptions};
use arrow_array::Float32Array;
use transfer_core::tensor::DType;

const LEN: u64 = 64 << 10;

fn segment() -> Segment {
    let options = SegmentOptions { len: LEN, pages: Pages::Base, lock: Lock::No };
    Segment::create("arena", &options, &PinnedBudget::new(LEN)).unwrap()
}

fn arena() -> Arena {
    Arena::new(SegmentId(5), segment().mapping().clone()).unwrap()
}

#[test]
fn blocks_are_disjoint_aligned_and_freed_on_drop() {
    let arena = arena();
    let mut a = arena.allocate(100).unwrap();
    let b = arena.allocate(1).unwrap();
    assert!(!a.slice().overlaps(&b.slice()));
    assert_eq!((a.slice().offset % 64, b.slice().offset % 64, arena.used_bytes()), (0, 0, 192));
    a.as_mut_slice::<f32>().unwrap().fill(2.0);
    assert_eq!(a.as_slice::<f32>().unwrap(), [2.0; 25]);
    assert!(a.as_slice::<f64>().is_err());
    assert_eq!((a.slice().segment, a.slice().len, a.as_bytes().len()), (arena.id(), 100, 100));
    assert!(a.arena().share(a.as_bytes().as_ptr(), 100).is_none(), "it is being written");
    drop(a);
    drop(b);
    assert_eq!((arena.used_bytes(), arena.free_bytes()), (0, LEN));
    assert!(arena.allocate(0).unwrap().as_bytes().is_empty());
}

#[test]
fn padding_is_zero_also_where_memory_is_reused() {
    let arena = arena();
    for len in [1, 63, 64, 65, 1000] {
        arena.mapping().copy_in(0, &vec![0xff; LEN as usize]).unwrap();
        let block = arena.allocate(len).unwrap();
        let mut padding = vec![1; (len.next_multiple_of(64) - len) as usize];
        arena.mapping().copy_out(block.slice().offset + len, &mut padding).unwrap();
        assert!(padding.iter().all(|b| *b == 0), "{len}");
        assert!(block.as_bytes().iter().all(|b| *b == 0xff));
    }
}

#[test]
fn copies_do_not_leave_their_block() {
    let arena = arena();
    let mut block = arena.allocate(10).unwrap();
    block.copy_in_parallel(2, b"abcdefgh", 2).unwrap();
    assert_eq!(&block.as_bytes()[2..], b"abcdefgh");
    for at in [3, 11, u64::MAX] {
        let e = MapError::OutOfBounds { offset: at, len: 8, mapping_len: 10 };
        assert_eq!(block.copy_in_parallel(at, b"abcdefgh", 1), Err(e));
    }
}

#[test]
fn a_full_arena_says_what_is_free() {
    let arena = arena();
    let _half = arena.allocate(LEN / 2).unwrap();
    let e = arena.allocate(LEN).unwrap_err();
    assert_eq!(e, AllocError::NoRoom { len_bytes: LEN, free_bytes: LEN / 2, largest_free: LEN / 2 });
    assert!(matches!(arena.allocate(LEN + 1), Err(AllocError::TooLong { .. })));
}

#[test]
fn lent_blocks_come_back_from_the_sidecar_only() {
    let arena = arena();
    let not_lent = |offset| NotLent { arena: SegmentId(5), offset };
    let block = arena.allocate(100).unwrap();
    let offset = block.slice().offset;
    assert_eq!(arena.give_back(offset), Err(not_lent(offset)));
    assert_eq!(arena.take_back(offset).unwrap_err(), not_lent(offset));
    let slice = block.lend();
    assert_eq!((slice.offset, arena.used_bytes()), (offset, 128));

    let mut block = arena.take_back(offset).unwrap();
    block.as_bytes_mut().fill(7);
    assert_eq!(arena.give_back(offset), Err(not_lent(offset)));
    let offset = block.lend().offset;
    arena.give_back(offset).unwrap();
    assert_eq!(arena.give_back(offset), Err(not_lent(offset)));
    assert_eq!(arena.used_bytes(), 0);
}

#[test]
fn lent_blocks_are_taken_back_together_or_not_at_all() {
    let arena = arena();
    let lent: Vec<u64> = [100, 1, 64].map(|len| arena.allocate(len).unwrap().lend().offset).into();
    let frozen = arena.allocate(8).unwrap().freeze();
    let held = arena.share(frozen.as_ptr(), 8).unwrap().allocation;
    assert_eq!([lent[0], held, 8].map(|at| arena.lent_at(at)), [Some((100, true)), Some((8, false)), None]);
    for refused in [held, lent[0], 8] {
        let e = arena.take_back_all(&[lent[0], lent[1], refused, lent[2]]).unwrap_err();
        assert_eq!(e, NotLent { arena: SegmentId(5), offset: refused });
        assert!(lent.iter().all(|offset| arena.lent_at(*offset).unwrap().1), "all are lent as before");
    }
    let blocks = arena.take_back_all(&lent).unwrap();
    assert_eq!(
        blocks.iter().map(|b| (b.slice().offset, b.slice().len)).collect::<Vec<_>>(),
        [(lent[0], 100), (lent[1], 1), (lent[2], 64)]
    );
    drop((blocks, frozen));
    arena.give_back(held).unwrap();
    assert_eq!(arena.used_bytes(), 0);
}

#[test]
fn frozen_blocks_can_be_shared_by_pointer_and_outlive_either_holder() {
    let arena = arena();
    let mut block = arena.allocate(400).unwrap();
    block.as_mut_slice::<f32>().unwrap().iter_mut().zip(0u8..).for_each(|(x, i)| *x = i.into());
    let start = block.slice().offset;
    let array: Float32Array = block.freeze().to_arrow(DType::F32).unwrap();
    let part = array.slice(50, 10);
    drop(array);

    let values = part.values().inner();
    let shared = arena.share(values.as_ptr(), values.len() as u64).unwrap();
    let expected = LocalSlice { segment: SegmentId(5), offset: start + 200, len: 40 };
    assert_eq!(shared, LentSlice { slice: expected, allocation: start, allocation_end: start + 448 });
    assert!(arena.share(values.as_ptr(), 201).is_none(), "beyond its allocation");
    assert!(arena.share([0u8; 4].as_ptr(), 4).is_none(), "elsewhere");
    assert_eq!(arena.take_back(start).unwrap_err(), NotLent { arena: SegmentId(5), offset: start });

    drop(part);
    assert_eq!(arena.used_bytes(), 448, "the sidecar has it");
    arena.give_back(start).unwrap();
    assert_eq!(arena.used_bytes(), 0);

    let bytes = arena.allocate(8).unwrap().freeze();
    let shared = arena.share(bytes.as_ptr(), 8).unwrap();
    arena.give_back(shared.allocation).unwrap();
    assert_eq!(arena.used_bytes(), 64, "somebody reads it");
    let pointer = bytes.as_ptr();
    drop(bytes);
    assert_eq!(arena.used_bytes(), 0);
    assert!(arena.share(pointer, 8).is_none());
}

#[test]
fn frozen_block_is_thawed_by_its_only_holder() {
    let arena = arena();
    let mut block = arena.allocate(100).unwrap();
    block.as_bytes_mut().fill(7);
    let offset = block.slice().offset;
    let view = block.freeze();
    let other = view.clone();
    let view = Block::thaw(view).unwrap_err();
    drop(other);
    let part = view.slice(0..50).unwrap();
    drop(view);
    let part = Block::thaw(part).unwrap_err();
    assert_eq!(&part[..], [7; 50]);
    drop(part);
    assert_eq!(arena.used_bytes(), 0);
    let view = arena.allocate(100).unwrap().freeze();
    let _shared = arena.share(view.as_ptr(), 10).unwrap();
    let view = Block::thaw(view).unwrap_err();
    arena.give_back(offset).unwrap();
    let mut block = Block::thaw(view).unwrap();
    block.as_bytes_mut().fill(9);
    assert!(arena.share(block.as_bytes().as_ptr(), 10).is_none(), "it is not frozen");
    drop(block);
    assert_eq!(arena.used_bytes(), 0);
}

#[test]
fn frozen_bytes_keep_the_arena_mapped() {
    let arena = arena();
    let mut block = arena.allocate(6).unwrap();
    block.as_bytes_mut().copy_from_slice(b"frozen");
    let bytes = block.freeze();
    drop(arena);
    assert_eq!(&*bytes, b"frozen");
}

#[test]
fn threads_allocate_without_overlap() {
    let arena = arena();
    std::thread::scope(|scope| {
        for byte in 1..=4u8 {
            let arena = &arena;
            scope.spawn(move || {
                for round in 0..2000u64 {
                    let mut block = arena.allocate(round % 700).unwrap();
                    block.as_bytes_mut().fill(byte);
                    std::thread::yield_now();
                    assert!(block.as_bytes().iter().all(|b| *b == byte));
                    if round % 3 == 0 {
                        let slice = block.lend();
                        arena.give_back(slice.offset).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(arena.used_bytes(), 0);
}

#[test]
fn an_arena_needs_writable_memory() {
    let segment = segment();
    let reader = Segment::adopt(segment.fd().try_clone_to_owned().unwrap(), Access::ReadOnly, LEN).unwrap();
    let e = Arena::new(SegmentId(1), reader.mapping().clone()).unwrap_err();
    assert_eq!(e, MapError::ReadOnly { offset: 0, len: LEN });
}

#[test]
fn block_is_split_into_blocks_that_are_freed_one_by_one() {
    let arena = arena();
    let mut block = arena.allocate(300).unwrap();
    block.as_bytes_mut().fill(7);
    let start = block.slice().offset;
    let block = block.split(&[64, 100]).unwrap_err();
    let block = block.split(&[1, 100, 44]).unwrap_err();
    assert_eq!((arena.used_bytes(), block.as_bytes().len()), (320, 300));
    let parts = block.split(&[1, 100, 0, 44]).unwrap();
    let places: Vec<_> = parts.iter().map(|part| (part.slice().offset - start, part.slice().len)).collect();
    assert_eq!(places, [(0, 1), (64, 100), (192, 0), (256, 44)]);
    assert!(parts.iter().all(|part| part.as_bytes().iter().all(|byte| *byte == 7)));
    let [first, second, ..] = &places[..] else { panic!("{places:?}") };
    let around = |at: u64| arena.lent_around(start + at).map(|(at, len, alone)| (at - start, len, alone));
    assert_eq!(around(0), Some((first.0, first.1, false)));
    assert_eq!(around(191), Some((second.0, second.1, false)));
    assert_eq!(around(320), None);
    for (n, part) in parts.into_iter().enumerate() {
        assert_eq!(arena.used_bytes(), [320, 256, 128, 64][n]);
        drop(part);
    }
    assert_eq!(arena.free_bytes(), LEN);
}

#[test]
fn open_block_is_its_owners_again_when_each_loan_has_ended() {
    let arena = arena();
    let open = OpenBlock::new(arena.allocate(100).unwrap());
    let shared = [open.lend().unwrap(), open.lend().unwrap()];
    assert_eq!(shared.map(|shared| (shared.allocation, shared.slice)), [(open.slice().offset, open.slice()); 2]);
    open.copy_in(40, b"abcd", 1).unwrap();
    assert!(open.copy_in(97, b"abcd", 1).is_err());
    let open = open.close().unwrap_err();
    arena.give_back(open.slice().offset).unwrap();
    let open = open.close().unwrap_err();
    assert!(arena.take_back(open.slice().offset).is_err(), "it has an owner");
    arena.give_back(open.slice().offset).unwrap();
    let block = open.close().unwrap();
    assert_eq!(&block.as_bytes()[40..44], b"abcd");
    // One that is dropped stays until the sidecar has returned it.
    let open = OpenBlock::new(block);
    let lent = open.lend().unwrap().allocation;
    drop(open);
    assert_eq!(arena.used_bytes(), 128);
    arena.give_back(lent).unwrap();
    assert_eq!(arena.used_bytes(), 0);
}
