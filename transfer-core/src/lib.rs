//! The pure part of **transfer**: names, wire formats, the message protocol as a sans-I/O state machine, allocation, and the
//! contract that every fabric fulfils.
//!
//! Nothing here touches memory that it does not own, opens a file, starts a thread or reads a clock: time comes in as a
//! parameter ([`time::Time`]), memory is only ever *named* ([`memory::LocalSlice`]), and randomness is a seed. That is what lets
//! the simulated fabric in `sim` run a whole cluster in one thread, one schedule per seed.
//!
//! # Layout
//! - [`memory`]: names of memory: segments, local slices, remote slices.
//! - [`tensor`]: dtype, shape, keys, versions.
//! - [`op`]: what a worker asks of its sidecar, and what it hears.
//! - [`time`]: the time that callers pass in.
//! - [`text`]: sizes and others' texts, for people.
//! - [`wire`]: fixed-layout messages between sidecars, the landing header, and the records in a worker's rings.
//! - [`alloc`]: sub-allocation of a segment with its records outside of it.
//! - [`fabric`]: the contract of a fabric and what one may say about itself.
//! - [`plan`]: which ranges of memory go into which write.
//! - [`protocol`]: the sidecar's state machine: sessions, published tensors, links, push and pull.
//! - [`rails`]: one link made of several: queue pairs, devices, sockets.
//! - [`silent`]: connections that have not said anything yet, and which of them has to go.
//! - [`trace`]: the trace context that travels with a transfer.
//! - `sim`: the simulated fabric and its seeded schedules; with the feature of that name.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod drive;
pub mod fabric;
pub mod memory;
pub mod op;
pub mod plan;
pub mod protocol;
pub mod rails;
pub mod silent;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod tensor;
pub mod text;
pub mod time;
pub mod trace;
pub mod wire;
