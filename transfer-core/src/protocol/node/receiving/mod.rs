//! Pushes of other nodes to workers of this one.
//!
//! # Layout
//! - `push_in`: grants slots, and publishes what lands in them.
//! - `prepare`: grants slots for many keys in one call.

mod prepare;
mod push_in;
