//! The push of one tensor.

use crate::calls::{Calls, Ended, deadline};
use crate::face::{Async, Blocking, Call, Face, Running, block};
use crate::gathered::{Pieces, copy_buffers, gather};
use crate::options::{PushOptions, push_options};
use crate::session::{Answered, Held, Session, SharedRange, Submitting};
use crate::{Error, PushError, TensorMut};
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Instant;
use transfer_core::op::{Answer, Command, Report};
use transfer_core::tensor::{Key, Life, Spill, TensorMeta};

/// The result of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// The version of the push.
    pub version: u64,
    /// The report: which fabric carried it, what was copied, and where the time went.
    pub report: Report,
}

/// The source of a push.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    Tensor(TensorMut),
    /// Memory of any owner: pushed in place if it is a frozen range of the arena, else copied into the arena.
    Bytes(&'a [u8], TensorMeta),
    /// Record batches, or a bundle: their buffers are pushed in place if they are in the arena, else copied into it.
    Pieces(Box<Pieces<'a>>),
}

/// A range that can be lent to the sidecar.
struct Prepared {
    held: Held,
    meta: TensorMeta,
    /// The number of ranges of the body.
    ranges: u32,
}

impl Prepared {
    fn whole(held: Held, meta: TensorMeta) -> Prepared {
        Prepared { held, meta, ranges: 0 }
    }
}

/// A push that is about to be made. Set its options, then `.await` it, or `.call()` it on a [`crate::BlockingClient`].
#[derive(Debug)]
#[must_use = "a push is made by `.await`, or by `.call()`"]
pub struct Push<'a, F> {
    pub(crate) call: PushCall<'a>,
    face: PhantomData<F>,
}

impl<'a, F: Face> Push<'a, F> {
    pub(crate) fn new(session: Arc<Session>, key: Result<Key, Error>, source: Result<Source<'a>, Error>) -> Self {
        let mut options = PushOptions::new();
        let (key, source) = match (key, source) {
            (Ok(key), Ok(source)) => (Some(key), Some(source)),
            (Err(e), source) => {
                options.error = Some(e);
                (None, source.ok())
            }
            (Ok(_), Err(e)) => {
                options.error = Some(e);
                (None, None)
            }
        };
        Push { call: PushCall { session, key, source, options, copied: None, stage: Stage::New }, face: PhantomData }
    }

    push_options!(call.options);

    /// With these options, in its own trace.
    pub(crate) fn with(mut self, options: &PushOptions) -> Self {
        let PushOptions { trace, error, .. } = self.call.options;
        let error = error.or_else(|| options.error.clone());
        self.call.options = PushOptions { trace, error, ..options.clone() };
        self
    }

    /// What the version must not outlive.
    pub(crate) fn life(mut self, life: Life) -> Self {
        self.call.options.retention.life = life;
        self
    }

    /// Whether the version may be written to disk.
    pub(crate) fn spill(mut self, spill: Spill) -> Self {
        self.call.options.retention.spill = spill;
        self
    }
}

impl<'a> IntoFuture for Push<'a, Async> {
    type Output = Result<Pushed, PushError>;
    type IntoFuture = Running<PushCall<'a>>;

    fn into_future(self) -> Running<PushCall<'a>> {
        Running::new(self.call)
    }
}

impl Push<'_, Blocking> {
    /// Makes the push.
    ///
    /// # Errors
    /// [`PushError`], with the tensor if the caller owns it again.
    pub fn call(self) -> Result<Pushed, PushError> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
}

/// A push under way.
#[derive(Debug)]
pub struct PushCall<'a> {
    pub(crate) session: Arc<Session>,
    key: Option<Key>,
    source: Option<Source<'a>>,
    pub(crate) options: PushOptions,
    /// The bytes that were copied into the arena, if any.
    copied: Option<u64>,
    stage: Stage,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each call, and every call comes to its largest")]
enum Stage {
    New,
    /// Waits for room in the arena.
    Room {
        started: Instant,
    },
    Sent(Calls),
}

impl PushCall<'_> {
    fn fail(&mut self, error: Error) -> PushError {
        let tensor = match self.source.take() {
            Some(Source::Tensor(tensor)) => Some(tensor),
            _ => None,
        };
        PushError::new(error, tensor)
    }

    /// Makes a range of the source that can be lent. `None` if there is no room now.
    fn prepare(&mut self, waker: &Waker, last_try: bool) -> Result<Option<Prepared>, Error> {
        match self.source.take() {
            Some(Source::Tensor(tensor)) => {
                if let Err(e) = check_arena(&self.session, &tensor) {
                    self.source = Some(Source::Tensor(tensor));
                    return Err(e);
                }
                let (block, meta) = tensor.into_parts();
                Ok(Some(Prepared::whole(Held::Own(block), meta)))
            }
            Some(Source::Bytes(bytes, meta)) => {
                let arena = self.session.arena();
                if let Some(range) = SharedRange::find(arena, bytes.as_ptr(), bytes.len() as u64) {
                    return Ok(Some(Prepared::whole(Held::Shared(range), meta)));
                }
                let Some(block) = self.session.allocate_or_wait(bytes.len() as u64, waker, last_try)? else {
                    self.source = Some(Source::Bytes(bytes, meta));
                    return Ok(None);
                };
                // Cannot fail: the block lies in its arena, which is writable.
                if arena.mapping().copy_in_parallel(block.slice().offset, bytes, copy_threads()).is_ok() {
                    self.copied = Some(bytes.len() as u64);
                }
                Ok(Some(Prepared::whole(Held::Own(block), meta)))
            }
            Some(Source::Pieces(mut pieces)) => {
                if pieces.apart && !copy_buffers(&self.session, &mut pieces, waker, last_try)? {
                    self.source = Some(Source::Pieces(pieces));
                    return Ok(None);
                }
                let Some(gathered) = gather(&self.session, &pieces, waker, last_try)? else {
                    self.source = Some(Source::Pieces(pieces));
                    return Ok(None);
                };
                self.copied = Some(pieces.copied + gathered.copied);
                Ok(Some(Prepared { held: gathered.held, meta: gathered.meta, ranges: gathered.ranges }))
            }
            None => Ok(None),
        }
    }
}

impl Call for PushCall<'_> {
    type Output = Result<Pushed, PushError>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        if let Some(error) = self.options.error.take() {
            return ControlFlow::Break(Err(self.fail(error)));
        }
        loop {
            let started = match &mut self.stage {
                Stage::New => Instant::now(),
                Stage::Room { started } => *started,
                Stage::Sent(calls) => {
                    if let ControlFlow::Continue(at) = calls.step(waker) {
                        return ControlFlow::Continue(at);
                    }
                    let result = match calls.take().next() {
                        Some((item, ended)) => conclude(&self.session, item, ended),
                        None => Err(PushError::new(Error::Ended, None)),
                    };
                    return ControlFlow::Break(match (result, self.copied) {
                        (Ok(mut pushed), Some(copied)) => {
                            pushed.report.copied += copied;
                            Ok(pushed)
                        }
                        // The copy is useless to a caller who has the original.
                        (Err(e), Some(_)) => Err(PushError::new(e.into(), None)),
                        (result, None) => result,
                    });
                }
            };
            let limit = deadline(started, self.options.timeout);
            let now = Instant::now();
            let Prepared { held, meta, ranges } = match self.prepare(waker, now >= limit) {
                Ok(Some(prepared)) => prepared,
                Ok(None) => {
                    self.stage = Stage::Room { started };
                    return ControlFlow::Continue(limit.min(now + Session::ROOM_POLL));
                }
                Err(error) => return ControlFlow::Break(Err(self.fail(error))),
            };
            let Some(key) = self.key.take() else { return ControlFlow::Break(Err(self.fail(Error::Ended))) };
            let left = limit.saturating_duration_since(now);
            let mut command = self.options.command(key, meta, held.to_lend().offset, left);
            if let Command::Push(push) = &mut command {
                push.ranges = ranges;
            }
            let mut calls = Calls::new(self.session.clone(), started, limit);
            calls.add(command, Some(held));
            self.stage = Stage::Sent(calls);
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::New | Stage::Room { .. } => true,
            Stage::Sent(calls) => calls.needs_timer(),
        }
    }
}

/// The number of threads that copy a large array. It is computed once, because the system reads files to answer.
pub(crate) fn copy_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Whether a tensor lies in this session's arena.
pub(crate) fn check_arena(session: &Session, tensor: &TensorMut) -> Result<(), Error> {
    match Arc::ptr_eq(tensor.block().arena().mapping(), session.arena().mapping()) {
        true => Ok(()),
        false => Err(Error::OtherClient { meta: tensor.meta().clone() }),
    }
}

/// Makes the result of a push.
pub(crate) fn conclude(session: &Session, item: Submitting, ended: Ended) -> Result<Pushed, PushError> {
    let Submitting { command: Command::Push(push), held, .. } = item else {
        return Err(PushError::new(Error::Ended, None));
    };
    let (error, tensor) = match ended {
        Ok(Answered { answer: Answer::Pushed { version, report }, .. }) => {
            return Ok(Pushed { version: version.0, report });
        }
        Ok(Answered { answer: Answer::Failed { failure, .. }, loan }) => {
            let block = match loan {
                Some(loan) if loan.lent.owned && loan.formers.is_empty() => session.take_back(loan.lent),
                Some(loan) => {
                    session.give_back(*loan);
                    None
                }
                None => None,
            };
            (failure.into(), block)
        }
        // The table only passes answers to a push.
        Ok(_) => (Error::Ended, None),
        // A push that was not sent still has its range.
        Err(error) => match held {
            Some(Held::Own(block)) => (error, Some(block)),
            _ => (error, None),
        },
    };
    Err(PushError::new(error, tensor.map(|block| TensorMut::new(block, push.meta))))
}
