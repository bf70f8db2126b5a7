//! Versions that do not fit the landing pool. They are fetched in *buckets*: parts of one version, each of which lands in the pool
//! and is copied into memory of this process, while the next one is on its way.
//!
//! The first requests find out what the version is. If it is replaced meanwhile, the fetch starts again with the newer one, until
//! its deadline. What is fetched, a [`Content`], says what the requests ask for.

use super::call::{Fetch, LargeFetch};
use super::options::FetchOptions;
use crate::error::Error;
use crate::request::{AnyClient, Call};
use crate::session::{ANSWER_GRACE, Answered, Ended, OneCall, Session, deadline};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::memory::ALIGNMENT;
use transfer_core::op::{Failure, FailureCode, Report};
use transfer_core::tensor::{Excerpt, Key, Select, Version};
use transfer_memory::view::{Bytes, OwnMemory};

/// The shortest bucket, in bytes.
pub(crate) const MIN_BUCKET_BYTES: u64 = 64 << 10;

/// The number of buckets that are on their way at the same time.
const IN_FLIGHT: usize = 2;

/// How much shorter buckets become that find no room.
const SHRINK_FACTOR: u64 = 8;

/// After how long without a bucket that has landed the next ones are shorter, at most. At 1 Gb/s one of 32 MiB takes a quarter of it.
const MAX_IDLE: Duration = Duration::from_secs(1);

impl<C: AnyClient, T> Fetch<C, T> {
    /// The length of a bucket, 32 MiB by default and at least 64 KiB. A tensor, a slice or a bundle that does not fit the landing pool
    /// is fetched in buckets: parts that land in the pool one after the other, and are copied into memory of this process, which the
    /// report counts. Two are on their way at a time. Where the pool is smaller than a bucket, or none has landed for a second or an eighth
    /// of the time-out, buckets have an eighth of that. If the version is replaced meanwhile, the fetch begins again with the newer one,
    /// until its time-out.
    pub fn bucket_bytes(mut self, bytes: u64) -> Self {
        self.call.set_bucket_bytes(bytes);
        self
    }
}

/// A fetch of a version that does not fit the landing pool.
#[derive(Debug, Clone)]
pub(crate) struct LargeVersion {
    pub(crate) session: Arc<Session>,
    pub(crate) key: Key,
    pub(crate) options: FetchOptions,
    /// Why it does not come at once.
    pub(crate) why: Failure,
}

/// What is fetched in buckets.
pub(crate) trait Content: Debug {
    /// What is known of the version.
    type Layout: Debug;
    /// A place in what is fetched. The default one is the start.
    type Cursor: Debug + Default + Copy;
    /// What one bucket has.
    type Part: Debug;
    /// The result.
    type Output;

    /// The next request that finds out what the version is, after `begin_again` the first one.
    fn describe(&self) -> Result<Excerpt, Error>;

    /// Reads the answer to it.
    fn described(&mut self, of: &LargeVersion, ended: Ended) -> Result<Described<Self::Layout, Self::Output>, Error>;

    /// Forgets what was found out.
    fn begin_again(&mut self) {}

    /// Takes the next part, of at most `len` bytes.
    fn next(&self, layout: &Self::Layout, at: &mut Self::Cursor, len: u64) -> Option<(Self::Part, PartLen)>;

    /// The request for a part.
    fn ask(&self, part: &Self::Part) -> Result<Excerpt, Error>;

    /// Copies a part that has landed to its place, and returns the number of bytes that were copied before. `None` if it is of
    /// another push than the others.
    fn land(
        &self,
        of: &LargeVersion,
        layout: &Self::Layout,
        part: &Self::Part,
        ended: Ended,
        to: &mut [u8],
    ) -> Result<Option<u64>, Error>;

    /// Makes the result of all that has landed.
    fn finish(
        &self,
        of: &LargeVersion,
        layout: Self::Layout,
        bytes: Bytes,
        version: Version,
        report: Report,
    ) -> Result<Self::Output, Error>;
}

/// The length of a part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartLen {
    pub(crate) bytes: u64,
    /// Whether all others have to be there before it is asked for.
    pub(crate) is_last: bool,
}

/// What the answer to a first request says.
pub(crate) enum Described<L, T> {
    /// Another request is needed, of this version.
    Asks(Version),
    /// The layout, and the number of bytes that are fetched.
    Known { version: Version, report: Report, layout: L, len: u64 },
    /// The result: nothing had to move.
    There(T),
}

/// A fetch in buckets.
#[derive(Debug)]
pub(crate) struct BucketCall<C: Content> {
    of: LargeVersion,
    content: C,
    started: Instant,
    limit: Instant,
    bucket_bytes: u64,
    /// What the first answer was a part of. All have to be parts of the same push: a number of version may come again.
    publication: Option<u64>,
    /// How often the version was replaced while it was fetched.
    replaced: u32,
    stage: Stage<C>,
}

#[derive(Debug)]
enum Stage<C: Content> {
    /// The first request comes next, or another one about this version.
    Start(Option<Version>),
    /// It is on its way.
    Describing(Option<Version>, Box<OneCall>),
    Body(Box<Filling<C>>),
}

/// The memory that is filled, and the version that it is filled with.
#[derive(Debug)]
struct Filling<C: Content> {
    layout: C::Layout,
    version: Version,
    report: Report,
    memory: OwnMemory,
    /// What is asked for next, and where it will lie.
    asked: Position<C::Cursor>,
    /// Since when nothing has landed.
    idle_since: Instant,
    in_flight: VecDeque<Bucket<C>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Position<A> {
    cursor: A,
    at: u64,
}

#[derive(Debug)]
struct Bucket<C: Content> {
    call: OneCall,
    part: C::Part,
    len: u64,
    place: Position<C::Cursor>,
    /// The answer, if it came before that of an earlier bucket was read.
    arrived: Arrived,
}

/// The answer to a request. What has come and is not taken goes back.
#[derive(Debug)]
struct Arrived {
    session: Arc<Session>,
    ended: Option<Ended>,
}

impl Drop for Arrived {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            drop(Answered::fetched(ended, &self.session));
        }
    }
}

/// What a step of the body leads to.
enum Next {
    Goes,
    Waits(Instant),
    /// All has landed.
    Filled,
    /// The version was replaced.
    Again,
}

impl<C: Content> BucketCall<C> {
    pub(crate) fn new(of: LargeVersion, content: C) -> BucketCall<C> {
        let started = Instant::now();
        let limit = deadline(started, of.options.timeout);
        let bucket_bytes = of.options.bucket_bytes.max(MIN_BUCKET_BYTES) / ALIGNMENT * ALIGNMENT;
        BucketCall {
            of,
            content,
            started,
            limit,
            bucket_bytes,
            publication: None,
            replaced: 0,
            stage: Stage::Start(None),
        }
    }

    fn call(&self, select: Select, excerpt: Excerpt) -> OneCall {
        let timeout = self.limit.saturating_duration_since(Instant::now());
        let options = FetchOptions { select, timeout, watches: false, ..self.of.options };
        let command = options.command(self.of.key.clone(), Some(Box::new(excerpt)));
        OneCall::new(self.of.session.clone(), command, self.started, self.limit)
    }

    /// Asks what the version is.
    fn describe(&self, of: Option<Version>) -> Result<Stage<C>, Error> {
        let select = of.map_or(self.of.options.select, Select::Exactly);
        Ok(Stage::Describing(of, Box::new(self.call(select, self.content.describe()?))))
    }

    /// Returns an answer, unless it is of another push than the first one.
    fn of_this_push(&mut self, ended: Ended) -> Option<Ended> {
        let publication = ended.as_ref().ok().and_then(Answered::publication);
        if publication.is_some_and(|got| *self.publication.get_or_insert(got) != got) {
            // What has come goes back.
            drop(Answered::fetched(ended, &self.of.session));
            return None;
        }
        Some(ended)
    }

    /// Reads what the version is, and asks for memory.
    fn described(&mut self, asked: Option<Version>, ended: Ended) -> Result<ControlFlow<C::Output, Stage<C>>, Error> {
        let Some(ended) = self.of_this_push(ended) else { return self.start_again().map(ControlFlow::Continue) };
        let (version, report, layout, len) = match self.content.described(&self.of, ended) {
            Ok(Described::Asks(version)) => return Ok(ControlFlow::Continue(Stage::Start(Some(version)))),
            Ok(Described::There(output)) => return Ok(ControlFlow::Break(output)),
            Ok(Described::Known { version, report, layout, len }) => (version, report, layout, len),
            Err(e) if asked.is_some() && is(&e, FailureCode::VersionGone) => {
                return self.start_again().map(ControlFlow::Continue);
            }
            Err(e) => return Err(e),
        };
        let no_memory = |e: std::io::Error| Error::NoMemory { wanted_bytes: len, reason: e.to_string() };
        let memory = OwnMemory::new(len).map_err(no_memory)?;
        let (asked, in_flight) = (Position::default(), VecDeque::new());
        let idle_since = Instant::now();
        let filling = Filling { layout, version, report, memory, asked, idle_since, in_flight };
        Ok(ControlFlow::Continue(Stage::Body(Box::new(filling))))
    }

    /// Asks for the next buckets, and copies the first one if it has landed.
    fn fill(&mut self, now: &mut Filling<C>, waker: &Waker) -> Result<Next, Error> {
        self.ask_for_buckets(now)?;
        let mut until = self.limit + ANSWER_GRACE;
        for bucket in now.in_flight.iter_mut().filter(|bucket| bucket.arrived.ended.is_none()) {
            match bucket.call.step(waker) {
                ControlFlow::Continue(at) => until = until.min(at),
                ControlFlow::Break(ended) => bucket.arrived.ended = Some(ended),
            }
        }
        let Some(mut first) = now.in_flight.pop_front() else { return Ok(Next::Filled) };
        let (ended, part, len, place) = match first.arrived.ended.take() {
            Some(ended) => (ended, first.part, first.len, first.place),
            None => {
                let (place, shrinks_at) = (first.place, now.idle_since + self.max_idle());
                now.in_flight.push_front(first);
                if !self.may_shrink() {
                    return Ok(Next::Waits(until));
                }
                if Instant::now() < shrinks_at {
                    return Ok(Next::Waits(until.min(shrinks_at)));
                }
                // Perhaps it waits for room that its own caller holds.
                self.shrink(now, place);
                return Ok(Next::Goes);
            }
        };
        let Some(ended) = self.of_this_push(ended) else { return Ok(Next::Again) };
        let to = &mut now.memory.as_mut_bytes()[place.at as usize..][..len as usize];
        match self.content.land(&self.of, &now.layout, &part, ended, to) {
            Ok(Some(copied)) => {
                now.report.bytes += len;
                now.report.copied += copied + len;
                now.idle_since = Instant::now();
                Ok(Next::Goes)
            }
            Ok(None) => Ok(Next::Again),
            Err(e) if is(&e, FailureCode::VersionGone) => Ok(Next::Again),
            // Here or at the owner, which may have to copy it first.
            Err(e) if self.may_shrink() && (is(&e, FailureCode::TooLarge) || is(&e, FailureCode::PoolFull)) => {
                self.shrink(now, place);
                Ok(Next::Goes)
            }
            Err(e) => Err(e),
        }
    }

    fn may_shrink(&self) -> bool {
        self.bucket_bytes > MIN_BUCKET_BYTES && Instant::now() < self.limit
    }

    /// How long nothing may land before buckets become shorter.
    fn max_idle(&self) -> Duration {
        MAX_IDLE.min(self.limit.saturating_duration_since(self.started) / 8)
    }

    /// Asks for what has not landed, from this place on, in shorter buckets, which find room beside what this process and others hold in
    /// the pool.
    fn shrink(&mut self, now: &mut Filling<C>, place: Position<C::Cursor>) {
        self.bucket_bytes = (self.bucket_bytes / SHRINK_FACTOR / ALIGNMENT * ALIGNMENT).max(MIN_BUCKET_BYTES);
        now.in_flight.clear();
        now.asked = place;
        now.idle_since = Instant::now();
    }

    fn ask_for_buckets(&self, now: &mut Filling<C>) -> Result<(), Error> {
        while now.in_flight.len() < IN_FLIGHT {
            let place = now.asked;
            let mut cursor = place.cursor;
            let Some((part, PartLen { bytes, is_last })) =
                self.content.next(&now.layout, &mut cursor, self.bucket_bytes)
            else {
                break;
            };
            if is_last && !now.in_flight.is_empty() {
                break;
            }
            let call = self.call(Select::Exactly(now.version), self.content.ask(&part)?);
            let arrived = Arrived { session: self.of.session.clone(), ended: None };
            now.in_flight.push_back(Bucket { call, part, len: bytes, place, arrived });
            now.asked = Position { cursor, at: place.at + bytes };
        }
        Ok(())
    }

    fn finish(&self, now: Filling<C>) -> Result<C::Output, Error> {
        let Filling { layout, version, mut report, memory, .. } = now;
        report.in_flight = self.started.elapsed().saturating_sub(report.queued + report.waited);
        self.content.finish(&self.of, layout, memory.freeze(), version, report)
    }

    /// Starts again with the newer version, unless the caller wants exactly this one.
    fn start_again(&mut self) -> Result<Stage<C>, Error> {
        let key = &self.of.key;
        if let Select::Exactly(version) | Select::Following(version) = self.of.options.select {
            let text = format!("{version} of key {key:?} was replaced while it was fetched in buckets");
            return Err(Failure::new(FailureCode::VersionGone, text).into());
        }
        self.replaced += 1;
        if Instant::now() >= self.limit {
            let (waited, replaced) = (self.started.elapsed(), self.replaced);
            let text = format!(
                "after {waited:.1?}: key {key:?} does not fit the landing pool, and its version was replaced {replaced} times while \
                 it was fetched in buckets; publish it less often, or with keep, or enlarge the pool"
            );
            return Err(Failure::new(FailureCode::Deadline, text).into());
        }
        self.content.begin_again();
        self.publication = None;
        Ok(Stage::Start(None))
    }

    fn go_on(&mut self, waker: &Waker) -> Result<ControlFlow<C::Output, Instant>, Error> {
        loop {
            self.stage = match std::mem::replace(&mut self.stage, Stage::Start(None)) {
                Stage::Start(of) => self.describe(of)?,
                Stage::Describing(of, mut call) => match call.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::Describing(of, call);
                        return Ok(ControlFlow::Continue(at));
                    }
                    ControlFlow::Break(ended) => match self.described(of, ended)? {
                        ControlFlow::Continue(stage) => stage,
                        ControlFlow::Break(output) => return Ok(ControlFlow::Break(output)),
                    },
                },
                Stage::Body(mut now) => match self.fill(&mut now, waker)? {
                    Next::Goes => Stage::Body(now),
                    Next::Waits(at) => {
                        self.stage = Stage::Body(now);
                        return Ok(ControlFlow::Continue(at));
                    }
                    Next::Filled => return Ok(ControlFlow::Break(self.finish(*now)?)),
                    Next::Again => {
                        // What is on its way is given up before the newer version is asked for.
                        drop(now);
                        self.start_again()?
                    }
                },
            }
        }
    }
}

/// Whether this is a failure of this code.
fn is(error: &Error, code: FailureCode) -> bool {
    matches!(error, Error::Failed(failure) if failure.code == code)
}

// Nothing of it is pinned.
impl<C: Content> Unpin for BucketCall<C> {}

impl<C: Content> Call for BucketCall<C> {
    type Output = Result<C::Output, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        match self.go_on(waker) {
            Ok(ControlFlow::Continue(at)) => ControlFlow::Continue(at),
            Ok(ControlFlow::Break(output)) => ControlFlow::Break(Ok(output)),
            Err(e) => ControlFlow::Break(Err(e)),
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::Start(_) => false,
            Stage::Describing(_, call) => call.needs_timer(),
            Stage::Body(now) => self.may_shrink() || now.in_flight.iter().any(|bucket| bucket.call.needs_timer()),
        }
    }
}

/// Makes the result of a call.
type Make<U, T> = fn(U) -> Result<(Version, T), Error>;

/// A fetch in buckets whose result is made into another one.
struct Made<C: Content, T> {
    call: BucketCall<C>,
    make: Make<C::Output, T>,
}

/// Fetches this content in buckets, and makes the result of what has come.
pub(crate) fn in_buckets<C, T>(of: LargeVersion, content: C, make: Make<C::Output, T>) -> LargeFetch<T>
where
    C: Content<Layout: Send, Cursor: Send, Part: Send> + Send + 'static,
    T: 'static,
{
    Box::new(Made { call: BucketCall::new(of, content), make })
}

impl<C: Content, T> Call for Made<C, T> {
    type Output = Result<(Version, T), Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        self.call.step(waker).map_break(|output| output.and_then(self.make))
    }

    fn needs_timer(&self) -> bool {
        self.call.needs_timer()
    }
}
