//! What a sidecar tells about itself to those who watch it.
//!
//! # Layout
//! - [`logging`], `limit`: the log, and how much of it one place in the code may write.

mod limit;
pub mod logging;
