//! The sockets of a sidecar, bound before anything else runs.

use super::folder::make_directory;
use super::{StartError, fabrics};
use crate::config::Config;
use crate::security::Security;
use crate::unix::{self, SocketPath};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use transfer_memory::socket::Listener;

/// The suffix of the socket for other sidecars.
const SIBLINGS_SUFFIX: &str = ".peers";

/// All sockets at which a sidecar listens, except those of fabrics.
pub(super) struct Sockets {
    pub(super) workers: Listener,
    /// The gRPC services, with the address that was bound.
    pub(super) grpc: Option<(TcpListener, SocketAddr)>,
    pub(super) admin: Option<(UnixListener, SocketPath)>,
    /// The socket at which other sidecars of this host prove their user.
    pub(super) siblings: Option<(UnixListener, SocketPath)>,
    /// The metrics and the status page, with the address that was bound.
    pub(super) http: Option<(TcpListener, SocketAddr)>,
}

impl Sockets {
    pub(super) fn bind(config: &Config, security: &Security) -> Result<Sockets, StartError> {
        make_directory_of(&config.socket)?;
        Ok(Sockets {
            workers: Listener::bind(&config.socket, config.socket_mode)?,
            grpc: config.listen.map(|address| listen("--listen", address)).transpose()?,
            admin: config.admin_socket.as_deref().map(|path| admin(config, path)).transpose()?,
            siblings: siblings(config, security),
            http: config.watch.http_listen.map(|address| listen("--http-listen", address)).transpose()?,
        })
    }

    /// The path of the socket for other sidecars of this host; empty: there is none.
    pub(super) fn local(&self) -> Arc<str> {
        self.siblings.as_ref().map(|(_, path)| path.absolute()).unwrap_or_default()
    }

    /// The address of the gRPC services.
    pub(super) fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().map(|(_, bound)| *bound)
    }

    /// The address of the metrics and the status page.
    pub(super) fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|(_, bound)| *bound)
    }
}

fn admin(config: &Config, path: &Path) -> Result<(UnixListener, SocketPath), StartError> {
    make_directory_of(path)?;
    unix::listen(path, config.socket_mode).map_err(|source| StartError::Listen {
        flag: "--admin-socket",
        address: path.display().to_string(),
        source,
    })
}

/// Makes the socket at which other sidecars of this host prove their user. Without it they may speak for no tenant, so
/// a failure is logged, and the start continues.
fn siblings(config: &Config, security: &Security) -> Option<(UnixListener, SocketPath)> {
    if config.listen.is_none() || !security.proves_by_socket() {
        return None;
    }
    let name = fabrics::socket_name(config.node.as_str(), SIBLINGS_SUFFIX);
    let directory = config.socket.parent().filter(|parent| !parent.as_os_str().is_empty());
    let path = directory.unwrap_or(Path::new(".")).join(name);
    // Any process may connect, because the connection proves only the caller's user.
    match unix::listen(&path, 0o666) {
        Ok(made) => Some(made),
        Err(error) => {
            tracing::warn!(
                path = %path.display(), %error,
                "other sidecars of this host cannot prove here whose they are, so nothing goes between their workers and those of this one"
            );
            None
        }
    }
}

fn make_directory_of(path: &Path) -> Result<(), StartError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => make_directory(parent),
        _ => Ok(()),
    }
}

fn listen(flag: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { flag, address: address.to_string(), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}
