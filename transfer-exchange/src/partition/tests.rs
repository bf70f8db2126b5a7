//! The partition of each row, against values that must never change, and against simple models.

use super::hash::hashes;
use super::xxh64;
use super::{Bounds, By, PartitionError, RowPosition};
use crate::testing::array;
use crate::testing::batch;
use crate::testing::direct_types;
use crate::testing::rng;
use crate::testing::schema;
use crate::testing::staged_types;
use arrow_array::types::{Float32Type, Int8Type, Int32Type};
use arrow_array::*;
use arrow_buffer::{NullBuffer, OffsetBuffer, i256};
use arrow_schema::{DataType, Field, Fields};
use arrow_select::take::take_record_batch;
use rand::Rng;
use std::sync::Arc;

fn choose(by: By<'_>, batch: &RecordBatch, partitions: u32) -> Result<Vec<u32>, PartitionError> {
    let mut chosen = vec![77];
    by.choose(batch, RowPosition { partitions, task: 0, first_row: 0 }, &mut chosen).map(|()| chosen)
}

fn one(name: &str, column: impl Array + 'static) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([(name, Arc::new(column) as ArrayRef, true)]).unwrap()
}

fn hash(array: &dyn Array) -> Vec<u64> {
    hashes(array).map_err(|no_hash| no_hash.0).unwrap()
}

/// If a value here changes, tasks of two versions send equal keys to different partitions. The values were computed with
/// the reference implementation.
// Promise: partition-of-a-key, seen to fail
#[test]
fn known_hashes_are_unchanged() {
    assert_eq!(
        hash(&Int64Array::from(vec![0, 1, -1])),
        [0x34c9_6acd_cadb_1bbb, 0x9f29_cb17_a2a4_9995, 0x85d1_36ad_b773_c6c9]
    );
    assert_eq!(hash(&StringArray::from(vec!["", "abc"])), [0xef46_db37_51d8_e999, 0x44bc_2cf5_ad77_0999]);
    assert_eq!(hash(&NullArray::new(1)), [0xd5af_ba13_36a3_be4b]);
    let batch = RecordBatch::try_from_iter([
        ("n", Arc::new(Int64Array::from_iter_values(0..8)) as ArrayRef),
        ("s", Arc::new(StringArray::from_iter_values((0..8).map(|n| format!("user {n}")))) as ArrayRef),
    ])
    .unwrap();
    assert_eq!(choose(By::Hash(&["n"]), &batch, 64).unwrap(), [13, 39, 58, 33, 10, 34, 38, 2]);
    assert_eq!(choose(By::Hash(&["n", "s"]), &batch, 64).unwrap(), [49, 31, 3, 60, 17, 38, 3, 6]);
    assert_eq!(choose(By::Random(1), &batch, 64).unwrap(), [36, 45, 5, 23, 0, 50, 62, 41]);
}

/// Equal values hash alike, whatever type they have.
// Promise: partition-of-a-key, seen to fail
#[test]
fn equal_values_of_different_types_have_one_hash() {
    let numbers = hash(&Int64Array::from(vec![Some(-3), None, Some(100)]));
    assert_eq!(numbers, hash(&Int8Array::from(vec![Some(-3), None, Some(100)])));
    assert_eq!(numbers, hash(&Int16Array::from(vec![Some(-3), None, Some(100)])));
    assert_eq!(numbers, hash(&Int32Array::from(vec![Some(-3), None, Some(100)])));
    assert_eq!(numbers, hash(&Date32Array::from(vec![Some(-3), None, Some(100)])));
    assert_eq!(numbers, hash(&TimestampSecondArray::from(vec![Some(-3), None, Some(100)])));
    assert_eq!(numbers[2..], hash(&UInt8Array::from(vec![100])));
    assert_eq!(numbers[2..], hash(&UInt64Array::from(vec![100])));
    assert_eq!(hash(&BooleanArray::from(vec![true])), hash(&UInt16Array::from(vec![1])));

    let doubles = hash(&Float64Array::from(vec![0.0, 0.5, f64::NAN]));
    let odd = f64::from_bits(0xfff8_0000_0000_0123);
    assert_eq!(doubles, hash(&Float64Array::from(vec![-0.0, 0.5, odd])));
    assert_eq!(doubles, hash(&Float32Array::from(vec![-0.0, 0.5, -f32::NAN])));
    assert_eq!(doubles[1], xxh64(&0.5_f64.to_le_bytes(), 0));

    let decimals = hash(&Decimal128Array::from(vec![-7]));
    assert_eq!(decimals, hash(&Decimal32Array::from(vec![-7])));
    assert_eq!(decimals, hash(&Decimal64Array::from(vec![-7])));
    assert_eq!(decimals, hash(&Decimal256Array::from(vec![i256::from_i128(-7)])));
    assert_ne!(decimals, hash(&Decimal256Array::from(vec![i256::MAX])));

    let long = "a text that is longer than a view, so it lies elsewhere";
    let texts = [Some(long), None, Some(""), Some("short")];
    let strings = hash(&StringArray::from_iter(texts));
    assert_eq!(strings, hash(&LargeStringArray::from_iter(texts)));
    assert_eq!(strings, hash(&StringViewArray::from_iter(texts)));
    assert_eq!(strings, hash(&BinaryArray::from_iter(texts)));
    assert_eq!(strings, hash(&BinaryViewArray::from_iter(texts.map(|text| text.map(str::as_bytes)))));
    assert_eq!(strings, hash(&texts.into_iter().collect::<DictionaryArray<Int8Type>>()));
    assert_eq!(strings, hash(&texts.into_iter().collect::<RunArray<Int32Type>>()));
    assert_ne!(strings[1], strings[2], "null is not the empty string");
    // A null in the values of a dictionary.
    let values = Arc::new(StringArray::from(vec![Some("short"), None]));
    let nulls = DictionaryArray::<Int8Type>::try_new(Int8Array::from(vec![1, 0]), values).unwrap();
    assert_eq!(hash(&nulls), [strings[1], strings[3]]);
}

#[test]
fn structs_and_lists_hash_by_their_elements() {
    let structs = |a: Vec<Option<i32>>, b: Vec<&str>| {
        let fields = Fields::from(vec![Field::new("a", DataType::Int32, true), Field::new("b", DataType::Utf8, true)]);
        let columns: Vec<ArrayRef> = vec![Arc::new(Int32Array::from(a)), Arc::new(StringArray::from(b))];
        StructArray::new(fields, columns, None)
    };
    let hashed = hash(&structs(vec![Some(1), None, Some(1)], vec!["x", "x", "y"]));
    assert_eq!(hashed[1..], hash(&structs(vec![None, Some(1)], vec!["x", "y"])));
    assert!(hashed[0] != hashed[1] && hashed[0] != hashed[2]);

    let lists = |offsets: Vec<i32>, values: Vec<i32>| {
        let item = Arc::new(Field::new("item", DataType::Int32, true));
        ListArray::new(item, OffsetBuffer::new(offsets.into()), Arc::new(Int32Array::from(values)), None)
    };
    let hashed = hash(&lists(vec![1, 1, 3, 4], vec![9, 1, 2, 3]));
    assert_eq!(hashed, hash(&lists(vec![0, 0, 2, 3], vec![1, 2, 3, 9])));
    let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), Some(2)])], 2);
    assert_eq!(hash(&fixed), hashed[1..2]);
    // [1], [2] is not [1, 2], [].
    assert_ne!(hash(&lists(vec![0, 1, 2], vec![1, 2])), hash(&lists(vec![0, 2, 2], vec![1, 2])));
}

/// The same value in another unit, scale or kind of number has another hash, as [`By::Hash`] says. If two of these become
/// alike, tasks of two versions send equal keys to different partitions.
// Promise: partition-of-a-key
#[test]
fn units_scales_and_kinds_of_numbers_are_hashed_apart() {
    let decimal = |value: i128, scale| {
        hash(&Decimal128Array::from(vec![value]).with_precision_and_scale(20, scale).unwrap()).pop().unwrap()
    };
    let one_and_a_half = [decimal(15, 1), decimal(150, 2)];
    // Of the 16 bytes of 15 and 150, by the reference implementation's rules.
    assert_eq!(one_and_a_half, [0x6b8c_b788_65ce_9433, 0x1162_8ab4_4262_ed40]);
    let minute = [
        hash(&TimestampSecondArray::from(vec![60])),
        hash(&TimestampMillisecondArray::from(vec![60_000])),
        hash(&TimestampMicrosecondArray::from(vec![60_000_000])),
        hash(&TimestampNanosecondArray::from(vec![60_000_000_000])),
    ];
    assert!(minute.iter().enumerate().all(|(at, hashed)| !minute[..at].contains(hashed)), "{minute:?}");
    let two = [vec![decimal(2, 0)], hash(&Int64Array::from(vec![2])), hash(&Float64Array::from(vec![2.0]))];
    assert!(two.iter().enumerate().all(|(at, hashed)| !two[..at].contains(hashed)), "{two:?}");
    // Of one type, and of another width, they are alike.
    let narrow = Decimal32Array::from(vec![150]).with_precision_and_scale(9, 2).unwrap();
    assert_eq!(hash(&narrow), [one_and_a_half[1]]);
    let zoned = TimestampMicrosecondArray::from(vec![60_000_000]).with_timezone("Europe/Berlin");
    assert_eq!(hash(&zoned), minute[2]);
}

/// The partition of a row depends on that row alone: not on the batch around it, nor on where a slice begins.
// Promise: partition-of-a-key
#[test]
fn hashes_do_not_depend_on_other_rows() {
    let mut rng = rng(3);
    for data_type in direct_types().into_iter().chain(staged_types()) {
        let array = array(&mut rng, &data_type, 60);
        let Ok(all) = hashes(&array) else {
            assert!(matches!(data_type, DataType::Map(..) | DataType::Union(..)), "{data_type}");
            continue;
        };
        for _ in 0..5 {
            let start = rng.random_range(0..60);
            let len = rng.random_range(0..=60 - start);
            assert_eq!(hash(&array.slice(start, len)), all[start..start + len], "{data_type}");
        }
    }
}

#[test]
fn columns_that_cannot_be_hashed_are_named() {
    let mut rng = rng(4);
    let all = staged_types();
    let union = all.iter().find(|t| matches!(t, DataType::Union(..))).unwrap();
    let inner = DataType::List(Arc::new(Field::new("item", union.clone(), true)));
    for data_type in [union, &inner] {
        let batch = batch(&mut rng, &schema(std::slice::from_ref(data_type)), 0, 5);
        let e = choose(By::Hash(&["id", "c0"]), &batch, 4).unwrap_err();
        assert!(matches!(&e, PartitionError::BadKey { column, .. } if column == "c0"), "{data_type}: {e}");
        assert!(e.to_string().contains("Union"), "{e}");
    }
    let batch = one("n", Int8Array::from(vec![1]));
    assert_eq!(choose(By::Hash(&[]), &batch, 4), Err(PartitionError::NoColumns));
    let e = choose(By::Hash(&["m"]), &batch, 4).unwrap_err();
    assert_eq!(e.to_string(), "there is no column \"m\" to partition by: the columns are \"n\"");
}

#[test]
fn hashed_rows_are_spread_evenly() {
    let batch = one("n", Int64Array::from_iter_values(0..64_000));
    for by in [By::Hash(&["n"]), By::Random(9), By::RoundRobin] {
        let mut counts = [0; 64];
        choose(by, &batch, 64).unwrap().iter().for_each(|partition| counts[*partition as usize] += 1);
        // Six standard deviations of 1,000.
        assert!(counts.iter().all(|count| (810..1190).contains(count)), "{by:?}: {counts:?}");
    }
}

#[test]
fn rows_at_random_and_in_turn_depend_on_task_and_number_alone() {
    let batch = one("n", Int64Array::from_iter_values(0..100));
    for by in [By::Random(5), By::RoundRobin] {
        let place = |task, first_row| RowPosition { partitions: 7, task, first_row };
        let (mut all, mut part, mut other) = (Vec::new(), Vec::new(), Vec::new());
        by.choose(&batch, place(3, 1000), &mut all).unwrap();
        by.choose(&batch.slice(40, 60), place(3, 1040), &mut part).unwrap();
        assert_eq!(all[40..], part);
        by.choose(&batch, place(4, 1000), &mut other).unwrap();
        assert_ne!(all, other, "tasks begin differently");
    }
    assert_eq!(choose(By::RoundRobin, &batch.slice(0, 5), 3).unwrap(), [0, 1, 2, 0, 1]);
}

// Promise: partition-by-range, seen to fail
#[test]
fn a_column_names_the_partition() {
    let partitions = |column: ArrayRef| {
        let batch = RecordBatch::try_from_iter_with_nullable([("p", column, true)]).unwrap();
        choose(By::Column("p"), &batch, 4)
    };
    assert_eq!(partitions(Arc::new(Int8Array::from(vec![3, 0, 1]))), Ok(vec![3, 0, 1]));
    assert_eq!(partitions(Arc::new(UInt64Array::from(vec![3, 0]))), Ok(vec![3, 0]));
    let e = partitions(Arc::new(Int64Array::from(vec![0, 4]))).unwrap_err();
    assert_eq!(e.to_string(), "row 1 of the batch has 4 in column \"p\": partitions are 0 to 3");
    let e = partitions(Arc::new(Int16Array::from(vec![-1]))).unwrap_err();
    assert!(matches!(e, PartitionError::OutOfRange { row: 0, value: -1, partitions: 4, .. }), "{e}");
    let e = partitions(Arc::new(UInt64Array::from(vec![u64::MAX]))).unwrap_err();
    assert!(e.to_string().contains("18446744073709551615"), "{e}");
    let e = partitions(Arc::new(Int32Array::from(vec![Some(1), None]))).unwrap_err();
    assert_eq!(e, PartitionError::IsNull { column: "p".into(), row: 1 });
    let e = partitions(Arc::new(StringArray::from(vec!["1"]))).unwrap_err();
    assert!(matches!(&e, PartitionError::BadKey { data_type, .. } if data_type == "Utf8"), "{e}");
}

// Promise: partition-by-range, seen to fail
#[test]
fn ranges_are_those_of_a_linear_search() {
    let mut rng = rng(6);
    for _ in 0..200 {
        let mut bounds: Vec<(Option<i32>, String)> =
            (0..rng.random_range(0..9)).map(|_| (some(&mut rng), text(&mut rng))).collect();
        bounds.sort();
        let rows: Vec<(Option<i32>, String)> = (0..50).map(|_| (some(&mut rng), text(&mut rng))).collect();
        let columns = |rows: &[(Option<i32>, String)]| -> Vec<ArrayRef> {
            let numbers = Int32Array::from_iter(rows.iter().map(|(number, _)| *number));
            vec![Arc::new(numbers), Arc::new(StringArray::from_iter_values(rows.iter().map(|(_, text)| text)))]
        };
        let batch = columns(&rows).into_iter().zip(["n", "s"]).map(|(column, name)| (name, column, true));
        let batch = RecordBatch::try_from_iter_with_nullable(batch).unwrap();
        let expected: Vec<u32> =
            rows.iter().map(|row| bounds.iter().filter(|bound| *bound <= row).count() as u32).collect();
        let partitions = bounds.len() as u32 + 1;
        let bounds = Bounds::new(["n", "s"], columns(&bounds)).unwrap();
        assert_eq!(choose(By::Range(&bounds), &batch, partitions), Ok(expected));
        let e = choose(By::Range(&bounds), &batch, partitions + 1).unwrap_err();
        assert!(matches!(e, PartitionError::BoundsCount { .. }), "{e}");
    }
}

#[test]
fn ranges_of_a_type_without_prefixes_are_those_of_a_linear_search() {
    let mut rng = rng(7);
    for _ in 0..50 {
        let mut bounds: Vec<String> = (0..rng.random_range(0..9)).map(|_| text(&mut rng)).collect();
        bounds.sort();
        let rows: Vec<String> = (0..50).map(|_| text(&mut rng)).collect();
        let expected: Vec<u32> =
            rows.iter().map(|row| bounds.iter().filter(|bound| *bound <= row).count() as u32).collect();
        let partitions = bounds.len() as u32 + 1;
        let bounds = Bounds::new(["s"], vec![Arc::new(StringViewArray::from_iter_values(&bounds))]).unwrap();
        let batch = one("s", StringViewArray::from_iter_values(&rows));
        assert_eq!(choose(By::Range(&bounds), &batch, partitions), Ok(expected));
    }
}

fn some(rng: &mut impl Rng) -> Option<i32> {
    rng.random_ratio(9, 10).then(|| rng.random_range(-3..4))
}

fn text(rng: &mut impl Rng) -> String {
    (0..rng.random_range(0..3)).map(|_| char::from(rng.random_range(b'a'..b'd'))).collect()
}

#[test]
fn bounds_that_are_wrong_are_refused() {
    let numbers = |numbers: Vec<i32>| Arc::new(Int32Array::from(numbers)) as ArrayRef;
    assert_eq!(Bounds::new(["n"], vec![numbers(vec![1, 1, 0])]).unwrap_err(), PartitionError::BoundsUnsorted { at: 2 });
    let e = Bounds::new(["n", "m"], vec![numbers(vec![1])]).unwrap_err();
    assert!(matches!(e, PartitionError::BoundsShape { columns: 2, .. }), "{e}");
    let e = Bounds::new(["n", "m"], vec![numbers(vec![1]), numbers(vec![])]).unwrap_err();
    assert!(matches!(e, PartitionError::BoundsShape { .. }), "{e}");
    assert_eq!(Bounds::new([""; 0], vec![]).unwrap_err(), PartitionError::NoColumns);
    let bounds = Bounds::new(["n"], vec![numbers(vec![1])]).unwrap();
    let e = choose(By::Range(&bounds), &one("n", Int64Array::from(vec![1])), 2).unwrap_err();
    assert_eq!(e.to_string(), "column \"n\" is Int64, its bounds are Int32: they must have one type");
}

#[test]
fn floats_have_a_total_order() {
    let keys = Float32Array::from(vec![-0.0, 0.0, f32::NAN]);
    let bounds = Bounds::new(["f"], vec![Arc::new(keys)]).unwrap();
    let rows = vec![None, Some(-1.0), Some(-0.0), Some(0.0), Some(f32::INFINITY), Some(f32::NAN)];
    let rows: PrimitiveArray<Float32Type> = rows.into();
    assert_eq!(choose(By::Range(&bounds), &one("f", rows), 4), Ok(vec![0, 0, 1, 2, 2, 3]));
}

#[test]
fn bounds_of_a_sample_divide_it_evenly() {
    let mut rng = rng(7);
    let numbers: Vec<i64> = (0..1000).map(|_| rng.random()).collect();
    let sample = one("n", Int64Array::new(numbers.into(), Some(NullBuffer::new_valid(1000))));
    let bounds = Bounds::of_sample(&["n"], &sample, 8).unwrap();
    assert_eq!((bounds.columns().collect::<Vec<_>>(), bounds.keys()[0].len()), (vec!["n"], 7));
    let mut counts = [0; 8];
    choose(By::Range(&bounds), &sample, 8).unwrap().iter().for_each(|partition| counts[*partition as usize] += 1);
    assert_eq!(counts, [125; 8]);
    // A sample of one row, and of one value.
    let few = take_record_batch(&sample, &UInt32Array::from(vec![0])).unwrap();
    assert_eq!(Bounds::of_sample(&["n"], &few, 8).unwrap().keys()[0].len(), 7);
    assert_eq!(Bounds::of_sample(&["n"], &few.slice(0, 0), 8).unwrap_err(), PartitionError::EmptySample);
    assert_eq!(Bounds::of_sample(&["n"], &few, 1).unwrap().keys()[0].len(), 0);
}

/// Values of the reference implementation: the partition of a row may never change.
// Promise: partition-of-a-key
#[test]
fn hashes_are_those_of_the_reference_implementation() {
    assert_eq!(xxh64(b"", 0), 0xef46_db37_51d8_e999);
    assert_eq!(xxh64(b"a", 0), 0xd24e_c4f1_a98c_6e5b);
    assert_eq!(xxh64(b"abc", 0), 0x44bc_2cf5_ad77_0999);
    assert_eq!(xxh64(b"0123456789abcdef0123456789abcdef", 7), 0xf3bf_b9ba_5c7d_f996);
    assert_eq!(xxh64(&(0..100).collect::<Vec<u8>>(), 7), 0x8065_3e7e_9b88_7cdd);
    assert_eq!(xxh64(b"Nobody inspects the spammish repetition", 0), 0xfbce_a83c_8a37_8bf1);
}
