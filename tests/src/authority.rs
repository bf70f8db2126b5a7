//! Certificates for tests, made as an operator would make them.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use std::path::{Path, PathBuf};

/// Signs certificates. Writes its files into the folder that it was created with.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    ca: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// The three files of a sidecar or a tool: its certificate, its key, and the certificate of its authority.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Identity {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// Valid now.
    Now,
    /// Expired some years ago.
    Expired,
}

impl Authority {
    /// Creates an authority, with its own certificate at `NAME.pem` in the folder.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn new(folder: &Path, name: &str) -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([]).expect("no names are fine");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("it signs itself");
        let ca = folder.join(format!("{name}.pem"));
        std::fs::write(&ca, certificate.pem()).expect("the certificate can be written");
        Authority { folder: folder.to_owned(), ca, issuer: Issuer::new(params, key) }
    }

    /// Makes a certificate with these names, in files named after the first of them. A name that begins with
    /// `transfer://` becomes a URI, and an IP address becomes an address.
    #[must_use]
    pub fn identity(&self, names: &[&str]) -> Identity {
        self.identity_at(names[0], names, Validity::Now)
    }

    /// Makes a certificate with these names, in files named `file`.
    ///
    /// # Panics
    /// If they cannot be written.
    #[must_use]
    pub fn identity_at(&self, file: &str, names: &[&str], validity: Validity) -> Identity {
        let (uris, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.starts_with("transfer://"));
        let others = others.into_iter().map(str::to_owned).collect::<Vec<_>>();
        let mut params = CertificateParams::new(others).expect("names");
        for uri in uris {
            params.subject_alt_names.push(SanType::URI(uri.try_into().expect("a URI is ASCII")));
        }
        if validity == Validity::Expired {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("it is signed");
        let file = file.replace('/', "_");
        let (cert, own) = (self.folder.join(format!("{file}.crt")), self.folder.join(format!("{file}.key")));
        // The key is written first, so a process that watches the certificate finds both.
        std::fs::write(&own, key.serialize_pem()).expect("the key can be written");
        std::fs::write(&cert, certificate.pem()).expect("the certificate can be written");
        Identity { cert, key: own, ca: self.ca.clone() }
    }
}

impl Identity {
    /// Returns the options by which `transferd` and `transferctl` take these files.
    ///
    /// # Panics
    /// If a path is no text.
    #[must_use]
    pub fn arguments(&self) -> [&str; 6] {
        [
            "--tls-cert",
            self.cert.to_str().expect("text"),
            "--tls-key",
            self.key.to_str().expect("text"),
            "--tls-ca",
            self.ca.to_str().expect("text"),
        ]
    }
}
