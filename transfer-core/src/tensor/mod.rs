//! What is moved: element types, shapes, keys, versions, and how long those stay.

mod boxes;
mod digest;
mod dtype;
mod excerpt;
mod gathered;
mod key;
mod pieces;
mod retention;
mod rows;
mod shape;
mod slice;
mod slice_text;

pub use boxes::{BodyBox, PackedRun, Packing, Repeat};
pub use digest::Digest;
pub use dtype::DType;
pub use excerpt::{BodyRange, Cut, Excerpt, ExcerptPart, InvalidExcerpt, MAX_EXCERPT_BYTES, MAX_EXCERPT_RANGES};
pub use gathered::{Gathered, GatheredPart, InvalidGathered, MAX_GATHERED_BYTES};
pub use key::{
    InvalidName, Key, MAX_COUNTER_NAME_BYTES, MAX_KEY_BYTES, Name, ReservedFor, Select, TensorName, Version,
};
pub use pieces::SlicePieces;
pub use retention::{Life, Retention, Spill, Until};
pub use rows::Rows;
pub use shape::{InvalidShape, MAX_METADATA_BYTES, MAX_RANK, MetaParts, Shape, TensorMeta};
pub use slice::{BoxDim, InvalidSlice, Misfit, Slice, SliceDim, SliceRange, TensorBox};
pub use slice_text::ParseSliceError;
