//! What the node shows of itself.
//!
//! # Layout
//! - `status`: counters, at a glance.
//! - `listing`: tables that may be long, in pages.

mod listing;
mod status;

pub use listing::{TensorFilter, TransferFilter};
pub use status::Unfinished;
