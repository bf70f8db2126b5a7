//! Pushing a rank's shards of a version.

use super::known::{Kept, KnownLayout, KnownShards, Pushing};
use super::layouts::{ABSENT, of_ranks};
use super::records::{LAYOUTS, MANIFEST, RECORD, entries, layout, layouts_bytes, manifest_bytes, record_bytes};
use super::records::{shard, shards_key, table};
use super::roster::{self, Awaited};
use crate::bundle::{BundleTensor, source};
use crate::error::{Error, ShardedError};
use crate::fetch::FetchOptions;
use crate::push::{Order, Push, PushCall, PushOptions, Pushed, Source};
use crate::request::flow::{Flow, Io};
use crate::request::{AnyClient, BlockingClient, Call, Handle, HasHandle, Request, RequestCall};
use crate::session::{Connection, Session};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Command, Failure, FailureCode, RankCommit, RosterAnswer, RosterAsk};
use transfer_core::tensor::{Key, TensorName, Version};

/// A box of a global tensor.
#[derive(Debug)]
pub struct Shard<'a> {
    name: String,
    global_shape: Vec<u64>,
    offset: Vec<u64>,
    tensor: BundleTensor<'a>,
}

impl<'a> Shard<'a> {
    /// Makes a shard of the tensor of this name and shape, in which it begins at `offset`: of each dimension an index. Memory in the
    /// arena of the pushing client is pushed in place; see [`BundleTensor`].
    pub fn new(
        name: impl Into<String>,
        global_shape: impl Into<Vec<u64>>,
        offset: impl Into<Vec<u64>>,
        tensor: impl Into<BundleTensor<'a>>,
    ) -> Shard<'a> {
        let (name, global_shape, offset, tensor) = (name.into(), global_shape.into(), offset.into(), tensor.into());
        Shard { name, global_shape, offset, tensor }
    }
}

/// A rank of a sharded state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Its number, from 0.
    pub rank: u32,
    /// The number of ranks, at most 16,384.
    pub world_size: u32,
}

/// A rank's shards that were pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushedShards {
    /// The version, and the report of the push of the shards.
    pub pushed: Pushed,
    /// Whether the version is whole, as far as this call knows: with [`PushShards::whole`] always.
    pub is_whole: bool,
}

/// A push of a rank's shards. Set its options, then `.await` it, or `.call()` it on a [`crate::BlockingClient`].
pub type PushShards<'a, C> = Request<C, PushShardsCall<'a>>;

impl<'a, C: AnyClient> PushShards<'a, C> {
    pub(crate) fn new(
        handle: &Handle,
        key: Result<Key, Error>,
        (version, rank): (u64, Rank),
        shards: impl IntoIterator<Item = Shard<'a>>,
    ) -> Self {
        let connection = handle.connection().clone();
        let session = connection.session();
        let stage = match key.and_then(|key| prepare(key, shards)) {
            Ok(prepared) => Stage::New(prepared),
            Err(e) => Stage::Refused(e),
        };
        let of = RankPush { version, rank, restart: 0, until_whole: false, options: PushOptions::new() };
        Request::from_call(PushShardsCall {
            connection,
            client: BlockingClient::of(handle.clone()),
            session,
            of,
            started: None,
            stage,
        })
    }

    /// Waits until the version is whole: until all ranks have committed it. Without this the call ends when this rank has.
    pub fn whole(mut self) -> Self {
        self.call.of.until_whole = true;
        self
    }

    /// The number of the job's attempt, 0 by default. All ranks say the same one in all their pushes. A higher one than before begins
    /// the versions again, as a trainer does that goes on from a checkpoint: all earlier versions end, and this one may have any number.
    /// A rank with a lower one is left over, and its push fails with [`FailureCode::VersionGone`](crate::FailureCode).
    pub fn restart(mut self, attempt: u64) -> Self {
        self.call.of.restart = attempt;
        self
    }

    /// Lets workers of this tenant fetch the version, too. See [`Push::readable_by`](crate::Push::readable_by).
    pub fn readable_by(mut self, tenant: impl AsRef<str>) -> Self {
        self.call.of.options.add_reader(tenant.as_ref());
        self
    }
}

/// A push of shards under way.
pub struct PushShardsCall<'a> {
    connection: Arc<Connection>,
    client: BlockingClient,
    session: Arc<Session>,
    of: RankPush,
    started: Option<Instant>,
    stage: Stage<'a>,
}

impl fmt::Debug for PushShardsCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushShardsCall").field("of", &self.of).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone)]
struct RankPush {
    version: u64,
    rank: Rank,
    restart: u64,
    until_whole: bool,
    options: PushOptions,
}

/// The shards, and what describes them.
struct Prepared<'a> {
    key: Key,
    source: Source<'a>,
    known: KnownLayout,
}

#[expect(clippy::large_enum_variant, reason = "one for each call, and every call comes to its largest")]
enum Stage<'a> {
    Refused(Error),
    New(Prepared<'a>),
    /// Versions that have ended are deleted, so that there is room.
    Freeing(Flow<Result<(Arc<Pushing>, Kept), Error>>, Prepared<'a>),
    Pushing(PushCall<'a>, Rest),
    Committing(Flow<Result<PushedShards, Error>>),
    Ended,
}

/// What follows when the shards are pushed.
struct Rest {
    key: Key,
    pushing: Arc<Pushing>,
    kept: Kept,
    known: KnownLayout,
}

/// Checks the shards.
fn prepare<'a>(key: Key, shards: impl IntoIterator<Item = Shard<'a>>) -> Result<Prepared<'a>, Error> {
    let shards: Vec<_> = shards.into_iter().collect();
    let mut names = Vec::with_capacity(shards.len());
    for shard in &shards {
        names.push(TensorName::new(&shard.name)?);
        if shard.name == RECORD {
            let text = format!("a tensor cannot have the name {RECORD:?}, which is that of the record of the shards");
            return Err(Failure::new(FailureCode::Invalid, text).into());
        }
    }
    let entries = entries(&names)?;
    let (mut places, mut tensors) = (Vec::with_capacity(shards.len()), Vec::with_capacity(shards.len() + 1));
    for ((name, entry), one) in names.into_iter().zip(entries).zip(shards) {
        let Shard { global_shape, offset, tensor, .. } = one;
        places.push(shard(name, entry.clone(), tensor.meta(), &offset, &global_shape)?);
        tensors.push((entry.as_str().to_owned(), tensor));
    }
    let record = record_bytes(&places)?;
    let table = Arc::new(table(&places, &record)?);
    let known = KnownLayout { layout: Arc::new(layout(places, &record)), table, record: record.as_slice().into() };
    tensors.push((RECORD.to_owned(), BundleTensor::owned(record)?));
    Ok(Prepared { key, source: source(tensors)?, known })
}

/// Deletes what a rank has published.
async fn delete(io: &Io, key: &Key, rank: u32, kept: Vec<Kept>) {
    let ended = io.all(kept, async |Kept { instance, .. }| {
        let key = shards_key(key, rank, instance)?;
        let order = Order::<BlockingClient>::new(io.session(), Ok(Command::Delete { key }));
        io.run(order.timeout(ABSENT)).await
    });
    for failed in ended.await.into_iter().filter_map(Result::err) {
        // It is gone already, or ends with the session.
        tracing::debug!(%key, rank, "not deleted: {failed}");
    }
}

/// Makes room: deletes this rank's versions that have ended.
async fn free(io: Io, connection: Arc<Connection>, key: Key, of: RankPush) -> Result<(Arc<Pushing>, Kept), Error> {
    let rank = of.rank.rank;
    let pushing = Arc::new(Pushing::begin(&connection, &key, rank)?);
    let mut ended = pushing.begin_again(of.restart);
    // Where its home does not say what is held, all stays.
    if pushing.keeps_any()
        && let Some(looked) = roster::look(&io, &key).await
    {
        ended.extend(pushing.ended_by(looked));
    }
    delete(&io, &key, rank, ended).await;
    let kept = pushing.keep(of.version)?;
    Ok((pushing, kept))
}

/// Commits the shards that are pushed. The worker of the last rank to commit makes the version whole.
async fn commit(
    io: Io,
    connection: Arc<Connection>,
    of: RankPush,
    rest: Rest,
    mut pushed: Pushed,
) -> Result<PushedShards, Error> {
    let Rest { key, pushing, kept, known } = rest;
    let RankPush { version, rank: Rank { rank, world_size }, restart, until_whole, .. } = of;
    let (instance, layout) = (kept.instance, known.layout.digest);
    // The record is made here, and is no tensor of the caller's.
    let record_bytes = known.table.entries().last().map_or(0, |record| record.meta.len_bytes());
    pushed.report.copied = pushed.report.copied.saturating_sub(record_bytes);
    KnownShards::of(&connection).lock().know_layout(&key, known);
    let commit = RankCommit { version: Version(version), rank, world_size, restart, instance, layout, worker: None };
    let committed = async {
        let answer = match roster::ask_until(&io, &key, RosterAsk::Commit(commit.clone())).await {
            // Where nobody publishes the whole version any more, it has ended, as that of any key whose worker is gone.
            Err(e)
                if e.failure_code() == Some(FailureCode::VersionNotRising)
                    && !roster::is_published(&io, &key).await =>
            {
                roster::forget_whole(&io, &key).await?;
                delete(&io, &key, rank, pushing.forget_others(kept)).await;
                roster::ask_until(&io, &key, RosterAsk::Commit(commit.clone())).await?
            }
            answer => answer?,
        };
        let RosterAnswer::Committed { is_last, whole, ranks } = answer else {
            return Err(
                Failure::new(FailureCode::Unknown, format!("the roster of state {key:?} answers {answer:?}")).into()
            );
        };
        pushing.know_whole(whole.map(|version| version.0));
        Ok::<bool, Error>(is_last && make_whole(&io, &connection, &key, &of, ranks).await?)
    };
    let made_whole = match committed.await {
        Ok(made_whole) => made_whole,
        Err(e) => {
            use FailureCode::{KeyOwned, VersionGone, VersionNotRising};
            let was_refused = matches!(e.failure_code(), Some(KeyOwned | VersionGone | VersionNotRising));
            // Shards that may count stay: the next push frees them once a newer version is whole.
            if roster::withdraw(&io, &key, &commit).await || was_refused {
                pushing.forget(kept);
                delete(&io, &key, rank, vec![kept]).await;
            }
            return Err(e);
        }
    };
    let mut is_whole = made_whole;
    while until_whole && !is_whole {
        match roster::until_whole(&io, &key, restart, version, Some(rank)).await? {
            Awaited::Whole { .. } => is_whole = true,
            Awaited::Publish(ranks) => is_whole = make_whole(&io, &connection, &key, &of, ranks).await?,
        }
    }
    Ok(PushedShards { pushed, is_whole })
}

/// Checks that the ranks have all of each tensor, and publishes the manifest. Returns `false` if another worker does, because a rank
/// has changed meanwhile.
async fn make_whole(
    io: &Io,
    connection: &Arc<Connection>,
    key: &Key,
    of: &RankPush,
    digest: u64,
) -> Result<bool, Error> {
    let ranks = match roster::ranks(io, key, of.version, of.rank.world_size).await {
        Err(e) if e.failure_code() == Some(FailureCode::VersionGone) => return Ok(false),
        ranks => ranks?,
    };
    let known = of_ranks(io, connection, key, of.version, &ranks).await?;
    let layouts: Vec<_> = known.iter().map(|known| known.layout.clone()).collect();
    KnownShards::of(connection).lock().check(key, &layouts)?;
    let bytes = (manifest_bytes(of.restart, &ranks), layouts_bytes(known.iter().map(|known| &*known.record)));
    match publish(io, key, of, &bytes, false).await {
        // Another rank has published the version before. What is no sharded state is not taken away.
        Err(e) if e.failure_code() == Some(FailureCode::KeyOwned) => {
            let options = FetchOptions::new();
            match roster::manifest_within(io, key, options, ABSENT).await {
                Err(Error::Sharded(other)) if matches!(*other, ShardedError::NotSharded { .. }) => return Err(e),
                // This rank is left over.
                Ok(other) if other.restart > of.restart => return Ok(false),
                _ => publish(io, key, of, &bytes, true).await?,
            }
        }
        // This rank has published a version of before the restart.
        Err(e)
            if e.failure_code() == Some(FailureCode::VersionNotRising)
                && roster::manifest_within(io, key, FetchOptions::new(), ABSENT).await?.restart < of.restart =>
        {
            let order = Order::<BlockingClient>::new(io.session(), Ok(Command::Delete { key: key.clone() }));
            io.run(order.timeout(io.left(ABSENT))).await?;
            publish(io, key, of, &bytes, true).await?;
        }
        published => published?,
    }
    let question = RosterAsk::Published { version: Version(of.version), ranks: digest };
    match roster::ask_until(io, key, question).await {
        Ok(_) => Ok(true),
        Err(e) if e.failure_code() == Some(FailureCode::VersionGone) => Ok(false),
        Err(e) => Err(e),
    }
}

async fn publish(
    io: &Io,
    key: &Key,
    of: &RankPush,
    (manifest, layouts): &(Vec<u8>, Vec<u8>),
    takes_over: bool,
) -> Result<(), Error> {
    let tensor = |bytes: &Vec<u8>| BundleTensor::owned(bytes.clone());
    let tensors = [(MANIFEST, tensor(manifest)?), (LAYOUTS, tensor(layouts)?)];
    let push = Push::<BlockingClient>::new(io.session(), Ok(key.clone()), source(tensors));
    let options = PushOptions { takeover: takes_over, ..of.options.clone() };
    let push = push.with(&options).version(of.version).timeout(io.left(Duration::MAX));
    io.run(push).await?;
    Ok(())
}

impl Call for PushShardsCall<'_> {
    type Output = Result<PushedShards, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let started = *self.started.get_or_insert_with(Instant::now);
        let timeout = self.of.options.timeout;
        let left = |at_most: Duration| timeout.saturating_sub(started.elapsed()).min(at_most);
        loop {
            match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Refused(e) => return ControlFlow::Break(Err(e)),
                Stage::New(prepared) => {
                    let (connection, key, of) = (self.connection.clone(), prepared.key.clone(), self.of.clone());
                    let mut flow = Flow::new(&self.client, move |io| free(io, connection, key, of));
                    flow.set_timeout(timeout);
                    self.stage = Stage::Freeing(flow, prepared);
                }
                Stage::Freeing(mut flow, prepared) => match flow.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::Freeing(flow, prepared);
                        return ControlFlow::Continue(at);
                    }
                    ControlFlow::Break(Err(e)) => return ControlFlow::Break(Err(e)),
                    ControlFlow::Break(Ok((pushing, kept))) => {
                        let Prepared { key, source, known } = prepared;
                        let shards = shards_key(&key, self.of.rank.rank, kept.instance);
                        let push = Push::<BlockingClient>::new(self.session.clone(), shards, Ok(source));
                        let push = push.with(&self.of.options).version(self.of.version).timeout(left(Duration::MAX));
                        self.stage = Stage::Pushing(push.call, Rest { key, pushing, kept, known });
                    }
                },
                Stage::Pushing(mut push, rest) => match push.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::Pushing(push, rest);
                        return ControlFlow::Continue(at);
                    }
                    ControlFlow::Break(Err(e)) => {
                        rest.pushing.forget(rest.kept);
                        return ControlFlow::Break(Err(e.into()));
                    }
                    ControlFlow::Break(Ok(pushed)) => {
                        let (connection, of) = (self.connection.clone(), self.of.clone());
                        let commits = move |io| commit(io, connection, of, rest, pushed);
                        let mut flow = Flow::new(&self.client, commits);
                        flow.set_timeout(left(Duration::MAX));
                        self.stage = Stage::Committing(flow);
                    }
                },
                Stage::Committing(mut flow) => {
                    let step = flow.step(waker);
                    if step.is_continue() {
                        self.stage = Stage::Committing(flow);
                    }
                    return step;
                }
                Stage::Ended => return ControlFlow::Continue(Instant::now() + timeout),
            }
        }
    }

    fn needs_timer(&self) -> bool {
        true
    }
}

impl RequestCall for PushShardsCall<'_> {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.of.options.timeout = timeout;
    }
}
