//! Who owns a key, and everything that ends.
//!
//! # Layout
//! - `claims`: the directory's answers to claims, and keys that are lost to others.
//! - `owners`: the end of a key, and of its owner.
//! - `parents`: versions that stay with the parent of their key.
//! - `endings`: ends that take more than one round. `lost_link`, `name_lost`: two of them.
//! - `operator`: what an operator ends.
//! - `spilled`: versions that are read back from disk, or are lost there.

mod claims;
mod endings;
mod lost_link;
mod name_lost;
mod operator;
mod owners;
mod parents;
mod spilled;

#[cfg(test)]
pub(in crate::protocol) use endings::ENDS_PER_ROUND;
pub(super) use endings::{Ending, Endings, Leaving};
pub use operator::{Deleted, NotDeleted};
