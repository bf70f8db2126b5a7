//! Arrow record batches, pushed in place and read where they landed.
//!
//! A push of batches is the stream of messages of Arrow's IPC format, with all metadata in front and all bodies behind.
//! The *metadata* of the push is the messages' flatbuffers, one behind the other. Its *body* is their bodies, one
//! behind the other, with every buffer at a multiple of 64 bytes. With each body put back behind its message, the
//! result is a stream that any Arrow library reads.
//!
//! - A frozen buffer in this worker's arena is pushed in place; any other is copied into it once, which the report
//!   counts.
//! - On one node the reader maps the owner's buffers; from another node they come with one gather list and land as one
//!   range. Either way the arrays of a fetch share that memory, which is released with the last of them.
//! - The metadata is not trusted. Every range, length, offset, key, and character is checked before an array is made.
//!
//! # Layout
//! - `encode`: batches as messages and buffers. [`crate::gathered`] pushes them, and finds them again when they are
//!   fetched.
//! - `messages`, `arrays`, `schema`: the checks, and batches out of them.
//! - `codec`: batches as messages and buffers, for libraries.
//! - `calls`: pushes and fetches; `large`: of what does not fit the landing pool; `stream`: streams of batches.
//! - `builder`: arrays that are built in the arena; `tensors`: columns of tensors.

mod arrays;
mod builder;
mod calls;
mod codec;
mod encode;
mod finish;
mod large;
mod messages;
mod schema;
mod stream;
mod tensors;
#[cfg(test)]
mod tests;

pub use builder::{BatchBuilder, ColumnMut};
pub use calls::{FetchedBatch, FetchedTable};
pub(crate) use calls::{encode, take_batch, take_table};
pub use codec::{BatchDecoder, EncodedBatch};
pub use finish::Finish;
pub(crate) use large::{large_batch, large_table};
pub use stream::{BatchStream, BatchStreamReader, NextBatch};
pub use tensors::FixedShapeTensor;

use crate::error::BatchError;
use crate::gathered::ALIGNMENT;

/// The greatest depth of types: that of the verifier of flatbuffers.
const MAX_DEPTH: usize = 32;
