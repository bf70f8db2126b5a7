//! Fetches of many tensors, several at a time, and their output.
//!
//! A tensor is released as soon as it is written. So tensors from other nodes need no more room in the landing pool
//! than the few that are in flight, and if even that is missing, they wait in line. One exception is a safetensors file
//! of tensors that were not listed. Its header comes first and describes all of them, so all are held until the last
//! one is there.

use super::beneath::Root;
use super::digest::{self, Digests, Hash};
use super::error::FilesError;
use super::fetch_options::{Options, Shape};
use super::keys::{Listed, Wanted};
use super::pieces::{self, Pieces};
use super::safetensors::{Layout, METADATA, parse_metadata};
use super::story::{Failed, FileLine, Story, expect};
use super::target::{Handle, Target};
use super::{blocking, names};
use crate::error::Error;
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinSet};
use transfer_client::{Client, FailureCode, Fetch, Report, Tensor, TensorMeta};
use transfer_terminal::exit::Exit;

/// The most fetches at a time.
const IN_FLIGHT: usize = 16;
/// The most bytes at a time, if lengths are known in advance; a larger tensor is fetched alone.
const IN_FLIGHT_BYTES: u64 = 256 << 20;

/// The state of fetching.
#[derive(Clone)]
pub(super) struct Fetching {
    client: Client,
    options: Arc<Options>,
    shape: Shape,
    digests: Option<Arc<Digests>>,
    progress: ProgressBar,
}

/// A tensor to fetch and write.
struct Job {
    wanted: Wanted,
    /// The tensor, if it is here already.
    held: Option<Tensor>,
    to: Destination,
}

/// The target of bytes.
enum Destination {
    Stdout,
    File(PathBuf),
    /// A name below a directory, with `/` between names.
    Below(Arc<Root>, String),
    Part(Handle, u64),
    /// Nowhere: the caller gets the tensor.
    Here,
}

/// A written tensor.
struct Done {
    key: String,
    tensor: Tensor,
    /// Its description: for a tensor in pieces, of all together.
    meta: TensorMeta,
    report: Report,
    took: Duration,
    digest: Option<Hash>,
    file: Option<PathBuf>,
}

type Ended = Result<Result<Done, Failed>, JoinError>;

impl Fetching {
    pub(super) fn new(
        client: Client,
        options: &Options,
        shape: Shape,
        digests: Option<Digests>,
        progress: ProgressBar,
    ) -> Fetching {
        Fetching { client, options: Arc::new(options.clone()), shape, digests: digests.map(Arc::new), progress }
    }

    /// Fetches and writes all tensors, and reports each.
    pub(super) async fn all(&self, wanted: Vec<Wanted>, story: &mut Story) -> Result<(), Error> {
        let out = &self.options.out;
        let jobs = match self.shape {
            Shape::Safetensors => return self.one_file(wanted, story).await,
            Shape::Directory => self.below(wanted, story)?,
            Shape::Stdout | Shape::File => {
                let to =
                    || if self.shape == Shape::Stdout { Destination::Stdout } else { Destination::File(out.clone()) };
                wanted.into_iter().map(|wanted| Job { wanted, held: None, to: to() }).collect()
            }
        };
        self.run(jobs, |ended| tell(ended, story, &self.options)).await;
        Ok(())
    }

    /// Makes a job for each file below a directory. A key that cannot be a file name counts as failed, and the other
    /// jobs are made.
    fn below(&self, mut wanted: Vec<Wanted>, story: &mut Story) -> Result<Vec<Job>, Error> {
        wanted.retain(|one| match names::safe(&one.key, self.name_of(&one.key)) {
            Ok(_) => true,
            Err(error) => {
                story.failed(Failed::of(&one.key, error));
                false
            }
        });
        let names: Vec<_> = wanted.iter().map(|one| self.name_of(&one.key)).collect();
        names::distinct(names.iter().copied())?;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let root = Arc::new(Root::make(&self.options.out)?);
        let places: Vec<_> = names.iter().map(|name| Destination::Below(root.clone(), (*name).to_owned())).collect();
        Ok(wanted.into_iter().zip(places).map(|(wanted, to)| Job { wanted, held: None, to }).collect())
    }

    /// Writes one file of safetensors: with all tensors, or not at all.
    async fn one_file(&self, mut wanted: Vec<Wanted>, story: &mut Story) -> Result<(), Error> {
        let target = self.begin(self.options.out.clone()).await?;
        let mut metadata = None;
        if let Some(at) = wanted.iter().position(|one| self.name_of(&one.key) == METADATA) {
            let job = Job { wanted: wanted.remove(at), held: None, to: Destination::Here };
            match self.one(job).await {
                Ok(done) => {
                    let texts = parse_metadata(done.tensor.as_bytes());
                    metadata = Some(texts.map_err(|source| FilesError::Metadata { key: done.key.clone(), source })?);
                    tell(Ok(Ok(done)), story, &self.options);
                }
                Err(failed) => {
                    story.failed(failed);
                    return Ok(());
                }
            }
        }
        let Some((metas, held)) = self.describe(&wanted, story).await else { return Ok(()) };
        let named: Vec<_> = wanted.iter().map(|one| self.name_of(&one.key).to_owned()).zip(metas).collect();
        let cannot = |source| FilesError::File { what: "write", path: self.options.out.clone(), source };
        let layout = Layout::of(&named, metadata.as_ref()).map_err(cannot)?;
        let handle = target.handle()?;
        handle.reserve(layout.file_bytes)?;
        handle.write(&layout.head, 0)?;
        let mut jobs = Vec::with_capacity(wanted.len());
        for ((wanted, held), at) in wanted.into_iter().zip(held).zip(&layout.offsets) {
            jobs.push(Job { wanted, held, to: Destination::Part(handle.clone(), *at) });
        }
        let whole = self.run(jobs, |ended| tell(ended, story, &self.options)).await;
        if whole {
            blocking(move || handle.store()).await?;
            target.finish()?;
        }
        Ok(())
    }

    /// The descriptions of the tensors, from the list; else all of them are fetched and held. `None` if one is missing.
    async fn describe(&self, wanted: &[Wanted], story: &mut Story) -> Option<(Vec<TensorMeta>, Vec<Option<Tensor>>)> {
        let listed: Option<Vec<_>> = wanted.iter().map(|one| Some(one.listed.as_ref()?.meta.clone())).collect();
        // For a tensor in pieces, the nodes list only the description of its list.
        let is_unknown =
            |one: &Wanted| listed.is_none() || one.listed.as_ref().is_some_and(|l| pieces::may_be_list(&l.meta));
        let jobs = wanted.iter().filter(|one| is_unknown(one));
        let jobs = jobs.map(|one| Job { wanted: one.clone(), held: None, to: Destination::Here });
        let mut here = std::collections::HashMap::new();
        let whole = self.run(jobs.collect(), |ended| match ended {
            Ok(Ok(done)) => {
                here.insert(done.key, (done.meta, done.tensor));
                true
            }
            other => tell(other, story, &self.options),
        });
        if !whole.await {
            return None;
        }
        let held: Vec<_> = wanted.iter().map(|one| here.get(&one.key).map(|(_, tensor)| tensor.clone())).collect();
        let meta = |one: &Wanted| match here.get(&one.key) {
            Some((meta, _)) => Some(meta.clone()),
            None => Some(one.listed.as_ref()?.meta.clone()),
        };
        Some((wanted.iter().filter_map(meta).collect(), held))
    }

    /// Runs all jobs, several at a time, and passes on the end of each. After `ended` returns `false`, no more are
    /// begun. Returns whether all are done.
    async fn run(&self, jobs: Vec<Job>, mut ended: impl FnMut(Ended) -> bool) -> bool {
        let (mut running, mut bytes, mut whole) = (JoinSet::new(), 0u64, true);
        let mut jobs = jobs.into_iter().peekable();
        let mut over = false;
        while !over && let Some(job) = jobs.peek() {
            let len = job.wanted.listed.as_ref().map_or(0, |listed| listed.meta.len_bytes());
            if running.len() < IN_FLIGHT && (running.is_empty() || bytes + len <= IN_FLIGHT_BYTES) {
                let Some(job) = jobs.next() else { break };
                bytes += len;
                let this = self.clone();
                running.spawn(async move { (len, this.one(job).await) });
            } else if let Some(one) = running.join_next().await {
                let one = one.map(|(len, one)| {
                    bytes -= len;
                    one
                });
                let is_over = matches!(&one, Ok(Err(failed)) if failed.error.exit() == Exit::Unreachable);
                whole &= ended(one);
                over = is_over || (!whole && self.shape == Shape::Safetensors);
            }
        }
        while let Some(one) = running.join_next().await {
            whole &= ended(one.map(|(_, one)| one));
        }
        whole
    }

    async fn one(&self, job: Job) -> Result<Done, Failed> {
        let key = job.wanted.key.clone();
        self.try_one(job).await.map_err(|error| Failed::of(&key, error))
    }

    async fn try_one(&self, job: Job) -> Result<Done, Error> {
        let Job { wanted: Wanted { key, listed }, held, to } = job;
        let started = Instant::now();
        let begun = |target: Target| {
            let handle = target.handle()?;
            Ok::<_, FilesError>((Some(target), Some((handle, 0))))
        };
        // The target is begun before the fetch, so that no fetch waits for a file that must not be written.
        let (target, part) = match to {
            Destination::File(path) => begun(self.begin(path).await?)?,
            Destination::Below(root, name) => {
                let force = self.options.force;
                begun(blocking(move || Target::below(&root, &name, force)).await?)?
            }
            Destination::Part(handle, offset) => (None, Some((handle, offset))),
            Destination::Stdout => begun(Target::stdout()?)?,
            Destination::Here => (None, None),
        };
        let tensor = match held {
            Some(tensor) => tensor,
            None => self.fetch(&key, listed.as_ref()).await?,
        };
        let mut digest = self.check(&key, &tensor).await?;
        let (mut meta, mut report) = (tensor.meta().clone(), *tensor.report());
        let pieces = Pieces::of(&key, &tensor)?;
        if let Some(pieces) = &pieces {
            meta = pieces.meta.clone();
        }
        if (listed.is_none() || pieces.is_some()) && part.is_some() {
            expect(&self.progress, meta.len_bytes());
        }
        if let (Some((handle, offset)), Some(pieces)) = (&part, &pieces) {
            report = self.pieces(&key, &tensor, pieces, handle, *offset).await?;
            let (handle, is_whole) = (handle.clone(), target.is_some());
            blocking(move || if is_whole { handle.store() } else { Ok(()) }).await?;
        } else if let Some((handle, offset)) = part {
            let (bytes, name, verify, known) = (tensor.clone(), key.clone(), self.options.verify, digest);
            let (is_whole, progress) = (target.is_some(), self.progress.clone());
            digest = blocking(move || {
                handle.write_and_tell(bytes.as_bytes(), offset, &|n| progress.inc(n))?;
                if is_whole {
                    handle.store()?;
                }
                if !verify {
                    return Ok(known);
                }
                let wanted = known.unwrap_or_else(|| digest::of_bytes(bytes.as_bytes()));
                let found = handle.digest(offset, bytes.meta().len_bytes())?;
                digest::same(&name, &wanted, &found).map(|()| Some(wanted))
            })
            .await?;
        }
        // The standard output has no name.
        let file = target.map(Target::finish).transpose()?.filter(|file| file != Path::new("-"));
        Ok(Done { key, tensor, meta, report, took: started.elapsed(), digest, file })
    }

    /// Fetches the pieces of a tensor in order, compares each with its digest, and writes it at its place. Returns the report of
    /// all together.
    async fn pieces(
        &self,
        key: &str,
        list: &Tensor,
        pieces: &Pieces,
        to: &Handle,
        offset: u64,
    ) -> Result<Report, Error> {
        let (mut report, mut at) = (*list.report(), offset);
        for (n, piece) in (0..).zip(&pieces.pieces) {
            let name = pieces::key_of(key, n);
            let gone = || FilesError::PieceGone { key: key.to_owned(), version: list.version(), piece: name.clone() };
            let fetch = self.client.fetch(&name).exactly(piece.version).timeout(self.options.timeout);
            let fetch = self.proved(fetch);
            let tensor = fetch.await.map_err(|source| match source.failure_code() {
                Some(FailureCode::VersionGone | FailureCode::UnknownKey) => gone().into(),
                _ => Error::Call { what: "fetch", key: name.clone(), source },
            })?;
            if tensor.meta().len_bytes() != piece.bytes {
                return Err(gone().into());
            }
            report.fabric = tensor.report().fabric;
            report.bytes += tensor.report().bytes;
            report.copied += tensor.report().copied;
            report.relayed += tensor.report().relayed;
            report.verified += tensor.report().verified;
            report.queued += tensor.report().queued;
            report.waited += tensor.report().waited;
            report.in_flight += tensor.report().in_flight;
            let (handle, progress, verify) = (to.clone(), self.progress.clone(), self.options.verify);
            let (wanted, bytes, error) = (piece.digest(), piece.bytes, gone());
            blocking(move || {
                if Some(digest::of_bytes(tensor.as_bytes())) != wanted {
                    return Err(error);
                }
                handle.write_and_tell(tensor.as_bytes(), at, &|n| progress.inc(n))?;
                match (verify, wanted) {
                    (true, Some(wanted)) => digest::same(&name, &wanted, &handle.digest(at, bytes)?),
                    _ => Ok(()),
                }
            })
            .await?;
            at += piece.bytes;
        }
        Ok(report)
    }

    /// Opens a file on another thread: opening a pipe waits for its reader, and a signal ends that.
    async fn begin(&self, path: PathBuf) -> Result<Target, FilesError> {
        let force = self.options.force;
        blocking(move || Target::begin(&path, force)).await
    }

    async fn fetch(&self, key: &str, listed: Option<&Listed>) -> Result<Tensor, Error> {
        let fetch = self.options.of_version(self.client.fetch(key));
        let tensor =
            self.proved(fetch).await.map_err(|source| Error::Call { what: "fetch", key: key.to_owned(), source })?;
        match listed {
            // The header of the file is written already.
            Some(listed) if self.shape == Shape::Safetensors && listed.meta != *tensor.meta() => {
                let (listed, found) = (Box::new(listed.meta.clone()), Box::new(tensor.meta().clone()));
                Err(FilesError::Replaced { key: key.to_owned(), listed, found }.into())
            }
            _ => Ok(tensor),
        }
    }

    /// A fetch that compares what comes with the digests of its push, if that is asked for.
    fn proved(&self, fetch: Fetch<Client>) -> Fetch<Client> {
        match (self.options.require_digest, self.options.verify) {
            (true, _) => fetch.require_digest(),
            (false, true) => fetch.verify(),
            (false, false) => fetch,
        }
    }

    /// Compares a tensor with its digest, if there are digests.
    async fn check(&self, key: &str, tensor: &Tensor) -> Result<Option<Hash>, Error> {
        let Some(digests) = self.digests.clone() else { return Ok(None) };
        let (key, tensor) = (key.to_owned(), tensor.clone());
        let checked = blocking(move || {
            let found = digest::of_bytes(tensor.as_bytes());
            digests.check(&key, &found).map(|()| Some(found))
        });
        Ok(checked.await?)
    }

    fn name_of<'a>(&self, key: &'a str) -> &'a str {
        names::below(key, self.options.prefix.as_deref())
    }
}

/// Reports the end of a job. Returns whether the whole is still possible.
fn tell(ended: Ended, story: &mut Story, options: &Options) -> bool {
    match ended {
        Ok(Ok(Done { key, tensor, meta, report, took, digest, file })) => {
            story.done(&FileLine {
                key: &key,
                version: tensor.version(),
                meta: &meta,
                report: &report,
                copied_here: 0,
                took,
                digest: digest.as_ref(),
                verified: options.verify || options.check_digests.is_some(),
                file: file.as_deref().and_then(Path::to_str),
            });
            true
        }
        Ok(Err(failed)) => {
            story.failed(failed);
            false
        }
        // This happens only when the runtime ends.
        Err(_) => {
            story.failed(Failed::of("", FilesError::Interrupted));
            false
        }
    }
}
