//! Files of certificates, and their validity.

use std::path::{Path, PathBuf};
use x509_parser::pem::Pem;

/// A file, and the certificates in it, or why it cannot be read.
#[derive(Debug, Clone)]
pub(crate) struct CertificateFile {
    pub(crate) path: PathBuf,
    pub(crate) found: Result<Vec<Certificate>, String>,
}

/// A certificate. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub(crate) subject: String,
    pub(crate) from_s: i64,
    pub(crate) until_s: i64,
}

impl CertificateFile {
    pub(crate) fn look(path: &Path) -> CertificateFile {
        let found = std::fs::read(path).map_err(|e| e.to_string()).and_then(|text| certificates(&text));
        CertificateFile { path: path.to_owned(), found }
    }
}

/// The certificates of a file in PEM; keys in it are skipped.
fn certificates(text: &[u8]) -> Result<Vec<Certificate>, String> {
    let mut found = Vec::new();
    for pem in Pem::iter_from_buffer(text) {
        let pem = pem.map_err(|e| format!("it is not PEM: {e}"))?;
        if pem.label != "CERTIFICATE" {
            continue;
        }
        let certificate = pem.parse_x509().map_err(|e| format!("certificate {} in it: {e}", found.len() + 1))?;
        let validity = certificate.validity();
        found.push(Certificate {
            subject: certificate.subject().to_string(),
            from_s: validity.not_before.timestamp(),
            until_s: validity.not_after.timestamp(),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by openssl, for a day.
    const PEM: &str = "\
-----BEGIN CERTIFICATE-----
MIIBnDCCAUGgAwIBAgIUXqAcbDhsRKj9EMznn8qcN0NW+DUwCgYIKoZIzj0EAwIw
IzEQMA4GA1UECgwHZXhhbXBsZTEPMA0GA1UEAwwGbm9kZS1hMB4XDTI2MTEyMTIw
MTQzNFoXDTI2MTEyMjIwMTQzNFowIzEQMA4GA1UECgwHZXhhbXBsZTEPMA0GA1UE
AwwGbm9kZS1hMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEpZiAp6xe+OBk0HX/
oXJDm1UAxuhQ1Lx76WPgcwOWjjkPryS81a9wQqArFvq6KicMBDb1u7o/rwgHXjcg
1zbMraNTMFEwHQYDVR0OBBYEFACrxcFB2r0rMSD3HinHLjl/iCreMB8GA1UdIwQY
MBaAFACrxcFB2r0rMSD3HinHLjl/iCreMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZI
zj0EAwIDSQAwRgIhAIt0YX07qUbcAY7nUTrgScuhQb1um0TxBe+iBDtyXUY2AiEA
/fBm4hONtXovIv/OCI36KCT72Z6Xfj0TwgtpWic/wT0=
-----END CERTIFICATE-----
";

    #[test]
    fn certificates_of_a_file_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cert.pem");
        let look = |text: &str| {
            std::fs::write(&path, text).unwrap();
            CertificateFile::look(&path).found
        };
        let one = Certificate {
            subject: "O=example, CN=node-a".into(),
            from_s: 1_795_292_074,
            until_s: 1_795_292_074 + 86_400,
        };
        assert_eq!(look(PEM), Ok(vec![one.clone()]));
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(look(&format!("{key}{PEM}# more\n{PEM}")), Ok(vec![one.clone(), one]));
        assert_eq!(look("nothing"), Ok(vec![]));
        assert!(look(&PEM[..200]).is_err() && look(&PEM.replace("MII", "AAA")).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(CertificateFile::look(&path).found.is_err());
    }
}
