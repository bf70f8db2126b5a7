//! The facts that the checks judge. They are gathered once, in advance, so each check is a function of facts, and has a
//! test in which it fails.

pub(crate) mod certificate;
pub(crate) mod host;
pub(crate) mod moved;
pub(crate) mod peer;
pub(crate) mod socket;

use super::Options;
use crate::devices::{self, NoRdma};
use crate::error::Error;
use crate::gpus::Gpus;
use certificate::CertificateFile;
use host::Host;
use moved::Moved;
use peer::{Peer, TimedStatus};
use socket::Socket;
use std::path::Path;
use std::time::UNIX_EPOCH;
use transfer_proto::v1::{Fabric, FabricState, Link, StatusResponse};
use transfer_verbs::report::DeviceReport;

/// The default socket for workers.
const DEFAULT_SOCKET: &str = "/run/transfer/worker.sock";

/// The gathered facts.
pub(super) struct Facts {
    /// The version of this program.
    pub(super) version: &'static str,
    /// The sidecar's status, or why it is missing.
    pub(super) sidecar: Result<StatusResponse, Error>,
    /// The first page of its links.
    pub(super) links: Vec<Link>,
    /// This host.
    pub(super) host: Host,
    /// The socket for workers.
    pub(super) socket: Socket,
    /// Its data port of the tcp fabric, and whether it can be reached from here.
    pub(super) data_port: Option<(String, Result<(), String>)>,
    /// The transfer between two workers of this node; `None` if none was requested.
    pub(super) moved: Option<Result<Moved, Error>>,
    /// The other node, if there is one to check.
    pub(super) peer: Option<Peer>,
    /// The files of certificates to check.
    pub(super) certificates: Vec<CertificateFile>,
    /// This host's clock: seconds since 1970.
    pub(super) now_s: i64,
    /// Whether the library of queue pairs works here, or why not.
    pub(super) verbs: Result<(), String>,
    /// Whether the library of the connection manager works here, or why not.
    pub(super) connection_manager: Result<(), String>,
    /// This host's devices, or why there are none.
    pub(super) devices: Result<Vec<DeviceReport>, NoRdma>,
    /// The port that would be chosen by default, or why none.
    pub(super) choice: Result<String, String>,
    /// This host's GPUs.
    pub(super) gpus: Gpus,
}

impl Facts {
    pub(super) async fn gather(options: &Options) -> Facts {
        let asked = TimedStatus::of(&options.target).await;
        let named = options.socket.is_some();
        let mut socket = Socket::look(options.socket.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET)), named);
        if let (true, Ok(status)) = (socket.is_open(), &asked.status)
            && let Some(node) = moved::another(&socket.path, status).await
        {
            socket.state = socket::State::Another { node };
        }
        let moved = match socket.is_open() && options.bytes > 0 {
            true => Some(moved::between(&socket.path, &socket.path, options.bytes).await),
            false => None,
        };
        let peer = match &options.with {
            None => None,
            Some(address) => {
                // The second sidecar is reached with the same options, at another address.
                let mut target = options.target.clone();
                target.admin = address.clone();
                let sockets = (Some(&socket).filter(|socket| socket.is_open()), options.with_socket.as_deref());
                let mut peer = Peer::look(&target, &asked, sockets, options.bytes).await;
                // The link may be newer than the status.
                peer.why_not_better = match &peer.status {
                    Ok(theirs) => options
                        .target
                        .links()
                        .await
                        .ok()
                        .and_then(|links| Some(links.into_iter().find(|link| link.peer == theirs.node)?.why)),
                    Err(_) => None,
                };
                Some(peer)
            }
        };
        let data_port = asked.status.as_ref().ok().and_then(peer::data_address).map(|address| {
            let reached = peer::reach(&address);
            (address, reached)
        });
        let links = if asked.status.is_ok() { options.target.links().await.unwrap_or_default() } else { Vec::new() };
        Facts {
            version: env!("CARGO_PKG_VERSION"),
            sidecar: asked.status,
            links,
            host: Host::look(),
            socket,
            data_port,
            moved,
            peer,
            certificates: options
                .certificate
                .iter()
                .chain(&options.target.tls.tls_cert)
                .chain(&options.target.tls.tls_ca)
                .map(|path| CertificateFile::look(path))
                .collect(),
            now_s: UNIX_EPOCH.elapsed().map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX)),
            verbs: transfer_verbs::available().map_err(|e| e.to_string()),
            connection_manager: transfer_verbs::cm::available().map_err(|e| e.to_string()),
            devices: devices::devices(),
            choice: devices::choice(),
            gpus: Gpus::look(),
        }
    }

    /// The state of a fabric, as the sidecar reports it.
    pub(super) fn fabric(&self, fabric: Fabric) -> Option<&FabricState> {
        self.sidecar.as_ref().ok()?.fabric_states.iter().find(|state| state.fabric() == fabric)
    }
}
