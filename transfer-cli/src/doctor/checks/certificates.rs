//! The validity of certificates. Only a handshake shows whether they are trusted.

use super::{fail, ok, warn};
use crate::doctor::Finding;
use crate::doctor::facts::Facts;
use crate::doctor::facts::certificate::Certificate;
use std::path::Path;
use std::time::Duration;
use transfer_terminal::units::age;

const CHECK: &str = "certificate";

/// The time before its expiry at which a certificate should be renewed.
const SOON_S: i64 = 14 * 86_400;

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let one = |file: &crate::doctor::facts::certificate::CertificateFile| match &file.found {
        Err(why) => {
            let text = format!("{} cannot be read: {why}", file.path.display());
            fail(CHECK, text, "Give a file of certificates in PEM that you may read")
        }
        Ok(none) if none.is_empty() => {
            let text = format!("there is no certificate in {}", file.path.display());
            fail(CHECK, text, "Give a file of certificates in PEM: -----BEGIN CERTIFICATE-----")
        }
        Ok(certificates) => certificates.iter().flat_map(|one| judge(&file.path, one, facts.now_s)).collect(),
    };
    facts.certificates.iter().flat_map(one).collect()
}

fn judge(path: &Path, certificate: &Certificate, now_s: i64) -> Vec<Finding> {
    let Certificate { subject, from_s, until_s } = certificate;
    let name = format!("{} of {subject:?}", path.display());
    let time = |seconds: i64| age(Duration::from_secs(seconds.unsigned_abs()));
    match until_s.saturating_sub(now_s) {
        _ if now_s < *from_s => {
            let text = format!("{name} is not valid yet, for {}", time(from_s.saturating_sub(now_s)));
            fail(CHECK, text, "Look at this host's clock, and at the one where it was made")
        }
        left if left < 0 => {
            let text = format!("{name} has expired {} ago", time(left));
            fail(CHECK, text, "Put a new one in its place: nobody accepts this one")
        }
        left if left < SOON_S => {
            let text = format!("{name} expires in {}", time(left));
            warn(CHECK, text, "Put a new one in its place before")
        }
        left => ok(CHECK, format!("{name} is good for {}", time(left))),
    }
}
