//! Pushes, and what goes before and after them: room in the arena, landing slots, and versions that are taken back.
//!
//! # Layout
//! - `call`: the push of one tensor, and `many`: of many. `options`: theirs. `foreign`: sources that the client has not
//!   allocated.
//! - `delta`: what has changed since a version that this client has published. `base`: what this client has from elsewhere, for deltas of others.
//! - `allocate`: waiting for room. `order`: calls without a result. `take_back`: taking a version back; `taken_back`: its memory.

mod allocate;
mod base;
mod call;
mod delta;
mod foreign;
mod many;
mod options;
mod order;
mod take_back;
mod taken_back;

pub use allocate::AllocateWait;
pub(crate) use allocate::allocate;
pub use base::{LendBase, LentBase};
pub use call::{Push, PushError, Pushed};
pub(crate) use call::{PushCall, Source};
pub use delta::{NoDelta, PushedDelta};
pub(crate) use foreign::{checked, of_array};
pub use many::PushMany;
pub(crate) use options::{PushOptions, lasting_push_options};
pub use order::Order;
pub use take_back::TakeBack;
pub(crate) use taken_back::TakenBack;
