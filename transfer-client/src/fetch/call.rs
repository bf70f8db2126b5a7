//! The fetch of one tensor.

use super::buckets::LargeVersion;
use super::options::{FetchOptions, fetch_options};
use super::seen::Since;
use super::tensor::Tensor;
use crate::bundle::FetchedBundle;
use crate::digest::{Proof, Proving};
use crate::error::{DigestError, Error};
use crate::push::LentBase;
use crate::request::{AnyClient, Call, Request, RequestCall, Watched};
use crate::session::{Answered, Lease, OneCall, Session, WaitEnd};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Failure, FailureCode, FetchedTensor};
use transfer_core::tensor::{Excerpt, Key, Select, Slice, Version};

/// A fetch that is about to be made. Set its options, then `.await` it, or `.call()` it on a [`crate::BlockingClient`].
/// It returns a `T`: a [`Tensor`], a [record batch](crate::FetchedBatch), a [table](crate::FetchedTable).
pub type Fetch<C, T = Tensor> = Request<C, FetchCall<T>>;

/// Converts a leased or looked-up tensor into the result of the call, and proves it.
pub(crate) type Take<T> = fn(Arc<Lease>, FetchedTensor, &Proof<'_>) -> Result<T, Error>;

/// Converts a part of a tensor, or a whole one of which a part is asked for, into the result of the call.
type TakePart<T> = fn(Arc<Lease>, FetchedTensor, &Key, &Slice) -> Result<T, Error>;

/// How the result of a call is made.
#[derive(Debug)]
pub(crate) enum Taking<T> {
    /// Of a whole version.
    Whole(Take<T>),
    /// Of a slice.
    Part(Slice, TakePart<T>),
}

impl<T> Taking<T> {
    fn take(&self, key: &Key, proving: Proving, lease: Arc<Lease>, tensor: FetchedTensor) -> Result<T, Error> {
        match self {
            Taking::Whole(take) => take(lease, tensor, &Proof { key, proving }),
            Taking::Part(slice, take) => take(lease, tensor, key, slice),
        }
    }

    fn slice(&self) -> Option<Slice> {
        match self {
            Taking::Whole(_) => None,
            Taking::Part(slice, _) => Some(slice.clone()),
        }
    }

    fn excerpt(&self) -> Result<Option<Box<Excerpt>>, Error> {
        match self {
            Taking::Whole(_) => Ok(None),
            Taking::Part(slice, _) => match Excerpt::slice(slice.clone()) {
                Ok(excerpt) => Ok(Some(Box::new(excerpt))),
                Err(e) => Err(Failure::new(FailureCode::Invalid, e.to_string()).into()),
            },
        }
    }
}

/// Makes the fetch of a version that does not fit the landing pool, or of this slice of it.
pub(crate) type FetchLarge<T> = fn(LargeVersion, Option<Slice>) -> LargeFetch<T>;

/// The fetch of a version that does not fit the landing pool.
pub(crate) type LargeFetch<T> = Box<dyn Call<Output = Result<(Version, T), Error>> + Send>;

impl<C: AnyClient, T> Fetch<C, T> {
    pub(crate) fn new(session: Arc<Session>, key: Result<Key, Error>, take: Take<T>) -> Self {
        Request::from_call(FetchCall::new(session, key, FetchOptions::new(), Taking::Whole(take)))
    }

    /// The fetch of a subscriber, which remembers what it fetches.
    pub(crate) fn since(session: Arc<Session>, key: Key, options: FetchOptions, take: Take<T>, seen: Since) -> Self {
        let call = FetchCall::new(session, Ok(key), options, Taking::Whole(take));
        Request::from_call(FetchCall { seen: Some(seen), ..call })
    }

    /// Fetches exactly this version, of the owner that has published the one before.
    pub(crate) fn following(mut self, version: u64) -> Self {
        self.call.options.select = Select::Following(Version(version));
        self
    }

    /// With these options.
    pub(crate) fn with(mut self, options: FetchOptions) -> Self {
        self.call.options = options;
        self
    }

    /// Fetches a version that does not fit the landing pool in this way.
    pub(crate) fn or_large(mut self, large: Option<FetchLarge<T>>) -> Self {
        self.call.large = large;
        self
    }

    /// Compares the version with the digests of its push, if that has [made some](crate::Push::digest), and returns nothing if a
    /// byte is wrong. The report says how many bytes were compared: all of the body, or none if the version has no digests, or
    /// is read where its pusher has it, on this host. The comparison takes place on the thread that takes the result, and on
    /// others beside it.
    ///
    /// Versions are proved as a whole: a part of one, and a fetch into the caller's memory other than of a bundle, are refused
    /// with [`DigestError::NotProvable`].
    pub fn verify(mut self) -> Self {
        if self.call.options.proving == Proving::Not {
            self.call.options.proving = Proving::IfThere;
        }
        self
    }

    /// Verifies, and refuses a version without digests, with [`DigestError::NoDigest`]. See [`verify`](Self::verify).
    pub fn require_digest(mut self) -> Self {
        self.call.options.proving = Proving::Required;
        self
    }

    /// Returns what the fetch was made of, for a kind of fetch that proves nothing. If it shall prove, its key is the error.
    pub(crate) fn into_parts(self) -> (Arc<Session>, Result<Key, Error>, FetchOptions, Option<Since>) {
        let FetchCall { session, mut key, options, seen, .. } = self.call;
        if options.proving != Proving::Not {
            let what = "a part of a version, or a fetch into memory of the caller, is not compared with digests: fetch all of the \
                        version, and take the part of what comes";
            key = key.and_then(|key| Err(DigestError::NotProvable { key: key.as_str().to_owned(), what }.into()));
        }
        (session, key, options, seen)
    }

    /// Returns the slice that is fetched, if it is one.
    pub(crate) fn asked_slice(&self) -> Option<Slice> {
        self.call.take.slice()
    }

    /// Makes it a fetch of a slice, which is fetched like this where it does not fit the landing pool.
    pub(crate) fn sliced<S>(self, slice: Slice, take: TakePart<S>, large: FetchLarge<S>) -> Fetch<C, S> {
        let (session, key, options, seen) = self.into_parts();
        let call = FetchCall::new(session, key, options, Taking::Part(slice, take));
        Request::from_call(FetchCall { seen, large: Some(large), ..call })
    }

    fetch_options!(call.options);
}

/// A fetch under way.
#[derive(Debug)]
pub struct FetchCall<T = Tensor> {
    session: Arc<Session>,
    key: Result<Key, Error>,
    options: FetchOptions,
    take: Taking<T>,
    /// What its subscriber had returned when it was made.
    seen: Option<Since>,
    /// When it began to wait on a notice.
    began: Option<Instant>,
    /// How a version that does not fit the landing pool is fetched, if it can be.
    large: Option<FetchLarge<T>>,
    /// When it last turned out that the version does not fit, and why.
    refused: Option<(Instant, Failure)>,
    stage: Stage<T>,
}

#[expect(clippy::large_enum_variant, reason = "one for each call, and nearly every call comes to its largest")]
enum Stage<T> {
    New,
    /// The sidecar was asked.
    Asked(OneCall),
    /// The version does not fit the landing pool.
    Large(LargeFetch<T>),
}

impl<T> fmt::Debug for Stage<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::New => f.write_str("New"),
            Stage::Asked(call) => f.debug_tuple("Asked").field(call).finish(),
            Stage::Large(_) => f.write_str("Large"),
        }
    }
}

impl<C: AnyClient> Fetch<C, FetchedBundle> {
    /// Names a base that this client [lends](crate::Client::lend_base), and that has to live until the fetch has ended. Where this node has no version of
    /// the key, the version may come as a delta of it. For all of a bundle that comes into memory of the sidecar: a part of one, and a fetch into memory of the
    /// caller, come as they are.
    pub fn base(mut self, base: &LentBase) -> Self {
        self.call.options.base = base.lent_in(&self.call.session);
        self
    }
}

impl<T> FetchCall<T> {
    fn new(session: Arc<Session>, key: Result<Key, Error>, options: FetchOptions, take: Taking<T>) -> FetchCall<T> {
        let stage = Stage::New;
        FetchCall { session, key, options, take, seen: None, began: None, large: None, refused: None, stage }
    }

    /// A fetch of one of many versions, which does not fit the landing pool.
    pub(super) fn of_large(
        session: Arc<Session>,
        key: Key,
        options: FetchOptions,
        take: Take<T>,
        large: FetchLarge<T>,
    ) -> FetchCall<T> {
        let call = FetchCall::new(session, Ok(key), options, Taking::Whole(take));
        FetchCall { large: Some(large), ..call }
    }

    pub(crate) fn set_bucket_bytes(&mut self, bytes: u64) {
        self.options.bucket_bytes = bytes;
    }

    pub(crate) fn key(&self) -> Result<Key, Error> {
        self.key.clone()
    }

    pub(crate) fn options(&self) -> FetchOptions {
        self.options
    }

    /// Looks the version up, or asks the sidecar for it.
    fn begin(&self, key: &Key) -> Result<ControlFlow<T, OneCall>, Error> {
        if let Some((lease, tensor)) = look_up(&self.session, key, &self.options) {
            return self.finish(key, lease, tensor).map(ControlFlow::Break);
        }
        let command = self.options.command(key.clone(), self.take.excerpt()?);
        Ok(ControlFlow::Continue(OneCall::begin(self.session.clone(), command, self.options.timeout)))
    }

    fn finish(&self, key: &Key, lease: Arc<Lease>, tensor: FetchedTensor) -> Result<T, Error> {
        let version = tensor.version;
        let taken = self.take.take(key, self.options.proving, lease, tensor);
        let taken = taken.inspect_err(|e| self.session.tell_wrong_digest(e))?;
        self.saw(version);
        Ok(taken)
    }

    pub(crate) fn saw(&self, version: Version) {
        if let Some(seen) = &self.seen {
            seen.saw(version);
        }
    }
}

impl<T> Call for FetchCall<T> {
    type Output = Result<T, Error>;

    /// Waits on the notice of the key's owner.
    fn watch(&mut self, time: Duration) -> Watched<Self::Output> {
        let FetchOptions { select, require, timeout, trace, .. } = self.options;
        let (Ok(key), None, Stage::New) = (&self.key, trace, &self.stage) else { return Watched::Steps };
        match self.session.watch(key, select, require, (&mut self.began, timeout), time) {
            WaitEnd::Found(hazard, tensor) => {
                let lease = Lease::looked_up(&self.session, hazard);
                Watched::Ended(self.finish(key, lease, tensor))
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
        let key = match &self.key {
            Ok(key) => key,
            Err(e) => return ControlFlow::Break(Err(e.clone())),
        };
        loop {
            match &mut self.stage {
                Stage::New => match self.begin(key) {
                    Ok(ControlFlow::Continue(call)) => self.stage = Stage::Asked(call),
                    Ok(ControlFlow::Break(found)) => return ControlFlow::Break(Ok(found)),
                    Err(e) => return ControlFlow::Break(Err(e)),
                },
                Stage::Asked(call) => {
                    let ended = match call.step(waker) {
                        ControlFlow::Continue(at) => return ControlFlow::Continue(at),
                        ControlFlow::Break(ended) => ended,
                    };
                    match (Answered::fetched(ended, &self.session), self.large) {
                        (Err(Error::Failed(failure)), Some(large))
                            if does_not_fit(&failure)
                                && self.refused.as_ref().is_none_or(|(_, before)| *before != failure) =>
                        {
                            self.options.timeout = self.options.timeout.saturating_sub(call.waited());
                            self.refused = Some((Instant::now(), failure.clone()));
                            let (session, key, options) = (self.session.clone(), key.clone(), self.options);
                            let of = LargeVersion { session, key, options, why: failure };
                            self.stage = Stage::Large(large(of, self.take.slice()));
                        }
                        (Ok((lease, tensor)), _) => return ControlFlow::Break(self.finish(key, lease, tensor)),
                        (Err(e), _) => return ControlFlow::Break(Err(e)),
                    }
                }
                Stage::Large(fetch) => {
                    let fetched = match fetch.step(waker) {
                        ControlFlow::Continue(at) => return ControlFlow::Continue(at),
                        ControlFlow::Break(fetched) => fetched,
                    };
                    if let (Err(Error::Failed(failure)), Some((since, before))) = (&fetched, &self.refused)
                        && failure == before
                        && !self.options.timeout.saturating_sub(since.elapsed()).is_zero()
                    {
                        // It has no parts. The version that did not fit may have been replaced by one that has none, and fits.
                        self.options.timeout = self.options.timeout.saturating_sub(since.elapsed());
                        self.stage = Stage::New;
                        continue;
                    }
                    return ControlFlow::Break(fetched.map(|(version, taken)| {
                        self.saw(version);
                        taken
                    }));
                }
            }
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::New => false,
            Stage::Asked(call) => call.needs_timer(),
            Stage::Large(fetch) => fetch.needs_timer(),
        }
    }
}

impl<T> RequestCall for FetchCall<T> {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }
}

/// Whether a fetch has failed because the version does not fit the landing pool.
pub(crate) fn does_not_fit(failure: &Failure) -> bool {
    failure.code == FailureCode::TooLarge
}

/// Looks a key up in shared memory.
pub(super) fn look_up(
    session: &Arc<Session>,
    key: &Key,
    options: &FetchOptions,
) -> Option<(Arc<Lease>, FetchedTensor)> {
    // The trace of a fetch must contain its report, and only the sidecar writes that.
    if options.trace.is_some() {
        return None;
    }
    let (hazard, tensor) = session.look_up(key, options.select, options.require)?;
    Some((Lease::looked_up(session, hazard), tensor))
}
