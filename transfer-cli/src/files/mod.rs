//! Files in and out: `push`, `fetch` and `copy`, as a worker of the sidecar.
//!
//! # Layout
//! - [`push_options`], [`fetch_options`]: the options of the two commands. [`push`], [`fetch`]: their steps.
//! - `plan`: the tensors of a push; `walk`, `beneath`: the files below a directory; `pushing`: publishing them.
//! - [`copy_options`], [`copy`]: a file for the folder of another sidecar; `compare`: its times beside
//!   those of other programs.
//! - `pieces`: tensors that are larger than an arena; `arenas`: their distribution over several.
//! - `keys`: the tensors of a fetch; `names`: the names of their files; `fetching`: fetching and writing them; [`slicing`]:
//!   the same for slices.
//! - `input`, `target`: a file to read, and a file to write.
//! - `safetensors`: the headers of such files; `digest`: digests of contents.
//! - `story`: the progress and the report; [`error`]: the errors.

mod arenas;
mod beneath;
mod compare;
pub mod copy;
pub mod copy_options;
mod digest;
pub mod error;
pub mod fetch;
pub mod fetch_options;
mod fetching;
mod input;
mod keys;
mod names;
mod pieces;
mod plan;
pub mod push;
pub mod push_options;
mod pushing;
pub mod safetensors;
pub mod slicing;
pub mod story;
mod target;
mod walk;

use crate::error::Error;
use error::FilesError;
use std::io;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};
use transfer_client::Client;

/// The sidecar, and this worker's name.
#[derive(Debug, Clone, clap::Args)]
pub struct Worker {
    /// The socket of the sidecar's workers: --socket of transferd
    #[arg(
        long,
        help_heading = "Connection",
        env = "TRANSFER_SOCKET",
        value_name = "PATH",
        default_value = "/run/transfer/worker.sock"
    )]
    pub socket: PathBuf,
    /// The worker's name. Default: transferctl- and the process id
    #[arg(long, help_heading = "Connection", value_name = "NAME")]
    pub name: Option<String>,
}

impl Worker {
    pub(crate) async fn connect(&self, arena_bytes: u64) -> Result<Client, Error> {
        self.connect_as("", arena_bytes).await
    }

    /// Connects with this suffix of the name.
    async fn connect_as(&self, end: &str, arena_bytes: u64) -> Result<Client, Error> {
        let name = self.name.clone().unwrap_or_else(|| format!("transferctl-{}", std::process::id())) + end;
        let client = Client::connect(&self.socket).name(name).arena_bytes(arena_bytes).await;
        client.map_err(|source| Error::Connect { socket: self.socket.clone(), source })
    }
}

/// Completes at SIGINT, SIGTERM or SIGHUP, from the call on.
fn interruption() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// Runs blocking work, such as reading or writing a file, on another thread, while the runtime's thread serves the
/// sidecar.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FilesError> + Send + 'static,
) -> Result<T, FilesError> {
    let done = tokio::task::spawn_blocking(work).await;
    // This ends early only when the runtime does.
    done.unwrap_or(Err(FilesError::Interrupted))
}
