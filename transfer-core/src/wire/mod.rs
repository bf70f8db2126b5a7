//! Byte layouts: every layout that leaves a process, and the checks of incoming bytes.
//!
//! All integers are little-endian. The functions here trust no byte: malformed input is a [`WireError`], which ends the
//! link or the session that it came from, and nothing else. docs/protocol.md shows the layouts.
//!
//! - [`message`]: control messages between sidecars.
//! - [`landing`]: the header in front of every landed tensor, and the landing slots' immediate data.
//! - [`session`]: the records in a worker's submission and completion rings.
//! - [`ranges`]: the table of a body that consists of several ranges of an arena.
//! - [`bundle`]: the table of many tensors that are published as one version. [`bundle_check`]: its check, in steps.
//! - [`digests`]: the digests of a version, at the end of its metadata.
//! - `roster`: questions to rosters of sharded states.
//! - `deltas`: the deltas of a push, in its record, and the base of a fetch. `select`: which version is asked for.
//! - `excerpt`: a part of a version, in requests. `gathered`: ranges of several versions, in one request.

pub mod bundle;
pub mod bundle_check;
mod codec;
mod deltas;
pub mod digests;
mod excerpt;
mod gathered;
pub mod landing;
pub mod message;
pub mod ranges;
pub(crate) mod roster;
mod select;
pub mod session;

pub use codec::{Reader, WireError, Writer};

/// Computes the CRC32C (Castagnoli, RFC 3720 appendix B.4) of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The library returns the 32-bit checksum widened to 64 bits.
    #[allow(clippy::cast_possible_truncation)]
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    sum
}

#[cfg(test)]
mod tests {
    #[test]
    fn crc32c_gives_the_check_value() {
        // The check value of CRC-32/ISCSI: the sum of "123456789".
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
    }
}
