//! What a sidecar tells about itself to those who watch it.
//!
//! # Layout
//! - [`logging`], `limit`: the log, and how much of it one place in the code may write.
//! - `http`, `places`, `config`: the HTTP server, whose connection makes room for another, and what it is told. The page itself is in `page`.
//! - `observer`: one look at the sidecar, which everything below is made of.
//! - `metrics`, `families`: what Prometheus reads.
//! - `spans`: one record for each transfer.
//! - `otlp`: these as spans, for a collector; `no_otlp` where that is not built in.
//! - `status`, `history`: what the status page reads.

mod config;
mod families;
mod history;
mod http;
mod limit;
pub mod logging;
mod metrics;
mod observer;
#[cfg_attr(not(feature = "otlp"), path = "no_otlp.rs")]
mod otlp;
mod places;
mod spans;
mod status;

pub use config::WatchConfig;
pub(crate) use http::HttpServer;
pub(crate) use observer::{Observer, ObserverParts};
pub(crate) use otlp::Export;
pub use otlp::OtlpConfig;
pub(crate) use spans::{Records, start as start_spans};
