//! `transferctl push`: files become tensors.

use super::arenas::{self, Share};
use super::plan::Plan;
use super::pushing::Pushing;
use super::story::{Story, Telling};
use super::{FilesError, Worker, blocking, interruption};
use crate::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;
use transfer_client::{Client, DType, Gone, Until};
use transfer_terminal::units::{bytes, duration, size};

/// How often a push that stays looks whether the sidecar does.
const LOOK: Duration = Duration::from_millis(200);

/// What a file is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Elements, row-major and little-endian, and nothing else.
    Raw,
    /// A safetensors file.
    Safetensors,
}

/// What `transferctl push` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Which sidecar, and as whom.
    #[command(flatten)]
    pub worker: Worker,
    /// What to publish, behind the key or prefix: KEY FILE publishes a file under that key, KEY - the standard input. A safetensors file
    /// becomes its tensors under PREFIX/NAME, a directory each of its files under PREFIX/relative/path, and several files lie under
    /// PREFIX/name. One PATH alone has its own name as key or prefix; with --prefix all words are paths
    #[arg(value_names = ["KEY|PREFIX", "PATH"], required = true)]
    pub words: Vec<PathBuf>,
    /// Publish all of it below this
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<String>,
    /// What files are. Default: safetensors where the name ends so, else raw
    #[arg(long)]
    pub format: Option<Format>,
    /// Leave out symbolic links, pipes, sockets and devices below a directory; without this they are refused
    #[arg(long)]
    pub skip_special: bool,
    /// The element type of a raw file: bool, i8 to u64, f16, bf16, f32, f64, c64, f8e4m3, f8e5m2. Default: u8
    #[arg(long, value_name = "DTYPE", value_parser = dtype)]
    pub dtype: Option<DType>,
    /// The dimensions of a raw file, outermost first: 64,128. Default: one dimension, as long as the file
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
    /// Let workers of these tenants fetch it, too: user ids, or names of the sidecar's --tenants
    #[arg(long, value_name = "TENANT,...", value_delimiter = ',')]
    pub readable_by: Vec<String>,
    /// The memory to publish from. Default: as much as all of it takes, from several workers where one may not have so much; a file that is larger
    /// than that goes in pieces. With less it goes in turns, which needs --to or --until fetched:N:
    /// else nothing would make room
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub arena_bytes: Option<u64>,
    /// How long each push may take, and waiting for room in the arena
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
    /// Fetch each tensor back, read its file again, and compare
    #[arg(long)]
    pub verify: bool,
    /// Write the BLAKE3 digest of each tensor's bytes there, for `fetch --check-digests`
    #[arg(long, value_name = "FILE")]
    pub write_digests: Option<PathBuf>,
    /// Replace the file of --write-digests if it exists
    #[arg(long, requires = "write_digests")]
    pub force: bool,
    /// How much is told.
    #[command(flatten)]
    pub telling: Telling,
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
/// [`Error::Files`], [`Error::Connect`], [`Error::Call`].
pub async fn run(options: &Options) -> Result<(), Error> {
    if options.verify && matches!(options.until, Until::Fetched(_)) {
        return Err(
            FilesError::Use("--verify fetches each tensor, and --until fetched:N counts that".to_owned()).into()
        );
    }
    // Before anything is published: an interruption from now on ends it in order.
    let interrupted = interruption().map_err(|source| Error::Runtime { source })?;
    let mut interrupted = std::pin::pin!(interrupted);
    let asked = options.clone();
    let publish = async {
        // The standard input may take as long as it likes.
        let plan = blocking(move || Plan::of(&asked)).await?;
        let arena_bytes = arena(options, &plan)?;
        let in_turns = options.arena_bytes.is_some();
        let sum = plan.items.iter().map(|item| item.meta.len_bytes()).fold(0u64, u64::saturating_add);
        let mut story = Story::new("pushed", plan.items.len(), Some(sum), &options.telling, false);
        // The sidecar fills its pages, some GiB each second.
        story.preparing(format!("the sidecar makes room for {}", bytes(arena_bytes)));
        let shares = match in_turns {
            true => vec![Share { client: options.worker.connect(arena_bytes).await?, items: plan.items }],
            false => arenas::connect(&options.worker, plan.items).await?,
        };
        story.preparing(String::new());
        story.count(shares.iter().map(|share| share.items.len()).sum());
        for (path, what) in &plan.left_out {
            story.remark(&format!("left out: {} is {what}", path.display()));
        }
        let mut pushing = Pushing::new(options).await?;
        let mut clients = Vec::new();
        for Share { client, items } in shares {
            pushing.all(&client, items, &mut story).await;
            clients.push(client);
        }
        pushing.end().await?;
        story.end(false)?;
        Ok::<_, Error>((clients, story))
    };
    // Held until the end: with the session ends what it published.
    let (clients, story) = tokio::select! {
        published = publish => published?,
        () = &mut interrupted => return Err(FilesError::Interrupted.into()),
    };
    if options.outlive {
        return Ok(());
    }
    // Also with --to: what has landed elsewhere ends with the session of the worker that pushed it.
    if options.hold.is_none() && !options.telling.json {
        story.say("published until this ends: Ctrl-C");
    }
    let end = async {
        match options.hold {
            // Whichever comes first is the end.
            Some(hold) => drop(tokio::time::timeout(hold, interrupted).await),
            None => interrupted.await,
        }
    };
    hold(&clients, &options.worker.socket, &story, end).await
}

/// Stays until `end`, and tells when the sidecar goes and comes back: what is published goes and comes with it.
async fn hold(clients: &[Client], socket: &Path, story: &Story, end: impl Future<Output = ()>) -> Result<(), Error> {
    let lost = |gone: Gone| Error::Unpublished { socket: socket.to_owned(), source: gone.into() };
    let (mut end, mut was_away) = (std::pin::pin!(end), false);
    // Any of them: what was published is not whole then.
    let gone = || {
        let mut ends: Vec<Gone> = clients.iter().filter_map(Client::gone).collect();
        let at = ends.iter().position(|gone| *gone != Gone::Away).unwrap_or(0);
        (!ends.is_empty()).then(|| ends.swap_remove(at))
    };
    loop {
        tokio::select! {
            () = &mut end => break,
            () = tokio::time::sleep(LOOK) => {}
        }
        let at = socket.display();
        match (gone(), was_away) {
            (Some(Gone::Away), false) => {
                story.alarm(&format!("the sidecar at {at} is gone, and nothing is published until it is back"));
                was_away = true;
            }
            (None, true) => {
                story.alarm(&format!("the sidecar at {at} is back, and all is published again"));
                was_away = false;
            }
            (Some(Gone::Away), true) | (None, false) => {}
            // It does not come back from any other end.
            (Some(gone), _) => return Err(lost(gone)),
        }
    }
    gone().map_or(Ok(()), |gone| Err(lost(gone)))
}

/// How large an arena to ask for, in bytes.
fn arena(options: &Options, plan: &Plan) -> Result<u64, FilesError> {
    let wanted_bytes = plan.arena_bytes();
    let Some(arena_bytes) = options.arena_bytes else { return Ok(wanted_bytes) };
    let makes_room = options.to.is_some() || matches!(options.until, Until::Fetched(_));
    if let Some(item) = plan.items.iter().find(|item| item.meta.len_bytes() > arena_bytes) {
        let why = format!(
            "{:?} alone is {}, and does not fit into --arena-bytes {}",
            item.key.as_str(),
            bytes(item.meta.len_bytes()),
            bytes(arena_bytes)
        );
        return Err(FilesError::Use(why));
    }
    match arena_bytes < wanted_bytes && !makes_room {
        true => Err(FilesError::TooMuch { wanted_bytes, arena_bytes }),
        false => Ok(arena_bytes),
    }
}
