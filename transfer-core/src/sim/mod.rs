//! The simulated fabric, and whole clusters of sidecars on top of it, in one thread, with a virtual clock and one schedule per seed.
//!
//! # Layout
//! - `conditions`: what a world is like: delays, limits, how grants behave, an adversary.
//! - `world`: the clock, the memory and what happens when.
//! - `connection`: the two sides of a link and what is under way between them.
//! - `transit`: how work requests make their way, and where they are checked.
//! - `ends`: how links come up and go down.
//! - `fabric`: [`SimFabric`], the contract over it.
//! - `digest`: one number for all that others see of a run.
//! - `cluster`: sidecars, workers and a directory under random schedules; tests only.
//!
//! The same seed gives the same run: nothing in here reads a clock, and nothing is kept in the order of a random hash.

#[cfg(test)]
pub(crate) mod cluster;
mod conditions;
mod connection;
mod digest;
mod ends;
mod fabric;
#[cfg(test)]
mod tests;
mod transit;
mod world;

pub use conditions::{Conditions, Grants};
pub use fabric::{SimFabric, SimMemory};
pub use world::{Endpoint, GuardId, MemoryId, World};
