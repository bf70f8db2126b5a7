//! Random bytes from the operating system, for values that strangers must not guess.

use rustix::rand::{GetRandomFlags, getrandom};
use transfer_core::fabric::FabricError;

/// Returns an array of random bytes. The kernel gives up to 256 bytes in one call.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], FabricError> {
    const { assert!(N <= 256, "more than the kernel gives at once") };
    let failed = |why| FabricError::Device { what: "getrandom", why };
    let mut bytes = [0; N];
    match getrandom(&mut bytes[..], GetRandomFlags::empty()) {
        Ok(n) if n == N => Ok(bytes),
        Ok(n) => Err(failed(format!("it gave {n} of {N} bytes"))),
        Err(error) => Err(failed(error.to_string())),
    }
}
