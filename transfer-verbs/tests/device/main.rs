//! Every object and operation on a real device. They run where there is one: in the guest of tests/rdma-vm.
//!
//! - `setup`: memory, and two connected queue pairs of one process.
//! - `operations`: what queue pairs do; `windows`: memory windows; `errors`: refusals and what they say.
//! - `kinds`: unreliable queue pairs, and those for datagrams.
//! - `events`: completion channels; `connections`: rdma_cm; `inventory`: what is listed.

#![allow(clippy::unwrap_used)]

mod connections;
mod errors;
mod events;
mod inventory;
mod kinds;
mod operations;
mod setup;
mod windows;
