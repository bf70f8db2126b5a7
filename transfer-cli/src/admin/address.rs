//! The address of a sidecar's gRPC services.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use tonic::transport::Uri;

/// The address of a sidecar's gRPC services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `http://HOST:PORT` or `https://HOST:PORT`
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

/// The text is no such address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is neither http://HOST:PORT or https://HOST:PORT nor the path of a Unix socket, like /run/transfer/admin.sock"
)]
pub struct NotAnAddress;

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Address, NotAnAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Address::Unix(PathBuf::from(path.strip_prefix("//").unwrap_or(path))));
        }
        if let Some(rest) = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) {
            let ok = !rest.is_empty() && text.parse::<Uri>().is_ok();
            return if ok { Ok(Address::Tcp(text.to_owned())) } else { Err(NotAnAddress) };
        }
        let is_path = text.starts_with(['/', '.']) || (text.contains('/') && !text.contains("://"));
        let host_and_port =
            text.rsplit_once(':').is_some_and(|(h, p)| !h.is_empty() && !h.contains('/') && p.parse::<u16>().is_ok());
        match (is_path, host_and_port) {
            (true, _) => Ok(Address::Unix(PathBuf::from(text))),
            (false, true) if text.parse::<Uri>().is_ok() => Ok(Address::Tcp(format!("http://{text}"))),
            _ => Err(NotAnAddress),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(url) => f.write_str(url),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let unix = |path: &str| Ok(Address::Unix(path.into()));
        let tcp = |url: &str| Ok(Address::Tcp(url.into()));
        assert_eq!("/run/x.sock".parse(), unix("/run/x.sock"));
        assert_eq!("./x.sock".parse(), unix("./x.sock"));
        assert_eq!("run/x.sock".parse(), unix("run/x.sock"));
        assert_eq!("unix:/run/x.sock".parse(), unix("/run/x.sock"));
        assert_eq!("unix:///run/x.sock".parse(), unix("/run/x.sock"));
        assert_eq!("http://[::1]:7471".parse(), tcp("http://[::1]:7471"));
        assert_eq!("node-a:7471".parse(), tcp("http://node-a:7471"));
        assert_eq!("https://node-a:7471".parse(), tcp("https://node-a:7471"));
        for text in ["", "x", "https://", "ftp://a/b", "http://", "node-a:port"] {
            assert_eq!(text.parse::<Address>(), Err(NotAnAddress), "{text}");
        }
    }
}
