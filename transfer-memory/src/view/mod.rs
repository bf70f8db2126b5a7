//! Read-only views of immutable memory: of a leased range of a segment, or of a frozen block of the arena.
//!
//! [`Bytes`] is the view; [`Element`] binds Rust types to element types, for typed slices; [`arrow_type`] and the
//! `to_arrow` methods turn a view into Arrow arrays. None of them copies a byte.
//! [`PrivateBytes`] is a private mapping of the same memory, for users that have to write. [`OwnMemory`] is memory of this
//! process alone, of which a view is made once it is written.

mod arrow;
mod bytes;
mod element;
mod error;
mod own;
mod private;

pub use arrow::arrow_type;
pub use bytes::{Bytes, Owner};
pub use element::{Element, F4E2M1x2, F8E4M3, F8E5M2, F8E8M0, I4x2, U4x2};
pub(crate) use element::{cast, cast_mut};
pub use error::ViewError;
pub use own::OwnMemory;
pub use private::{NotPrivate, PrivateBytes};

#[cfg(test)]
mod tests;
