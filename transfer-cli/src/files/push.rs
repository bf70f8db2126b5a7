//! `transferctl push`: a file becomes a tensor.

use super::Worker;
use crate::error::Error;
use crate::units::{bytes, duration};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use transfer_client::{DType, TensorMeta, Until};

/// What `transferctl push` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Which sidecar, and as whom.
    #[command(flatten)]
    pub worker: Worker,
    /// What to publish it under
    pub key: String,
    /// The elements as they lie in memory: row-major, little-endian, nothing before or after them
    pub file: PathBuf,
    /// The element type: bool, i8 to u64, f16, bf16, f32, f64, c64, f8e4m3, f8e5m2
    #[arg(long, value_name = "DTYPE", default_value = "u8", value_parser = dtype)]
    pub dtype: DType,
    /// The dimensions, outermost first: 64,128. Default: one dimension, as long as the file
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub shape: Option<Vec<u64>>,
    /// The version; it must be above the key's last one. Default: the last one plus one
    #[arg(long, value_name = "N")]
    pub version: Option<u64>,
    /// Land it at this worker's sidecar
    #[arg(long, value_name = "WORKER")]
    pub to: Option<String>,
    /// End after this long. A tensor lives as long as the worker that pushed it, so without --hold this waits until it is interrupted
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub hold: Option<Duration>,
    /// Until what it stays: `replaced` by a newer version, `deleted`, or `fetched:N` times
    #[arg(long, value_name = "WHAT", default_value = "replaced", value_parser = until)]
    pub until: Until,
    /// It stays when this ends, which it does at once: until the sidecar does
    #[arg(long, conflicts_with = "hold")]
    pub outlive: bool,
    /// Take the key from the worker that owns it
    #[arg(long)]
    pub takeover: bool,
    /// How long the push may take
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
}

fn dtype(text: &str) -> Result<DType, String> {
    let names = || DType::ALL.map(DType::name).join(", ");
    DType::from_name(text).ok_or_else(|| format!("an element type is one of {}", names()))
}

fn until(text: &str) -> Result<Until, String> {
    match (text, text.strip_prefix("fetched:")) {
        ("replaced", _) => Ok(Until::Replaced),
        ("deleted", _) => Ok(Until::Deleted),
        (_, Some(times)) => {
            times.parse().map(Until::Fetched).map_err(|_| format!("{times:?} is no count of 1 or more"))
        }
        _ => Err("it is replaced, deleted, or fetched:N".to_owned()),
    }
}

/// Publishes, reports, and waits.
///
/// # Errors
/// [`Error::File`], [`Error::FileLength`], [`Error::FileElements`], [`Error::Connect`], [`Error::Call`].
pub async fn run(options: &Options) -> Result<(), Error> {
    let failed = |source| Error::Call { what: "push", key: options.key.clone(), source };
    let mut file = open(&options.file)?;
    let meta = describe(options, file.length)?;
    // Before the key is published: an interruption from now on ends it in order.
    let interrupted = interruption().map_err(|source| Error::Runtime { source })?;

    let client = options.worker.connect(arena_for(&meta)).await?;
    let mut tensor = client.allocate(meta.dtype(), meta.shape().dims()).map_err(failed)?;
    file.read_into(tensor.as_mut_bytes())?;
    let mut push = client.push_tensor(options.key.as_str(), tensor).timeout(options.timeout);
    if let Some(version) = options.version {
        push = push.version(version);
    }
    if let Some(to) = &options.to {
        push = push.to(to);
    }
    push = push.keep(options.until);
    if options.outlive {
        push = push.outlive();
    }
    if options.takeover {
        push = push.takeover();
    }
    let pushed = push.await.map_err(|e| failed(e.into()))?;
    crate::output::outln!("{:?} version {}: {meta}, {}", options.key, pushed.version, bytes(meta.len_bytes()));
    crate::output::outln!("{}", pushed.report);

    if options.outlive {
        return Ok(());
    }
    // Also with --to: what has landed elsewhere ends with the session of the worker that pushed it.
    match options.hold {
        Some(hold) => {
            // Whichever comes first is the end.
            let _ = tokio::time::timeout(hold, interrupted).await;
        }
        None => {
            crate::output::outln!("published until this ends: Ctrl-C");
            interrupted.await;
        }
    }
    Ok(())
}

/// An arena with room for one tensor.
fn arena_for(meta: &TensorMeta) -> u64 {
    // Whole pages; an empty tensor has a place too.
    meta.len_bytes().max(1).next_multiple_of(4096)
}

/// Ends with SIGINT, SIGTERM or SIGHUP.
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

struct OpenFile<'a> {
    file: File,
    path: &'a Path,
    length: u64,
}

fn open(path: &Path) -> Result<OpenFile<'_>, Error> {
    let error = |source| Error::File { what: "read", path: path.to_owned(), source };
    let file = File::open(path).map_err(error)?;
    let about = file.metadata().map_err(error)?;
    if !about.is_file() {
        return Err(error(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no regular file, so its length is not known",
        )));
    }
    Ok(OpenFile { file, path, length: about.len() })
}

impl OpenFile<'_> {
    /// Reads the file straight into the tensor.
    fn read_into(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let error = |source| Error::File { what: "read", path: self.path.to_owned(), source };
        self.file.read_exact(bytes).map_err(error)
    }
}

fn describe(options: &Options, found_bytes: u64) -> Result<TensorMeta, Error> {
    let (path, dtype) = (options.file.clone(), options.dtype);
    let invalid = |e: transfer_core::tensor::InvalidShape| Error::Call {
        what: "push",
        key: options.key.clone(),
        source: e.into(),
    };
    match &options.shape {
        Some(shape) => {
            let meta = TensorMeta::of(dtype, shape).map_err(invalid)?;
            match meta.len_bytes() == found_bytes {
                true => Ok(meta),
                false => Err(Error::FileLength { path, meta, found_bytes }),
            }
        }
        None if found_bytes.is_multiple_of(dtype.size_bytes()) => {
            TensorMeta::of(dtype, &[found_bytes / dtype.size_bytes()]).map_err(invalid)
        }
        None => Err(Error::FileElements { path, dtype, found_bytes }),
    }
}
