//! Fetches into the caller's memory.

use super::buckets::LargeVersion;
use super::call::{Fetch, LargeFetch, does_not_fit, look_up};
use super::large::large_slice;
use super::options::FetchOptions;
use super::slice::FetchedSlice;
use super::tensor::Tensor;
use crate::bundle::BundleMut;
use crate::error::{Error, ErrorWith, TornDestination};
use crate::landing::{Asking, Landing, LandingCall, MemoryView, Outcome, Piece, Targets, ViewOf, Viewed};
use crate::memory::TensorMut;
use crate::request::{AnyClient, Call, Request, RequestCall};
use crate::session::{ANSWER_GRACE, Answered, Ended, Lease, OneCall, Session, cancelled_unsent};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Failure, FailureCode, FetchedTensor, Otherwise, Report, check_fit};
use transfer_core::tensor::{Excerpt, Key, Slice, Version};

/// A fetch into memory that is about to be made. Set its options before [`Fetch::into`], then `.await` it, or `.call()` it on
/// a [`crate::BlockingClient`].
///
/// # Errors
/// [`FetchIntoError`], with the tensor if it is the caller's again.
pub type FetchInto<C> = Request<C, FetchIntoCall>;

/// A tensor that was fetched into, or the tensors of a bundle.
#[derive(Debug)]
pub struct FetchedInto<T = TensorMut> {
    memory: T,
    version: u64,
    report: Report,
    landing: Landing,
    /// How each tensor of a bundle came, by its name.
    each: Vec<(String, Landing)>,
    /// The other tensors of a bundle.
    rest: Vec<(String, Tensor)>,
}

impl FetchedInto {
    /// The tensor.
    #[must_use]
    pub fn tensor(&self) -> &TensorMut {
        &self.memory
    }

    /// The tensor, writable.
    #[must_use]
    pub fn into_tensor(self) -> TensorMut {
        self.memory
    }
}

impl<T> FetchedInto<T> {
    pub(crate) fn new(memory: T, version: u64, report: Report, landing: Landing) -> FetchedInto<T> {
        FetchedInto { memory, version, report, landing, each: Vec::new(), rest: Vec::new() }
    }

    /// The tensors into which a bundle was fetched, and how each tensor of that came.
    pub(crate) fn of_bundle(
        (memory, rest): (T, Vec<(String, Tensor)>),
        version: u64,
        report: Report,
        each: Vec<(String, Landing)>,
    ) -> FetchedInto<T> {
        let found = |landing: fn(Landing) -> bool| each.iter().map(|(_, one)| *one).find(|one| landing(*one));
        let other = found(|one| !matches!(one, Landing::InPlace | Landing::Short));
        let landing = other.or_else(|| found(|one| one == Landing::InPlace)).or_else(|| found(|_| true));
        FetchedInto { memory, version, report, landing: landing.unwrap_or(Landing::Whole), each, rest }
    }

    pub(crate) fn kept(&self) -> &[(String, Tensor)] {
        &self.rest
    }

    pub(crate) fn each(&self) -> &[(String, Landing)] {
        &self.each
    }

    pub(crate) fn memory(&self) -> &T {
        &self.memory
    }

    pub(crate) fn into_memory(self) -> T {
        self.memory
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The report of the fetch. A copy of this process is counted.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// How the version came into the memory, and why not in place. A bundle came in place if all of its tensors of 64 KiB and more
    /// did; else this is how the first of the others came.
    #[must_use]
    pub fn landing(&self) -> Landing {
        self.landing
    }
}

/// A failed fetch into memory. It contains the tensor, or those of a bundle, if nobody else can write it: with
/// [`Error::DestinationTorn`](crate::Error::DestinationTorn) half new, with any other error as it was. `None` if the session has
/// ended, or the sidecar has not answered: then the memory returns to the arena when nobody can write it, and that of the tensors of a bundle that were to be
/// copied returns at once.
pub type FetchIntoError<T = TensorMut> = ErrorWith<T>;

impl<C: AnyClient> Fetch<C, Tensor> {
    /// Fetches into a tensor of the arena, which must have the version's element type and shape. From another node the bytes
    /// land in it, without a further copy; a version of this host is copied once, and so is any version into the arena of another client.
    /// [`FetchedInto::landing`] tells.
    ///
    /// The call takes the tensor, and returns it with the result or with the error. It returns only when no peer can write there
    /// any more: a second after the time-out, the link to a peer that does not confirm this is ended. A call that is given up
    /// frees the tensor's memory in the same way.
    pub fn into(self, tensor: TensorMut) -> FetchInto<C> {
        let (session, key, options, _) = self.into_parts();
        FetchInto::of(session, key, options, None, tensor)
    }
}

impl<C: AnyClient> Fetch<C, FetchedSlice> {
    /// Fetches the slice into a tensor of the arena, which must have the slice's element type and shape. The rest is as for a
    /// whole version.
    pub fn into(self, tensor: TensorMut) -> FetchInto<C> {
        let slice = self.asked_slice();
        let (session, key, options, _) = self.into_parts();
        FetchInto::of(session, key, options, slice, tensor)
    }
}

impl<C: AnyClient> FetchInto<C> {
    fn of(
        session: Arc<Session>,
        key: Result<Key, Error>,
        options: FetchOptions,
        slice: Option<Slice>,
        tensor: TensorMut,
    ) -> Self {
        let stage = Stage::New(tensor);
        Request::from_call(FetchIntoCall { session, key, options, slice, view: None, is_staged: false, stage })
    }

    /// Fetches into this slice of the tensor, which must have the shape of what is fetched, and leaves the rest of the tensor as it is.
    /// Where runs of 64 KiB and more lie in one piece in the tensor, they land there; the others land beside and are copied.
    pub fn at(self, slice: Slice) -> Self {
        self.viewed(Viewed::Slice(slice))
    }

    /// Fetches into this part of the tensor's memory, as [`at`](Self::at) does.
    pub fn at_view(self, view: MemoryView) -> Self {
        self.viewed(Viewed::Memory(view))
    }

    fn viewed(mut self, view: Viewed) -> Self {
        self.call.view = Some(view);
        self
    }

    /// Lands in the landing pool first, and copies from there when all of it is there. It costs the copy and room in the pool, and
    /// the tensor is never half new: no [`Error::DestinationTorn`](crate::Error::DestinationTorn) comes of it.
    pub fn staged(mut self) -> Self {
        self.call.is_staged = true;
        self
    }
}

/// A fetch into memory under way.
#[derive(Debug)]
pub struct FetchIntoCall {
    session: Arc<Session>,
    key: Result<Key, Error>,
    options: FetchOptions,
    slice: Option<Slice>,
    /// The part of the tensor into which it is fetched, unless that is all of it.
    view: Option<Viewed>,
    /// Whether it lands beside the tensor first.
    is_staged: bool,
    stage: Stage,
}

enum Stage {
    New(TensorMut),
    Asked {
        key: Key,
        call: LandingCall,
        targets: Targets,
    },
    /// It lands beside the tensor, for this reason.
    Beside {
        key: Key,
        call: OneCall,
        targets: Targets,
        why: Landing,
    },
    /// It lands beside the tensor and does not fit the landing pool.
    Large {
        key: Key,
        fetch: LargeFetch<FetchedSlice>,
        targets: Targets,
        why: Landing,
    },
    /// It was cancelled before it began.
    Cancelled(Option<TensorMut>),
    /// Its result was returned.
    Ended,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::New(_) => "New",
            Stage::Asked { .. } => "Asked",
            Stage::Beside { .. } => "Beside",
            Stage::Large { .. } => "Large",
            Stage::Cancelled(_) => "Cancelled",
            Stage::Ended => "Ended",
        })
    }
}

type Output = Result<FetchedInto, FetchIntoError>;

/// What is fetched has one place.
const PLACE: usize = 0;

impl FetchIntoCall {
    /// Looks the version up and copies it, or asks the sidecar for it.
    fn begin(&self, tensor: TensorMut) -> Result<ControlFlow<FetchedInto, Stage>, FetchIntoError> {
        let key = match self.key.clone() {
            Ok(key) => key,
            Err(e) => return Err(FetchIntoError::new(e, Some(tensor))),
        };
        let name = key.as_str().to_owned();
        let view = self.view.clone().map(|view| ViewOf { name: name.clone(), tensor: name.clone(), view });
        let tensors: BundleMut = [(name, tensor)].into_iter().collect();
        let targets = match Targets::new(&self.session, tensors, view.as_slice()) {
            Ok(targets) => targets,
            Err((e, tensors)) => return Err(FetchIntoError::new(e, only(tensors))),
        };
        if let Some((lease, found)) = look_up(&self.session, &key, &self.options) {
            return self.copied(&key, lease, found, targets, Landing::Staged).map(ControlFlow::Break);
        }
        let excerpt = match self.slice.clone().map(Excerpt::slice).transpose() {
            Ok(excerpt) => excerpt,
            Err(e) => {
                let failure = Failure::new(FailureCode::Invalid, e.to_string());
                return Err(FetchIntoError::new(failure.into(), targets.close().and_then(only)));
            }
        };
        let view = &targets.places()[PLACE].view;
        let why = match self.is_staged {
            true => Landing::Staged,
            false => {
                let pieces = view.bytes().map(|to| Piece { at: 0, place: PLACE, to: to.clone() });
                let asking = Asking {
                    key: &key,
                    options: &self.options,
                    excerpt: excerpt.clone(),
                    meta: view.meta().clone(),
                    pieces: pieces.into_iter().collect(),
                    otherwise: Otherwise::Fail,
                };
                match LandingCall::begin(&self.session, &targets, asking) {
                    Ok(call) => return Ok(ControlFlow::Continue(Stage::Asked { key, call, targets })),
                    Err(_) if !targets.is_own(PLACE) => Landing::OtherArena,
                    Err(why) => why.unwrap_or(Landing::Short),
                }
            }
        };
        let command = self.options.command(key.clone(), excerpt.map(Box::new));
        let call = OneCall::begin(self.session.clone(), command, self.options.timeout);
        Ok(ControlFlow::Continue(Stage::Beside { key, call, targets, why }))
    }

    /// Makes the result of the sidecar's answer, or goes on in buckets.
    fn conclude(
        &self,
        key: Key,
        call: LandingCall,
        targets: Targets,
        ended: Ended,
    ) -> Result<ControlFlow<FetchedInto, Stage>, FetchIntoError> {
        let failed = |targets: Targets, error| FetchIntoError::new(error, targets.close().and_then(only));
        let elsewhere = || match self.session.home().is_returned() {
            true => Landing::ReturnedArena,
            false => Landing::NotOpened,
        };
        let waited = call.waited();
        let fetched = match call.conclude(&self.session, ended) {
            Outcome::Landed { beside, version, mut report } => {
                let landing = beside.landings().next().map_or(Landing::InPlace, |(_, landing)| landing);
                match beside.copy(&targets) {
                    Ok(copied) => report.copied += copied,
                    Err(e) => return Err(failed(targets, e.into())),
                }
                returned(targets, (version.0, report, landing))
            }
            Outcome::Elsewhere { lease, found } => self.copied(&key, lease, found, targets, elsewhere()),
            Outcome::Failed { error: Error::Failed(why), is_torn: false } if does_not_fit(&why) => {
                return Ok(ControlFlow::Continue(self.in_buckets(key, waited, targets, elsewhere(), why)));
            }
            Outcome::Failed { error, is_torn: true } => {
                let (key, tensors) = (key.as_str().to_owned(), targets.describe([PLACE]));
                Err(failed(targets, Error::DestinationTorn(Box::new(TornDestination { key, tensors, error }))))
            }
            Outcome::Failed { error, is_torn: false } => Err(failed(targets, error)),
            Outcome::Lost { error } => Err(FetchIntoError::new(error, None)),
        };
        fetched.map(ControlFlow::Break)
    }

    /// Handles the answer to a fetch that lands beside the tensor.
    fn beside(
        &self,
        key: Key,
        call: &OneCall,
        targets: Targets,
        why: Landing,
        ended: Ended,
    ) -> Result<ControlFlow<FetchedInto, Stage>, FetchIntoError> {
        match Answered::fetched(ended, &self.session) {
            Ok((lease, found)) => self.copied(&key, lease, found, targets, why).map(ControlFlow::Break),
            Err(Error::Failed(failure)) if does_not_fit(&failure) => {
                Ok(ControlFlow::Continue(self.in_buckets(key, call.waited(), targets, why, failure)))
            }
            Err(e) => Err(FetchIntoError::new(e, targets.close().and_then(only))),
        }
    }

    /// Fetches in buckets what lands beside the tensor.
    fn in_buckets(&self, key: Key, waited: Duration, targets: Targets, why: Landing, failure: Failure) -> Stage {
        let options = FetchOptions { timeout: self.options.timeout.saturating_sub(waited), ..self.options };
        let of = LargeVersion { session: self.session.clone(), key: key.clone(), options, why: failure };
        Stage::Large { key, fetch: large_slice(of, self.slice.clone()), targets, why }
    }

    /// Copies what lies elsewhere. If it does not lie on this host, `why` it has not landed in place.
    fn copied(&self, key: &Key, lease: Arc<Lease>, found: FetchedTensor, targets: Targets, why: Landing) -> Output {
        let view = &targets.places()[PLACE].view;
        let part = match &self.slice {
            Some(slice) => FetchedSlice::take(lease, found, key, slice),
            None => check_fit(key, found.version, &found.meta, view.meta())
                .map_err(Error::from)
                .and_then(|()| Ok(Tensor::new(lease, found)?.as_whole_slice())),
        };
        copy(key, part, targets, why)
    }
}

/// Copies what was fetched, if it fits. If it does not lie on this host, `why` it has not landed in place.
fn copy(key: &Key, part: Result<FetchedSlice, Error>, targets: Targets, why: Landing) -> Output {
    let view = &targets.places()[PLACE].view;
    let part = part.and_then(|part| {
        check_fit(key, Version(part.version()), part.meta(), view.meta())?;
        Ok(part)
    });
    let part = match part {
        Ok(part) => part,
        Err(e) => return Err(FetchIntoError::new(e, targets.close().and_then(only))),
    };
    if let Some(to) = view.bytes() {
        targets.copy(PLACE, to, &part);
    }
    let report = *part.report();
    let landing = if is_by_reference(&report) { Landing::OnThisHost } else { why };
    let copied = report.copied + view.meta().len_bytes();
    returned(targets, (part.version(), Report { copied, ..report }, landing))
}

/// The tensor that is the only one.
fn only(tensors: BundleMut) -> Option<TensorMut> {
    tensors.into_iter().next().map(|(_, tensor)| tensor)
}

fn returned(targets: Targets, (version, report, landing): (u64, Report, Landing)) -> Output {
    match targets.close().and_then(only) {
        Some(tensor) => Ok(FetchedInto::new(tensor, version, report, landing)),
        // Cannot be: what was lent is given back when its answer is read.
        None => Err(FetchIntoError::new(cancelled_unsent(), None)),
    }
}

/// Whether a version was read where it lies, on this host.
pub(crate) fn is_by_reference(report: &Report) -> bool {
    // Over shared memory nothing is copied by reference, and everything that is sent.
    report.fabric == FabricKind::Local || report.fabric == FabricKind::Shm && report.copied == 0
}

impl Call for FetchIntoCall {
    type Output = Output;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Output, Instant> {
        loop {
            let next = match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::New(tensor) => self.begin(tensor),
                Stage::Asked { key, mut call, targets } => match call.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::Asked { key, call, targets };
                        return ControlFlow::Continue(at);
                    }
                    ControlFlow::Break(ended) => self.conclude(key, call, targets, ended),
                },
                Stage::Beside { key, mut call, targets, why } => match call.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::Beside { key, call, targets, why };
                        return ControlFlow::Continue(at);
                    }
                    ControlFlow::Break(ended) => self.beside(key, &call, targets, why, ended),
                },
                Stage::Large { key, mut fetch, targets, why } => match fetch.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::Large { key, fetch, targets, why };
                        return ControlFlow::Continue(at);
                    }
                    ControlFlow::Break(fetched) => {
                        copy(&key, fetched.map(|(_, part)| part), targets, why).map(ControlFlow::Break)
                    }
                },
                Stage::Cancelled(tensor) => Err(FetchIntoError::new(cancelled_unsent(), tensor)),
                Stage::Ended => return ControlFlow::Continue(Instant::now() + ANSWER_GRACE),
            };
            match next {
                Ok(ControlFlow::Continue(stage)) => self.stage = stage,
                Ok(ControlFlow::Break(fetched)) => return ControlFlow::Break(Ok(fetched)),
                Err(e) => return ControlFlow::Break(Err(e)),
            }
        }
    }

    fn cancel(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            // Nobody else writes into it.
            Stage::New(tensor) => Stage::Cancelled(Some(tensor)),
            Stage::Beside { targets, .. } | Stage::Large { targets, .. } => {
                Stage::Cancelled(targets.close().and_then(only))
            }
            Stage::Asked { key, mut call, targets } => {
                call.cancel();
                Stage::Asked { key, call, targets }
            }
            ended => ended,
        };
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::Asked { call, .. } => call.needs_timer(),
            Stage::Beside { call, .. } => call.needs_timer(),
            Stage::Large { fetch, .. } => fetch.needs_timer(),
            _ => false,
        }
    }
}

impl RequestCall for FetchIntoCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }
}
