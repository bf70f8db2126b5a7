//! A record of all pushes, against which each fetched tensor is checked.
//!
//! The bytes of a tensor follow from its key and version, and no version is used twice. So the check does not depend
//! on when a fetch was made and which version it could find.

use crate::order::Fetched;
use crate::{Carrier, Spec};
use std::collections::HashMap;

/// The largest tensor of each key of a worker, in bytes: many small ones, and few that are larger than a message of a
/// device may be.
pub(super) const LARGEST: [u64; 5] = [100, 5_000, 64 << 10, 1 << 20, 9 << 20];

/// All pushes that were begun.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// The newest version of each key.
    versions: HashMap<String, u64>,
    /// The length of each version in bytes.
    lens: HashMap<(String, u64), u64>,
}

/// Returns the tensor of a version, whose bytes follow from key and version.
fn spec(key: &str, version: u64, len: u64) -> Spec {
    let seed = key.bytes().fold(version, |seed, byte| seed.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
    Spec::bytes(len, seed)
}

impl Book {
    /// Returns the next version of a key, and its tensor of this length.
    pub(super) fn next(&mut self, key: &str, len: u64) -> (u64, Spec) {
        let version = self.versions.entry(key.to_owned()).or_default();
        *version += 1;
        self.lens.insert((key.to_owned(), *version), len);
        (*version, spec(key, *version, len))
    }

    /// Checks a fetched tensor against its push. A tensor that came from another node must have been carried by
    /// `carrier`.
    pub(super) fn check(&self, carrier: Carrier, key: &str, fetched: &Fetched) {
        let version = fetched.version;
        let len = self.lens.get(&(key.to_owned(), version));
        let len = len.unwrap_or_else(|| panic!("nobody has pushed version {version} of {key}"));
        assert_eq!(fetched.len, *len, "{key} version {version} has another length: {}", fetched.report.text);
        let right = spec(key, version, *len).sum();
        assert_eq!(fetched.sum, right, "{key} version {version} has WRONG BYTES: {}", fetched.report.text);
        if fetched.report.fabric != "local" {
            carrier.carried(&fetched.report);
        }
    }
}
