//! The pure part of **transfer**: names, wire formats, the message protocol as a sans-I/O state machine, allocation,
//! and the contract that every fabric fulfils.
//!
//! This crate touches no memory that it does not own, opens no file, starts no thread and reads no clock. Time is a
//! parameter ([`time::Time`]), memory is only *named* ([`memory::LocalSlice`]), and randomness is a seed. Therefore the
//! simulated fabric in `sim` can run a whole cluster in one thread, with one schedule per seed.
//!
//! # Layout
//! - [`memory`]: names of memory: segments, local slices, remote slices.
//! - [`tensor`]: dtype, shape, keys, versions.
//! - [`exchange`]: the keys of exchanges, and what lies under some of them.
//! - [`op`]: requests of a worker to its sidecar, and the answers.
//! - [`time`]: the time that callers pass in.
//! - [`text`]: sizes in units, and checks of text from other processes before it is displayed.
//! - [`wire`]: fixed-layout messages between sidecars, the landing header, and the records in a worker's rings.
//! - [`alloc`]: sub-allocation of a segment with its records outside of it.
//! - [`delta`]: what has changed between two versions.
//! - [`fabric`]: the contract of a fabric, and its capabilities.
//! - [`plan`]: splits a transfer into writes, and a write into shares for the rails.
//! - [`protocol`]: the sidecar's state machine: sessions, published tensors, links, push and pull.
//! - [`rails`]: one link made of several connections: queue pairs, devices, sockets.
//! - [`silent`]: limits connections that have not sent anything yet.
//! - [`trace`]: the trace context that travels with a transfer.
//! - `sim`: the simulated fabric and its seeded schedules, behind the feature of that name.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod delta;
pub mod drive;
pub mod exchange;
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
