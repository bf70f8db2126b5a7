//! Two nodes of a cluster, played by two sidecars on this machine.

use crate::error::Error;
use crate::stage::Stage;
use std::path::Path;
use transfer_client::FabricKind;

/// A node: who is on it connects to its sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// The node's name.
    pub name: &'static str,
    /// Where its sidecar listens for workers, within the stage's directory. On a real node: /run/transfer/worker.sock.
    pub socket: &'static str,
}

/// The first node. It also hosts the directory: which key and which worker is where.
pub const A: Node = Node { name: "A", socket: "a.sock" };
/// The second node.
pub const B: Node = Node { name: "B", socket: "b.sock" };

/// What every sidecar is told. One machine would not need the network; `--require` makes it the only way, for it is to be shown.
const COMMON: &str = "--listen 127.0.0.1:0 --socket-mode 600 --require";

/// Starts both sidecars, from the program `transferd`; between them `fabric` has to carry.
///
/// # Errors
/// [`Error::NoTransferd`], and those of [`Stage::start_daemon`].
pub async fn start(stage: &mut Stage, transferd: &Path, fabric: FabricKind) -> Result<(), Error> {
    let path = std::path::absolute(transferd).map_err(Error::io("find transferd"))?;
    if !path.is_file() {
        return Err(Error::NoTransferd { path });
    }
    let ready = start_sidecar(stage, &path, A, "embedded", fabric).await?;
    // B learns from the directory where A is, and A where B is.
    let directory = ready.split(' ').find_map(|word| word.strip_prefix("grpc="));
    let directory = directory.ok_or(Error::Unexpected { what: "sidecar without an address" })?;
    start_sidecar(stage, &path, B, &format!("http://{directory}"), fabric).await?;
    Ok(())
}

/// Starts a node's sidecar and returns what it says when it is ready.
async fn start_sidecar(
    stage: &mut Stage,
    transferd: &Path,
    node: Node,
    directory: &str,
    fabric: FabricKind,
) -> Result<String, Error> {
    let Node { name, socket } = node;
    let line = format!("--node {name} --socket {socket} --directory {directory} {COMMON} {fabric}");
    stage.start_daemon(&format!("transferd-{name}"), transferd, &line, "transferd ready").await
}
