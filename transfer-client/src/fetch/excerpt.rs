//! Excerpts: bytes of versions, for libraries that know what lies where in a body.

use super::options::FetchOptions;
use crate::error::{BundleError, Error};
use crate::gathered::Body;
use crate::request::{AnyClient, Call, Request, RequestCall, current_trace};
use crate::session::{Answered, Ended, OneCall, Session};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Command, FetchedTensor, Gather, Report};
use transfer_core::tensor::{Excerpt, Gathered, Key, TensorMeta};
use transfer_memory::view::Bytes;

/// A fetch of an excerpt: `.await` it, or `.call()` it on a [`BlockingClient`](crate::BlockingClient).
pub type FetchExcerpt<C> = Request<C, ExcerptCall>;

impl<C: AnyClient> FetchExcerpt<C> {
    /// Fetches a part of the newest version of a key.
    pub(crate) fn of_key(session: Arc<Session>, key: Result<Key, Error>, excerpt: Excerpt) -> Self {
        let command = key.map(|key| FetchOptions::new().command(key, Some(Box::new(excerpt))));
        FetchExcerpt::new(session, command)
    }

    /// Fetches parts of several versions of one node together.
    pub(crate) fn of_many(session: Arc<Session>, gathered: Gathered) -> Self {
        let (timeout, trace) = (FetchOptions::new().timeout, current_trace());
        FetchExcerpt::new(session, Ok(Command::Gather(Gather { gathered, timeout, require: None, trace })))
    }

    fn new(session: Arc<Session>, command: Result<Command, Error>) -> Self {
        let timeout = FetchOptions::new().timeout;
        Request::from_call(ExcerptCall { session, timeout, stage: Stage::New(command) })
    }
}

/// A fetch of an excerpt under way.
#[derive(Debug)]
pub struct ExcerptCall {
    session: Arc<Session>,
    timeout: Duration,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    New(Result<Command, Error>),
    Asked(OneCall),
}

impl Call for ExcerptCall {
    type Output = Result<FetchedExcerpt, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        loop {
            match &mut self.stage {
                Stage::Asked(call) => {
                    return call.step(waker).map_break(|ended| FetchedExcerpt::new(&self.session, ended));
                }
                Stage::New(Err(e)) => return ControlFlow::Break(Err(e.clone())),
                Stage::New(Ok(command)) => {
                    let mut command = command.clone();
                    match &mut command {
                        Command::Fetch(fetch) => fetch.timeout = self.timeout,
                        Command::Gather(gather) => gather.timeout = self.timeout,
                        _ => {}
                    }
                    self.stage = Stage::Asked(OneCall::begin(self.session.clone(), command, self.timeout));
                }
            }
        }
    }

    fn needs_timer(&self) -> bool {
        matches!(&self.stage, Stage::Asked(call) if call.needs_timer())
    }
}

impl RequestCall for ExcerptCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}

/// What was fetched of a version, or of several together. Where a version is read by reference, all of its body is there,
/// whatever was asked for. Otherwise the ranges lie one behind the other.
///
/// The owner's table says where the ranges are. Its bytes are not trusted.
pub struct FetchedExcerpt {
    body: Body,
    tensor: FetchedTensor,
}

impl fmt::Debug for FetchedExcerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchedExcerpt").field("tensor", &self.tensor).finish_non_exhaustive()
    }
}

impl FetchedExcerpt {
    fn new(session: &Arc<Session>, ended: Ended) -> Result<FetchedExcerpt, Error> {
        let (lease, tensor) = Answered::fetched(ended, session)?;
        let body = Body::new::<BundleError>(lease, &tensor)?;
        Ok(FetchedExcerpt { body, tensor })
    }

    /// The metadata: a copy, which the owner cannot change. Empty if the excerpt has none.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        &self.body.metadata
    }

    /// The length of what is there of the body, in bytes.
    #[must_use]
    pub fn body_len(&self) -> u64 {
        self.body.len
    }

    /// The bytes of a range of the body that is there. They keep its memory.
    ///
    /// # Errors
    /// [`BundleError::OutOfBody`] if it is not there, or not in one piece.
    pub fn bytes(&self, offset: u64, len_bytes: u64) -> Result<Bytes, Error> {
        Ok(self.body.bytes(offset, len_bytes).map_err(BundleError::from)?)
    }

    /// The description of what was fetched.
    #[must_use]
    pub fn meta(&self) -> &TensorMeta {
        &self.tensor.meta
    }

    /// The report of the fetch.
    #[must_use]
    pub fn report(&self) -> Report {
        self.tensor.report
    }
}
