//! TLS to a sidecar that has certificates.

use crate::doctor::facts::certificate::CertificateFile;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use transfer_terminal::units::age;

/// Certificates for an address that begins with https://
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TlsOptions {
    /// For https: the certificates of the authorities that may have signed the sidecar's, as PEM
    #[arg(long, help_heading = "Connection", env = "TRANSFER_TLS_CA", value_name = "PATH")]
    pub tls_ca: Option<PathBuf>,

    /// For https: your certificate, as PEM; the sidecar's --admins and --readers name it
    #[arg(long, help_heading = "Connection", env = "TRANSFER_TLS_CERT", value_name = "PATH", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// For https: its private key, as PEM
    #[arg(long, help_heading = "Connection", env = "TRANSFER_TLS_KEY", value_name = "PATH", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// For https: the name in the sidecar's certificate, if it is not the host of the address; for instance a node's
    /// name
    #[arg(long, help_heading = "Connection", env = "TRANSFER_TLS_NAME", value_name = "NAME")]
    pub tls_name: Option<String>,
}

/// The reason why an https address cannot be used.
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
    /// The certificate has expired, so no sidecar accepts it.
    #[error("--tls-cert {}: the certificate of {subject} has expired {} ago; give a new one", path.display(), age(*ago))]
    Expired {
        /// The file.
        path: PathBuf,
        /// Its subject.
        subject: String,
        /// The time since its expiry.
        ago: Duration,
    },
    /// A file cannot be read.
    #[error("{flag} {}: cannot read it", path.display())]
    File {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl TlsOptions {
    /// The TLS configuration of a connection to `address`.
    pub(super) fn for_address(&self, address: &str) -> Result<ClientTlsConfig, TlsError> {
        let Some(ca) = &self.tls_ca else { return Err(TlsError::NoAuthority { address: address.to_owned() }) };
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("--tls-ca", ca)?));
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            is_current(cert)?;
            config = config.identity(Identity::from_pem(read("--tls-cert", cert)?, read("--tls-key", key)?));
        }
        if let Some(name) = &self.tls_name {
            config = config.domain_name(name);
        }
        Ok(config)
    }
}

/// Checks the expiry, because the sidecar would only end the connection.
fn is_current(path: &Path) -> Result<(), TlsError> {
    let found = CertificateFile::look(path).found.unwrap_or_default();
    let now_s = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let ago = |until_s: i64| now_s.checked_sub(u64::try_from(until_s).unwrap_or(0)).filter(|ago| *ago > 0);
    match found.into_iter().find_map(|certificate| Some((ago(certificate.until_s)?, certificate.subject))) {
        Some((ago, subject)) => {
            Err(TlsError::Expired { path: path.to_owned(), subject, ago: Duration::from_secs(ago) })
        }
        // An unreadable file is reported elsewhere.
        None => Ok(()),
    }
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::File { flag, path: path.to_owned(), source })
}
