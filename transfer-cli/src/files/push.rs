//! `transferctl push`: files become tensors.

use super::arenas::{self, Share};
use super::plan::Plan;
use super::push_options::Options;
use super::pushing::Pushing;
use super::story::Story;
use super::{FilesError, blocking, interruption};
use crate::error::Error;
use std::path::Path;
use std::time::Duration;
use transfer_client::{Client, SessionEnd, Until};
use transfer_core::text::printable;
use transfer_terminal::units::bytes;

/// The interval of checks of the sidecar while a push stays.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(200);

/// Publishes the tensors, reports, and waits.
///
/// # Errors
/// [`Error::Files`], [`Error::Connect`], [`Error::Call`].
pub async fn run(options: &Options) -> Result<(), Error> {
    if options.verify && matches!(options.until, Until::Fetched(_)) {
        return Err(
            FilesError::Use("--verify fetches each tensor, and --until fetched:N counts that".to_owned()).into()
        );
    }
    // The signals are handled before anything is published, so that an interruption from now on ends the push in order.
    let interrupted = interruption().map_err(|source| Error::Runtime { source })?;
    let mut interrupted = std::pin::pin!(interrupted);
    let asked = options.clone();
    let publish = async {
        // Reading the standard input may take any time.
        let plan = blocking(move || Plan::of(&asked)).await?;
        let arena_bytes = arena(options, &plan)?;
        let in_turns = options.arena_bytes.is_some();
        let sum = plan.items.iter().map(|item| item.meta.len_bytes()).fold(0u64, u64::saturating_add);
        let mut story = Story::new("pushed", plan.items.len(), Some(sum), &options.verbosity, false);
        // The sidecar fills its pages, at some GiB per second.
        story.preparing(format!("the sidecar makes room for {}", bytes(arena_bytes)));
        let shares = match in_turns {
            true => vec![Share { client: options.worker.connect(arena_bytes).await?, items: plan.items }],
            false => arenas::connect(&options.worker, plan.items, options.digest).await?,
        };
        story.preparing(String::new());
        story.count(shares.iter().map(|share| share.items.len()).sum());
        for (path, what) in &plan.left_out {
            story.remark(&printable(format!("left out: {} is {what}", path.display())));
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
    // Held until the end: the published tensors end with the session.
    let (clients, story) = tokio::select! {
        published = publish => published?,
        () = &mut interrupted => return Err(FilesError::Interrupted.into()),
    };
    if options.outlive {
        return Ok(());
    }
    // Also with --to: a tensor that has landed on another node ends with the session of its worker.
    if options.hold.is_none() && !options.verbosity.json {
        story.say("published until this ends: Ctrl-C");
    }
    let end = async {
        match options.hold {
            // The first of the two is the end.
            Some(hold) => drop(tokio::time::timeout(hold, interrupted).await),
            None => interrupted.await,
        }
    };
    hold(&clients, &options.worker.socket, &story, end).await
}

/// Holds the tensors until `end`, and reports when the sidecar goes and comes back, because the published tensors go
/// and come back with it.
async fn hold(clients: &[Client], socket: &Path, story: &Story, end: impl Future<Output = ()>) -> Result<(), Error> {
    let lost = |gone: SessionEnd| Error::Unpublished { socket: socket.to_owned(), source: gone.into() };
    let (mut end, mut was_away) = (std::pin::pin!(end), false);
    // One lost session is enough, because the push is then incomplete.
    let gone = || {
        let mut ends: Vec<SessionEnd> = clients.iter().filter_map(Client::gone).collect();
        let at = ends.iter().position(|gone| *gone != SessionEnd::Away).unwrap_or(0);
        (!ends.is_empty()).then(|| ends.swap_remove(at))
    };
    loop {
        tokio::select! {
            () = &mut end => break,
            () = tokio::time::sleep(LIVENESS_INTERVAL) => {}
        }
        let at = socket.display();
        match (gone(), was_away) {
            (Some(SessionEnd::Away), false) => {
                story.alarm(&format!("the sidecar at {at} is gone, and nothing is published until it is back"));
                was_away = true;
            }
            (None, true) => {
                story.alarm(&format!("the sidecar at {at} is back, and all is published again"));
                was_away = false;
            }
            (Some(SessionEnd::Away), true) | (None, false) => {}
            // The session does not come back after any other end.
            (Some(gone), _) => return Err(lost(gone)),
        }
    }
    gone().map_or(Ok(()), |gone| Err(lost(gone)))
}

/// The size of the arena to ask for, in bytes.
fn arena(options: &Options, plan: &Plan) -> Result<u64, FilesError> {
    let wanted_bytes = plan.arena_bytes(options.digest);
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
