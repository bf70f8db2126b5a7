//! Observation of a sidecar: log, metrics, traces and status page.
//!
//! # Layout
//! - [`logging`], `limit`, `lines`: the log, its limit for each call site, and the queue of its lines.
//! - `http`, `places`, `config`: the HTTP server, its limit of connections, and its settings. The page itself is in
//!   `page`.
//! - `observer`: a snapshot of the sidecar, the source of everything below.
//! - `metrics`, `families`: the text for Prometheus.
//! - `spans`: one record for each transfer.
//! - `otlp`: sends these records as spans to a collector; `no_otlp` replaces it if it is not built in.
//! - `status`, `history`: the data of the status page.

mod config;
mod families;
mod history;
mod http;
mod limit;
mod lines;
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
