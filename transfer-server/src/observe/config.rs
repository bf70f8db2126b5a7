//! The settings of metrics, status page and traces.

use super::OtlpConfig;
use crate::config::ConfigError;
use clap::Args;
use std::net::SocketAddr;

/// The settings of the HTTP server and its measurements.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct WatchConfig {
    /// The address of the metrics and the status page: plain HTTP, read-only, without a password. Default: not served
    #[arg(long = "http-listen", env = "TRANSFER_HTTP_LISTEN", value_name = "IP:PORT", value_parser = crate::config::address)]
    pub http_listen: Option<SocketAddr>,

    /// Let other hosts reach --http-listen: it is plain HTTP, and every client that reaches it may read it
    #[arg(long = "http-plaintext", env = "TRANSFER_HTTP_PLAINTEXT")]
    pub http_plaintext: bool,

    /// Do not measure the times of transfers for the histograms of the metrics; transfers are counted in any case
    #[arg(long = "no-timings", env = "TRANSFER_NO_TIMINGS")]
    pub no_timings: bool,

    /// The collector of spans.
    #[command(flatten)]
    pub otlp: OtlpConfig,
}

impl WatchConfig {
    /// Makes settings without an HTTP server and without a collector.
    #[must_use]
    pub fn nobody() -> WatchConfig {
        WatchConfig { http_listen: None, http_plaintext: false, no_timings: false, otlp: OtlpConfig::default() }
    }

    /// Checks that only this host can reach the page, unless the operator allows more. The page is always plain HTTP,
    /// so certificates alone do not allow it beyond loopback.
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
