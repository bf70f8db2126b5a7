//! Files in and out: `push` and `fetch`, as a worker of the sidecar.

pub mod fetch;
pub mod push;

use crate::error::Error;
use std::path::PathBuf;
use transfer_client::Client;

/// Which sidecar, and as whom.
#[derive(Debug, Clone, clap::Args)]
pub struct Worker {
    /// Where the sidecar's workers connect: --socket of transferd
    #[arg(long, env = "TRANSFER_SOCKET", value_name = "PATH", default_value = "/run/transfer/worker.sock")]
    pub socket: PathBuf,
    /// The worker's name. Default: transferctl- and the process id
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

impl Worker {
    async fn connect(&self, arena_bytes: u64) -> Result<Client, Error> {
        let name = self.name.clone().unwrap_or_else(|| format!("transferctl-{}", std::process::id()));
        let client = Client::connect(&self.socket).name(name).arena_bytes(arena_bytes).await;
        client.map_err(|source| Error::Connect { socket: self.socket.clone(), source })
    }
}
