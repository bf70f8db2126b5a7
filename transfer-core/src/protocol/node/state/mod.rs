//! What the node shows of itself.
//!
//! # Layout
//! - `status`: counters, at a glance.
//! - `listing`: tables that may be long, in pages.
//! - `waiting`: what an operation waits for, in words.

mod listing;
mod status;
mod waiting;

pub use listing::{TensorFilter, TransferFilter};
pub use status::Unfinished;
