//! The settings of certificates and roles.

use super::ConfigError;
use clap::Args;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Certificates and roles.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Security")]
pub struct SecurityConfig {
    /// This node's certificate, as PEM, with the chain up to the authority's. Its names (DNS names, or URIs like
    /// transfer://node/NAME) say which node this is. With it every connection between nodes is encrypted and shows a
    /// certificate
    #[arg(long, env = "TRANSFER_TLS_CERT", value_name = "PATH")]
    pub tls_cert: Option<PathBuf>,

    /// Its private key, as PEM
    #[arg(long, env = "TRANSFER_TLS_KEY", value_name = "PATH")]
    pub tls_key: Option<PathBuf>,

    /// The certificates of the authorities that may sign those of peers and tools, as PEM
    #[arg(long, env = "TRANSFER_TLS_CA", value_name = "PATH")]
    pub tls_ca: Option<PathBuf>,

    /// The names that peers may have: names of certificates, where * stands for any characters. Default: all names that
    /// the authority has signed
    #[arg(long, env = "TRANSFER_PEERS", value_name = "NAME,...", value_delimiter = ',')]
    pub peers: Vec<NamePattern>,

    /// The names of certificates that may administer: change the poll strategy, delete, drain. Default: none; the admin
    /// socket serves root and the sidecar's own user
    #[arg(long, env = "TRANSFER_ADMINS", value_name = "NAME,...", value_delimiter = ',')]
    pub admins: Vec<NamePattern>,

    /// The names of certificates that may read the status and the lists, besides those that administer. Default: all
    /// names that the authority has signed
    #[arg(long, env = "TRANSFER_READERS", value_name = "NAME,...", value_delimiter = ',')]
    pub readers: Vec<NamePattern>,

    /// Do not encrypt the data of the tcp fabric; its links still begin with an encrypted call. The other node must set
    /// this, too
    #[arg(long, env = "TRANSFER_DATA_PLAINTEXT")]
    pub data_plaintext: bool,

    /// Without certificates: listen beyond loopback, and let every client administer, although nothing is encrypted or
    /// authenticated
    #[arg(long, env = "TRANSFER_INSECURE")]
    pub insecure: bool,
}

/// The three files of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TlsFiles<'a> {
    pub(crate) cert: &'a Path,
    pub(crate) key: &'a Path,
    pub(crate) ca: &'a Path,
}

impl SecurityConfig {
    /// Returns whether connections are encrypted and authenticated.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// Returns whether the tcp fabric encrypts.
    #[must_use]
    pub fn encrypts_data(&self) -> bool {
        self.has_tls() && !self.data_plaintext
    }

    pub(crate) fn tls_files(&self) -> Option<TlsFiles<'_>> {
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(cert), Some(key), Some(ca)) => Some(TlsFiles { cert, key, ca }),
            _ => None,
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let files = [("--tls-cert", &self.tls_cert), ("--tls-key", &self.tls_key), ("--tls-ca", &self.tls_ca)];
        let given = files.iter().find(|(_, path)| path.is_some());
        let missing = files.iter().find(|(_, path)| path.is_none());
        if let (Some((given, _)), Some((missing, _))) = (given, missing) {
            return Err(ConfigError::HalfOfTls { given, missing });
        }
        if self.has_tls() {
            return Ok(());
        }
        let needs = |flag, value| Err(ConfigError::Needs { flag, value, needs: "--tls-cert" });
        for (flag, patterns) in [("--peers", &self.peers), ("--admins", &self.admins), ("--readers", &self.readers)] {
            if !patterns.is_empty() {
                let all: Vec<_> = patterns.iter().map(ToString::to_string).collect();
                return needs(flag, all.join(","));
            }
        }
        if self.data_plaintext { needs("--data-plaintext", "true".to_owned()) } else { Ok(()) }
    }
}

/// A pattern for the names of certificates: one name, or several, as in `node-*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(String);

/// The text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a name of a certificate, like node-7, or with * for any characters, like node-*")]
pub struct NotAPattern;

impl FromStr for NamePattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<NamePattern, NotAPattern> {
        let ok = !text.is_empty() && text.len() <= 512 && !text.contains(|c: char| c.is_whitespace() || c.is_control());
        if ok { Ok(NamePattern(text.to_owned())) } else { Err(NotAPattern) }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl NamePattern {
    /// Returns whether a name matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        // `split` returns at least one part.
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
        let mut last = None;
        for part in parts {
            // The part before this star matches at its first occurrence. Only the last part must match at the end.
            if let Some(middle) = last.replace(part) {
                let Some((_, behind)) = rest.split_once(middle) else { return false };
                rest = behind;
            }
        }
        last.map_or(rest.is_empty(), |last| rest.ends_with(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_characters() {
        let matches = |pattern: &str, name| pattern.parse::<NamePattern>().unwrap().matches(name);
        for (pattern, name) in [
            ("node-7", "node-7"),
            ("*", ""),
            ("*", "x"),
            ("node-*", "node-"),
            ("node-*", "node-12"),
            ("*.train", "a.train"),
            ("a*b*c", "aXbYc"),
            ("a*b*b", "abb"),
            ("**", "x"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("node-7", "node-77"), ("node-*", "nod"), ("*.train", "a.trainx"), ("a*b*b", "ab"), ("ab*ba", "aba")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        for bad in ["", "a b", "a\n"] {
            assert_eq!(bad.parse::<NamePattern>(), Err(NotAPattern));
        }
    }
}
