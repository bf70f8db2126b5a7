//! Connections to other sidecars.

use super::verify::Accept;
use super::{Caller, Security, accept};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};
use transfer_core::tensor::Name;

/// The expected peer.
#[derive(Debug, Clone)]
pub(crate) enum Expected {
    /// The node of this name, by the names of its certificate, wherever it is.
    Node(Name),
    /// The host of the URL, by the names and addresses of its certificate.
    Host,
}

/// Connects to the sidecar that listens at `path`. Returns that sidecar's user, too. `None`: it cannot be reached
/// there.
async fn over_socket(endpoint: Endpoint, path: &str) -> Option<(Channel, Caller)> {
    let (path, found) = (PathBuf::from(path), Arc::new(OnceLock::new()));
    let first = found.clone();
    let connector = tower::service_fn(move |_: Uri| {
        let (path, first) = (path.clone(), first.clone());
        async move {
            let socket = UnixStream::connect(&path).await?;
            let cred = socket.peer_cred()?;
            // A reconnection must reach the same user.
            match *first.get_or_init(|| (cred.uid(), cred.gid())) == (cred.uid(), cred.gid()) {
                true => Ok(TokioIo::new(socket)),
                false => Err(io::Error::other("another user listens at that socket now")),
            }
        }
    });
    let channel = endpoint.connect_with_connector(connector).await.ok()?;
    let (uid, gid) = *found.get()?;
    Some((channel, Caller::Sidecar { uid, gid }))
}

impl Security {
    /// Connects to another sidecar. Returns the other side as far as the connection identifies it. Without certificates
    /// it uses a Unix socket of this host if the other sidecar has named a reachable one, else its address.
    pub(crate) async fn reach(
        &self,
        endpoint: Endpoint,
        local: &str,
        expected: Expected,
    ) -> Result<(Channel, Caller), tonic::transport::Error> {
        if self.proves_by_socket()
            && !local.is_empty()
            && let Some(reached) = over_socket(endpoint.clone(), local).await
        {
            return Ok(reached);
        }
        let met = match self.has_tls() {
            true => Caller::Certificate(Arc::from([])),
            false => Caller::Plain { loopback: true },
        };
        Ok((self.connect(endpoint, expected).await?, met))
    }

    /// Connects to a gRPC service: over TLS if this node has certificates, without TLS otherwise. The scheme of the URL
    /// was checked before.
    pub(crate) async fn connect(
        &self,
        endpoint: Endpoint,
        expected: Expected,
    ) -> Result<Channel, tonic::transport::Error> {
        if !self.has_tls() {
            return endpoint.connect().await;
        }
        let security = self.clone();
        let connector = tower::service_fn(move |uri: Uri| {
            let (security, expected) = (security.clone(), expected.clone());
            async move { security.dial(&uri, expected).await }
        });
        endpoint.connect_with_connector(connector).await
    }

    async fn dial(
        &self,
        uri: &Uri,
        expected: Expected,
    ) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
        let host = uri.host().unwrap_or_default();
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?} is no name of a host"));
        let accept = match expected {
            Expected::Node(node) => Accept::Node(node.as_str().to_owned()),
            Expected::Host => Accept::Host(ServerName::try_from(bare.to_owned()).map_err(invalid)?),
        };
        let gone = || io::Error::other("this sidecar has no certificates");
        let config = self.present().ok_or_else(gone)?.material.client_for(accept);
        let socket = TcpStream::connect((bare, uri.port_u16().unwrap_or(443))).await?;
        socket.set_nodelay(true)?;
        // The name is not sent, and the verifier knows the expected name.
        let unused = ServerName::try_from("transferd").map_err(invalid)?;
        let stream = TlsConnector::from(config).connect(unused, socket).await;
        stream.map(TokioIo::new).map_err(|e| io::Error::new(e.kind(), accept::why(&e)))
    }
}
