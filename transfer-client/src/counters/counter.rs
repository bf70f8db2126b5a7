//! Counters of the job.

use crate::counters::Counting;
use crate::error::Error;
use crate::request::AnyClient;
use crate::session::Connection;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use transfer_core::fabric::AtomicOp;
use transfer_core::op::{Answer, CounterAsk, CounterReport};
use transfer_core::tensor::Name;

/// A counter that exists once in the job: a `u64` with a name. All workers of the job can read it, add to it, and swap
/// it. It begins at 0.
///
/// ```no_run
/// # use transfer_client::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let steps = client.counter("steps").await?;
/// let before = steps.add(1).await?;
/// println!("this was step {}, {}", before.old, before.report);
/// if steps.compare_swap(1000, 0).await?.result.is_ok() {
///     println!("a new epoch begins, and this worker began it");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Where it lives
/// A counter lives at its *home*: the sidecar of the worker that first asked for the name. It lives as long as that
/// sidecar, even if that worker and all others have gone. When the home ends, the value is lost. Operations then fail
/// with [`FailureCode::PeerUnreachable`](crate::FailureCode), [`PeerLost`](crate::FailureCode) or, once a sidecar of
/// that node is back, [`CounterLost`](crate::FailureCode). The next call of [`Client::counter`](crate::Client::counter)
/// makes a new counter of that name, which begins at 0; this object never refers to it.
///
/// # Lost answers
/// An operation whose answer is lost is never repeated automatically, because it would count twice. The code of the
/// error is [`OutcomeUnknown`](crate::FailureCode::OutcomeUnknown) if the operation may have been done, and another one
/// if it was not. A call that is given up by dropping its future may have been done.
///
/// # Order
/// All operations on one counter are done one after the other, from whichever node they come. If the devices of both
/// nodes support it, an operation from another node is one READ, FETCH_ADD or CMP_AND_SWP, and takes neither a message
/// nor processor time of its home; the home's own operations use the same device. Otherwise the home's sidecar does the
/// operation. [`CounterReport::path`] shows the path.
pub struct Counter<C> {
    connection: Arc<Connection>,
    name: Name,
    home: Name,
    identity: u64,
    client: PhantomData<C>,
}

/// The result of an operation on a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counted {
    /// The value before the operation.
    pub old: u64,
    /// The path of the operation.
    pub report: CounterReport,
}

/// The result of a compare-and-swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swapped {
    /// `Ok` if the counter had the expected value, which is returned, and now has the new one. `Err` with the counter's
    /// value if it had another one, and did not change.
    pub result: Result<u64, u64>,
    /// The path of the operation.
    pub report: CounterReport,
}

impl<C> Clone for Counter<C> {
    fn clone(&self) -> Self {
        let Counter { connection, name, home, identity, .. } = self;
        let (connection, name, home) = (connection.clone(), name.clone(), home.clone());
        Counter { connection, name, home, identity: *identity, client: PhantomData }
    }
}

impl<C> fmt::Debug for Counter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").field("name", &self.name).field("home", &self.home).finish_non_exhaustive()
    }
}

impl<C: AnyClient> Counter<C> {
    pub(crate) fn open(connection: &Arc<Connection>, name: Result<Name, Error>) -> Counting<C, Counter<C>> {
        let found = name.as_ref().ok().cloned();
        let of = connection.clone();
        Counting::new(&connection.session(), name, CounterAsk::Open, move |answer| match answer {
            Answer::CounterOpened { home, identity } => {
                Some(Counter { connection: of.clone(), name: found.clone()?, home, identity, client: PhantomData })
            }
            _ => None,
        })
    }

    /// The counter's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The name of the node of its home.
    #[must_use]
    pub fn home(&self) -> &str {
        self.home.as_str()
    }

    /// The same counter, used by another client: for instance by [that of a flow](crate::flow::Io::client).
    #[must_use]
    pub fn of_client<D: AnyClient>(&self, client: &D) -> Counter<D> {
        let (connection, name, home) = (client.handle().connection().clone(), self.name.clone(), self.home.clone());
        Counter { connection, name, home, identity: self.identity, client: PhantomData }
    }

    /// Adds `n`, and wraps beyond `u64::MAX`. Returns the value before.
    pub fn add(&self, n: u64) -> Counting<C, Counted> {
        self.operate(AtomicOp::FetchAdd(n), |old, report| Counted { old, report })
    }

    /// Reads the value.
    pub fn get(&self) -> Counting<C, Counted> {
        self.operate(AtomicOp::Load, |old, report| Counted { old, report })
    }

    /// Sets the value to `new` if it is `expected`.
    pub fn compare_swap(&self, expected: u64, new: u64) -> Counting<C, Swapped> {
        self.operate(AtomicOp::CompareSwap { expected, new }, move |old, report| {
            let result = if old == expected { Ok(old) } else { Err(old) };
            Swapped { result, report }
        })
    }

    fn operate<T>(&self, op: AtomicOp, make: impl Fn(u64, CounterReport) -> T + Send + 'static) -> Counting<C, T> {
        let ask = CounterAsk::Operate { home: self.home.clone(), identity: self.identity, op };
        Counting::new(&self.connection.session(), Ok(self.name.clone()), ask, move |answer| match answer {
            Answer::Counted { old, report } => Some(make(old, report)),
            _ => None,
        })
    }
}
