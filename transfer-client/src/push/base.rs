//! Bases: what a worker has from elsewhere, and lends to its fetches.

use super::call::{PushCall, Source};
use super::options::PushOptions;
use crate::error::{Error, SessionEnd};
use crate::request::{AnyClient, Call, Request, RequestCall};
use crate::session::{OneCall, Session};
use parking_lot::Mutex;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::OpId;
use transfer_core::tensor::{Digest, Key};

/// A bundle that this worker has from elsewhere, for instance from a checkpoint, and that lies in its arena as the base of deltas:
/// [`Fetch::base`](crate::Fetch::base) names it. Its memory comes back when this is dropped, and no delta is being applied to it.
pub struct LentBase {
    session: Arc<Session>,
    op: OpId,
    /// The push that lends it, which does not end before it is dropped.
    _call: Mutex<OneCall>,
}

impl LentBase {
    /// The number of the push by which it was lent, if that was in this session. A sidecar that was restarted has no bases.
    pub(crate) fn lent_in(&self, session: &Arc<Session>) -> Option<OpId> {
        Arc::ptr_eq(&self.session, session).then_some(self.op)
    }
}

impl fmt::Debug for LentBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentBase").field("op", &self.op).finish_non_exhaustive()
    }
}

/// A base that is about to be lent. Set its options, then `.await` it, or `.call()` it on a [`crate::BlockingClient`].
///
/// # Errors
/// [`Error`], as of a push.
pub type LendBase<'a, C> = Request<C, LendBaseCall<'a>>;

impl<'a, C: AnyClient> LendBase<'a, C> {
    pub(crate) fn new(session: Arc<Session>, key: Result<Key, Error>, source: Result<Source<'a>, Error>) -> Self {
        let mut options = PushOptions::new();
        (options.lends_base, options.digesting.kind) = (true, Some(Digest::Xxh3));
        Request::from_call(LendBaseCall { push: PushCall::of_base(session, (key, source), options) })
    }

    /// The kind of digests with which the version was pushed whose bytes these are; XXH3 by default.
    pub fn digest(mut self, digest: Digest) -> Self {
        self.call.push.set_digest(digest);
        self
    }

    /// The length of the chunks that have digests in that version, 4 MiB by default.
    pub fn chunk_bytes(mut self, bytes: u32) -> Self {
        self.call.push.set_chunk_bytes(bytes);
        self
    }
}

/// A base that is being lent.
#[derive(Debug)]
pub struct LendBaseCall<'a> {
    push: PushCall<'a>,
}

impl Call for LendBaseCall<'_> {
    type Output = Result<LentBase, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let at = match self.push.step(waker) {
            ControlFlow::Continue(at) => at,
            ControlFlow::Break(Err(error)) => return ControlFlow::Break(Err(error.into())),
            // A sidecar that publishes a base has not understood it.
            ControlFlow::Break(Ok(pushed)) => {
                let said = format!("version {} in answer to a base", pushed.version).into();
                return ControlFlow::Break(Err(SessionEnd::Unknown { said }.into()));
            }
        };
        match self.push.take_sent().and_then(|call| Some((call.op()?, call))) {
            Some((op, call)) => {
                let session = self.push.session().clone();
                ControlFlow::Break(Ok(LentBase { session, op, _call: Mutex::new(call) }))
            }
            None => ControlFlow::Continue(at),
        }
    }

    fn needs_timer(&self) -> bool {
        self.push.needs_timer()
    }
}

impl RequestCall for LendBaseCall<'_> {
    fn session(&self) -> &Arc<Session> {
        self.push.session()
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.push.set_timeout(timeout);
    }
}
