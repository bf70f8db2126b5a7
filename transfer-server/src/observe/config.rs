//! What a sidecar is told about being watched.

use super::OtlpConfig;
use crate::config::ConfigError;
use clap::Args;
use std::net::SocketAddr;

/// Whether a sidecar can be watched over HTTP, and what it measures for that.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct WatchConfig {
    /// Where the metrics and the status page are served: plain HTTP, read-only, without a password. Without it: nowhere
    #[arg(long = "http-listen", env = "TRANSFER_HTTP_LISTEN", value_name = "IP:PORT", value_parser = crate::config::address)]
    pub http_listen: Option<SocketAddr>,

    /// Let other hosts reach --http-listen: it is plain HTTP, and every client that reaches it may read it
    #[arg(long = "http-plaintext", env = "TRANSFER_HTTP_PLAINTEXT")]
    pub http_plaintext: bool,

    /// Do not take the time of transfers for the histograms of the metrics; they are counted in any case
    #[arg(long = "no-timings", env = "TRANSFER_NO_TIMINGS")]
    pub no_timings: bool,

    /// Where spans go.
    #[command(flatten)]
    pub otlp: OtlpConfig,
}

impl WatchConfig {
    /// Nobody watches.
    #[must_use]
    pub fn nobody() -> WatchConfig {
        WatchConfig { http_listen: None, http_plaintext: false, no_timings: false, otlp: OtlpConfig::default() }
    }

    /// It stays plain HTTP whatever else is encrypted, so certificates alone do not let it go beyond loopback.
    pub(crate) fn check(&self, insecure: bool) -> Result<(), ConfigError> {
        match self.http_listen {
            Some(value) if !insecure && !self.http_plaintext && !value.ip().to_canonical().is_loopback() => {
                Err(ConfigError::HttpBeyondLoopback { value, port: value.port() })
            }
            None if self.http_plaintext => {
                Err(ConfigError::Needs { flag: "--http-plaintext", value: "true".to_owned(), needs: "--http-listen" })
            }
            _ => self.otlp.check(),
        }
    }
}
