//! What was pushed, so that whatever is fetched can be checked.
//!
//! The bytes of a tensor follow from its key and version, and no version is used twice: nothing has to be known about when a fetch was made
//! and what it might have found.

use crate::order::Fetched;
use crate::{Carrier, Spec};
use std::collections::HashMap;

/// The largest tensors of each key of a worker, in bytes: many small ones, and few that are more than a message of a device may carry.
pub(super) const LARGEST: [u64; 5] = [100, 5_000, 64 << 10, 1 << 20, 9 << 20];

/// All pushes that were begun.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// The newest version of each key.
    versions: HashMap<String, u64>,
    /// The length of each version in bytes.
    lens: HashMap<(String, u64), u64>,
}

/// The bytes of a version.
fn spec(key: &str, version: u64, len: u64) -> Spec {
    let seed = key.bytes().fold(version, |seed, byte| seed.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
    Spec::bytes(len, seed)
}

impl Book {
    /// The next version of a key, to be pushed with this length.
    pub(super) fn next(&mut self, key: &str, len: u64) -> (u64, Spec) {
        let version = self.versions.entry(key.to_owned()).or_default();
        *version += 1;
        self.lens.insert((key.to_owned(), *version), len);
        (*version, spec(key, *version, len))
    }

    /// Holds what was fetched against what was pushed. What has come from another node was carried by nothing else than it should be.
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
