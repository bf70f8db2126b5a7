//! Fetches into the caller's memory.

use super::call::{Fetch, look_up};
use super::options::FetchOptions;
use super::slice::FetchedSlice;
use super::tensor::Tensor;
use crate::error::{Error, ErrorWith, TornDestination};
use crate::gathered::copy_threads;
use crate::memory::TensorMut;
use crate::request::{AnyClient, Call, Request, RequestCall};
use crate::session::{ANSWER_GRACE, Answered, Ended, Held, Lease, OneCall, Session, cancelled_unsent};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::fabric::FabricKind;
use transfer_core::op::{
    Answer, Command, Destination, Failure, FailureCode, FetchInto as IntoCommand, FetchedTensor, Otherwise, Report,
    check_fit,
};
use transfer_core::tensor::{Excerpt, Key, Slice, TensorMeta, Version};
use transfer_core::wire::ranges::ArenaRange;

/// A fetch into memory that is about to be made. Set its options before [`Fetch::into`], then `.await` it, or `.call()` it on
/// a [`crate::BlockingClient`].
///
/// # Errors
/// [`FetchIntoError`], with the tensor if it is the caller's again.
pub type FetchInto<C> = Request<C, FetchIntoCall>;

/// How a version came into the memory of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Landing {
    /// It landed there, without a further copy.
    InPlace,
    /// It lies on this host, and was copied once.
    OnThisHost,
    /// It was copied out of the landing pool: the sidecar was restarted, and cannot write the arenas that it has taken back.
    ReturnedArena,
    /// It was copied out of the landing pool, since the sidecar has not opened the arena to the peer: one key opens all of a segment
    /// (`--isolation pool`), so the memory could not be closed again, or as many ranges as may be are open for other fetches of this client.
    NotOpened,
    /// It was copied out of the landing pool, since [`FetchInto::staged`] was asked for.
    Staged,
    /// It was copied when it had been compared with the digests of its push, if it has some ([`Fetch::verify`]).
    Verified,
    /// It was copied from where all of the bundle had landed. Its fetches are counted, so that its table could not be asked for
    /// first, or it has come in buckets.
    Whole,
    /// It was copied from beside: it has less than 64 KiB.
    Short,
    /// It was copied from beside: the bundle has more tensors that lie apart in the arena than one request has ranges for.
    TooManyRuns,
    /// It was copied: the tensors of the bundle were others when their places were chosen.
    OtherLayout,
    /// It was copied: the arena has no room for what lands beside.
    ArenaFull,
    /// It was copied: it lies in the arena of another client.
    OtherArena,
}

impl fmt::Display for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Landing::InPlace => "in place",
            Landing::OnThisHost => "copied: the version lies on this host",
            Landing::ReturnedArena => "copied: the sidecar was restarted, and maps this arena read-only",
            Landing::NotOpened => {
                "copied: one key opens all of a segment (--isolation pool), or too many ranges are open"
            }
            Landing::Staged => "copied: it landed beside first, as staged",
            Landing::Verified => "copied: it landed beside first, to be compared with its digests, if it has some",
            Landing::Whole => {
                "copied: all of the bundle has landed before, since its fetches are counted, or in buckets"
            }
            Landing::Short => "copied: it landed beside, since it has less than 64 KiB",
            Landing::TooManyRuns => "copied: it landed beside, since one landing has too few ranges for all tensors",
            Landing::OtherLayout => "copied: the version that came has other tensors than the one before",
            Landing::ArenaFull => "copied: the arena has no room for what lands beside",
            Landing::OtherArena => "copied: it lies in the arena of another client",
        })
    }
}

/// A tensor that was fetched into, or the tensors of a bundle.
#[derive(Debug)]
pub struct FetchedInto<T = TensorMut> {
    memory: T,
    version: u64,
    report: Report,
    landing: Landing,
    /// How each tensor of a bundle came.
    each: Vec<Landing>,
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

    /// The tensors of a bundle, and how each of them came.
    pub(crate) fn of_bundle(
        (memory, rest): (T, Vec<(String, Tensor)>),
        version: u64,
        report: Report,
        each: Vec<Landing>,
    ) -> FetchedInto<T> {
        let found = |landing: fn(Landing) -> bool| each.iter().copied().find(|one| landing(*one));
        let other = found(|one| !matches!(one, Landing::InPlace | Landing::Short));
        let landing = other.or_else(|| found(|one| one == Landing::InPlace)).or_else(|| each.first().copied());
        FetchedInto { memory, version, report, landing: landing.unwrap_or(Landing::Whole), each, rest }
    }

    pub(crate) fn kept(&self) -> &[(String, Tensor)] {
        &self.rest
    }

    pub(crate) fn each(&self) -> &[Landing] {
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
    /// land in it, without a further copy; a version of this host is copied once. [`FetchedInto::landing`] tells.
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
        Request::from_call(FetchIntoCall { session, key, options, slice, is_staged: false, stage: Stage::New(tensor) })
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
    /// Whether it lands beside the tensor first.
    is_staged: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    New(TensorMut),
    Asked {
        key: Key,
        call: OneCall,
        meta: TensorMeta,
    },
    /// It lands beside the tensor.
    Beside {
        key: Key,
        call: OneCall,
        tensor: TensorMut,
    },
    /// It was cancelled before it began.
    Cancelled(TensorMut),
    /// Its result was returned.
    Ended,
}

type Output = Result<FetchedInto, FetchIntoError>;

impl FetchIntoCall {
    /// Looks the version up and copies it, or asks the sidecar for it.
    fn begin(&self, tensor: TensorMut) -> Result<ControlFlow<FetchedInto, Stage>, FetchIntoError> {
        let key = match self.key.clone().and_then(|key| self.session.check_arena(&tensor).map(|()| key)) {
            Ok(key) => key,
            Err(e) => return Err(FetchIntoError::new(e, Some(tensor))),
        };
        if let Some((lease, found)) = look_up(&self.session, &key, &self.options) {
            return self.copied(&key, lease, found, tensor).map(ControlFlow::Break);
        }
        let excerpt = match self.slice.clone().map(Excerpt::slice).transpose() {
            Ok(excerpt) => excerpt.map(Box::new),
            Err(e) => {
                let failure = Failure::new(FailureCode::Invalid, e.to_string());
                return Err(FetchIntoError::new(failure.into(), Some(tensor)));
            }
        };
        if self.is_staged {
            let command = self.options.command(key.clone(), excerpt);
            let call = OneCall::begin(self.session.clone(), command, self.options.timeout);
            return Ok(ControlFlow::Continue(Stage::Beside { key, call, tensor }));
        }
        let fetch = self.options.fetch(key.clone(), excerpt);
        let (block, meta) = tensor.into_parts();
        let ranges = vec![ArenaRange { offset: block.slice().offset, len: meta.len_bytes() }];
        let to = Destination { ranges, meta: meta.clone(), otherwise: Otherwise::Fail };
        let command = Command::FetchInto(IntoCommand { fetch, to });
        let call =
            OneCall::begin(self.session.clone(), command, self.options.timeout).lending(Held::Landing(vec![block]));
        Ok(ControlFlow::Continue(Stage::Asked { key, call, meta }))
    }

    /// Makes the result of the sidecar's answer. `held` is the range of a command that was not sent.
    fn conclude(&self, key: &Key, meta: TensorMeta, held: Option<Held>, ended: Ended) -> Output {
        let Answered { answer, destination, op, .. } = match ended {
            Ok(answered) => answered,
            Err(e) => {
                let block = match held {
                    Some(Held::Landing(mut blocks)) => blocks.pop(),
                    _ => None,
                };
                return Err(FetchIntoError::new(e, block.map(|block| TensorMut::new(block, meta))));
            }
        };
        let block = destination.first().and_then(|lent| self.session.take_back(*lent));
        // The sidecar gives back what it was lent, or violates the protocol.
        let Some(tensor) = block.map(|block| TensorMut::new(block, meta)) else {
            return Err(FetchIntoError::new(crate::error::SessionEnd::Unasked { op: op.0 }.into(), None));
        };
        match answer {
            Answer::Landed { version, report } => Ok(FetchedInto::new(tensor, version.0, report, Landing::InPlace)),
            Answer::Fetched { lease, tensor: found } => {
                self.copied(key, Lease::handed_out(&self.session, lease), found, tensor)
            }
            Answer::Torn { failure } => {
                let key = key.as_str().to_owned();
                let (tensors, error) = (vec![(key.clone(), tensor.meta().clone())], failure.into());
                Err(FetchIntoError::new(
                    Error::DestinationTorn(Box::new(TornDestination { key, tensors, error })),
                    Some(tensor),
                ))
            }
            Answer::Failed { failure, .. } => Err(FetchIntoError::new(failure.into(), Some(tensor))),
            _ => Err(FetchIntoError::new(crate::error::SessionEnd::Unasked { op: op.0 }.into(), Some(tensor))),
        }
    }

    /// Copies what lies elsewhere.
    fn copied(&self, key: &Key, lease: Arc<Lease>, found: FetchedTensor, mut tensor: TensorMut) -> Output {
        match self.copy(key, lease, found, &mut tensor) {
            Ok((version, mut report, landing)) => {
                report.copied += tensor.meta().len_bytes();
                Ok(FetchedInto::new(tensor, version.0, report, landing))
            }
            Err(e) => Err(FetchIntoError::new(e, Some(tensor))),
        }
    }

    fn copy(
        &self,
        key: &Key,
        lease: Arc<Lease>,
        found: FetchedTensor,
        tensor: &mut TensorMut,
    ) -> Result<(Version, Report, Landing), Error> {
        let version = found.version;
        let report = match &self.slice {
            Some(slice) => {
                let part = FetchedSlice::take(lease, found, key, slice)?;
                check_fit(key, version, part.meta(), tensor.meta())?;
                part.copy_to(tensor.as_mut_bytes());
                *part.report()
            }
            None => {
                check_fit(key, version, &found.meta, tensor.meta())?;
                let whole = Tensor::new(lease, found)?;
                // Cannot fail: both have the same length.
                let _ = tensor.block_mut().copy_in_parallel(0, whole.as_bytes(), copy_threads());
                *whole.report()
            }
        };
        Ok((version, report, self.landing_of(&report)))
    }

    /// How a version that did not land in place came.
    fn landing_of(&self, report: &Report) -> Landing {
        match is_by_reference(report) {
            true => Landing::OnThisHost,
            false if self.is_staged => Landing::Staged,
            false if self.session.home().is_returned() => Landing::ReturnedArena,
            false => Landing::NotOpened,
        }
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
            match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::New(tensor) => match self.begin(tensor) {
                    Ok(ControlFlow::Continue(asked)) => self.stage = asked,
                    Ok(ControlFlow::Break(fetched)) => return ControlFlow::Break(Ok(fetched)),
                    Err(e) => return ControlFlow::Break(Err(e)),
                },
                Stage::Asked { key, mut call, meta } => match call.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::Asked { key, call, meta };
                        return ControlFlow::Continue(at);
                    }
                    ControlFlow::Break(ended) => {
                        return ControlFlow::Break(self.conclude(&key, meta, call.take_held(), ended));
                    }
                },
                Stage::Beside { key, mut call, tensor } => match call.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::Beside { key, call, tensor };
                        return ControlFlow::Continue(at);
                    }
                    ControlFlow::Break(ended) => {
                        return ControlFlow::Break(match Answered::fetched(ended, &self.session) {
                            Ok((lease, found)) => self.copied(&key, lease, found, tensor),
                            Err(e) => Err(FetchIntoError::new(e, Some(tensor))),
                        });
                    }
                },
                Stage::Cancelled(tensor) => {
                    return ControlFlow::Break(Err(FetchIntoError::new(cancelled_unsent(), Some(tensor))));
                }
                Stage::Ended => return ControlFlow::Continue(Instant::now() + ANSWER_GRACE),
            }
        }
    }

    fn cancel(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            // Nobody else writes into it.
            Stage::New(tensor) | Stage::Beside { tensor, .. } => Stage::Cancelled(tensor),
            Stage::Asked { key, mut call, meta } => {
                call.cancel();
                Stage::Asked { key, call, meta }
            }
            ended => ended,
        };
    }

    fn needs_timer(&self) -> bool {
        matches!(&self.stage, Stage::Asked { call, .. } | Stage::Beside { call, .. } if call.needs_timer())
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
