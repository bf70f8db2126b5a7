//! The lock-free parts of transfer-memory under [loom](https://docs.rs/loom), which tries every order of their steps,
//! and every value that the memory model lets a load return.
//!
//! They are the same files, compiled here with loom's atomics in place of `crate::sync`, and with memory that loom can
//! observe in place of shared memory. Its bytes are relaxed atomics, so a record that is read before the index that
//! publishes it has wrong bytes.
//!
//! The models do not cover that the two ends are in two processes, and that one of them may be hostile. Other tests do.
//!
//! # Layout
//! - `ring`, `budget`, `entry`, `hazards`: files of transfer-memory. - [`region`], [`segment`], [`sync`]: their
//!   environment in these models. - `tests`: the models.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), allow(dead_code, reason = "only the models use it"))]

#[path = "../../transfer-memory/src/segment/budget.rs"]
pub mod budget;
#[path = "../../transfer-memory/src/board/entry.rs"]
pub mod entry;
#[path = "../../transfer-memory/src/board/hazards.rs"]
pub mod hazards;
pub mod region;
#[path = "../../transfer-memory/src/ring/mod.rs"]
pub mod ring;
pub mod segment;
pub mod sync;

#[cfg(test)]
mod tests;
