//! Files in and out: `push` and `fetch`, as a worker of the sidecar.
//!
//! # Layout
//! - [`push_options`], [`fetch_options`]: what the two commands may be told. [`push`], [`fetch`]: what they do in which order.
//! - `plan`: which tensors a push publishes; `walk`, `beneath`: the files below a directory; `pushing`: publishing them.
//! - `pieces`: what is larger than an arena; `arenas`: how it is spread over several.
//! - `keys`: which tensors a fetch fetches; `names`: what their files are called; `fetching`: fetching and writing them.
//! - `input`, `target`: a file that is read, and one that is written.
//! - `safetensors`: the headers of such files; `digest`: what contents are held against.
//! - `story`: what is told meanwhile and at the end; [`error`]: what can go wrong.

mod arenas;
mod beneath;
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
pub mod story;
mod target;
mod walk;

use crate::error::Error;
use error::FilesError;
use std::io;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};
use transfer_client::Client;

/// Which sidecar, and as whom.
#[derive(Debug, Clone, clap::Args)]
pub struct Worker {
    /// Where the sidecar's workers connect: --socket of transferd
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

    /// The same with a name that ends so.
    async fn connect_as(&self, end: &str, arena_bytes: u64) -> Result<Client, Error> {
        let name = self.name.clone().unwrap_or_else(|| format!("transferctl-{}", std::process::id())) + end;
        let client = Client::connect(&self.socket).name(name).arena_bytes(arena_bytes).await;
        client.map_err(|source| Error::Connect { socket: self.socket.clone(), source })
    }
}

/// Ends with SIGINT, SIGTERM or SIGHUP, from the call on.
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

/// Does what blocks, reading or writing a file, beside the runtime's thread, which tends to the sidecar meanwhile.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FilesError> + Send + 'static,
) -> Result<T, FilesError> {
    let done = tokio::task::spawn_blocking(work).await;
    // Ends early only when the runtime does.
    done.unwrap_or(Err(FilesError::Interrupted))
}
