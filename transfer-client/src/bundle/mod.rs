//! Bundles: many tensors that are published as one version, and fetched as one.
//!
//! A bundle has one key, one version and one lease. A fetch therefore never returns tensors of two versions, and a push
//! publishes all tensors or none. Its table of names and shapes is not trusted: see
//! [`BundleTable`](transfer_core::wire::bundle::BundleTable).
//!
//! # Layout
//! - `tensor`: tensors that are about to be pushed. `fetched`: those that were fetched; `writable`: those that were taken back.
//! - `into`: bundles that land in the caller's memory, or are copied there.
//! - `only`: some tensors of a version, or slices of them; `slices`: their result; `parts`: what is asked for, and what has
//!   landed. `taken_back`: the memory of a bundle that is taken back. `buckets`: versions that do not fit the landing
//!   pool.

mod buckets;
mod fetched;
mod into;
mod only;
mod parts;
mod slices;
mod taken_back;
mod tensor;
mod writable;

pub(crate) use buckets::large_bundle;
pub use fetched::FetchedBundle;
pub(crate) use fetched::take_bundle;
pub use into::FetchBundleInto;
pub use only::FetchOnly;
pub(crate) use parts::{Part, PartsRequest, Wanted, landed, parts, table_of};
pub use slices::FetchedSlices;
pub(crate) use taken_back::{FreshBundle, Layout};
pub use tensor::BundleTensor;
pub(crate) use tensor::source;
pub use writable::BundleMut;
