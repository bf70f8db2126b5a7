//! `transferd`, the sidecar: the control plane around the data-plane engine.
//!
//! # Layout
//! - [`config`]: flags, environment, and their checks.
//! - [`check()`]: a configuration, judged without a start.
//! - [`Sidecar`]: a running sidecar; its parts, its threads, its end.
//! - `sessions`: workers that connect, up to the hand-over to the engine.
//! - [`directory`]: which node owns a key, and where a worker is.
//! - `peering`: links to other sidecars.
//! - `control`: carries the engine's requests to those three, and the answers back.
//! - `security`: certificates, names, roles.
//! - `locked`: how much memory it may lock.
//! - `reload`: what can be changed while it runs.
//! - [`program`]: `transferd` as a process, from its command line to its exit status.
//! - `poll`: how the data plane waits, and how that is changed.
//! - [`observe`]: the log, and what those see who watch it. `page`: the status page's files.
//! - `admin`, `grpc`: what it shows of itself, and how all services are served.
//! - `events`: what happened, for whoever watches. `drain`: finishing and leaving.
//!
//! Bulk bytes and steady-state transfers never come here: they are the engine's.
#![forbid(unsafe_code)]

mod admin;
mod check;
pub mod config;
mod control;
pub mod directory;
mod drain;
mod engine;
mod events;
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
mod sidecar;
mod text;
mod unix;

pub use check::{CheckError, check};
pub use reload::{ReloadError, Reloaded};
pub use security::TlsError;
pub use sidecar::{Addresses, Sidecar, StartError};
