//! A request: a call that is about to be made, by whichever kind of client.
//!
//! [`Call`] is what a call does once it is made: it goes on as far as possible, and says what wakes it. [`Request`] is how
//! it is made, the same for all: awaited, or on this thread, or begun now and waited for later.
//!
//! # Layout
//! - this file: [`Request`]. `client`: the two clients. `call`: [`Call`], and waiting for one. `begun`: calls that are waited for in
//!   slices. `flow`: calls that consist of many calls. `keys`: what can name a tensor. `trace`: the current span.

mod begun;
mod call;
mod client;
pub mod flow;
mod keys;
mod trace;

pub use begun::Begun;
pub use call::RequestFuture;
pub(crate) use call::{Call, RequestCall, Watched};
pub use client::{AnyClient, BlockingClient, Client};
pub(crate) use client::{Handle, HasHandle};
pub use keys::ToKey;
pub(crate) use keys::to_key;
pub(crate) use trace::current as current_trace;
#[cfg(feature = "opentelemetry")]
pub use trace::{from_span, to_span};

use call::block;
use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::Duration;

/// The default time-out of a call.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A call that is about to be made. Set its options, then `.await` it, if it is of a [`Client`], or `.call()` it, if it is of a
/// [`BlockingClient`].
#[must_use = "a call is made by `.await`, or by `.call()`"]
pub struct Request<C, K> {
    pub(crate) call: K,
    client: PhantomData<C>,
}

impl<C: AnyClient, K: RequestCall> Request<C, K> {
    pub(crate) fn from_call(call: K) -> Self {
        Request { call, client: PhantomData }
    }

    /// The time-out of the call, 30 s by default. It includes every wait: for a version, for readers, for room.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.call.set_timeout(timeout);
        self
    }
}

impl<K: RequestCall> IntoFuture for Request<Client, K> {
    type Output = K::Output;
    type IntoFuture = RequestFuture<K>;

    fn into_future(self) -> RequestFuture<K> {
        RequestFuture::new(self.call)
    }
}

impl<K: RequestCall> Request<BlockingClient, K> {
    /// Makes the call, and waits for its result.
    pub fn call(self) -> K::Output {
        let session = self.call.session().clone();
        block(&session, self.call)
    }

    /// Begins the call.
    pub fn begin<'a>(self) -> Begun<'a, K::Output>
    where
        K: Send + 'a,
    {
        Begun::new(self.call.session().clone(), self.call)
    }
}

impl<C, K: fmt::Debug> fmt::Debug for Request<C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.call).finish()
    }
}
