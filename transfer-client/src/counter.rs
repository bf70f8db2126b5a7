//! A counter of the job.

use crate::Error;
use crate::connection::Connection;
use crate::counting::Counting;
use crate::face::Face;
use crate::session::Outcome;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use transfer_core::fabric::AtomicOp;
use transfer_core::op::{CounterAsk, CounterReport};
use transfer_core::tensor::Name;

/// A counter that exists once in the job: a `u64` under a name, that all its workers read, add to, and swap. It begins at 0.
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
/// At the *home*: the sidecar of the worker that first asked for the name, for as long as that sidecar lives, also when that worker
/// and all others have gone. When the home ends, the value is lost: operations fail with
/// [`FailureCode::PeerUnreachable`](crate::FailureCode), [`PeerLost`](crate::FailureCode) or, once a sidecar of that node is there
/// again, [`CounterLost`](crate::FailureCode). Whoever calls [`Handle::counter`](crate::Handle::counter) then makes a new counter of
/// that name, which begins at 0; this one never turns into it.
///
/// # An operation whose answer is lost
/// is never done again by itself, for it would count twice. The error's code is
/// [`OutcomeUnknown`](crate::FailureCode::OutcomeUnknown) where it may have been done, and another one where it was not. A call that
/// is given up, by dropping its future, may have been done.
///
/// # Order
/// All operations on one counter, from wherever they come, are done one after the other. Where both nodes' devices can, an operation
/// from another node is one READ, FETCH_ADD or CMP_AND_SWP, and costs its home no message and no processor; the home's own
/// operations go through the same device. Else the home's sidecar does it. [`CounterReport::path`] tells.
pub struct Counter<F> {
    connection: Arc<Connection>,
    name: Name,
    home: Name,
    identity: u64,
    face: PhantomData<F>,
}

/// What an operation on a counter found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counted {
    /// What the counter held before.
    pub old: u64,
    /// Which way it went.
    pub report: CounterReport,
}

/// What a compare-and-swap came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swapped {
    /// `Ok`: it held what was expected, which this is, and holds the new value now. `Err`: it held this, and still does.
    pub result: Result<u64, u64>,
    /// Which way it went.
    pub report: CounterReport,
}

impl<F> Clone for Counter<F> {
    fn clone(&self) -> Self {
        let Counter { connection, name, home, identity, .. } = self;
        let (connection, name, home) = (connection.clone(), name.clone(), home.clone());
        Counter { connection, name, home, identity: *identity, face: PhantomData }
    }
}

impl<F> fmt::Debug for Counter<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").field("name", &self.name).field("home", &self.home).finish_non_exhaustive()
    }
}

impl<F: Face> Counter<F> {
    pub(crate) fn open(connection: &Arc<Connection>, name: Result<Name, Error>) -> Counting<F, Counter<F>> {
        let found = name.as_ref().ok().cloned();
        let of = connection.clone();
        Counting::new(&connection.session(), name, CounterAsk::Open, move |outcome| match outcome {
            Outcome::CounterOpened { home, identity } => {
                Some(Counter { connection: of, name: found?, home, identity, face: PhantomData })
            }
            _ => None,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The name of the node where it lives.
    #[must_use]
    pub fn home(&self) -> &str {
        self.home.as_str()
    }

    /// Adds `n`, and wraps beyond `u64::MAX`. Brings what it held before.
    pub fn add(&self, n: u64) -> Counting<F, Counted> {
        self.operate(AtomicOp::FetchAdd(n), |old, report| Counted { old, report })
    }

    /// Reads it.
    pub fn get(&self) -> Counting<F, Counted> {
        self.operate(AtomicOp::Load, |old, report| Counted { old, report })
    }

    /// Makes it `new` where it is `expected`.
    pub fn compare_swap(&self, expected: u64, new: u64) -> Counting<F, Swapped> {
        self.operate(AtomicOp::CompareSwap { expected, new }, move |old, report| {
            let result = if old == expected { Ok(old) } else { Err(old) };
            Swapped { result, report }
        })
    }

    fn operate<T>(&self, op: AtomicOp, make: impl FnOnce(u64, CounterReport) -> T + Send + 'static) -> Counting<F, T> {
        let ask = CounterAsk::Operate { home: self.home.clone(), identity: self.identity, op };
        Counting::new(&self.connection.session(), Ok(self.name.clone()), ask, move |outcome| match outcome {
            Outcome::Counted { old, report } => Some(make(old, report)),
            _ => None,
        })
    }
}
