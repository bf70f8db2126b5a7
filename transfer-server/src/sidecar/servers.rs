//! The listeners for gRPC.

use super::StartError;
use crate::grpc;
use crate::security::Security;
use crate::text;
use crate::unix::SocketPath;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;

/// The servers of the gRPC services, at all sockets.
pub(super) struct Servers {
    running: JoinSet<Result<(), tonic::transport::Error>>,
    /// The paths of the Unix sockets, which are removed with them.
    paths: Vec<SocketPath>,
}

/// The sockets for gRPC.
pub(super) struct GrpcSockets {
    pub(super) tcp: Option<TcpListener>,
    pub(super) siblings: Option<(UnixListener, SocketPath)>,
    pub(super) admin: Option<(UnixListener, SocketPath)>,
}

impl Servers {
    /// Serves at all these sockets, until `stopping` becomes true.
    pub(super) fn start(
        sockets: GrpcSockets,
        routes: Routes,
        security: &Security,
        stopping: watch::Receiver<bool>,
    ) -> Result<Servers, StartError> {
        let GrpcSockets { tcp, siblings, admin } = sockets;
        let (mut running, mut paths) = (JoinSet::new(), Vec::new());
        let system = |source| StartError::System { what: "handing a socket to the runtime", source };
        if let Some(listener) = tcp {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(system)?;
            running.spawn(grpc::over_tcp(routes.clone(), listener, security.clone(), stopping.clone()));
        }
        if let Some((listener, path)) = siblings {
            let listener = tokio::net::UnixListener::from_std(listener).map_err(system)?;
            running.spawn(grpc::of_this_host(routes.clone(), listener, security.clone(), stopping.clone()));
            paths.push(path);
        }
        if let Some((listener, path)) = admin {
            let listener = tokio::net::UnixListener::from_std(listener).map_err(system)?;
            running.spawn(grpc::over_unix(routes, listener, security.clone(), stopping));
            paths.push(path);
        }
        Ok(Servers { running, paths })
    }

    /// Removes the Unix sockets. What is connected stays so.
    pub(super) fn remove_sockets(&mut self) {
        self.paths.clear();
    }

    /// Waits until all of them have ended.
    pub(super) async fn ended(&mut self) {
        while let Some(ended) = self.running.join_next().await {
            if let Ok(Err(e)) = ended {
                tracing::error!("a gRPC listener has failed: {}", text::chain(&e));
            }
        }
    }
}
