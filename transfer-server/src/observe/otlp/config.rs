//! The settings of the collector of spans.

use crate::config::ConfigError;
use clap::Args;

/// The collector of spans.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct OtlpConfig {
    /// Send a span for each transfer to this OpenTelemetry collector, by OTLP over gRPC. Default: none are sent
    #[arg(long = "otlp-endpoint", env = "TRANSFER_OTLP_ENDPOINT", value_name = "http://HOST:PORT")]
    pub otlp_endpoint: Option<String>,

    /// The sampling of transfers whose worker gives no trace context: one in N begins a trace of its own; 0: none
    #[arg(long = "otlp-sample", env = "TRANSFER_OTLP_SAMPLE", value_name = "N", default_value_t = 1)]
    pub otlp_sample: u32,
}

impl Default for OtlpConfig {
    fn default() -> OtlpConfig {
        OtlpConfig { otlp_endpoint: None, otlp_sample: 1 }
    }
}

impl OtlpConfig {
    pub(in crate::observe) fn check(&self) -> Result<(), ConfigError> {
        let Some(value) = self.otlp_endpoint.clone() else { return Ok(()) };
        let uri: Result<tonic::transport::Uri, _> = value.parse();
        let uri = uri.ok().filter(|uri| uri.host().is_some_and(|host| !host.is_empty()) && uri.port().is_some());
        let (flag, right) = ("--otlp-endpoint", "give the collector's gRPC address, like http://127.0.0.1:4317");
        match uri {
            Some(uri) if uri.scheme_str() == Some("https") => {
                let (wrong, right) = (
                    "asks for TLS, which spans are not sent with",
                    "let a collector on this host forward them over TLS, and give its address, like http://127.0.0.1:4317",
                );
                Err(ConfigError::Value { flag, value, wrong, right })
            }
            Some(uri) if uri.scheme_str() == Some("http") && uri.path() == "/" && uri.query().is_none() => Ok(()),
            _ => Err(ConfigError::Value { flag, value, wrong: "is no http://HOST:PORT", right }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        let check = |endpoint: &str| {
            OtlpConfig { otlp_endpoint: Some(endpoint.to_owned()), ..OtlpConfig::default() }
                .check()
                .map_err(|e| e.to_string())
        };
        for good in ["http://127.0.0.1:4317", "http://[::1]:4317/", "http://collector.local:4317"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let bad =
            ["", "4317", "127.0.0.1:4317", "http://:4317", "http://collector", "ftp://c:1", "http://c:1/v1/traces"];
        for bad in bad {
            let e = check(bad).unwrap_err();
            assert!(e.contains(&format!("--otlp-endpoint {bad}")) && e.contains("http://127.0.0.1:4317"), "{e}");
        }
        assert!(check("https://collector:4317").unwrap_err().contains("TLS"));
    }
}
