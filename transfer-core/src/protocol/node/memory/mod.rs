//! References to versions: the memory is free when the last one goes.
//!
//! # Layout
//! - `leases`: what workers hold.
//! - `spill`: versions on disk.

mod leases;
mod spill;
