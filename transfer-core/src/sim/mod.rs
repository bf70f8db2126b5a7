//! The simulated fabric, and whole clusters of sidecars on top of it, in one thread, with a virtual clock and one
//! schedule per seed.
//!
//! # Layout
//! - `conditions`: the properties of a world: delays, limits, how grants behave, an adversary.
//! - `world`: the clock, the memory and the agenda.
//! - `connection`: the two sides of a link and the work in flight between them.
//! - `transit`: how work requests travel, and where they are checked.
//! - `ends`: how links come up and go down.
//! - `disk`: [`SimDisk`], on which a node has versions.
//! - `fabric`: [`SimFabric`], the fabric contract over a world.
//! - `digest`: one number for the externally visible behaviour of a run.
//! - `cluster`: sidecars, workers and a directory under random schedules; tests only.
//!
//! The same seed gives the same run: no code here reads a clock, and no result depends on the order of a randomized
//! hash.

#[cfg(test)]
pub(crate) mod cluster;
mod conditions;
mod connection;
mod digest;
mod disk;
mod ends;
mod fabric;
#[cfg(test)]
mod tests;
mod transit;
mod world;

pub use conditions::{Conditions, Grants};
pub use disk::SimDisk;
pub use fabric::{SimFabric, SimMemory};
pub use world::{Endpoint, GuardId, MemoryId, World};
