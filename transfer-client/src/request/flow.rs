//! Calls that consist of many calls, for libraries on the clients: a [`Flow`] is a future of the calls of one session.
//!
//! The future needs no runtime. It is polled with a waker, and says when to poll it again in any case. So one text serves
//! the async client, the blocking client, and calls that are waited for in slices.
//!
//! ```no_run
//! # use transfer_client::flow::Io;
//! # use transfer_client::{AnyClient, BlockingClient, DType, Error, Key, Request};
//! /// Publishes a text, and fetches it again. The call is awaited, or ends with `call()`, as `C` says.
//! fn echo<C: AnyClient>(client: &BlockingClient, key: Key) -> transfer_client::flow::FlowRequest<C, Result<u64, Error>> {
//!     Request::of_flow(client, async move |io: Io| {
//!         io.run(io.client().push_bytes(&key, DType::U8, [2], b"hi")).await?;
//!         let fetched = io.run(io.client().fetch(&key).timeout(io.left(io.timeout()))).await?;
//!         Ok(fetched.version())
//!     })
//! }
//! ```

use super::{AnyClient, BlockingClient, Call, DEFAULT_TIMEOUT, Handle, HasHandle, Request, RequestCall};
use crate::session::{Connection, Session, deadline};
use parking_lot::Mutex;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The most futures of one [`Io::all`] that are under way at the same time.
const AT_ONCE: usize = 64;

/// The longest time after which a flow is polled again.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The time of a flow.
#[derive(Debug)]
struct Times {
    timeout: Duration,
    started: Option<Instant>,
    /// The earliest moment at which one of the calls has to be polled again.
    again: Option<Instant>,
}

/// What the calls of a flow have in common: the session, and the time.
#[derive(Debug, Clone)]
pub struct Io {
    client: BlockingClient,
    times: Arc<Mutex<Times>>,
}

impl Io {
    fn new(client: &BlockingClient) -> Io {
        let of = client.handle();
        let connection = Connection::new(of.session());
        let client = BlockingClient::of(Handle::new(connection, of.worker().clone(), of.node().clone()));
        let times = Times { timeout: DEFAULT_TIMEOUT, started: None, again: None };
        Io { client, times: Arc::new(Mutex::new(times)) }
    }

    /// The client by which the flow makes its calls. All of them belong to the session in which the flow has begun: once
    /// that is over they fail, and do not go on in the next one.
    #[must_use]
    pub fn client(&self) -> &BlockingClient {
        &self.client
    }

    pub(crate) fn session(&self) -> Arc<Session> {
        self.client.handle().session()
    }

    /// The deadline of the flow. Its time begins with the first call of this function.
    #[must_use]
    pub fn limit(&self) -> Instant {
        let mut times = self.times.lock();
        let started = *times.started.get_or_insert_with(Instant::now);
        deadline(started, times.timeout)
    }

    /// The time that is left until the deadline, at most this much.
    #[must_use]
    pub fn left(&self, at_most: Duration) -> Duration {
        self.limit().saturating_duration_since(Instant::now()).min(at_most)
    }

    /// The time-out of the flow.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.times.lock().timeout
    }

    /// Asks to be polled at this moment in any case.
    pub fn poll_at(&self, at: Instant) {
        let mut times = self.times.lock();
        times.again = Some(times.again.map_or(at, |again| again.min(at)));
    }

    /// Makes a call of [`Io::client`], as one that is awaited: a long delta of a push is made on another thread, also where the flow
    /// is called on a [`BlockingClient`].
    pub async fn run<K: RequestCall>(&self, mut request: Request<BlockingClient, K>) -> K::Output {
        poll_fn(|cx| match request.call.step(cx.waker()) {
            ControlFlow::Break(output) => Poll::Ready(output),
            ControlFlow::Continue(at) => {
                self.poll_at(at);
                Poll::Pending
            }
        })
        .await
    }

    /// Sleeps until this moment.
    pub async fn sleep_until(&self, at: Instant) {
        poll_fn(|_| match Instant::now() >= at {
            true => Poll::Ready(()),
            false => {
                self.poll_at(at);
                Poll::Pending
            }
        })
        .await;
    }

    /// Runs all these futures, 64 at a time. Their results are in the same order.
    pub async fn all<T, U: Future>(&self, items: impl IntoIterator<Item = T>, make: impl Fn(T) -> U) -> Vec<U::Output> {
        let mut items = items.into_iter().peekable();
        let mut done = Vec::new();
        while items.peek().is_some() {
            let mut running: Vec<_> =
                items.by_ref().take(AT_ONCE).map(|item| Either::Runs(Box::pin(make(item)))).collect();
            poll_fn(|cx| {
                let pending = running.iter_mut().map(|one| one.poll(cx)).filter(|ended| !ended).count();
                if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            done.extend(running.into_iter().filter_map(Either::into_output));
        }
        done
    }
}

impl Io {
    /// Runs two futures until one of them ends, and gives the other one up.
    pub(crate) async fn first<T, E>(
        &self,
        one: impl Future<Output = T>,
        other: impl Future<Output = E>,
    ) -> Result<T, E> {
        let (mut one, mut other) = (pin!(one), pin!(other));
        poll_fn(|cx| match one.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => other.as_mut().poll(cx).map(Err),
        })
        .await
    }

    /// Runs all these futures, `at_once` at a time, and takes the result of each as it comes. Ends with the first error.
    ///
    /// # Errors
    /// That of `take`.
    pub async fn each<T, U: Future, E>(
        &self,
        items: impl IntoIterator<Item = T>,
        at_once: usize,
        make: impl Fn(T) -> U,
        mut take: impl FnMut(U::Output) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut items = items.into_iter();
        let mut running: Vec<_> = items.by_ref().take(at_once).map(|item| Box::pin(make(item))).collect();
        while !running.is_empty() {
            let (at, output) = poll_fn(|cx| {
                for (at, one) in running.iter_mut().enumerate() {
                    if let Poll::Ready(output) = one.as_mut().poll(cx) {
                        return Poll::Ready((at, output));
                    }
                }
                Poll::Pending
            })
            .await;
            // The next one is on its way while this one is taken.
            match items.next() {
                Some(item) => running[at] = Box::pin(make(item)),
                None => drop(running.swap_remove(at)),
            }
            take(output)?;
        }
        Ok(())
    }
}

/// A future, or its output.
enum Either<U: Future> {
    Runs(Pin<Box<U>>),
    Ended(U::Output),
}

impl<U: Future> Either<U> {
    /// Polls the future. Returns whether it has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if let Either::Runs(future) = self {
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => *self = Either::Ended(output),
                Poll::Pending => return false,
            }
        }
        true
    }

    fn into_output(self) -> Option<U::Output> {
        match self {
            Either::Ended(output) => Some(output),
            Either::Runs(_) => None,
        }
    }
}

/// A future of calls of one session, whose output is a `T`.
pub struct Flow<T> {
    io: Io,
    session: Arc<Session>,
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T> Flow<T> {
    /// Makes a flow of the client's current session. Nothing is done before it is polled.
    pub fn new<U>(client: &BlockingClient, make: impl FnOnce(Io) -> U) -> Flow<T>
    where
        U: Future<Output = T> + Send + 'static,
    {
        let io = Io::new(client);
        Flow { session: io.client.handle().session(), future: Some(Box::pin(make(io.clone()))), io }
    }

    /// Sets the [time-out](Io::timeout), 30 s by default.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.io.times.lock().timeout = timeout;
        self
    }

    /// Continues as far as possible without waiting. `Continue(at)`: `waker` is woken when the flow can continue, and `poll`
    /// must be called again at `at` in any case. After `Break` it has no other result.
    pub fn poll(&mut self, waker: &Waker) -> ControlFlow<T, Instant> {
        self.io.times.lock().again = None;
        let Some(future) = &mut self.future else { return ControlFlow::Continue(Instant::now() + LONGEST_WAIT) };
        match future.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(output) => {
                self.future = None;
                ControlFlow::Break(output)
            }
            Poll::Pending => {
                let again = self.io.times.lock().again;
                ControlFlow::Continue(again.unwrap_or_else(|| Instant::now() + LONGEST_WAIT))
            }
        }
    }

    /// Runs the flow on this thread.
    pub fn block(self) -> T {
        Request::<BlockingClient, _>::from_call(self).call()
    }
}

impl<T> Call for Flow<T> {
    type Output = T;

    fn step(&mut self, waker: &Waker) -> ControlFlow<T, Instant> {
        self.poll(waker)
    }

    fn needs_timer(&self) -> bool {
        true
    }
}

impl<T> RequestCall for Flow<T> {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.io.times.lock().timeout = timeout;
    }
}

impl<T> fmt::Debug for Flow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").finish_non_exhaustive()
    }
}

/// A flow as a call: `.await` it, or `.call()` it on a [`BlockingClient`].
pub type FlowRequest<C, T> = Request<C, Flow<T>>;

impl<C: AnyClient, T> FlowRequest<C, T> {
    /// Makes a [`Flow`] that is awaited or called as `C` says.
    pub fn of_flow<U>(client: &BlockingClient, make: impl FnOnce(Io) -> U) -> Self
    where
        U: Future<Output = T> + Send + 'static,
    {
        Request::from_call(Flow::new(client, make))
    }
}
