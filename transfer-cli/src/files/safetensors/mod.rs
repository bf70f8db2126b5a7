//! The safetensors format: 8 bytes with the header's length, a header in JSON, and the tensors' elements one behind the other.
//!
//! The `safetensors` crate reads a header only together with the whole file in one slice of memory. Here a file's elements go straight from
//! the file into the arena, so the header is read alone; the crate is what the tests hold this one against.
//!
//! # Layout
//! - `dtype`: the names of element types.
//! - `header`: reading a header that nobody has checked yet.
//! - `layout`: the header of a file that is to be written.

mod dtype;
mod header;
mod layout;

pub use header::BadHeader;
pub(super) use header::read;
pub(super) use layout::{Layout, parse_metadata};

/// The key of the texts that a file carries beside its tensors, below the prefix; no tensor of a file can have this name.
pub(super) const METADATA: &str = "__metadata__";

/// The longest header, as the format's own library has it, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes in front of the header: its length.
const LENGTH_BYTES: u64 = 8;
