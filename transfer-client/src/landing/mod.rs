//! Fetches into the caller's memory, for tensors, bundles and sharded states.
//!
//! # Layout
//! - `targets`: the caller's tensors, and where in them what is fetched belongs. `scatter`: which parts of it land there, and which
//!   land beside. `call`: one request. `view`: memory of a tensor with strides. `how`: what has become of it.

mod call;
mod how;
mod scatter;
mod targets;
mod view;

pub(crate) use call::{Asking, Beside, LandingCall, Outcome, Piece};
pub use how::Landing;
pub(crate) use scatter::MIN_RUN_BYTES;
pub(crate) use targets::{LandingPlace, Targets, ViewOf, Viewed};
pub use view::MemoryView;
