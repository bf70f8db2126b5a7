//! Publishes many tensors, several at a time: each is allocated in the arena, read straight into it, and pushed.
//!
//! Room in the arena sets the pace: the next tensor is begun when there is room for it. So if the arena is smaller than
//! all tensors together, they take turns, as fast as fetches, or landings at another node, free their memory. A wait
//! for room ends after `--timeout`, and then no further tensor is begun.

use super::blocking;
use super::digest::{self, Hash};
use super::error::FilesError;
use super::pieces::{self, Piece, Pieces};
use super::plan::{From, Item, Role};
use super::push_options::Options;
use super::story::{Failed, FileLine, Story};
use super::target::Target;
use crate::error::Error;
use indicatif::ProgressBar;
use std::collections::HashMap;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use transfer_client::{Client, Pushed, TensorMeta, TensorMut};

/// The most tensors that are read and pushed at a time: enough to keep a disk and a network busy.
const IN_FLIGHT: usize = 16;

/// The state of publishing.
pub(super) struct Pushing {
    options: Arc<Options>,
    /// The file of digests, and the digests so far.
    digests: Option<(Target, String)>,
    /// The published pieces, by their keys.
    pieces: HashMap<String, Piece>,
}

/// A published tensor.
struct Done {
    item: Item,
    pushed: Pushed,
    copied_here: u64,
    took: Duration,
    digest: Option<Hash>,
}

impl Pushing {
    pub(super) async fn new(options: &Options) -> Result<Pushing, FilesError> {
        let target = match (options.write_digests.clone(), options.force) {
            (Some(path), force) => Some(blocking(move || Target::begin(&path, force)).await?),
            (None, _) => None,
        };
        let digests = target.map(|target| (target, String::new()));
        Ok(Pushing { options: Arc::new(options.clone()), digests, pieces: HashMap::new() })
    }

    /// Publishes all tensors as this worker, and reports each.
    pub(super) async fn all(&mut self, client: &Client, items: Vec<Item>, story: &mut Story) {
        let mut running = JoinSet::new();
        for mut item in items {
            if let From::Pieces { of, count } = &item.from {
                match self.list(item.key.as_str(), of, *count) {
                    Ok(list) => item.from = From::Memory(list),
                    Err(error) => {
                        story.failed(Failed::of(item.key.as_str(), error));
                        continue;
                    }
                }
            }
            let key = item.key.to_string();
            let dims = item.meta.shape().dims();
            let mut room = std::pin::pin!(
                client.allocate_wait(item.meta.dtype(), dims).timeout(self.options.timeout).into_future()
            );
            let mut tensor = None;
            while tensor.is_none() || running.len() >= IN_FLIGHT {
                tokio::select! {
                    allocated = &mut room, if tensor.is_none() => tensor = Some(allocated),
                    Some(ended) = running.join_next(), if !running.is_empty() => self.ended(ended, story),
                }
            }
            match tensor {
                Some(Ok(tensor)) => {
                    running.spawn(one(client.clone(), self.options.clone(), item, tensor, story.progress()));
                }
                Some(Err(source)) => {
                    // Pushes in flight end normally. The other tensors would find no room either.
                    story.failed(Failed::of(&key, Error::Call { what: "push", key: key.clone(), source }));
                    break;
                }
                None => {}
            }
        }
        while let Some(ended) = running.join_next().await {
            self.ended(ended, story);
        }
    }

    /// The list of a tensor's pieces, if all of them are published.
    fn list(&mut self, key: &str, of: &TensorMeta, count: u64) -> Result<Vec<u8>, FilesError> {
        let pieces: Option<Vec<_>> = (0..count).map(|n| self.pieces.remove(&pieces::key_of(key, n))).collect();
        let pieces = pieces.ok_or_else(|| FilesError::NotAllPieces { key: key.to_owned() })?;
        Ok(Pieces { meta: of.clone(), pieces }.write())
    }

    /// Writes the file of digests.
    pub(super) async fn end(self) -> Result<(), Error> {
        if let Some((target, text)) = self.digests {
            let handle = target.handle()?;
            blocking(move || {
                handle.write(text.as_bytes(), 0)?;
                handle.store()?;
                target.finish()
            })
            .await?;
        }
        Ok(())
    }

    fn ended(&mut self, ended: Result<Result<Done, Failed>, tokio::task::JoinError>, story: &mut Story) {
        match ended {
            Ok(Ok(done)) => {
                let Done { item, pushed, copied_here, took, digest } = done;
                if let (Role::Piece, Some(digest)) = (item.role, &digest) {
                    let piece = Piece::new(item.meta.len_bytes(), pushed.version, digest);
                    self.pieces.insert(item.key.to_string(), piece);
                }
                if let (Some((_, text)), Some(digest)) = (&mut self.digests, &digest) {
                    text.push_str(&digest::line(item.key.as_str(), digest));
                }
                story.done(&FileLine {
                    key: item.key.as_str(),
                    version: pushed.version,
                    meta: &item.meta,
                    report: &pushed.report,
                    copied_here,
                    took,
                    digest: digest.as_ref(),
                    verified: self.options.verify,
                    file: match &item.from {
                        From::File { input, .. } => input.path().to_str(),
                        From::Stdin | From::Memory(_) | From::Pieces { .. } => None,
                    },
                });
            }
            Ok(Err(failed)) => story.failed(failed),
            // This happens only when the runtime ends.
            Err(_) => story.failed(Failed::of("", FilesError::Interrupted)),
        }
    }
}

async fn one(
    client: Client,
    options: Arc<Options>,
    item: Item,
    tensor: TensorMut,
    progress: ProgressBar,
) -> Result<Done, Failed> {
    let key = item.key.to_string();
    let fail = |what: &'static str, source| Failed::of(&key, Error::Call { what, key: key.clone(), source });
    let started = Instant::now();
    let wants_digest = options.verify || options.write_digests.is_some() || item.role == Role::Piece;
    let from = item.from.clone();
    let filled = blocking(move || fill(tensor, &from, wants_digest, &progress)).await;
    let (tensor, digest, copied_here) = filled.map_err(|e| Failed::of(&key, e))?;

    let mut push = client.push_tensor(&item.key, tensor).timeout(options.timeout).keep(options.until);
    if let Some(version) = options.version {
        push = push.version(version);
    }
    if let Some(to) = &options.to {
        push = push.to(to);
    }
    if options.outlive {
        push = push.outlive();
    }
    if options.takeover {
        push = push.takeover();
    }
    if let Some(digest) = options.digest {
        push = push.digest(digest);
    }
    for tenant in &options.readable_by {
        push = push.readable_by(tenant);
    }
    let pushed = push.await.map_err(|e| fail("push", e.into()))?;

    if options.verify {
        // The tensor is fetched as any other worker would fetch it: from the node where it has landed.
        let fetch = client.fetch(&item.key).exactly(pushed.version).timeout(options.timeout).verify();
        let back = fetch.await.map_err(|e| fail("fetch back", e))?;
        let (from, name) = (item.from.clone(), key.clone());
        let compared = blocking(move || {
            let found = digest::of_bytes(back.as_bytes());
            let wanted = match &from {
                From::File { input, offset } => input.digest(*offset, back.meta().len_bytes())?,
                From::Memory(bytes) => digest::of_bytes(bytes),
                // These sources are not kept; with --verify the plan keeps the standard input in memory.
                From::Stdin | From::Pieces { .. } => found,
            };
            digest::same(&name, &wanted, &found)
        });
        compared.await.map_err(|e| Failed::of(&key, e))?;
    }
    Ok(Done { item, pushed, copied_here, took: started.elapsed(), digest })
}

/// Reads the elements into the arena. Returns the bytes that were copied within this process.
fn fill(
    mut tensor: TensorMut,
    from: &From,
    wants_digest: bool,
    progress: &ProgressBar,
) -> Result<(TensorMut, Option<Hash>, u64), FilesError> {
    let to = tensor.as_mut_bytes();
    let copied = match from {
        From::File { input, offset } => {
            input.read_into(*offset, to, &|n| progress.inc(n))?;
            0
        }
        From::Memory(bytes) => {
            to.copy_from_slice(bytes);
            progress.inc(bytes.len() as u64);
            bytes.len() as u64
        }
        From::Stdin => {
            read_stdin(to, progress)?;
            0
        }
        // The encoded list is published instead.
        From::Pieces { .. } => 0,
    };
    let digest = wants_digest.then(|| digest::of_bytes(tensor.as_bytes()));
    Ok((tensor, digest, copied))
}

/// Reads all of the standard input, which must have the expected length.
fn read_stdin(to: &mut [u8], progress: &ProgressBar) -> Result<(), FilesError> {
    let failed = |source| FilesError::File { what: "read", path: PathBuf::from("-"), source };
    let mut input = io::stdin().lock();
    let mut at = 0;
    while at < to.len() {
        match input.read(&mut to[at..]) {
            Ok(0) => return Err(wrong_length("only", at, to.len())),
            Ok(n) => {
                at += n;
                progress.inc(n as u64);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e)),
        }
    }
    match input.read(&mut [0]).map_err(failed)? {
        0 => Ok(()),
        _ => Err(wrong_length("more than", at, to.len())),
    }
}

fn wrong_length(how: &str, found: usize, wanted: usize) -> FilesError {
    FilesError::Use(format!("the standard input has {how} {found} bytes, and --dtype and --shape say {wanted}"))
}
