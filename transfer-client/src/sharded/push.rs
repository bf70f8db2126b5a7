//! Pushing a rank's shards of a version.

use super::known::{Kept, KnownLayout, KnownShards, Pushing};
use super::layouts::{ABSENT, of_ranks};
use super::proof;
use super::records::{DIGESTS, Kinds, LAYOUTS, MANIFEST, RECORD, entries, layout, layouts_bytes, manifest_bytes};
use super::records::{record_bytes, shard, shards_key, table};
use super::roster::{self, Awaited, Manifest};
use crate::bundle::{BundleTensor, source};
use crate::digest::Digesting;
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
use transfer_core::op::{
    Command, CommittedRank, Failure, FailureCode, RankCommit, RosterAnswer, RosterAsk, digest_of_ranks,
};
use transfer_core::tensor::{Digest, Key, TensorName, Version};

/// The pause before it is looked again whether versions have ended.
const FREE_INTERVAL: Duration = Duration::from_millis(400);

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
    /// If this worker has made the version whole: the number of shards whose box other ranks have, too, and that were compared with none of
    /// those. See [`PushShards::digest`].
    pub unproved: Option<u64>,
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
        let stage = match key {
            Ok(key) => Stage::New(key, shards.into_iter().collect()),
            Err(e) => Stage::Refused(e),
        };
        let (hash, delta_of, options) = (None, None, PushOptions::new());
        let of = RankPush { version, rank, restart: 0, until_whole: false, hash, delta_of, options };
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

    /// Makes a digest of the bytes of each shard, before they are copied to the arena, with which readers compare that
    /// [verify](crate::FetchSharded::verify). The last rank to commit compares the shards that have the same box, where they have digests of
    /// the same kind, and its push fails with [`ShardedError::ReplicasDiffer`] if two differ.
    pub fn digest(mut self, digest: Digest) -> Self {
        self.call.of.hash = Some(digest);
        self
    }

    /// Makes a delta: what has changed since this rank's shards of `version`, which this client has pushed and which are still published. A
    /// node whose workers have fetched all of those as they are gets the delta where they do so again. An eighth of the bytes may be left
    /// out, such as small tensors that other ranks have, too. Fetches of parts of shards, and [into](crate::FetchSharded::into) memory of the
    /// caller, get them whole. Name the version before in each push of each rank, beginning with the first. A delta
    /// costs time on fast links. See [`Push::delta_of`](crate::Push::delta_of).
    pub fn delta_of(mut self, version: u64) -> Self {
        self.call.of.delta_of = Some(version);
        self
    }

    /// How many deltas of this rank before that of this push stay published with it. See [`Push::keep_chain`](crate::Push::keep_chain).
    pub fn keep_chain(mut self, deltas: u32) -> Self {
        self.call.of.options.set_chain(deltas);
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
    /// The kind of the shards' digests.
    hash: Option<Digest>,
    /// The version of which the shards have a delta.
    delta_of: Option<u64>,
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
    New(Key, Vec<Shard<'a>>),
    /// Versions that have ended are deleted, so that there is room.
    Freeing(Flow<Result<Freed, Error>>, Prepared<'a>),
    /// Perhaps more are deleted meanwhile.
    Pushing(PushCall<'a>, Option<Flow<Result<(), Error>>>, Rest),
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

/// Checks the shards, and makes their digests.
fn prepare(key: Key, shards: Vec<Shard<'_>>, kinds: Kinds) -> Result<Prepared<'_>, Error> {
    let mut names = Vec::with_capacity(shards.len());
    for shard in &shards {
        names.push(TensorName::new(&shard.name)?);
        if [RECORD, DIGESTS].contains(&&*shard.name) {
            let text =
                format!("a tensor cannot have the name {:?}, which is that of a record of the shards", shard.name);
            return Err(Failure::new(FailureCode::Invalid, text).into());
        }
    }
    let entries = entries(&names)?;
    let digests = kinds.hash.map(|kind| {
        let bytes: Vec<_> = shards.iter().map(|shard| shard.tensor.as_bytes()).collect();
        proof::digests(kind, &bytes)
    });
    let (mut places, mut tensors) = (Vec::with_capacity(shards.len()), Vec::with_capacity(shards.len() + 2));
    for ((name, entry), one) in names.into_iter().zip(entries).zip(shards) {
        let Shard { global_shape, offset, tensor, .. } = one;
        places.push(shard(name, entry.clone(), tensor.meta(), &offset, &global_shape)?);
        tensors.push((entry.as_str().to_owned(), tensor));
    }
    let record = record_bytes(&places, kinds)?;
    let layout = Arc::new(layout(places, kinds, &record));
    let table = Arc::new(table(&layout, &record)?);
    let known = KnownLayout { layout, table, record: record.as_slice().into() };
    tensors.push((RECORD.to_owned(), BundleTensor::owned(record)?));
    if let Some(digests) = digests {
        tensors.push((DIGESTS.to_owned(), BundleTensor::owned(digests)?));
    }
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

/// Deletes this rank's versions that have ended, except this one. Returns whether that is all that can be deleted: the home of the roster
/// knows what is whole and held, or does not say so, and then all stays.
async fn free_ended(io: &Io, key: &Key, pushing: &Pushing, rank: u32, own: Option<Kept>) -> bool {
    if !pushing.keeps_any() {
        return true;
    }
    let Some(looked) = roster::look(io, key).await else { return true };
    let is_all = looked.settled;
    delete(io, key, rank, pushing.ended_by(looked, own)).await;
    is_all
}

/// The right to push, the place of the version, and whether no more room can be made.
type Freed = (Arc<Pushing>, Kept, bool);

/// Makes room.
async fn free(io: Io, connection: Arc<Connection>, key: Key, of: RankPush) -> Result<Freed, Error> {
    let rank = of.rank.rank;
    let pushing = Arc::new(Pushing::begin(&connection, &key, rank)?);
    delete(&io, &key, rank, pushing.begin_again(of.restart)).await;
    loop {
        let is_all = free_ended(&io, &key, &pushing, rank, None).await;
        match pushing.keep(of.version) {
            Err(_) if !is_all && io.left(FREE_INTERVAL) == FREE_INTERVAL => {
                io.sleep_until(Instant::now() + FREE_INTERVAL).await;
            }
            kept => return Ok((pushing, kept?, is_all)),
        }
    }
}

/// Goes on to make room while the shards of this version may wait for it.
async fn go_on_freeing(io: Io, key: Key, pushing: Arc<Pushing>, rank: u32, own: Kept) -> Result<(), Error> {
    loop {
        io.sleep_until(Instant::now() + FREE_INTERVAL).await;
        if free_ended(&io, &key, &pushing, rank, Some(own)).await {
            return Ok(());
        }
    }
}

/// Takes the commit of a push back that has failed. Shards that may count stay: the next push frees them once a newer version is whole.
async fn take_back(io: &Io, key: &Key, commit: &RankCommit, pushing: &Pushing, kept: Kept, was_refused: bool) {
    if roster::withdraw(io, key, commit).await || was_refused {
        pushing.forget(kept);
        delete(io, key, commit.rank, vec![kept]).await;
    }
}

/// Whether a commit with this answer never counts. One whose version is not newer than the whole one may be part of that: its first
/// answer may be lost with a home.
fn never_counts(code: Option<FailureCode>) -> bool {
    matches!(code, Some(FailureCode::KeyOwned | FailureCode::VersionGone))
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
    // The records are made here, and are no tensors of the caller's.
    let records = known.table.entries().iter().skip(known.layout.shards.len());
    let record_bytes = records.map(|record| record.meta.len_bytes()).sum();
    pushed.report.copied = pushed.report.copied.saturating_sub(record_bytes);
    KnownShards::of(&connection).lock().know_layout(&key, known);
    let commit = RankCommit { version: Version(version), rank, world_size, restart, instance, layout, worker: None };
    let mut was_refused = false;
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
            answer => answer.inspect_err(|e| was_refused = never_counts(e.failure_code()))?,
        };
        let RosterAnswer::Committed { is_last, whole, .. } = answer else {
            return Err(
                Failure::new(FailureCode::Unknown, format!("the roster of state {key:?} answers {answer:?}")).into()
            );
        };
        pushing.know_whole(whole.map(|version| version.0));
        match is_last {
            true => make_whole(&io, &connection, &key, &of).await,
            false => Ok(Made::NotYet),
        }
    };
    let mut made = committed.await;
    let mut pause = FREE_INTERVAL / 8;
    loop {
        match made {
            Err(e) => {
                take_back(&io, &key, &commit, &pushing, kept, was_refused).await;
                return Err(e);
            }
            Ok(Made::Whole { unproved }) => return Ok(PushedShards { pushed, is_whole: true, unproved }),
            Ok(Made::NotYet) if !until_whole => return Ok(PushedShards { pushed, is_whole: false, unproved: None }),
            Ok(Made::NotYet) => {}
        }
        // A commit that waits for the others stays when the time is over.
        made = match roster::until_whole(&io, &key, restart, version, Some(rank)).await? {
            Awaited::Whole { .. } => Ok(Made::Whole { unproved: None }),
            Awaited::Publish => make_whole(&io, &connection, &key, &of).await,
        };
        if matches!(made, Ok(Made::NotYet)) {
            io.sleep_until(Instant::now() + pause).await;
            pause = (2 * pause).min(FREE_INTERVAL);
        }
    }
}

/// Whether a version is whole.
enum Made {
    NotYet,
    /// And how many of its shards were compared with no replica, if this worker knows.
    Whole {
        unproved: Option<u64>,
    },
}

/// Checks that the ranks have all of each tensor and the same of each box, and publishes the manifest. Another worker does, if a rank has
/// changed meanwhile.
async fn make_whole(io: &Io, connection: &Arc<Connection>, key: &Key, of: &RankPush) -> Result<Made, Error> {
    let ranks = match roster::ranks(io, key, of.version, of.rank.world_size).await {
        Err(e) if e.failure_code() == Some(FailureCode::VersionGone) => return Ok(Made::NotYet),
        ranks => ranks?,
    };
    let known = of_ranks(io, connection, key, of.version, &ranks).await?;
    let layouts: Vec<_> = known.iter().map(|known| known.layout.clone()).collect();
    KnownShards::of(connection).lock().check(key, &layouts)?;
    let unproved = proof::compare_replicas(io, connection, (key, of.version), &ranks, &known).await?;
    let bytes = (manifest_bytes(of.restart, unproved, &ranks), layouts_bytes(known.iter().map(|known| &*known.record)));
    match publish(io, key, of, &bytes, false).await {
        // Another rank has published the version before, or this one. What is no sharded state is not taken away.
        Err(e) if e.failure_code() == Some(FailureCode::KeyOwned) => {
            match roster::manifest_within(io, key, FetchOptions::new(), ABSENT).await {
                Err(Error::Sharded(other)) if matches!(*other, ShardedError::NotSharded { .. }) => return Err(e),
                Ok(other) => match compare(&other, of, &ranks) {
                    Found::Same => {}
                    // This rank is left over.
                    Found::Other if other.restart > of.restart => return Ok(Made::NotYet),
                    _ => publish(io, key, of, &bytes, true).await?,
                },
                Err(_) => publish(io, key, of, &bytes, true).await?,
            }
        }
        // This rank has published a version of before the restart, or this one for a home that was lost.
        Err(e) if e.failure_code() == Some(FailureCode::VersionNotRising) => {
            let own = roster::manifest_within(io, key, FetchOptions::new(), ABSENT).await?;
            match compare(&own, of, &ranks) {
                Found::Same => {}
                Found::Older => {
                    let order = Order::<BlockingClient>::new(io.session(), Ok(Command::Delete { key: key.clone() }));
                    io.run(order.timeout(io.left(ABSENT))).await?;
                    publish(io, key, of, &bytes, true).await?;
                }
                Found::Other => return Err(e),
            }
        }
        published => published?,
    }
    // Of the ranks in the manifest: those of the roster may be others by now, or the same ones as before again.
    let digest = digest_of_ranks(ranks.iter().map(CommittedRank::digested));
    let question = RosterAsk::Published { version: Version(of.version), ranks: digest };
    match roster::ask_until(io, key, question).await {
        Ok(_) => Ok(Made::Whole { unproved: Some(unproved) }),
        Err(e) if e.failure_code() == Some(FailureCode::VersionGone) => Ok(Made::NotYet),
        Err(e) => Err(e),
    }
}

/// What a manifest is that is there already, beside the one that is to be published.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// The same, as when it was published for a home that was lost.
    Same,
    /// One of before the restart, or one of this version for ranks that have changed since.
    Older,
    /// One of another version, or of a later restart.
    Other,
}

fn compare(found: &Manifest, of: &RankPush, ranks: &[CommittedRank]) -> Found {
    match (found.restart, found.version) == (of.restart, of.version) {
        true if found.ranks == ranks => Found::Same,
        true => Found::Older,
        false if found.restart < of.restart => Found::Older,
        false => Found::Other,
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
    // A plain fetch that requires digests begins with the manifest.
    let digesting = Digesting { kind: of.hash, ..Digesting::default() };
    let options = PushOptions { takeover: takes_over, digesting, ..of.options.clone() };
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
                Stage::New(key, shards) => {
                    let prepared = match prepare(
                        key,
                        shards,
                        Kinds { hash: self.of.hash, has_deltas: self.of.delta_of.is_some() },
                    ) {
                        Ok(prepared) => prepared,
                        Err(e) => return ControlFlow::Break(Err(e)),
                    };
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
                    ControlFlow::Break(Ok((pushing, kept, is_all))) => {
                        let Prepared { key, source, known } = prepared;
                        let shards = shards_key(&key, self.of.rank.rank, kept.instance);
                        let base = |version| {
                            let base = pushing.base(version, kept);
                            let key = base.and_then(|base| shards_key(&key, self.of.rank.rank, base.instance).ok());
                            (version, key)
                        };
                        let options = PushOptions { delta_of: self.of.delta_of.map(base), ..self.of.options.clone() };
                        let push = Push::<BlockingClient>::new(self.session.clone(), shards, Ok(source));
                        let push = push.with(&options).version(self.of.version).timeout(left(Duration::MAX));
                        let frees = (!is_all).then(|| {
                            let (key, pushing, rank) = (key.clone(), pushing.clone(), self.of.rank.rank);
                            let mut frees =
                                Flow::new(&self.client, move |io| go_on_freeing(io, key, pushing, rank, kept));
                            frees.set_timeout(left(Duration::MAX));
                            frees
                        });
                        self.stage = Stage::Pushing(push.call, frees, Rest { key, pushing, kept, known });
                    }
                },
                Stage::Pushing(mut push, mut frees, rest) => match push.step(waker) {
                    ControlFlow::Continue(at) => {
                        let again = match frees.as_mut().map(|frees| frees.step(waker)) {
                            Some(ControlFlow::Continue(again)) => again,
                            _ => {
                                frees = None;
                                at
                            }
                        };
                        self.stage = Stage::Pushing(push, frees, rest);
                        return ControlFlow::Continue(at.min(again));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_of_a_version_that_is_whole_may_be_part_of_it() {
        assert!(never_counts(Some(FailureCode::KeyOwned)) && never_counts(Some(FailureCode::VersionGone)));
        assert!(!never_counts(Some(FailureCode::VersionNotRising)) && !never_counts(None));
    }

    #[test]
    fn manifest_that_is_there_for_the_same_ranks_is_not_published_again() {
        let rank = Rank { rank: 0, world_size: 1 };
        let (hash, delta_of, options) = (None, None, PushOptions::new());
        let of = RankPush { version: 7, rank, restart: 1, until_whole: false, hash, delta_of, options };
        let found = |restart, version, instance| {
            compare(&Manifest::of_one(version, restart, instance), &of, &Manifest::of_one(7, 1, 5).ranks)
        };
        assert_eq!(found(1, 7, 5), Found::Same);
        assert_eq!((found(1, 7, 6), found(0, 7, 5), found(0, 9, 5)), (Found::Older, Found::Older, Found::Older));
        assert_eq!((found(1, 8, 5), found(2, 3, 5)), (Found::Other, Found::Other));
        // An earlier one of the same attempt never keeps this one from being published.
        assert_eq!(found(1, 6, 5), Found::Other);
    }
}
