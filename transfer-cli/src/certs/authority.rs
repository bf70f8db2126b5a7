//! The authority of a job: its key and its certificate.

use super::node::{Node, is_dns_name};
use super::{CertsError, failed, write_new};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
use rcgen::{ExtendedKeyUsagePurpose, PublicKeyData};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};
use x509_parser::pem::Pem;

/// The days for which a new authority is valid.
const AUTHORITY_DAYS: u32 = 3650;

/// The time before now at which certificates begin to be valid, because the clocks of other hosts may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Signs certificates of nodes.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Reads the authority from `ca.pem` and `ca.key` in a folder, or makes both if neither exists. Returns also
    /// whether it is new.
    pub(super) fn in_folder(folder: &Path) -> Result<(Authority, bool), CertsError> {
        let (pem, key) = (folder.join("ca.pem"), folder.join("ca.key"));
        // A dangling symbolic link counts as existing.
        let is_there = |path: &Path| path.symlink_metadata().is_ok();
        match (is_there(&pem), is_there(&key)) {
            (true, true) => Ok((Authority::read(&pem, &key)?, false)),
            (false, false) => Ok((Authority::make(&pem, &key)?, true)),
            (true, false) => Err(CertsError::HalfOfAuthority { there: pem, missing: key }),
            (false, true) => Err(CertsError::HalfOfAuthority { there: key, missing: pem }),
        }
    }

    fn make(pem_path: &Path, key_path: &Path) -> Result<Authority, CertsError> {
        let failed = |source| CertsError::Make { name: "the authority".to_owned(), source };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = valid_for(AUTHORITY_DAYS);
        // One file may contain the authorities of several jobs, so each has a different name.
        let digest = blake3::hash(key.public_key_raw()).to_hex();
        params.distinguished_name.push(DnType::CommonName, format!("transfer authority {}", &digest[..8]));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).map_err(failed)?.pem();
        write_new(key_path, &key.serialize_pem(), 0o600)?;
        write_new(pem_path, &pem, 0o644)?;
        Ok(Authority { issuer: Issuer::new(params, key) })
    }

    fn read(pem_path: &Path, key_path: &Path) -> Result<Authority, CertsError> {
        let read = |path: &Path| std::fs::read_to_string(path).map_err(failed("read", path));
        let (pem, key) = (read(pem_path)?, read(key_path)?);
        let cannot = |path: &Path, why: String| CertsError::Authority { path: path.to_owned(), why };
        let key = KeyPair::from_pem(&key).map_err(|e| cannot(key_path, format!("its key cannot be read: {e}")))?;
        let unreadable = |e: String| cannot(pem_path, format!("its certificate cannot be read: {e}"));
        let first = Pem::iter_from_buffer(pem.as_bytes()).next();
        let first = first.ok_or_else(|| unreadable("the file has none".to_owned()))?;
        let first = first.map_err(|e| unreadable(e.to_string()))?;
        let certificate = first.parse_x509().map_err(|e| unreadable(e.to_string()))?;
        if certificate.public_key().raw != key.subject_public_key_info() {
            return Err(cannot(pem_path, format!("{} is the key of another certificate", key_path.display())));
        }
        if !certificate.is_ca() {
            return Err(cannot(pem_path, "its certificate is not that of an authority".to_owned()));
        }
        let now_s = i64::try_from(since_epoch().as_secs()).unwrap_or(i64::MAX);
        if certificate.validity().not_after.timestamp() <= now_s {
            return Err(cannot(pem_path, format!("it has expired at {}", certificate.validity().not_after)));
        }
        let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(|e| unreadable(e.to_string()))?;
        Ok(Authority { issuer })
    }

    /// Makes a certificate for a node, and its key, both as PEM.
    ///
    /// Its names are the URI by which transferd knows the node, the node's name in DNS if it is valid there, and the
    /// node's hosts.
    pub(super) fn sign(&self, node: &Node, days: u32) -> Result<(String, String), CertsError> {
        let failed = |source| CertsError::Make { name: node.name.clone(), source };
        let in_dns = Some(&node.name).filter(|name| is_dns_name(name) && !node.hosts.contains(name));
        let hosts = in_dns.into_iter().chain(&node.hosts).cloned().collect::<Vec<_>>();
        let names = CertificateParams::new(hosts).map_err(failed)?.subject_alt_names;
        let uri = format!("transfer://node/{}", node.name).try_into().map_err(failed)?;
        let mut params = valid_for(days);
        params.subject_alt_names = std::iter::once(SanType::URI(uri)).chain(names).collect();
        params.distinguished_name.push(DnType::CommonName, &node.name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// The parameters of a certificate without names that is valid for `days`.
fn valid_for(days: u32) -> CertificateParams {
    let (epoch, now) = (rcgen::date_time_ymd(1970, 1, 1), since_epoch());
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + now + DAY * days;
    params
}

fn since_epoch() -> Duration {
    UNIX_EPOCH.elapsed().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::extensions::GeneralName;

    #[test]
    fn node_certificate_has_the_names_and_usages_that_transferd_requires() {
        let folder = tempfile::tempdir().unwrap();
        let (made, is_new) = Authority::in_folder(folder.path()).unwrap();
        assert!(is_new);
        let (read, is_new) = Authority::in_folder(folder.path()).unwrap();
        assert!(!is_new);
        let authority = std::fs::read(folder.path().join("ca.pem")).unwrap();
        let authority = Pem::iter_from_buffer(&authority).next().unwrap().unwrap();
        let authority = authority.parse_x509().unwrap();
        let node = "node_0=10.0.0.1,::1,host-1.example".parse().unwrap();
        // The authority that was read from its files signs like the one that was made.
        for (pem, _) in [made, read].map(|authority| authority.sign(&node, 2).unwrap()) {
            let pem = Pem::iter_from_buffer(pem.as_bytes()).next().unwrap().unwrap();
            let found = pem.parse_x509().unwrap();
            assert_eq!(found.issuer(), authority.subject());
            let names = found.subject_alternative_name().unwrap().unwrap().value.general_names.clone();
            let wanted = [
                GeneralName::URI("transfer://node/node_0"),
                GeneralName::IPAddress(&[10, 0, 0, 1]),
                GeneralName::IPAddress(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
                GeneralName::DNSName("host-1.example"),
            ];
            assert_eq!(names, wanted);
            let usages = found.extended_key_usage().unwrap().unwrap().value;
            assert!(usages.server_auth && usages.client_auth);
            assert!(!found.is_ca());
            let (validity, now_s) = (found.validity(), since_epoch().as_secs() as i64);
            let left_s = validity.not_after.timestamp() - now_s;
            assert!(
                validity.not_before.timestamp() < now_s && (2 * 86_400 - 600..=2 * 86_400).contains(&left_s),
                "{left_s}"
            );
        }
        // A name that is valid in DNS is one of the names, and occurs once.
        let (pem, _) = Authority::in_folder(folder.path()).unwrap().0.sign(&"n=n".parse().unwrap(), 1).unwrap();
        let pem = Pem::iter_from_buffer(pem.as_bytes()).next().unwrap().unwrap();
        let found = pem.parse_x509().unwrap();
        let names = found.subject_alternative_name().unwrap().unwrap().value.general_names.clone();
        assert_eq!(names, [GeneralName::URI("transfer://node/n"), GeneralName::DNSName("n")]);
    }
}
