//! Fetching tensors, or slices of them, of a sharded state, whatever the layout of its ranks.

use super::absent::{Absent, is_silent};
use super::assembly::{Assembly, no_memory, own_memory};
use super::into::{IntoMemory, Question, never};
use super::known::KnownShards;
use super::layouts::{ABSENT, gone, is_absent, of_manifest};
use super::plan::{GlobalTensor, Target};
use super::plans::{Plan, PlanOf};
use super::proof::ShardProof;
use super::records::{DIGESTS, RankLayout, shards_key};
use super::requests::{Ask, Asked, Choice, Output, asks};
use super::roster::{self, Awaited, Hold, Manifest, is_late};
use crate::bundle::{FetchedBundle, FetchedSlices, Wanted, take_bundle};
use crate::digest::Proving;
use crate::error::{BundleError, Error, ShardedError};
use crate::fetch::{Fetch, FetchOptions, Tensor, does_not_fit};
use crate::request::flow::{Flow, Io};
use crate::request::{AnyClient, BlockingClient, Call, Handle, HasHandle, Request, RequestCall};
use crate::session::{Connection, Session, cancelled_unsent};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::memory::padded;
use transfer_core::op::{Failure, FailureCode, Report};
use transfer_core::tensor::{Key, Name, Select, Slice, TensorName, Version};

/// The number of requests under way at the same time.
const AT_ONCE: usize = 4;

/// The number of those that land in memory of the caller. They take no room in the pool, and one that waits for its grants does not
/// hold up the link.
const INTO_AT_ONCE: usize = 16;

/// The slowest rate at which a request is waited for, in bytes per second, beyond the time after which a rank counts as gone.
const SLOWEST: u64 = 4 << 20;

/// The shortest and the longest pause before a manifest is looked for again.
const MANIFEST_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest requests of a fetch, in bytes.
const MIN_REQUEST_BYTES: u64 = 64 << 10;

/// A fetch of a sharded state. Set its options, then `.await` it, or `.call()` it on a [`crate::BlockingClient`].
pub type FetchSharded<C> = Request<C, FetchShardedCall>;

impl<C: AnyClient> FetchSharded<C> {
    pub(crate) fn new(handle: &Handle, key: Result<Key, Error>) -> Self {
        let (connection, node) = (handle.connection().clone(), handle.node().clone());
        let session = connection.session();
        let stage = Stage::New { key, first: None, wanted: None, options: FetchOptions::new() };
        Request::from_call(FetchShardedCall {
            connection,
            client: BlockingClient::of(handle.clone()),
            session,
            node,
            stage,
            timeout: FetchOptions::new().timeout,
        })
    }

    /// Fetches only the global tensors of these names.
    pub fn only<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> Self {
        self.slices(names.into_iter().map(|name| (name, None)))
    }

    /// Fetches only these slices of global tensors; `None` is a whole one. Only the bytes of them move, each once, from the ranks that
    /// have them. A slice that does not fit its tensor is [`FailureCode::Invalid`](crate::FailureCode).
    pub fn slices<N: AsRef<str>, S: Into<Option<Slice>>>(mut self, slices: impl IntoIterator<Item = (N, S)>) -> Self {
        if let Stage::New { wanted, .. } = &mut self.call.stage {
            let one = |(name, slice): (N, S)| Wanted { name: name.as_ref().to_owned(), slice: slice.into() };
            *wanted = Some(slices.into_iter().map(one).collect());
        }
        self
    }

    fn select(mut self, select: Select) -> Self {
        if let Stage::New { options, .. } = &mut self.call.stage {
            options.select = select;
        }
        self
    }

    /// Fetches exactly this version. Fails at once if it was replaced already.
    pub fn exactly(self, version: u64) -> Self {
        self.select(Select::Exactly(Version(version)))
    }

    /// Fetches the newest version once it is this one or later.
    pub fn at_least(self, version: u64) -> Self {
        self.select(Select::AtLeast(Version(version)))
    }

    /// Fetches the newest version once it is another than this one; see [`Fetch::after`](crate::Fetch::after).
    pub fn after(self, seen: u64) -> Self {
        self.select(Select::After(Version(seen)))
    }

    /// Compares each shard that comes whole from one rank with the digest of its push, if that has [made some](crate::PushShards::digest), in
    /// the tensors of the result. Nothing is returned if a byte is wrong, and the error names the rank. Of a shard of which only a part is
    /// fetched nothing is proved: the report counts the bytes that were compared, and the others are unproved. A fetch
    /// [into](FetchSharded::into) memory of the caller is refused with [`DigestError::NotProvable`](crate::DigestError::NotProvable).
    pub fn verify(self) -> Self {
        self.proving(Proving::IfThere)
    }

    /// Verifies, and refuses shards without digests, with [`DigestError::ShardsWithoutDigest`](crate::DigestError). See
    /// [`verify`](Self::verify).
    pub fn require_digest(self) -> Self {
        self.proving(Proving::Required)
    }

    fn proving(mut self, proving: Proving) -> Self {
        if let Stage::New { options, .. } = &mut self.call.stage
            && options.proving != Proving::Required
        {
            options.proving = proving;
        }
        self
    }

    /// Begins with a version that was fetched as a bundle already, as by who did not know what the key is: these are its tensors
    /// `__ranks__` and, if that was fetched, `__layouts__`. They are not fetched again, and select nothing: where that version has ended
    /// meanwhile, the newest one that this fetch selects is fetched.
    pub fn manifest(mut self, ranks: &Tensor, layouts: Option<&Tensor>) -> Self {
        if let Stage::New { key, first, .. } = &mut self.call.stage {
            let read = key.clone().and_then(|key| Manifest::read(&key, ranks, layouts.cloned()));
            match read {
                Ok(manifest) => *first = Some(Box::new(manifest)),
                Err(e) => *key = Err(e),
            }
        }
        self
    }

    /// The most bytes of one request, 32 MiB by default and at least 64 KiB. It has to fit the landing pool, and is halved where it
    /// does not.
    pub fn bucket_bytes(mut self, bytes: u64) -> Self {
        if let Stage::New { options, .. } = &mut self.call.stage {
            options.bucket_bytes = bytes;
        }
        self
    }
}

/// A fetch of a sharded state under way.
pub struct FetchShardedCall {
    connection: Arc<Connection>,
    pub(super) client: BlockingClient,
    session: Arc<Session>,
    node: Name,
    timeout: Duration,
    stage: Stage,
}

enum Stage {
    New { key: Result<Key, Error>, first: Option<Box<Manifest>>, wanted: Option<Vec<Wanted>>, options: FetchOptions },
    Flows(Flow<Result<FetchedBundle, Error>>),
}

impl fmt::Debug for FetchShardedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchShardedCall").finish_non_exhaustive()
    }
}

/// What a fetch is made of: the state, the manifest to begin with, what of it, and the options.
type FetchParts = (OfState, Option<Box<Manifest>>, Option<Vec<Wanted>>, FetchOptions, BlockingClient);

impl FetchShardedCall {
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns what a fetch that has not begun is made of.
    pub(super) fn into_parts(self) -> Result<FetchParts, Error> {
        let Stage::New { key, first, wanted, options } = self.stage else { return Err(cancelled_unsent()) };
        let of = OfState { connection: self.connection, node: self.node, key: key? };
        Ok((of, first, wanted, options, self.client))
    }
}

impl Call for FetchShardedCall {
    type Output = Result<FetchedBundle, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        loop {
            match &mut self.stage {
                Stage::Flows(flow) => return flow.step(waker),
                Stage::New { key, first, wanted, options } => {
                    let key = match key {
                        Ok(key) => key.clone(),
                        Err(e) => return ControlFlow::Break(Err(e.clone())),
                    };
                    let (first, wanted, options) = (first.take(), wanted.take(), *options);
                    let of = OfState { connection: self.connection.clone(), node: self.node.clone(), key };
                    let mut flow = Flow::new(&self.client, async move |io: Io| {
                        of.fetch(io, first, wanted, options, None, |assembly, proof, (io, key, manifest)| {
                            let found = assembly.finish(io)?;
                            let compared = proof.compare(key, manifest, &found);
                            let verified = compared.inspect_err(|e| io.session().tell_wrong_digest(e))?;
                            Ok(found.verified(verified))
                        })
                        .await
                    });
                    flow.set_timeout(self.timeout);
                    self.stage = Stage::Flows(flow);
                }
            }
        }
    }

    fn needs_timer(&self) -> bool {
        true
    }
}

impl RequestCall for FetchShardedCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}

/// Makes the result when all pieces have come.
type Finish<T> = fn(Assembly<'_>, ShardProof<'_>, (&Io, &Key, &Manifest)) -> Result<T, Error>;

/// What a rank has brought.
enum Brought {
    Slices(FetchedSlices),
    /// All of it is in the memory of the caller.
    Landed(Report),
}

/// The state that is fetched from.
pub(super) struct OfState {
    pub(super) connection: Arc<Connection>,
    /// The node of this process.
    node: Name,
    key: Key,
}

impl OfState {
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Fetches a version, into memory of the caller if there is some. Begins with `first`, if there is one.
    pub(super) async fn fetch<T>(
        self,
        io: Io,
        mut first: Option<Box<Manifest>>,
        wanted: Option<Vec<Wanted>>,
        options: FetchOptions,
        into: Option<&IntoMemory>,
        finish: Finish<T>,
    ) -> Result<T, Error> {
        let mut failed: Option<(Manifest, Error)> = None;
        let mut pauses = pauses();
        let mut pause = async || io.sleep_until(Instant::now() + pauses.next().unwrap_or(LONGEST_INTERVAL)).await;
        loop {
            let manifest = match first.take() {
                Some(manifest) => *manifest,
                None => roster::manifest(&io, &self.key, options).await?,
            };
            let is_same = |failed: &Manifest| failed.version == manifest.version && failed.ranks == manifest.ranks;
            if let Some((before, error)) = failed.take()
                && is_same(&before)
            {
                return Err(error);
            }
            // Its ranks keep the version until the hold ends, however many follow meanwhile.
            let hold = Hold::begin(&io, &self.key, manifest.version).await;
            let is_exact = matches!(options.select, Select::Exactly(_));
            // A manifest is published before its version is whole, and not taken back if that fails.
            match self.newest(&io, &manifest).await {
                Ok(Some(Awaited::Whole { restart, version }))
                    if (restart, version) > (manifest.restart, manifest.version) && !is_exact =>
                {
                    // Its manifest is about to be seen.
                    pause().await;
                    continue;
                }
                // The versions have begun again, and the first is not whole yet.
                Err(e) if e.failure_code() == Some(FailureCode::VersionGone) && !is_exact => {
                    pause().await;
                    continue;
                }
                Err(e) if is_said(&e) => return Err(e),
                Ok(Some(_)) => KnownShards::of(&self.connection).lock().is_whole(&self.key, &manifest),
                // Where its home cannot be asked, or is another tenant's, what is published is taken for whole.
                Ok(None) | Err(_) => {}
            }
            let fetched = self.version(&io, &manifest, wanted.as_deref(), options, (into, finish));
            let Ok(fetched) = io.first(fetched, hold.last(&io, &self.key, manifest.version)).await;
            match fetched {
                Err(e) if !is_exact && is_replaced(&e) => failed = Some((manifest, e)),
                fetched => return fetched,
            }
        }
    }

    /// Asks which version is whole, and waits until the one of this manifest is. `None` if no home says anything.
    async fn newest(&self, io: &Io, manifest: &Manifest) -> Result<Option<Awaited>, Error> {
        let &Manifest { restart, version, .. } = manifest;
        let known = KnownShards::of(&self.connection).lock().was_whole(&self.key, manifest);
        if known {
            let looked = roster::look(io, &self.key).await;
            let newest = looked.map(|looked| (looked.restart, looked.whole.unwrap_or(0)));
            let (restart, version) = newest.unwrap_or((restart, version));
            return Ok(Some(Awaited::Whole { restart, version }));
        }
        loop {
            let Some(looked) = roster::look_for_home(io, &self.key).await else { return Ok(None) };
            if let Some(whole) = looked.whole.filter(|whole| looked.restart == restart && *whole >= version) {
                return Ok(Some(Awaited::Whole { restart, version: whole }));
            }
            match roster::until_whole(io, &self.key, restart, version, None).await {
                // Its home may be gone by now, and silently so.
                Err(e) if is_late(&e) => {}
                awaited => return awaited.map(Some),
            }
        }
    }

    async fn version<T>(
        &self,
        io: &Io,
        manifest: &Manifest,
        wanted: Option<&[Wanted]>,
        options: FetchOptions,
        (into, finish): (Option<&IntoMemory>, Finish<T>),
    ) -> Result<T, Error> {
        let bucket_bytes = options.bucket_bytes.max(MIN_REQUEST_BYTES);
        let (key, ranks) = (&self.key, &manifest.ranks);
        let of = PlanOf { key, ranks, wanted, bucket_bytes, is_into: into.is_some() };
        let kept = KnownShards::of(&self.connection).lock().plans.get(&of);
        let plan = match kept {
            Some(plan) => plan,
            None => self.plan(io, manifest, of).await?,
        };
        let (mut result, mut proof) = (Assembly::new(manifest, &plan), ShardProof::new(&plan, options.proving));
        if let Some(into) = into {
            into.check(&self.key, &plan.outputs)?;
            into.begin();
        }
        self.fill(io, manifest, (&mut result, &mut proof), bucket_bytes, into).await?;
        finish(result, proof, (io, &self.key, manifest))
    }

    /// Plans a fetch, by the layouts of all ranks.
    async fn plan(&self, io: &Io, manifest: &Manifest, of: PlanOf<'_>) -> Result<Arc<Plan>, Error> {
        let layouts = of_manifest(io, &self.connection, &self.key, manifest).await?;
        let of_ranks: Vec<_> = layouts.iter().map(|known| known.layout.clone()).collect();
        let global = KnownShards::of(&self.connection).lock().global(&self.key, &of_ranks)?;
        let mut outputs = Vec::new();
        match of.wanted {
            None => {
                for (name, tensor) in &global.tensors {
                    outputs.push(self.output(name, tensor, None)?);
                }
            }
            Some(wanted) => {
                for Wanted { name, slice } in wanted {
                    let found = global.tensors.get_key_value(name.as_str());
                    let (name, tensor) = found.ok_or_else(|| BundleError::NoSuchTensor { name: name.clone() })?;
                    outputs.push(self.output(name, tensor, slice.as_ref())?);
                }
            }
        }
        let mut memory_bytes = 0_usize;
        for output in &mut outputs {
            output.at = memory_bytes;
            let end =
                padded(output.meta.len_bytes()).and_then(|len| memory_bytes.checked_add(usize::try_from(len).ok()?));
            memory_bytes = end.ok_or_else(|| no_memory(u64::MAX, "no process has so much"))?;
        }
        if outputs.iter().any(|output| output.meta.len_bytes() > of.bucket_bytes) {
            // What is larger than any memory is refused before it is planned.
            own_memory(memory_bytes)?;
        }
        let missing = outputs.iter().enumerate().map(|(n, output)| Asked::all(n, output)).collect();
        let together = if of.is_into { &[][..] } else { &of_ranks };
        let asks = self.asks(manifest, &outputs, missing, (of.bucket_bytes, together), &Absent::default())?;
        let plan = Arc::new(Plan { layouts, outputs, memory_bytes, asks });
        KnownShards::of(&self.connection).lock().plans.keep(&of, plan.clone());
        Ok(plan)
    }

    fn output(&self, name: &TensorName, tensor: &Arc<GlobalTensor>, slice: Option<&Slice>) -> Result<Output, Error> {
        let (target, meta) = Target::new(&tensor.meta, slice).map_err(|e| {
            let text = format!("tensor {name:?} of state {:?} has {}: {e}", self.key, tensor.meta);
            Failure::new(FailureCode::Invalid, text)
        })?;
        Ok(Output { name: name.clone(), tensor: tensor.clone(), target, meta, at: 0 })
    }

    /// Plans requests for what is missing, with ranks that may be asked for all of their shards `together`.
    fn asks(
        &self,
        manifest: &Manifest,
        outputs: &[Output],
        missing: Vec<Asked>,
        (bucket_bytes, together): (u64, &[Arc<RankLayout>]),
        absent: &Absent,
    ) -> Result<Vec<Ask>, Error> {
        let choice = Choice::new(&manifest.ranks, &self.node, absent);
        asks(outputs, missing, bucket_bytes, together, choice).map_err(|(output, hole)| {
            let Output { name, tensor, .. } = &outputs[output];
            let (name, range) = (name.as_str().to_owned(), hole.to_string());
            match tensor.holders_in(&hole).find_map(|rank| absent.gone.get_key_value(&rank)) {
                Some((rank, why)) => {
                    gone(&self.key, manifest.version, &manifest.ranks[*rank as usize], (&name, range), why)
                }
                None => ShardedError::Hole { name, meta: tensor.meta.clone(), range }.into(),
            }
        })
    }

    /// Fetches all pieces. Those of a rank that is gone are looked for at others.
    async fn fill(
        &self,
        io: &Io,
        manifest: &Manifest,
        (result, proof): (&mut Assembly<'_>, &mut ShardProof<'_>),
        mut bucket_bytes: u64,
        into: Option<&IntoMemory>,
    ) -> Result<(), Error> {
        let (plan, proving) = (result.plan(), proof.proving());
        let mut absent = Absent::default();
        let mut again: Option<Vec<Ask>> = None;
        loop {
            let asks = again.as_deref().unwrap_or(&plan.asks);
            let split = into.map(|into| into.split(plan, asks)).transpose()?;
            let asks = split.as_deref().unwrap_or(asks);
            if into.is_none() && asks.iter().any(|ask| !ask.is_direct) {
                result.need_memory()?;
            }
            let mut failed: Vec<(&Ask, Error)> = Vec::new();
            // With others that land in memory of the caller, nothing is given up before all of them have ended.
            let mut fatal: Option<Error> = None;
            // Ranks that are found to be absent are not asked for the rest of it.
            let found_absent: Mutex<BTreeMap<u32, Error>> = Mutex::default();
            let fetch = async |at: usize| {
                let Ask { rank, .. } = &asks[at];
                let known = found_absent.lock().get(rank).cloned();
                let fetched = match known {
                    Some(e) => Err(e),
                    None => {
                        self.ask(io, manifest, (plan, proving), &asks[at], !absent.silent.contains(rank), into).await
                    }
                };
                (at, fetched)
            };
            let at_once = if into.is_some() { INTO_AT_ONCE } else { AT_ONCE };
            io.each(0..asks.len(), at_once, fetch, |(at, fetched)| {
                let ask = &asks[at];
                match fetched {
                    Ok(Brought::Slices(slices)) => {
                        result.take(ask, &slices)?;
                        proof.take(ask, &slices);
                    }
                    Ok(Brought::Landed(report)) => result.note(ask.bytes, &report),
                    Err(e) if is_for_buckets(ask, &e) && !io.left(Duration::MAX).is_zero() => failed.push((ask, e)),
                    Err(e) if is_too_large(&e) => failed.push((ask, e)),
                    // Not where it is the time of this call that is over.
                    Err(e) if is_absent(&e) && !io.left(Duration::MAX).is_zero() => {
                        found_absent.lock().insert(ask.rank, e.clone());
                        failed.push((ask, e));
                    }
                    Err(e) => match into {
                        None => return Err(e),
                        Some(into) => {
                            into.stop();
                            fatal.get_or_insert(e);
                        }
                    },
                }
                Ok(())
            })
            .await?;
            if let Some(fatal) = fatal {
                return Err(fatal);
            }
            if failed.is_empty() {
                return Ok(());
            }
            let mut missing = Vec::new();
            for (ask, error) in failed {
                match is_too_large(&error) {
                    // Its shards come in buckets, of which none is a delta.
                    _ if is_for_buckets(ask, &error) => {}
                    true if bucket_bytes < 2 * MIN_REQUEST_BYTES => return Err(error),
                    true => bucket_bytes = (bucket_bytes / 2).min(ask.bytes / 2).max(MIN_REQUEST_BYTES),
                    false => absent.add(ask.rank, error),
                }
                missing.extend(ask.parts.iter().map(|part| part.asked.clone()));
            }
            again = Some(self.asks(manifest, &plan.outputs, missing, (bucket_bytes, &[]), &absent)?);
        }
    }

    /// Asks a rank for some pieces.
    async fn ask(
        &self,
        io: &Io,
        manifest: &Manifest,
        (plan, proving): (&Plan, Proving),
        ask: &Ask,
        looks: bool,
        into: Option<&IntoMemory>,
    ) -> Result<Brought, Error> {
        let (version, rank, known) =
            (manifest.version, &manifest.ranks[ask.rank as usize], &plan.layouts[ask.rank as usize]);
        let needs_digests = ShardProof::needs(proving, &known.layout, (&self.key, version, rank.rank))?;
        let key = shards_key(&self.key, rank.rank, rank.instance)?;
        // So that its parts are asked for at once.
        io.session().bundle_tables().remember(&key, known.table.clone());
        let patience = ABSENT + Duration::from_millis(ask.bytes * 1000 / SLOWEST);
        let (select, timeout) = (Select::Exactly(Version(version)), io.left(patience));
        let options = FetchOptions { select, timeout, is_whole: ask.is_whole, ..FetchOptions::new() };
        let slices = ask.parts.iter().map(|part| {
            let (output, shard) = (&plan.outputs[part.asked.output], &known.layout.shards[part.shard]);
            (shard.entry.as_str(), output.target.local(&part.asked.part, &shard.place))
        });
        let fetched = if let Some(into) = into {
            let wanted = slices.map(|(name, slice)| Wanted { name: name.to_owned(), slice }).collect();
            let question = Question { io, key: &key, options: &options, table: &known.table, plan, ask, wanted };
            let landed = match looks {
                true => into.ask(question, is_silent(io, key.clone(), version)).await,
                false => into.ask(question, never()).await,
            };
            Ok(landed.map(Brought::Landed))
        } else {
            let fetch = Fetch::<BlockingClient, FetchedBundle>::new(io.session(), Ok(key.clone()), take_bundle);
            let slices = slices.chain(needs_digests.then_some((DIGESTS, None)));
            let fetched = io.run(fetch.with(options).slices(slices));
            let fetched = match looks {
                true => io.first(fetched, is_silent(io, key, version)).await,
                false => Ok(fetched.await),
            };
            fetched.map(|fetched| fetched.map(Brought::Slices))
        };
        match fetched {
            Err(silent) => Err(silent),
            // It is the time of this call that is over, and not the rank's.
            Ok(Err(e)) if is_late(&e) && io.left(Duration::MAX).is_zero() => {
                let waited = io.timeout();
                let text = format!(
                    "after {waited:?}: rank {} of version {version} of state {:?}, at node {:?}: {e}",
                    rank.rank, self.key, rank.node
                );
                Err(Failure::new(FailureCode::Deadline, text).into())
            }
            Ok(fetched) => fetched,
        }
    }
}

/// The pauses before a manifest is looked for again, from the first one on.
fn pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(MANIFEST_INTERVAL), |pause| Some((*pause * 2).min(LONGEST_INTERVAL)))
}

/// Whether a roster has said that a version is not whole, or has not said in time that it is.
fn is_said(error: &Error) -> bool {
    matches!(error, Error::Sharded(_)) || is_late(error) || error.failure_code() == Some(FailureCode::VersionGone)
}

fn is_too_large(error: &Error) -> bool {
    matches!(error, Error::Failed(failure) if does_not_fit(failure))
}

/// Whether all shards of a rank had no room together: in the pool, or in what others have left of it in time. One that is silent is absent.
fn is_for_buckets(ask: &Ask, error: &Error) -> bool {
    let code = error.failure_code();
    ask.is_whole && (is_too_large(error) || matches!(code, Some(FailureCode::PoolFull | FailureCode::Deadline)))
}

/// Whether a newer version may have taken the place of the one that was fetched.
fn is_replaced(error: &Error) -> bool {
    matches!(error, Error::Sharded(e) if matches!(**e, ShardedError::RankGone(_)))
        || error.failure_code() == Some(FailureCode::VersionGone)
}
