//! Two nodes of a cluster, played by two sidecars on this machine.

use crate::error::Error;
use crate::stage::Stage;
use std::path::Path;
use transfer_client::FabricKind;

/// A node. A process is on the node of the sidecar to which it connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// The node's name.
    pub name: &'static str,
    /// The path of its sidecar's socket for workers, in the stage's directory. On a real node:
    /// /run/transfer/worker.sock.
    pub socket: &'static str,
}

/// The first node. It also hosts the directory, which knows the place of each key and worker.
pub const A: Node = Node { name: "A", socket: "a.sock" };
/// The second node.
pub const B: Node = Node { name: "B", socket: "b.sock" };

/// The flags of every sidecar. On one machine, tensors would not need the network; `--require` forces them through it,
/// as between two machines.
const COMMON: &str = "--listen 127.0.0.1:0 --socket-mode 600 --require";

/// Starts both sidecars, from the program `transferd`. `fabric` must carry the tensors between them.
///
/// # Errors
/// [`Error::NoTransferd`], and those of [`Stage::start_daemon`].
pub async fn start(stage: &mut Stage, transferd: &Path, fabric: FabricKind) -> Result<(), Error> {
    let path = std::path::absolute(transferd).map_err(Error::io("find transferd"))?;
    if !path.is_file() {
        return Err(Error::NoTransferd { path });
    }
    let ready = start_sidecar(stage, &path, A, "embedded", fabric).await?;
    // A and B find each other through the directory.
    let directory = ready.split(' ').find_map(|word| word.strip_prefix("grpc="));
    let directory = directory.ok_or(Error::Unexpected { what: "sidecar without an address" })?;
    start_sidecar(stage, &path, B, &format!("http://{directory}"), fabric).await?;
    Ok(())
}

/// Starts a node's sidecar, and returns the line that it writes when it is ready.
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
