//! Reads the certificates again when their files have changed.

use super::{Files, Present, Security};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The interval of checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The identity of a file's state: device, inode, seconds and nanoseconds of its last change, length.
type Stamp = (u64, u64, i64, i64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let m = std::fs::metadata(path).ok()?;
    Some((m.dev(), m.ino(), m.ctime(), m.ctime_nsec(), m.len()))
}

/// The state of the three files; `None` for one that cannot be examined.
type Stamps = [Option<Stamp>; 3];

fn stamps(files: &Files) -> Stamps {
    [&files.cert, &files.key, &files.ca].map(|path| stamp(path))
}

/// The state of the files before they were read. A change while they are read, or later, makes the state differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    files: Files,
    stamps: Stamps,
}

impl Seen {
    pub(super) fn of(files: &Files) -> Seen {
        Seen { files: files.clone(), stamps: stamps(files) }
    }
}

/// Watches the files as long as the sidecar runs. New connections use new certificates; existing connections continue.
/// If the files are unusable, such as a certificate that was replaced a moment before its key, the previous ones stay
/// in use until the files change again.
pub(crate) async fn watch(security: Security) {
    let mut refused = None;
    while security.has_tls() {
        tokio::time::sleep(CHECK_INTERVAL).await;
        look(&security, &mut refused);
    }
}

/// Reads the files again if they differ from the files in use, and from the files that were found unusable.
fn look(security: &Security, refused: &mut Option<Seen>) {
    let Some(tls) = &security.0.tls else { return };
    let files = tls.load().files.clone();
    let now = Seen::of(&files);
    if tls.load().seen == now || refused.as_ref() == Some(&now) {
        return;
    }
    match Present::read(files, &security.0.node) {
        Ok(present) => {
            *refused = None;
            tls.store(Arc::new(present));
            tracing::info!("the certificates were read again: new connections use them");
        }
        Err(why) => {
            *refused = Some(now);
            tracing::error!(%why, "the new certificates cannot be used; those before stay in use");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Policy, Prepared};
    use super::*;
    use crate::config::SecurityConfig;
    use transfer_core::tensor::Name;

    /// Writes new contents to the three files.
    fn write(files: &Files, node: &str) {
        let authority = rcgen::KeyPair::generate().expect("a key");
        let mut about = rcgen::CertificateParams::new(Vec::new()).expect("no names are right");
        about.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = about.self_signed(&authority).expect("signed");
        let issuer = rcgen::Issuer::new(about, authority);
        let key = rcgen::KeyPair::generate().expect("a key");
        let about = rcgen::CertificateParams::new(vec![node.to_owned()]).expect("a name is right");
        let cert = about.signed_by(&key, &issuer).expect("signed");
        for (path, text) in [(&files.ca, ca.pem()), (&files.key, key.serialize_pem()), (&files.cert, cert.pem())] {
            std::fs::write(path, text).expect("written");
        }
    }

    #[test]
    fn change_before_the_first_look_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let files = Files { cert: at("cert"), key: at("key"), ca: at("ca") };
        write(&files, "a");
        let node = Name::new("a").expect("a name");
        let present = Present::read(files.clone(), &node).expect("right");
        let policy = Policy::of(&SecurityConfig::default());
        let security = Security::new(
            node,
            Prepared { tls: Some(Arc::new(present)), policy, tenancy: crate::config::Tenancy::default() },
        );
        let used = || security.present().expect("there is TLS");
        let (first, mut refused) = (used(), None);
        look(&security, &mut refused);
        assert!(Arc::ptr_eq(&first, &used()), "they are the same");
        // The files change after they were read, and before the next look.
        write(&files, "a");
        let second = {
            look(&security, &mut refused);
            used()
        };
        assert!(!Arc::ptr_eq(&first, &second), "they are others");
        // Unusable files are read once.
        write(&files, "another-node");
        look(&security, &mut refused);
        assert!(refused.is_some() && Arc::ptr_eq(&second, &used()));
        // Valid files are used again, although unusable ones were seen in between.
        write(&files, "a");
        look(&security, &mut refused);
        assert!(refused.is_none() && !Arc::ptr_eq(&second, &used()));
    }
}
