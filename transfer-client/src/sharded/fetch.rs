//! Fetching tensors, or slices of them, of a sharded state, whatever the layout of its ranks.

use super::copy::copy_box;
use super::known::KnownShards;
use super::layouts::{ABSENT, gone, is_absent, of_manifest};
use super::plan::{GlobalTensor, Holder, Target};
use super::records::{RankLayout, shards_key};
use super::requests::{Ask, Asked, asks};
use super::roster::{self, Hold, Manifest, is_late};
use crate::bundle::{FetchedBundle, FetchedSlices, Wanted, take_bundle};
use crate::error::{BundleError, Error, ShardedError};
use crate::fetch::{Fetch, FetchOptions, FetchedSlice, Tensor, does_not_fit};
use crate::request::flow::{Flow, Io};
use crate::request::{AnyClient, BlockingClient, Call, Handle, HasHandle, Request, RequestCall};
use crate::session::{Connection, Session};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::fabric::FabricKind;
use transfer_core::memory::padded;
use transfer_core::op::{CommittedRank, Failure, FailureCode, Report};
use transfer_core::tensor::{Key, Name, Select, Slice, TensorMeta, TensorName, Version};
use transfer_core::wire::bundle::BundleTable;
use transfer_memory::view::OwnMemory;

/// The number of requests under way at the same time.
const AT_ONCE: usize = 4;

/// The slowest rate at which a request is waited for, in bytes per second, beyond the time after which a rank counts as gone.
const SLOWEST: u64 = 4 << 20;

/// The shortest requests of a fetch, in bytes.
const MIN_REQUEST_BYTES: u64 = 64 << 10;

/// A fetch of a sharded state. Set its options, then `.await` it, or `.call()` it on a [`crate::BlockingClient`].
pub type FetchSharded<C> = Request<C, FetchShardedCall>;

impl<C: AnyClient> FetchSharded<C> {
    pub(crate) fn new(handle: &Handle, key: Result<Key, Error>) -> Self {
        let (connection, node) = (handle.connection().clone(), handle.node().clone());
        let session = connection.session();
        let stage = Stage::New { key, wanted: None, options: FetchOptions::new() };
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
    client: BlockingClient,
    session: Arc<Session>,
    node: Name,
    timeout: Duration,
    stage: Stage,
}

enum Stage {
    New { key: Result<Key, Error>, wanted: Option<Vec<Wanted>>, options: FetchOptions },
    Flows(Flow<Result<FetchedBundle, Error>>),
}

impl fmt::Debug for FetchShardedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchShardedCall").finish_non_exhaustive()
    }
}

impl Call for FetchShardedCall {
    type Output = Result<FetchedBundle, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        loop {
            match &mut self.stage {
                Stage::Flows(flow) => return flow.step(waker),
                Stage::New { key, wanted, options } => {
                    let key = match key {
                        Ok(key) => key.clone(),
                        Err(e) => return ControlFlow::Break(Err(e.clone())),
                    };
                    let (wanted, options) = (wanted.take(), *options);
                    let of = OfState { connection: self.connection.clone(), node: self.node.clone(), key };
                    let mut flow = Flow::new(&self.client, move |io| of.fetch(io, wanted, options));
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

/// The state that is fetched from.
struct OfState {
    connection: Arc<Connection>,
    /// The node of this process.
    node: Name,
    key: Key,
}

/// A tensor of the result.
pub(super) struct Output<'a> {
    pub(super) name: &'a TensorName,
    pub(super) tensor: &'a GlobalTensor,
    pub(super) target: Target,
    /// Element type and shape of the result.
    pub(super) meta: TensorMeta,
    /// Where it lies in the memory of this process.
    at: usize,
    /// What one shard has, as it has come.
    direct: Option<FetchedSlice>,
}

/// The version that is fetched.
struct OfVersion<'a> {
    manifest: &'a Manifest,
    layouts: &'a [Arc<RankLayout>],
    outputs: Vec<Output<'a>>,
    memory: Option<OwnMemory>,
    report: Report,
}

impl OfState {
    async fn fetch(self, io: Io, wanted: Option<Vec<Wanted>>, options: FetchOptions) -> Result<FetchedBundle, Error> {
        let mut failed: Option<(Manifest, Error)> = None;
        loop {
            let manifest = roster::manifest(&io, &self.key, options).await?;
            let is_same = |failed: &Manifest| failed.version == manifest.version && failed.ranks == manifest.ranks;
            if let Some((before, error)) = failed.take()
                && is_same(&before)
            {
                return Err(error);
            }
            // Its ranks keep the version until the hold ends, however many follow meanwhile.
            let _hold = Hold::begin(&io, &self.key, manifest.version).await;
            let is_exact = matches!(options.select, Select::Exactly(_));
            if let Some((Some(whole), _)) = roster::look(&io, &self.key).await
                && whole > manifest.version
                && !is_exact
            {
                // Its manifest is about to be seen.
                io.sleep_until(Instant::now() + Duration::from_millis(20)).await;
                continue;
            }
            match self.version(&io, &manifest, wanted.as_deref(), options).await {
                Err(e) if !is_exact && is_replaced(&e) => failed = Some((manifest, e)),
                fetched => return fetched,
            }
        }
    }

    async fn version(
        &self,
        io: &Io,
        manifest: &Manifest,
        wanted: Option<&[Wanted]>,
        options: FetchOptions,
    ) -> Result<FetchedBundle, Error> {
        let layouts = of_manifest(io, &self.connection, &self.key, manifest.version, &manifest.ranks).await?;
        let global = KnownShards::of(&self.connection).lock().global(&self.key, &layouts)?;
        let mut outputs = Vec::new();
        match wanted {
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
        let report = Report { fabric: FabricKind::Local, bytes: 0, copied: 0, ..manifest.report };
        let bucket_bytes = options.bucket_bytes.max(MIN_REQUEST_BYTES);
        let mut now = OfVersion { manifest, layouts: &layouts, outputs, memory: None, report };
        // What is larger than any memory is refused before it is planned.
        if now.outputs.iter().any(|output| output.meta.len_bytes() > bucket_bytes) {
            now.memory = Some(own_memory(memory_bytes)?);
        }
        self.fill(io, &mut now, memory_bytes, bucket_bytes).await?;
        now.finish(io)
    }

    fn output<'a>(
        &self,
        name: &'a TensorName,
        tensor: &'a GlobalTensor,
        slice: Option<&Slice>,
    ) -> Result<Output<'a>, Error> {
        let (target, meta) = Target::new(&tensor.meta, slice).map_err(|e| {
            let text = format!("tensor {name:?} of state {:?} has {}: {e}", self.key, tensor.meta);
            Failure::new(FailureCode::Invalid, text)
        })?;
        Ok(Output { name, tensor, target, meta, at: 0, direct: None })
    }

    /// Fetches all pieces. Those of a rank that is gone are looked for at others.
    async fn fill(
        &self,
        io: &Io,
        now: &mut OfVersion<'_>,
        memory_bytes: usize,
        mut bucket_bytes: u64,
    ) -> Result<(), Error> {
        let mut gone_ranks: BTreeMap<u32, Error> = BTreeMap::new();
        let mut missing: Vec<Asked> =
            (0..now.outputs.len()).map(|output| Asked::all(output, &now.outputs[output])).collect();
        while !missing.is_empty() {
            let mut load = vec![0_u64; now.manifest.ranks.len()];
            let choose = |holders: &[Holder], elements: u64| {
                let best = |holder: &&Holder| {
                    let rank = &now.manifest.ranks[holder.rank as usize];
                    (rank.node != self.node, load[holder.rank as usize])
                };
                let holder = holders.iter().filter(|holder| !gone_ranks.contains_key(&holder.rank)).min_by_key(best)?;
                load[holder.rank as usize] += elements;
                Some(*holder)
            };
            let asks = asks(&now.outputs, now.layouts, missing, bucket_bytes, choose);
            let asks = asks.map_err(|(output, hole)| {
                let output = &now.outputs[output];
                let (name, range) = (output.name.as_str().to_owned(), hole.to_string());
                let had = output.tensor.holders_in(&hole).find_map(|rank| gone_ranks.get_key_value(&rank));
                match had {
                    Some((rank, why)) => {
                        let rank = &now.manifest.ranks[*rank as usize];
                        gone(&self.key, now.manifest.version, rank, (&name, range), why)
                    }
                    None => ShardedError::Hole { name, meta: output.tensor.meta.clone(), range }.into(),
                }
            })?;
            if now.memory.is_none() && asks.iter().any(|ask| !ask.is_direct) {
                now.memory = Some(own_memory(memory_bytes)?);
            }
            let (version, ranks) = (now.manifest.version, &now.manifest.ranks);
            let mut failed: Vec<(Ask, Error)> = Vec::new();
            let fetch = async |ask: Ask| {
                let fetched = self.ask(io, version, &ranks[ask.rank as usize], &ask).await;
                (ask, fetched)
            };
            let mut taken = Vec::new();
            io.each(asks, AT_ONCE, fetch, |(ask, fetched)| {
                match fetched {
                    Ok(slices) => taken.push(take(&mut now.outputs, &mut now.memory, &ask, &slices)?),
                    // Not where it is the time of this call that is over.
                    Err(e) if is_too_large(&e) || is_absent(&e) && !io.left(Duration::MAX).is_zero() => {
                        failed.push((ask, e))
                    }
                    Err(e) => return Err(e),
                }
                Ok(())
            })
            .await?;
            for report in taken {
                now.report.bytes += report.bytes;
                now.report.copied += report.copied;
                if report.fabric != FabricKind::Local {
                    now.report.fabric = report.fabric;
                }
            }
            missing = Vec::new();
            for (ask, error) in failed {
                if is_too_large(&error) && bucket_bytes < 2 * MIN_REQUEST_BYTES {
                    return Err(error);
                }
                if is_too_large(&error) {
                    bucket_bytes = (bucket_bytes / 2).min(ask.bytes / 2).max(MIN_REQUEST_BYTES);
                } else {
                    gone_ranks.insert(ask.rank, error);
                }
                missing.extend(ask.into_asked());
            }
        }
        Ok(())
    }

    /// Asks a rank for some pieces.
    async fn ask(&self, io: &Io, version: u64, rank: &CommittedRank, ask: &Ask) -> Result<FetchedSlices, Error> {
        let key = shards_key(&self.key, rank.rank, rank.instance)?;
        let patience = ABSENT + Duration::from_millis(ask.bytes * 1000 / SLOWEST);
        let (select, timeout) = (Select::Exactly(Version(version)), io.left(patience));
        let options = FetchOptions { select, timeout, ..FetchOptions::new() };
        let fetch = Fetch::<BlockingClient, FetchedBundle>::new(io.session(), Ok(key), take_bundle).with(options);
        let slices = ask.parts.iter().map(|part| (part.entry.as_str(), part.slice.clone()));
        let fetched = io.run(fetch.slices(slices)).await;
        match fetched {
            // It is the time of this call that is over, and not the rank's.
            Err(e) if is_late(&e) && io.left(Duration::MAX).is_zero() => {
                let waited = io.timeout();
                let text = format!(
                    "after {waited:?}: rank {} of version {version} of state {:?}, at node {:?}: {e}",
                    rank.rank, self.key, rank.node
                );
                Err(Failure::new(FailureCode::Deadline, text).into())
            }
            fetched => fetched,
        }
    }
}

fn is_too_large(error: &Error) -> bool {
    matches!(error, Error::Failed(failure) if does_not_fit(failure))
}

fn no_memory(wanted_bytes: u64, reason: impl ToString) -> Error {
    Error::NoMemory { wanted_bytes, reason: reason.to_string() }
}

/// Memory for what several shards make up.
fn own_memory(bytes: usize) -> Result<OwnMemory, Error> {
    OwnMemory::new(bytes as u64).map_err(|e| no_memory(bytes as u64, e))
}

/// Whether a newer version may have taken the place of the one that was fetched.
fn is_replaced(error: &Error) -> bool {
    matches!(error, Error::Sharded(e) if matches!(**e, ShardedError::RankGone(_)))
        || error.failure_code() == Some(FailureCode::VersionGone)
}

/// Takes the pieces that have come.
fn take(
    outputs: &mut [Output<'_>],
    memory: &mut Option<OwnMemory>,
    ask: &Ask,
    slices: &FetchedSlices,
) -> Result<Report, Error> {
    let mut report = Report { bytes: 0, ..*slices.report() };
    for part in &ask.parts {
        let Asked { output, part: place } = &part.asked;
        let output = &mut outputs[*output];
        let name = || part.entry.as_str().to_owned();
        let slice = slices.get(part.entry.as_str()).ok_or_else(|| BundleError::NoSuchTensor { name: name() })?;
        let expected = TensorMeta::of(output.meta.dtype(), &place.shape())?;
        if *slice.meta() != expected {
            let (found_bytes, expected_bytes) = (slice.meta().len_bytes(), expected.len_bytes());
            return Err(BundleError::WrongLength { expected_bytes, found_bytes }.into());
        }
        report.bytes += expected.len_bytes();
        if ask.is_direct && slice.is_contiguous() {
            output.direct = Some(slice.clone());
            continue;
        }
        let Some(memory) = memory else { continue };
        let dtype = output.meta.dtype();
        let (size, per_unit) = (dtype.size_bytes() as usize, dtype.elements_per_unit());
        let (mut dims, mut unit_part) = (output.target.counts(), place.clone());
        if let (Some(last), Some(extent)) = (dims.last_mut(), unit_part.0.last_mut()) {
            (*last, extent.start, extent.len) = (*last / per_unit, extent.start / per_unit, extent.len / per_unit);
        }
        let to = &mut memory.as_mut_bytes()[output.at..][..output.meta.len_bytes() as usize];
        copy_box(to, &dims, &unit_part, size, slice.as_bytes(), slice.strides());
        report.copied += slice.meta().len_bytes();
    }
    Ok(report)
}

impl OfVersion<'_> {
    fn finish(self, io: &Io) -> Result<FetchedBundle, Error> {
        let OfVersion { manifest, outputs, memory, mut report, .. } = self;
        let version = Version(manifest.version);
        report.in_flight =
            io.timeout().saturating_sub(io.left(Duration::MAX)).saturating_sub(report.queued + report.waited);
        let bytes = memory.map(OwnMemory::freeze);
        let (mut described, mut tensors) = (Vec::with_capacity(outputs.len()), Vec::with_capacity(outputs.len()));
        for Output { name, meta, at, direct, .. } in outputs {
            let len = meta.len_bytes() as usize;
            let own = || bytes.as_ref().and_then(|bytes| bytes.slice(at..at + len));
            let bytes = match direct {
                Some(slice) => slice.into_bytes(),
                None => own()
                    .or_else(|| OwnMemory::new(0).ok().map(OwnMemory::freeze))
                    .ok_or(BundleError::OutOfBody { offset: at as u64, len: len as u64, body_len: 0 })?,
            };
            described.push((name.clone(), meta.clone()));
            tensors.push(Tensor::of_bundle(bytes, meta, version, report));
        }
        let table = BundleTable::new(described).map_err(BundleError::from)?;
        Ok(FetchedBundle::new(table, tensors, version, report))
    }
}
