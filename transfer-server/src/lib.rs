//! `transferd`, the sidecar: the control plane around the data-plane engine.
//!
//! # Layout
//! - [`config`]: flags, environment, and their checks.
//! - [`check()`]: the check of a configuration without a start.
//! - [`Sidecar`]: a running sidecar, its parts and its threads.
//! - `sessions`: workers that connect, up to the hand-over to the engine.
//! - [`directory`]: which node owns a key, and where a worker is.
//! - `peering`: links to other sidecars.
//! - `control`: carries the engine's requests to those three, and the answers back.
//! - `security`: certificates, names, roles.
//! - `locked`: the limit of locked memory.
//! - `reload`: the settings that can change while the sidecar runs.
//! - [`program`]: `transferd` as a process, from its command line to its exit status.
//! - `poll`: the poll strategy of the data plane, and its changes.
//! - [`observe`]: the log, metrics, traces and status. `page`: the status page's files.
//! - `admin`, `grpc`: the admin service, and how all services are served.
//! - `exchanges`: exchanges as operators see them: what the data plane has counted, and who waits.
//! - `events`: the events of the sidecar. `drain`: the orderly end of a sidecar.
//!
//! The engine handles all bulk bytes and steady-state transfers; they do not pass through this crate.
#![forbid(unsafe_code)]
// They panic where their output cannot be written.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod admin;
mod check;
pub mod config;
mod control;
mod copying;
pub mod directory;
mod drain;
mod engine;
mod events;
mod exchanges;
mod grpc;
mod locked;
pub mod observe;
mod page;
mod peering;
mod poll;
pub mod program;
mod reload;
mod security;
mod sessions;
mod shares;
mod sidecar;
mod text;
mod unix;

pub use check::{CheckError, check};
pub use reload::{ReloadError, Reloaded};
pub use security::TlsError;
pub use sessions::{RegisterError, RegisteredMemory, Registration};
pub use sidecar::{Addresses, Sidecar, StartError};
pub use transfer_fabric::engine::{Follower, NotTurned, PollPoint, Turns};
