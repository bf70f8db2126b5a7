//! The safetensors format: 8 bytes with the header's length, a header in JSON, and the tensors' elements one behind the
//! other.
//!
//! The `safetensors` crate reads a header only together with the whole file in one slice of memory. Here a file's
//! elements go straight from the file into the arena, so the header is read alone; the tests compare this parser with
//! the crate.
//!
//! # Layout
//! - `dtype`: the names of element types.
//! - `header`: parsing unchecked headers.
//! - `layout`: the layout of an output file.

mod dtype;
mod header;
mod layout;

pub use header::BadHeader;
pub(super) use header::read;
pub(super) use layout::{Layout, parse_metadata};

/// The key of a file's metadata, below the prefix; no tensor of a file can have this name.
pub(super) const METADATA: &str = "__metadata__";

/// The longest header, as in the format's own library, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The bytes before the header: its length.
const LENGTH_BYTES: u64 = 8;
