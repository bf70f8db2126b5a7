use super::*;
use crate::arena::Arena;
use crate::segment::{Lock, Mapping, Pages, PinnedBudget, Segment, SegmentOptions};
use arrow_array::Float32Array;
use arrow_array::types::{Float32Type, Int32Type, UInt8Type};
use arrow_schema::DataType;
use half::{bf16, f16};
use num_complex::Complex;
use std::sync::{Arc, Weak};
use transfer_core::memory::SegmentId;
use transfer_core::tensor::DType;

fn mapping() -> Arc<Mapping> {
    let options = SegmentOptions { len: 4096, pages: Pages::Base, lock: Lock::No };
    let segment = Segment::create("view", &options, &PinnedBudget::new(4096)).unwrap();
    segment.seal_writers().unwrap();
    segment.mapping().clone()
}

fn view(mapping: &Arc<Mapping>, offset: u64, len: u64) -> (Bytes, Weak<()>) {
    let lease = Arc::new(());
    let watch = Arc::downgrade(&lease);
    // SAFETY: these tests write no mapping while they view it.
    (unsafe { Bytes::of_mapping(mapping, offset, len, lease) }.unwrap(), watch)
}

#[test]
fn the_owner_and_the_mapping_live_as_long_as_the_last_view() {
    let mapping = mapping();
    mapping.copy_in(100, b"abcdef").unwrap();
    let (bytes, lease) = view(&mapping, 100, 6);
    let mapped = Arc::downgrade(&mapping);
    drop(mapping);
    let part = bytes.slice(2..4).unwrap();
    drop(bytes);
    assert_eq!(&*part, b"cd");
    assert!(part.slice(1..3).is_none() && part.slice(3..3).is_none());
    assert!(part.slice(2..2).unwrap().is_empty());
    assert!(lease.upgrade().is_some() && mapped.upgrade().is_some());
    drop(part);
    assert!(lease.upgrade().is_none() && mapped.upgrade().is_none());
}

#[test]
fn views_do_not_leave_their_mapping() {
    let mapping = mapping();
    // SAFETY: no one writes it.
    assert!(unsafe { Bytes::of_mapping(&mapping, 4000, 97, Arc::new(())) }.is_err());
    // SAFETY: no one writes it.
    assert!(unsafe { Bytes::of_mapping(&mapping, u64::MAX, 2, Arc::new(())) }.is_err());
}

#[test]
fn elements_are_checked() {
    let mapping = mapping();
    mapping.copy_in(0, bytemuck::cast_slice(&[1.5f32, -2.0, 3.25])).unwrap();
    mapping.copy_in(64, &[0, 1, 1, 2]).unwrap();
    let (bytes, _) = view(&mapping, 0, 12);
    assert_eq!(bytes.as_slice::<f32>().unwrap(), [1.5, -2.0, 3.25]);
    assert_eq!(bytes.as_slice::<f64>(), Err(ViewError::WrongSize { len: 12, dtype: DType::F64, size: 8 }));
    assert_eq!(bytes.as_slice::<Complex<f32>>().unwrap_err().to_string().matches("c64").count(), 1);
    assert_eq!(bytes.as_slice::<f16>().unwrap().len(), 6);
    assert_eq!(bytes.as_slice::<bf16>().unwrap()[1], bf16::from_f32(1.5));
    assert_eq!(bytes.as_slice::<F8E4M3>().unwrap().len(), 12);
    let shifted = bytes.slice(1..9).unwrap();
    let e = shifted.as_slice::<i32>().unwrap_err();
    assert!(matches!(e, ViewError::Misaligned { needed: 4, dtype: DType::I32, .. }), "{e}");
    let (flags, _) = view(&mapping, 64, 3);
    assert_eq!(flags.as_slice::<bool>().unwrap(), [false, true, true]);
    let (flags, _) = view(&mapping, 64, 4);
    assert_eq!(flags.as_slice::<bool>(), Err(ViewError::InvalidValue { dtype: DType::Bool }));
}

#[test]
fn arrow_arrays_share_the_bytes_and_keep_them() {
    let mapping = mapping();
    mapping.copy_in(128, bytemuck::cast_slice(&[1.0f32, 2.0, 3.0, 4.0])).unwrap();
    let (bytes, lease) = view(&mapping, 128, 16);
    let array: Float32Array = bytes.to_arrow(DType::F32).unwrap();
    assert_eq!(array.values().as_ptr().addr(), mapping.ptr_at(128, 16).unwrap().addr());
    drop((bytes, mapping));
    let tail = array.slice(2, 2);
    drop(array);
    assert_eq!(tail.values(), &[3.0, 4.0]);
    assert!(lease.upgrade().is_some());
    drop(tail);
    assert!(lease.upgrade().is_none());
}

#[test]
fn unsupported_arrow_array_is_an_error_with_the_reason() {
    let mapping = mapping();
    let (bytes, _) = view(&mapping, 0, 16);
    let e = bytes.to_arrow::<UInt8Type>(DType::Bool).unwrap_err();
    assert!(e == ViewError::NoArrowType { dtype: DType::Bool } && e.to_string().contains("packed"), "{e}");
    assert!(bytes.to_arrow::<UInt8Type>(DType::BF16).unwrap_err().to_string().contains("bf16"));
    let wrong = ViewError::WrongArrowType { dtype: DType::F32, expected: DataType::Float32, found: DataType::Int32 };
    assert_eq!(bytes.to_arrow::<Int32Type>(DType::F32).unwrap_err(), wrong);
    let misaligned = bytes.slice(2..10).unwrap().to_arrow::<Float32Type>(DType::F32);
    assert!(matches!(misaligned, Err(ViewError::Misaligned { needed: 4, .. })));
    let uneven = bytes.slice(0..10).unwrap().to_arrow::<Float32Type>(DType::F32);
    assert!(matches!(uneven, Err(ViewError::WrongSize { len: 10, size: 4, .. })));
    for dtype in DType::ALL {
        let same_size = arrow_type(dtype).is_none_or(|t| t.primitive_width() == Some(dtype.size_bytes() as usize));
        assert!(same_size, "{dtype}");
    }
}

#[test]
fn bytes_know_their_place_in_their_mapping() {
    let mapping = mapping();
    let place = |bytes: &Bytes| bytes.in_mapping().map(|(found, offset)| (Arc::ptr_eq(found, &mapping), offset));
    let (leased, _) = view(&mapping, 100, 60);
    assert_eq!(place(&leased.slice(7..9).unwrap()), Some((true, 107)));
    let arena = Arena::new(SegmentId(3), mapping.clone()).unwrap();
    let block = arena.allocate(64).unwrap();
    let start = block.slice().offset;
    assert_eq!(place(&block.freeze().slice(5..6).unwrap()), Some((true, start + 5)));
}
