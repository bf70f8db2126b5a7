//! A request: a call that is about to be made, by whichever kind of client.
//!
//! [`Call`] is what a call does once it is made: it goes on as far as possible, and says what wakes it. [`Request`] is how
//! it is made, the same for all: awaited, or on this thread, or begun now and waited for later.
//!
//! # Layout
//! - this file: [`Request`]. `face`: the two ways. `call`: [`Call`], and waiting for one. `begun`: calls that are waited for in
//!   slices. `keys`: what can name a tensor. `trace`: the current span.

mod begun;
mod call;
mod face;
mod keys;
mod trace;

pub use begun::Begun;
pub use call::RequestFuture;
pub(crate) use call::block;
pub(crate) use call::{Call, RequestCall, Watched};
pub use face::{Async, Blocking, Face};
pub use keys::ToKey;
pub(crate) use keys::to_key;
pub(crate) use trace::current as current_trace;
#[cfg(feature = "opentelemetry")]
pub use trace::{from_span, to_span};

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::Duration;

/// The default time-out of a call.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A call that is about to be made. Set its options, then `.await` it, or `.call()` it on a
/// [`BlockingClient`](crate::BlockingClient).
#[must_use = "a call is made by `.await`, or by `.call()`"]
pub struct Request<F, C> {
    pub(crate) call: C,
    face: PhantomData<F>,
}

impl<F: Face, C: RequestCall> Request<F, C> {
    pub(crate) fn from_call(call: C) -> Self {
        Request { call, face: PhantomData }
    }

    /// The time-out of the call, 30 s by default. It includes every wait: for a version, for readers, for room.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.call.set_timeout(timeout);
        self
    }
}

impl<C: RequestCall> IntoFuture for Request<Async, C> {
    type Output = C::Output;
    type IntoFuture = RequestFuture<C>;

    fn into_future(self) -> RequestFuture<C> {
        RequestFuture::new(self.call)
    }
}

impl<C: RequestCall> Request<Blocking, C> {
    /// Makes the call, and waits for its result.
    pub fn call(self) -> C::Output {
        let session = self.call.session().clone();
        block(&session, self.call)
    }

    /// Begins the call.
    pub fn begin<'a>(self) -> Begun<'a, C::Output>
    where
        C: Send + 'a,
    {
        Begun::new(self.call.session().clone(), self.call)
    }
}

impl<F, C: fmt::Debug> fmt::Debug for Request<F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.call).finish()
    }
}
