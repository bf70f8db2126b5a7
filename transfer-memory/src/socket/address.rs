//! Paths as socket addresses.

use super::AddressError;
use rustix::net::SocketAddrUnix;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The most bytes that `sun_path` holds besides its final NUL, on Linux.
pub const MAX_PATH_BYTES: usize = 107;

pub(super) fn address(path: &Path) -> Result<SocketAddrUnix, AddressError> {
    let len = path.as_os_str().as_bytes().len();
    if len > MAX_PATH_BYTES {
        return Err(AddressError::TooLong { path: path.to_owned(), len, max: MAX_PATH_BYTES });
    }
    SocketAddrUnix::new(path).map_err(|source| AddressError::System { step: "name", path: path.to_owned(), source })
}
