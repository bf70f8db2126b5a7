//! A Unix stream socket at a path, for gRPC.

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use transfer_memory::socket::lock_directory_of;

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket's path. On drop it is removed, if the socket there is still the one that was made.
#[derive(Debug)]
pub(crate) struct SocketPath {
    path: PathBuf,
    identity: (u64, u64, i64, i64),
}

/// Returns the identity of a file, which distinguishes it from a later file at the same path. An inode number alone may
/// be reused.
fn identity(path: &Path) -> io::Result<(u64, u64, i64, i64)> {
    let m = std::fs::symlink_metadata(path)?;
    Ok((m.dev(), m.ino(), m.ctime(), m.ctime_nsec()))
}

impl SocketPath {
    /// Returns the absolute path.
    pub(crate) fn absolute(&self) -> Arc<str> {
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        path.to_string_lossy().into()
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // Without the lock, only the check of the file protects a successor's socket.
        let _alone = lock_directory_of(&self.path);
        let ours = identity(&self.path).is_ok_and(|found| found == self.identity);
        if ours && let Err(e) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), "cannot remove the socket: {e}");
        }
    }
}

/// Returns whether there is a socket at `path`, with or without a listener. A missing file is no error; any other kind
/// of file is.
pub(crate) fn check(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        // A missing directory is made at the start.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
        Ok(m) if m.file_type().is_socket() => Ok(true),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is no socket; it is left alone")),
    }
}

/// Returns whether a process listens at the socket at `path`.
pub(crate) fn is_taken(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

/// Listens at `path`. Replaces a socket file that a dead process has left; any other file stays.
pub(crate) fn listen(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketPath)> {
    // Another process could begin to listen between the check of the file and its removal.
    let _alone = lock_directory_of(path).map_err(io::Error::other)?;
    if check(path)? {
        match UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
            _ => return Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody listens there already")),
        }
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // The mode is set before the socket listens, so that no process connects under the permissions of the umask.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    net::listen(&socket, BACKLOG)?;
    let listener = UnixListener::from(socket);
    // The identity is read last, because setting permissions changes it too.
    let guard = SocketPath { path: path.to_owned(), identity: identity(path)? };
    Ok((listener, guard))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let (listener, guard) = listen(&path, 0o600).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // This is the state after a crash: the file stays, and no process listens.
        drop(listener);
        let (_listener, second) = listen(&path, 0o600).unwrap();
        // The guard of the first socket does not remove the file of the second.
        drop(guard);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "data").unwrap();
        assert_eq!(listen(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(path.exists());
    }
}
