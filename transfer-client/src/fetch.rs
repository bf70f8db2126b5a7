//! The fetch of one tensor.

use crate::buckets::{BUCKET_BYTES, InBuckets};
use crate::calls::{Calls, Ended, deadline};
use crate::face::{Async, Blocking, Call, Face, Running, Watched, block};
use crate::options::DEFAULT_TIMEOUT;
use crate::session::{Answered, Session, WaitEnd};
use crate::subscriber::Since;
use crate::tensor::Lease;
use crate::{Error, Tensor};
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Answer, Command, Failure, FailureCode, FetchedTensor};
use transfer_core::tensor::{Excerpt, Key, Select, Slice, Version};
use transfer_core::trace::TraceContext;

#[derive(Debug, Clone, Copy)]
pub(crate) struct FetchOptions {
    pub(crate) select: Select,
    pub(crate) timeout: Duration,
    pub(crate) require: Option<FabricKind>,
    pub(crate) trace: Option<TraceContext>,
    /// Whether the caller can wait on a notice for the next versions.
    pub(crate) watches: bool,
    /// The length of a bucket of a bundle that does not fit the landing pool, in bytes.
    pub(crate) bucket_bytes: u64,
}

impl FetchOptions {
    pub(crate) fn new() -> FetchOptions {
        let trace = crate::trace::current();
        let (select, timeout) = (Select::Latest, DEFAULT_TIMEOUT);
        FetchOptions { select, timeout, require: None, trace, watches: false, bucket_bytes: BUCKET_BYTES }
    }

    /// The command that fetches a version, or this part of it.
    pub(crate) fn command(&self, key: Key, excerpt: Option<Box<Excerpt>>) -> Command {
        let FetchOptions { select, timeout, require, trace, watches, bucket_bytes: _ } = *self;
        Command::Fetch(transfer_core::op::Fetch { key, select, timeout, require, trace, watches, excerpt })
    }
}

/// The methods that set version, time-out and fabric, for one fetch and for a batch.
macro_rules! fetch_options {
    ($($options:ident).+) => {
        /// Fetches the newest version, and waits for the first one if there is none. This is the default.
        pub fn latest(mut self) -> Self {
            self.$($options).+.select = ::transfer_core::tensor::Select::Latest;
            self
        }

        /// Fetches exactly this version. Fails at once if it was replaced already.
        pub fn exactly(mut self, version: u64) -> Self {
            self.$($options).+.select = ::transfer_core::tensor::Select::Exactly(::transfer_core::tensor::Version(version));
            self
        }

        /// Fetches the newest version once it is this one or later.
        pub fn at_least(mut self, version: u64) -> Self {
            self.$($options).+.select = ::transfer_core::tensor::Select::AtLeast(::transfer_core::tensor::Version(version));
            self
        }

        /// Fetches the newest version once it is another than this one, which was fetched before: a later one, or a lower one if
        /// the owner has begun again since, as a trainer does that goes on from a checkpoint.
        pub fn after(mut self, seen: u64) -> Self {
            self.$($options).+.select = ::transfer_core::tensor::Select::After(::transfer_core::tensor::Version(seen));
            self
        }

        /// The time-out, which includes waiting for the version. 30 s by default.
        pub fn timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self.$($options).+.timeout = timeout;
            self
        }

        /// The fabric that must carry the tensor. If that is not possible, the call fails and says why.
        pub fn require(mut self, fabric: ::transfer_core::fabric::FabricKind) -> Self {
            self.$($options).+.require = Some(fabric);
            self
        }

        /// The span of the caller. The sidecars' spans of this fetch belong to its trace.
        pub fn trace(mut self, context: $crate::TraceContext) -> Self {
            self.$($options).+.trace = Some(context);
            self
        }
    };
}
pub(crate) use fetch_options;

/// A fetch that is about to be made. Set its options, then `.await` it, or `.call()` it on a [`crate::BlockingClient`].
/// It returns a `T`: a [`Tensor`], a [record batch](crate::FetchedBatch), a [table](crate::FetchedTable).
#[derive(Debug)]
#[must_use = "a fetch is made by `.await`, or by `.call()`"]
pub struct Fetch<F, T = Tensor> {
    pub(crate) call: FetchCall<T>,
    face: PhantomData<F>,
}

/// Converts a leased or looked-up tensor into the result of the call.
pub(crate) type Take<T> = fn(Arc<Lease>, FetchedTensor) -> Result<T, Error>;

/// Converts a part of a tensor, or a whole one of which a part is asked for, into the result of the call.
type TakePart<T> = fn(Arc<Lease>, FetchedTensor, &Sliced) -> Result<T, Error>;

/// A slice of a key's version that is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Sliced {
    pub(crate) key: Option<Key>,
    pub(crate) slice: Slice,
}

/// How the result of a call is made.
#[derive(Debug)]
pub(crate) enum Taking<T> {
    /// Of a whole version.
    Whole(Take<T>),
    /// Of a slice.
    Part(Box<Sliced>, TakePart<T>),
}

impl<T> Taking<T> {
    fn take(&self, lease: Arc<Lease>, tensor: FetchedTensor) -> Result<T, Error> {
        match self {
            Taking::Whole(take) => take(lease, tensor),
            Taking::Part(sliced, take) => take(lease, tensor, sliced),
        }
    }

    fn excerpt(&self) -> Result<Option<Box<Excerpt>>, Error> {
        match self {
            Taking::Whole(_) => Ok(None),
            Taking::Part(sliced, _) => match Excerpt::slice(sliced.slice.clone()) {
                Ok(excerpt) => Ok(Some(Box::new(excerpt))),
                Err(e) => Err(Failure::new(FailureCode::Invalid, e.to_string()).into()),
            },
        }
    }
}

impl<F: Face, T> Fetch<F, T> {
    pub(crate) fn new(session: Arc<Session>, key: Result<Key, Error>, take: Take<T>) -> Self {
        let (options, take) = (FetchOptions::new(), Taking::Whole(take));
        let (seen, began, calls, large) = (None, None, None, None);
        let call = FetchCall { session, key: Some(key), options, take, seen, began, calls, large };
        Fetch { call, face: PhantomData }
    }

    /// The fetch of a subscriber, which remembers what it fetches.
    pub(crate) fn of(session: Arc<Session>, key: Key, options: FetchOptions, take: Take<T>, seen: Since) -> Self {
        let (key, seen, take) = (Some(Ok(key)), Some(seen), Taking::Whole(take));
        let call = FetchCall { session, key, options, take, seen, began: None, calls: None, large: None };
        Fetch { call, face: PhantomData }
    }

    /// Fetches exactly this version, of the owner that has published the one before.
    pub(crate) fn following(mut self, version: u64) -> Self {
        self.call.options.select = Select::Following(Version(version));
        self
    }

    /// Fetches a version that does not fit the landing pool in this way.
    pub(crate) fn in_buckets(mut self, large: Option<InBuckets<T>>) -> Self {
        self.call.large = large;
        self
    }

    /// Returns what the fetch was made of, for another kind of fetch.
    pub(crate) fn into_parts(self) -> (Arc<Session>, Result<Key, Error>, FetchOptions, Option<Since>) {
        let FetchCall { session, key, options, seen, .. } = self.call;
        // A fetch that is not a call yet has its key.
        (session, key.unwrap_or(Err(Error::Ended)), options, seen)
    }

    /// Makes it a fetch of a slice.
    pub(crate) fn sliced<S>(self, slice: Slice, take: TakePart<S>) -> Fetch<F, S> {
        let FetchCall { session, key, options, seen, .. } = self.call;
        let sliced = Sliced { key: key.as_ref().and_then(|key| key.as_ref().ok()).cloned(), slice };
        let take = Taking::Part(Box::new(sliced), take);
        let call = FetchCall { session, key, options, take, seen, began: None, calls: None, large: None };
        Fetch { call, face: PhantomData }
    }

    fetch_options!(call.options);
}

impl<T> IntoFuture for Fetch<Async, T> {
    type Output = Result<T, Error>;
    type IntoFuture = Running<FetchCall<T>>;

    fn into_future(self) -> Running<FetchCall<T>> {
        Running::new(self.call)
    }
}

impl<T> Fetch<Blocking, T> {
    /// Makes the fetch.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn call(self) -> Result<T, Error> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
}

/// A fetch under way.
#[derive(Debug)]
pub struct FetchCall<T = Tensor> {
    pub(crate) session: Arc<Session>,
    key: Option<Result<Key, Error>>,
    options: FetchOptions,
    take: Taking<T>,
    /// What its subscriber had returned when it was made.
    seen: Option<Since>,
    /// When it began to wait on a notice.
    began: Option<Instant>,
    calls: Option<Calls>,
    /// How a version that does not fit the landing pool is fetched, if it can be.
    large: Option<InBuckets<T>>,
}

impl<T> FetchCall<T> {
    pub(crate) fn bucket_bytes(&mut self, bytes: u64) {
        self.options.bucket_bytes = bytes;
    }
}

impl<T> Call for FetchCall<T> {
    type Output = Result<T, Error>;

    /// Waits on the notice of the key's owner.
    fn watch(&mut self, time: Duration) -> Watched<Self::Output> {
        let FetchOptions { select, require, timeout, trace, .. } = self.options;
        let (Some(Ok(key)), None, None) = (&self.key, trace, &self.calls) else { return Watched::Steps };
        match self.session.watch(key, select, require, (&mut self.began, timeout), time) {
            WaitEnd::Found(hazard, tensor) => {
                let lease = Lease::looked_up(&self.session, hazard);
                Watched::Ended(finish(lease, tensor, &self.take, self.seen.as_ref()))
            }
            WaitEnd::TimedOut(failure) => Watched::Ended(Err(failure.into())),
            WaitEnd::Waits => Watched::Waits,
            WaitEnd::Ask { waited } => {
                self.options.timeout = timeout.saturating_sub(waited);
                self.options.watches = self.session.watches();
                Watched::Steps
            }
        }
    }

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let seen = self.seen.as_ref();
        if let Some(result) = self.large.as_mut().and_then(|large| large.step(waker, seen)) {
            return result;
        }
        let calls = match (&mut self.calls, self.key.take()) {
            (Some(calls), _) => calls,
            (None, Some(Ok(key))) => {
                let (take, seen) = (&self.take, self.seen.as_ref());
                if let Some(found) = look_up(&self.session, &key, &self.options, take, seen) {
                    return ControlFlow::Break(found);
                }
                let excerpt = match take.excerpt() {
                    Ok(excerpt) => excerpt,
                    Err(e) => return ControlFlow::Break(Err(e)),
                };
                let started = Instant::now();
                let mut calls = Calls::new(self.session.clone(), started, deadline(started, self.options.timeout));
                if let Some(large) = &mut self.large {
                    large.asks(&self.session, &key, self.options);
                }
                calls.add(self.options.command(key, excerpt), None);
                self.calls.insert(calls)
            }
            (None, Some(Err(e))) => return ControlFlow::Break(Err(e)),
            (None, None) => return ControlFlow::Break(Err(Error::Ended)),
        };
        if let ControlFlow::Continue(at) = calls.step(waker) {
            return ControlFlow::Continue(at);
        }
        let result = conclude(&self.session, calls.take_one(), &self.take, seen);
        match self.large.as_mut().is_some_and(|large| large.begin(&result)) {
            true => self.step(waker),
            false => ControlFlow::Break(result),
        }
    }

    fn needs_timer(&self) -> bool {
        self.calls.as_ref().is_some_and(Calls::needs_timer) || self.large.as_ref().is_some_and(InBuckets::needs_timer)
    }
}

/// Looks a key up in shared memory.
pub(crate) fn look_up<T>(
    session: &Arc<Session>,
    key: &Key,
    options: &FetchOptions,
    take: &Taking<T>,
    seen: Option<&Since>,
) -> Option<Result<T, Error>> {
    // The trace of a fetch must contain its report, and only the sidecar writes that.
    if options.trace.is_some() {
        return None;
    }
    let (hazard, tensor) = session.look_up(key, options.select, options.require)?;
    Some(finish(Lease::looked_up(session, hazard), tensor, take, seen))
}

/// Makes the result of a fetch that asked the sidecar.
pub(crate) fn conclude<T>(
    session: &Arc<Session>,
    ended: Ended,
    take: &Taking<T>,
    seen: Option<&Since>,
) -> Result<T, Error> {
    match ended.and_then(Answered::success)? {
        Answer::Fetched { lease, tensor } => finish(Lease::handed_out(session, lease), tensor, take, seen),
        // The table only passes answers to a fetch.
        _ => Err(Error::Ended),
    }
}

fn finish<T>(lease: Arc<Lease>, tensor: FetchedTensor, take: &Taking<T>, seen: Option<&Since>) -> Result<T, Error> {
    let version = tensor.version;
    let taken = take.take(lease, tensor)?;
    if let Some(seen) = seen {
        seen.saw(version);
    }
    Ok(taken)
}
