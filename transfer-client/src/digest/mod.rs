//! Digests: made of what is pushed, and compared with what was fetched.
//!
//! Where they lie in a version is in [`transfer_core::wire::digests`].
//!
//! # Layout
//! - `hash`: digests of chunks, on several threads. `make`: those of a push. `proof`: what a fetch asks for, and the comparison.

mod hash;
mod make;
mod proof;

pub(crate) use hash::{Hasher, make_all};
pub(crate) use make::{Digesting, no_digests};
pub(crate) use proof::{Proof, Proving};
