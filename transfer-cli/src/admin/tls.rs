//! TLS to a sidecar that has certificates.

use std::io;
use std::path::{Path, PathBuf};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// Certificates for an address that begins with https://
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TlsOptions {
    /// For https: the certificates of the authorities that may have signed the sidecar's, as PEM
    #[arg(long, help_heading = "Connection", env = "TRANSFER_TLS_CA", value_name = "PATH")]
    pub tls_ca: Option<PathBuf>,

    /// For https: the certificate that says who you are, as PEM; the sidecar's --admins and --readers name it
    #[arg(long, help_heading = "Connection", env = "TRANSFER_TLS_CERT", value_name = "PATH", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// For https: its private key, as PEM
    #[arg(long, help_heading = "Connection", env = "TRANSFER_TLS_KEY", value_name = "PATH", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// For https: the name in the sidecar's certificate, where it is not the host of the address; a node's name, for instance
    #[arg(long, help_heading = "Connection", env = "TRANSFER_TLS_NAME", value_name = "NAME")]
    pub tls_name: Option<String>,
}

/// Why an https address cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The sidecar's certificate could not be checked.
    #[error(
        "{address} needs --tls-ca, to know that it is the sidecar, and --tls-cert and --tls-key, to say who you are"
    )]
    NoAuthority {
        /// The address.
        address: String,
    },
    /// A file cannot be read.
    #[error("{flag} {}: cannot read it", path.display())]
    File {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

impl TlsOptions {
    /// What a connection to `address` is made with.
    pub(super) fn for_address(&self, address: &str) -> Result<ClientTlsConfig, TlsError> {
        let Some(ca) = &self.tls_ca else { return Err(TlsError::NoAuthority { address: address.to_owned() }) };
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("--tls-ca", ca)?));
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            config = config.identity(Identity::from_pem(read("--tls-cert", cert)?, read("--tls-key", key)?));
        }
        if let Some(name) = &self.tls_name {
            config = config.domain_name(name);
        }
        Ok(config)
    }
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::File { flag, path: path.to_owned(), source })
}
