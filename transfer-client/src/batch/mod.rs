//! Arrow record batches: pushed as they lie, fetched as they landed.
//!
//! A push of batches is the stream of messages that Arrow's IPC format makes of them, with all metadata in front and all bodies behind:
//! the *metadata* of the push is the messages' flatbuffers, one behind the other, and its *body* is their bodies, one behind the other,
//! every buffer at a multiple of 64 bytes. Whoever puts each body back behind its message has a stream that any Arrow library reads.
//!
//! - A buffer that lies in this worker's arena, frozen, is pushed where it lies; any other is copied there once, which the report counts.
//! - On one node the reader maps the buffers where their owner has them; from another node they come with one gather list and land as one
//!   range. Either way the arrays that a fetch gives share that memory, which is released with the last of them.
//! - Nothing that the metadata says is believed. Every range, length, offset, key, and character is checked before there is an array.
//!
//! # Layout
//! - `encode`: batches as messages and buffers; `gather`: buffers as ranges of the arena.
//! - `body`: what was handed out; `messages`, `arrays`, `schema`: the checks, and batches out of it.
//! - `calls`: pushing and fetching; `stream`: streams of batches.
//! - `builder`: arrays that are built in the arena; `tensors`: columns of tensors.

mod arrays;
mod body;
mod builder;
mod calls;
mod encode;
mod error;
mod gather;
mod messages;
mod schema;
mod stream;
mod tensors;
#[cfg(test)]
mod tests;

pub use builder::{BatchBuilder, ColumnMut};
pub use calls::{FetchedBatch, FetchedTable};
pub(crate) use encode::Encoded;
pub use error::BatchError;
pub(crate) use gather::gather;
pub use stream::{BatchStream, BatchStreamReader, NextBatch};
pub use tensors::FixedShapeTensor;

/// Every buffer of a body starts at a multiple of this.
const ALIGNMENT: usize = transfer_core::memory::ALIGNMENT as usize;

/// How deep types may nest: as deep as the verifier of flatbuffers goes.
const MAX_DEPTH: usize = 32;
