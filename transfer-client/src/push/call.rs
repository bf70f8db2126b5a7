//! The push of one tensor.

use super::delta::{PushedDelta, Ready, Sending};
use super::options::{PushOptions, push_options};
use crate::error::{Error, ErrorWith};
use crate::gathered::{Gathered, Piece, Pieces, copy_buffers, copy_threads, gather};
use crate::memory::{Frozen, TensorMut};
use crate::request::{AnyClient, Call, Request, RequestCall, Watched};
use crate::session::{
    ANSWER_GRACE, Answered, BackgroundCall, Base, Ended, Held, OneCall, Session, SharedRange, deadline,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, Command, Content, Failure, FailureCode, Report};
use transfer_core::tensor::{Digest, Key, Life, Spill, TensorMeta};
use transfer_memory::arena::Block;

/// The result of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// The version of the push.
    pub version: u64,
    /// The report: which fabric carried it, what was copied, and where the time went.
    pub report: Report,
    /// Its delta, if it was to have one.
    pub delta: Option<PushedDelta>,
}

/// The source of a push.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    Tensor(TensorMut),
    /// A frozen tensor: pushed in place, or copied into the arena if it is another client's.
    Frozen(Frozen),
    /// Memory of any owner: pushed in place if it is a frozen range of the arena, else copied into the arena.
    Bytes(&'a [u8], TensorMeta),
    /// Record batches, or a bundle: their buffers are pushed in place if they are in the arena, else copied into it.
    Pieces(Box<Pieces<'a>>),
}

impl<'a> Source<'a> {
    /// A copy of a tensor that stays writable.
    pub(crate) fn snapshot(tensor: &'a TensorMut) -> Source<'a> {
        Source::Bytes(tensor.as_bytes(), tensor.meta().clone())
    }

    /// The tensor that is the caller's again if the push fails.
    fn into_tensor(self) -> Option<TensorMut> {
        match self {
            Source::Tensor(tensor) => Some(tensor),
            Source::Frozen(_) | Source::Bytes(..) | Source::Pieces(_) => None,
        }
    }
}

/// A range that can be lent to the sidecar.
struct Prepared {
    held: Held,
    meta: TensorMeta,
    /// The number of ranges of the body.
    ranges: u32,
    content: Option<Content>,
}

impl Prepared {
    fn whole(held: Held, meta: TensorMeta) -> Prepared {
        Prepared { held, meta, ranges: 0, content: None }
    }
}

/// How long a base is lent: longer than a worker lives.
const FOREVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// A failed push. It contains the tensor, writable as before, if no other process can reach that: push it again, or drop it. `None`
/// if a transfer, another worker, or a thread that makes its delta may still read it: its memory returns to the arena when that is over.
/// `None` also for arrays and slices, which the caller still has.
pub type PushError = ErrorWith<TensorMut>;

/// A push that is about to be made. Set its options, then `.await` it, or `.call()` it on a [`crate::BlockingClient`].
///
/// # Errors
/// [`PushError`], with the tensor if the caller owns it again.
pub type Push<'a, C> = Request<C, PushCall<'a>>;

impl<'a, C: AnyClient> Push<'a, C> {
    pub(crate) fn new(session: Arc<Session>, key: Result<Key, Error>, source: Result<Source<'a>, Error>) -> Self {
        let stage = match (key, source) {
            (Ok(key), Ok(source)) => Stage::Unsent { key, source, started: None },
            (Err(e), source) => Stage::Refused(PushError::new(e, source.ok().and_then(Source::into_tensor))),
            (Ok(_), Err(e)) => Stage::Refused(PushError::new(e, None)),
        };
        Request::from_call(PushCall::new(session, PushOptions::new(), stage))
    }

    push_options!(call.options);

    /// With these options, in its own trace.
    pub(crate) fn with(mut self, options: &PushOptions) -> Self {
        self.call.options = PushOptions { trace: self.call.options.trace, ..options.clone() };
        self
    }

    /// What the version must not outlive; this worker by default.
    pub fn life(mut self, life: Life) -> Self {
        self.call.options.retention.life = life;
        self
    }

    /// Makes digests of the version, with which [`Fetch::verify`](crate::Fetch::verify) compares what has moved: of each chunk and of
    /// all, over description, metadata and body. They are made on this thread and others beside it, of the bytes as they lie
    /// before they are published. A tensor that was pushed with digests is fetched as a whole: it has no slices and rows, does
    /// not land in memory of the caller, and is not looked up without a request.
    pub fn digest(mut self, digest: Digest) -> Self {
        self.call.options.digesting.kind = Some(digest);
        self
    }

    /// The length of the chunks that have digests, 4 MiB by default: a multiple of 64 from 64 KiB to 1 GiB.
    pub fn chunk_bytes(mut self, bytes: u32) -> Self {
        self.call.options.set_chunk_bytes(bytes);
        self
    }

    /// Makes a delta: what has changed since `version`, which this client has published under this key, and which is published
    /// still. A node whose workers have got that version from here gets the delta in its place, where it is shorter than half of the
    /// version, and makes the version of it. Readers see nothing of it but their [report](Report::delta). Without a base, or if too
    /// much has changed, all get the whole version, and [`Pushed::delta`] says why. It is made before the push is sent: of more than
    /// 1 MiB on another thread, if the push is awaited. Later pushes of the key wait for that. A delta costs time: where links carry as much
    /// as a core compares, a whole version is there sooner.
    ///
    /// Name the version before in each push of a key, beginning with the first: nodes keep only versions of which deltas may follow.
    pub fn delta_of(mut self, version: u64) -> Self {
        self.call.options.delta_of = Some((version, None));
        self
    }

    /// How many deltas before that of this push stay published with it, 2 by default, 8 at most: a node that has missed as many versions gets
    /// these deltas in place of a whole version. All of them together have at most half the bytes of the version, and lie in the arena
    /// as long as the version does. A push without a delta ends the chain.
    pub fn keep_chain(mut self, deltas: u32) -> Self {
        self.call.options.set_chain(deltas);
        self
    }

    /// Whether the version may be written to disk; it is not by default.
    pub fn spill(mut self, spill: Spill) -> Self {
        self.call.options.retention.spill = spill;
        self
    }
}

/// A push under way.
#[derive(Debug)]
pub struct PushCall<'a> {
    session: Arc<Session>,
    options: PushOptions,
    /// The bytes that were copied into the arena, if any.
    copied: Option<u64>,
    /// The tensor that was taken from the caller, if it is pushed with digests.
    owned: Option<Frozen>,
    /// What has become of its delta, and the base of that.
    delta: Option<PushedDelta>,
    base: Option<Base>,
    /// Whether its caller sleeps until it has ended.
    is_blocking: bool,
    stage: Stage<'a>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each call, and every call comes to its largest")]
enum Stage<'a> {
    /// It has no valid key or source.
    Refused(PushError),
    /// It may wait for room in the arena, since it has `started`.
    Unsent {
        key: Key,
        source: Source<'a>,
        started: Option<Instant>,
    },
    /// Its delta, or that of an earlier push of the key, is made on another thread, which sends it.
    Compared {
        sending: BackgroundCall<Sending>,
        meta: TensorMeta,
        limit: Instant,
    },
    Sent {
        call: OneCall,
        meta: TensorMeta,
    },
    /// Its result was returned.
    Ended,
}

/// A source that is not ready to be lent.
enum Unprepared<'a> {
    /// There is no room in the arena now.
    Waits(Source<'a>),
    Failed(PushError),
}

impl PushCall<'static> {
    /// A push of a batch that has begun at this time.
    pub(super) fn of_batch(
        session: Arc<Session>,
        (key, tensor): (Result<Key, Error>, TensorMut),
        options: &PushOptions,
        started: Instant,
    ) -> PushCall<'static> {
        let stage = match key {
            Ok(key) => Stage::Unsent { key, source: Source::Tensor(tensor), started: Some(started) },
            Err(e) => Stage::Refused(PushError::new(e, Some(tensor))),
        };
        PushCall::new(session, options.clone(), stage)
    }

    /// Whether it waits for room in the arena.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self.stage, Stage::Unsent { .. })
    }
}

impl<'a> PushCall<'a> {
    /// Lends a bundle as a base.
    pub(super) fn of_base(
        session: Arc<Session>,
        (key, source): (Result<Key, Error>, Result<Source<'a>, Error>),
        options: PushOptions,
    ) -> PushCall<'a> {
        let stage = match key.and_then(|key| Ok((key, source?))) {
            Ok((key, source)) => Stage::Unsent { key, source, started: None },
            Err(e) => Stage::Refused(PushError::new(e, None)),
        };
        PushCall::new(session, options, stage)
    }

    fn new(session: Arc<Session>, options: PushOptions, stage: Stage<'a>) -> Self {
        let (copied, owned, delta, base, is_blocking) = (None, None, None, None, false);
        PushCall { session, options, copied, owned, delta, base, is_blocking, stage }
    }
}

impl PushCall<'_> {
    pub(super) fn set_digest(&mut self, digest: Digest) {
        self.options.digesting.kind = Some(digest);
    }

    pub(super) fn set_chunk_bytes(&mut self, bytes: u32) {
        self.options.set_chunk_bytes(bytes);
    }

    /// Takes the command, once it is sent.
    pub(super) fn take_sent(&mut self) -> Option<OneCall> {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Sent { call, .. } if call.op().is_some() => Some(call),
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    /// Makes a range of the source that can be lent.
    fn prepare<'a>(&mut self, source: Source<'a>, waker: &Waker, last_try: bool) -> Result<Prepared, Unprepared<'a>> {
        let failed = |e| Unprepared::Failed(PushError::new(e, None));
        match source {
            Source::Tensor(tensor) => {
                if let Err(e) = self.session.check_arena(&tensor) {
                    return Err(Unprepared::Failed(PushError::new(e, Some(tensor))));
                }
                let (block, meta) = tensor.into_parts();
                Ok(Prepared::whole(Held::Own(block), meta))
            }
            Source::Frozen(tensor) => {
                let held = self.hold(tensor.as_bytes(), waker, last_try).map_err(failed)?;
                match held {
                    Some(held) => Ok(Prepared::whole(held, tensor.meta().clone())),
                    None => Err(Unprepared::Waits(Source::Frozen(tensor))),
                }
            }
            Source::Bytes(bytes, meta) => match self.hold(bytes, waker, last_try).map_err(failed)? {
                Some(held) => Ok(Prepared::whole(held, meta)),
                None => Err(Unprepared::Waits(Source::Bytes(bytes, meta))),
            },
            Source::Pieces(mut pieces) => {
                if pieces.apart && !copy_buffers(&self.session, &mut pieces, waker, last_try).map_err(failed)? {
                    return Err(Unprepared::Waits(Source::Pieces(pieces)));
                }
                let digesting = self.options.digesting;
                let gathered = gather(&self.session, &mut pieces, digesting, waker, last_try).map_err(failed)?;
                let Some(gathered) = gathered else { return Err(Unprepared::Waits(Source::Pieces(pieces))) };
                self.copied = Some(pieces.copied + gathered.copied);
                let Gathered { held, meta, ranges, content, .. } = gathered;
                Ok(Prepared { held, meta, ranges, content })
            }
        }
    }

    /// Finds bytes in the arena, or copies them there. `None` if there is no room now.
    fn hold(&mut self, bytes: &[u8], waker: &Waker, last_try: bool) -> Result<Option<Held>, Error> {
        let arena = self.session.arena();
        if let Some(range) = SharedRange::find(arena, bytes.as_ptr(), bytes.len() as u64) {
            return Ok(Some(Held::Shared(range)));
        }
        let Some(block) = self.session.allocate_or_wait(bytes.len() as u64, waker, last_try)? else { return Ok(None) };
        // Cannot fail: the block lies in its arena, which is writable.
        if arena.mapping().copy_in_parallel(block.slice().offset, bytes, copy_threads()).is_ok() {
            self.copied = Some(bytes.len() as u64);
        }
        Ok(Some(Held::Own(block)))
    }

    /// Makes pieces of a tensor that is to have digests: they lie in metadata in front of it.
    fn with_digests<'a>(&mut self, source: Source<'a>) -> Result<Source<'a>, PushError> {
        let (piece, meta) = match source {
            source if !self.options.digesting.is_asked() => return Ok(source),
            Source::Pieces(_) => return Ok(source),
            Source::Bytes(bytes, meta) => (Piece::Borrowed(bytes), meta),
            Source::Frozen(tensor) => {
                let meta = tensor.meta().clone();
                (Piece::Shared(tensor.into_bytes().to_arrow_buffer()), meta)
            }
            Source::Tensor(tensor) => {
                if let Err(e) = self.session.check_arena(&tensor) {
                    return Err(PushError::new(e, Some(tensor)));
                }
                let frozen = tensor.freeze();
                let meta = frozen.meta().clone();
                self.owned = Some(frozen.clone());
                (Piece::Shared(frozen.into_bytes().to_arrow_buffer()), meta)
            }
        };
        let buffers = if piece.is_empty() { Vec::new() } else { vec![piece] };
        Ok(Source::Pieces(Box::new(Pieces { buffers, apart: true, tensor: Some(meta), ..Pieces::default() })))
    }

    /// The error of a push that was not sent, with the tensor that was taken from the caller.
    fn returned(&mut self, error: PushError) -> Result<Pushed, PushError> {
        match self.owned.take().map(Frozen::try_into_mut) {
            Some(Ok(tensor)) => Err(PushError::new(error.into(), Some(tensor))),
            _ => Err(error),
        }
    }

    /// Goes on with a push whose delta is made.
    fn sent(&mut self, Sending { call, delta, base }: Sending, meta: TensorMeta) -> Result<(), PushError> {
        match call {
            Ok(call) => {
                (self.delta, self.base) = (delta, base);
                self.stage = Stage::Sent { call, meta };
                Ok(())
            }
            Err(held) => {
                let tensor = match held {
                    Held::Own(block) => Some(TensorMut::new(block, meta)),
                    _ => None,
                };
                let late = PushError::new(self.late(), tensor);
                self.result(Err(late)).map(drop)
            }
        }
    }

    /// The error of a push whose time was over before it was sent.
    fn late(&self) -> Error {
        let text =
            format!("the push was not sent within {:?}: it takes longer to make its delta", self.options.timeout);
        Failure::new(FailureCode::Deadline, text).into()
    }

    /// Looks whether another thread has sent the push. Returns when to look again, or its end, if it was not sent.
    fn step_compared(&mut self, waker: &Waker) -> ControlFlow<Result<Pushed, PushError>, Option<Instant>> {
        let Stage::Compared { sending, limit, .. } = &mut self.stage else { return ControlFlow::Continue(None) };
        if self.session.is_forked() {
            // The other thread is the parent's.
            return ControlFlow::Break(Err(PushError::new(Error::Forked, None)));
        }
        let (now, limit) = (Instant::now(), *limit);
        let sending = match sending.poll(waker) {
            Poll::Pending if now < limit => return ControlFlow::Continue(Some(limit)),
            // It was sent just now, and its answer says what has come of it.
            Poll::Pending if !sending.give_up() => return ControlFlow::Continue(Some(now + ANSWER_GRACE)),
            Poll::Pending => Err(self.late()),
            Poll::Ready(Ok(sending)) => Ok(sending),
            Poll::Ready(Err(_)) => {
                let text = "the thread that made the delta has ended without one";
                Err(Failure::new(FailureCode::Unknown, text).into())
            }
        };
        // The other thread still has what it compares, but for this.
        let Stage::Compared { meta, .. } = std::mem::replace(&mut self.stage, Stage::Ended) else {
            return ControlFlow::Continue(None);
        };
        let sent = match sending {
            Ok(sending) => self.sent(sending, meta),
            Err(error) => self.returned(PushError::new(error, None)).map(drop),
        };
        match sent {
            Ok(()) => ControlFlow::Continue(None),
            Err(error) => ControlFlow::Break(Err(error)),
        }
    }

    /// Makes the result. The copy of a push that failed is useless to a caller who has the original.
    fn result(&mut self, result: Result<Pushed, PushError>) -> Result<Pushed, PushError> {
        let owned = self.owned.take();
        let Some(copied) = self.copied else { return result };
        // Nothing else holds what was taken from the caller, unless a transfer still reads it.
        let mut pushed = result.map_err(|e| PushError::new(e.into(), owned.and_then(|f| f.try_into_mut().ok())))?;
        pushed.report.copied += copied;
        Ok(pushed)
    }
}

impl Call for PushCall<'_> {
    type Output = Result<Pushed, PushError>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        loop {
            if let Stage::Sent { call, meta } = &mut self.stage {
                let ended = match call.step(waker) {
                    ControlFlow::Continue(at) => return ControlFlow::Continue(at),
                    ControlFlow::Break(ended) => ended,
                };
                let mut concluded = conclude(&self.session, meta.clone(), call.take_held(), ended);
                self.base = None;
                if let Ok(pushed) = &mut concluded {
                    pushed.delta = self.delta;
                }
                return ControlFlow::Break(self.result(concluded));
            }
            if let Stage::Compared { .. } = &self.stage {
                match self.step_compared(waker)? {
                    Some(at) => return ControlFlow::Continue(at),
                    None => continue,
                }
            }
            let now = Instant::now();
            let (key, source, started) = match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Unsent { key, source, started } => (key, source, started.unwrap_or(now)),
                Stage::Refused(error) => return ControlFlow::Break(Err(error)),
                ended @ (Stage::Compared { .. } | Stage::Sent { .. } | Stage::Ended) => {
                    self.stage = ended;
                    return ControlFlow::Continue(now + ANSWER_GRACE);
                }
            };
            if let Some(error) = &self.options.error {
                return ControlFlow::Break(Err(PushError::new(error.clone(), source.into_tensor())));
            }
            let source = match self.with_digests(source) {
                Ok(source) => source,
                Err(error) => return ControlFlow::Break(Err(error)),
            };
            let limit = deadline(started, self.options.timeout);
            let Prepared { held, meta, ranges, content } = match self.prepare(source, waker, now >= limit) {
                Ok(prepared) => prepared,
                Err(Unprepared::Waits(source)) => {
                    self.stage = Stage::Unsent { key, source, started: Some(started) };
                    return ControlFlow::Continue(self.session.room_limit(now, limit));
                }
                Err(Unprepared::Failed(error)) => return ControlFlow::Break(self.returned(error)),
            };
            // A base is lent until it is given up.
            let left = if self.options.lends_base { FOREVER } else { limit.saturating_duration_since(now) };
            let mut push = self.options.push(key, meta.clone(), held.to_lend().offset, left);
            (push.ranges, push.content) = (ranges, content);
            let (of, keep_chain) = (self.options.delta_of.clone(), self.options.keep_chain);
            let ready = Ready { push, held, of, keep_chain, started, limit };
            let is_forked = self.session.is_forked();
            if !is_forked && ready.is_for_background(&self.session, !self.is_blocking) {
                self.stage = Stage::Compared { sending: ready.begin_in_background(&self.session), meta, limit };
            } else if is_forked || ready.of.is_none() {
                let call = OneCall::new(self.session.clone(), Command::Push(ready.push), started, limit);
                self.stage = Stage::Sent { call: call.lending(ready.held), meta };
            } else if let Err(late) = self.sent(ready.begin(&self.session), meta) {
                return ControlFlow::Break(Err(late));
            }
        }
    }

    fn watch(&mut self, time: Duration) -> Watched<Self::Output> {
        self.is_blocking |= !time.is_zero();
        Watched::Steps
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::Sent { call, .. } => call.needs_timer(),
            Stage::Refused(_) | Stage::Unsent { .. } | Stage::Compared { .. } | Stage::Ended => true,
        }
    }
}

impl RequestCall for PushCall<'_> {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }
}

/// Makes the result of a push. `held` is the range of a push that was not sent.
pub(super) fn conclude(
    session: &Session,
    meta: TensorMeta,
    held: Option<Held>,
    ended: Ended,
) -> Result<Pushed, PushError> {
    let returned = |error, block: Option<Block>| PushError::new(error, block.map(|block| TensorMut::new(block, meta)));
    match ended {
        Ok(Answered { answer: Answer::Failed { failure, .. }, loan, .. }) => {
            let block = match loan {
                Some(loan) if loan.lent.owned && loan.formers.is_empty() => {
                    session.free_deltas(&loan);
                    session.take_back(loan.lent)
                }
                Some(loan) => {
                    session.give_back(*loan);
                    None
                }
                None => None,
            };
            Err(returned(failure.into(), block))
        }
        Ok(answered) => {
            let pushed = answered.read(|answer| match answer {
                Answer::Pushed { version, report, .. } => Some(Pushed { version: version.0, report, delta: None }),
                _ => None,
            });
            pushed.map_err(|e| PushError::new(e, None))
        }
        Err(error) => match held {
            Some(Held::Own(block)) => Err(returned(error, Some(block))),
            _ => Err(returned(error, None)),
        },
    }
}
