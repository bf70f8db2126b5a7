//! Fetches of tensors and of slices.
//!
//! # Layout
//! - `call`: the fetch of one version, `into`: of one into the caller's memory, and `many`: of many. `options`: theirs. `subscriber`: the versions of one key;
//!   `seen`: those that it has returned.
//! - `buckets`: fetches of what does not fit the landing pool; `large`: of tensors and slices, whose shape
//!   `probe` finds; `ranges`: of versions with metadata.
//! - `take`: the fetch of rows. `tensor`, `slice`: what is fetched. `excerpt`: bytes of versions, for libraries.

mod buckets;
mod call;
mod excerpt;
mod into;
mod large;
mod many;
mod options;
mod probe;
mod ranges;
mod seen;
mod slice;
mod subscriber;
mod take;
mod tensor;

pub(crate) use buckets::{BucketCall, LargeVersion, in_buckets};
pub use call::Fetch;
pub(crate) use call::{FetchCall, LargeFetch, does_not_fit};
pub use excerpt::{FetchExcerpt, FetchedExcerpt};
pub(crate) use into::is_by_reference;
pub use into::{FetchInto, FetchIntoError, FetchedInto};
pub(crate) use large::large_tensor;
pub use many::FetchMany;
pub(crate) use options::{FetchOptions, fetch_options};
pub(crate) use ranges::{BodyKind, BodyLayout, RangesOfBody};
pub use seen::EpochBegan;
pub(crate) use seen::Since;
pub use slice::FetchedSlice;
pub(crate) use slice::span;
pub use subscriber::Subscriber;
pub use take::Take;
pub use tensor::Tensor;
