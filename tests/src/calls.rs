//! Orders to a worker: how they are put together, and what comes of them.

use crate::order::{Answer, FetchOrder, Fetched, Order, PushOrder, Pushed, Select, Trouble, Until, UpdateOrder, Way};
use crate::{PATIENCE, Worker};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

/// An order under way.
#[derive(Debug)]
pub struct Pending<T> {
    what: String,
    answer: Receiver<Result<Answer, Trouble>>,
    take: fn(Answer) -> Option<T>,
}

/// How an order ended.
#[derive(Debug)]
pub enum Ended<T> {
    /// With what was asked for.
    Well(T),
    /// With the client's error.
    InTrouble(Trouble),
    /// The worker is gone.
    Gone,
}

/// Takes a checksum out of an answer.
pub fn sum(answer: Answer) -> Option<u64> {
    if let Answer::Sum(sum) = answer { Some(sum) } else { None }
}

/// Takes a number out of an answer.
pub fn number(answer: Answer) -> Option<u64> {
    if let Answer::Number(n) = answer { Some(n) } else { None }
}

/// Takes nothing out of an answer.
pub fn done(answer: Answer) -> Option<()> {
    if let Answer::Done = answer { Some(()) } else { None }
}

impl<T> Pending<T> {
    pub(crate) fn new(
        what: String,
        answer: Receiver<Result<Answer, Trouble>>,
        take: fn(Answer) -> Option<T>,
    ) -> Pending<T> {
        Pending { what, answer, take }
    }

    /// What came of it. None: the worker is gone.
    pub(crate) fn outcome(&self) -> Option<Result<T, Trouble>> {
        match self.answer.recv_timeout(PATIENCE) {
            Ok(result) => {
                Some(result.map(|answer| (self.take)(answer).unwrap_or_else(|| panic!("{}: wrong answer", self.what))))
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("{}: no answer", self.what),
        }
    }

    /// What came of it, where that is known by now.
    ///
    /// # Panics
    /// Where the worker answers something else than it was asked.
    #[must_use]
    pub fn now(&self) -> Option<Ended<T>> {
        match self.answer.try_recv() {
            Ok(Ok(answer)) => {
                let taken = (self.take)(answer);
                Some(Ended::Well(taken.unwrap_or_else(|| panic!("{}: wrong answer", self.what))))
            }
            Ok(Err(trouble)) => Some(Ended::InTrouble(trouble)),
            Err(TryRecvError::Disconnected) => Some(Ended::Gone),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The client's.
    ///
    /// # Panics
    /// Where the worker dies before.
    #[track_caller]
    pub fn wait(self) -> Result<T, Trouble> {
        self.outcome().unwrap_or_else(|| panic!("{}: the worker has ended", self.what))
    }

    /// Waits for success.
    ///
    /// # Panics
    /// Where it fails.
    #[track_caller]
    pub fn get(self) -> T {
        let what = self.what.clone();
        self.wait().unwrap_or_else(|trouble| panic!("{what}: {trouble}"))
    }

    /// Waits for failure.
    ///
    /// # Panics
    /// Where it succeeds.
    #[track_caller]
    pub fn trouble(self) -> Trouble
    where
        T: std::fmt::Debug,
    {
        let what = self.what.clone();
        self.wait().err().unwrap_or_else(|| panic!("{what}: it succeeded"))
    }
}

/// One worker updates a tensor in place while others watch it. How many versions each of them has seen.
///
/// # Panics
/// Where a worker has trouble, or sees a torn version.
#[track_caller]
pub fn update_and_watch(writer: &mut Worker, readers: &mut [Worker], order: &UpdateOrder) -> Vec<u64> {
    let watching: Vec<_> = readers.iter_mut().map(|r| r.order(Order::Watch(order.clone()), number)).collect();
    writer.order(Order::Update(order.clone()), done).get();
    watching.into_iter().map(Pending::get).collect()
}

/// A push to be ordered.
#[derive(Debug)]
#[must_use]
pub struct PushCall<'a> {
    worker: &'a mut Worker,
    order: PushOrder,
}

impl<'a> PushCall<'a> {
    pub(crate) fn new(worker: &'a mut Worker, order: PushOrder) -> PushCall<'a> {
        PushCall { worker, order }
    }
}

#[allow(missing_docs)]
impl PushCall<'_> {
    pub fn version(mut self, version: u64) -> Self {
        self.order.version = Some(version);
        self
    }

    pub fn to(mut self, worker: &str) -> Self {
        self.order.to = Some(worker.to_owned());
        self
    }

    pub fn way(mut self, way: Way) -> Self {
        self.order.way = way;
        self
    }

    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.order.timeout = timeout;
        self
    }

    pub fn require(mut self, fabric: &str) -> Self {
        self.order.require = Some(fabric.to_owned());
        self
    }

    pub fn keep(mut self, until: Until) -> Self {
        self.order.keep.until = until;
        self
    }

    pub fn outlive(mut self) -> Self {
        self.order.keep.outlives = true;
        self
    }

    pub fn readable_by(mut self, tenant: impl ToString) -> Self {
        self.order.readable_by.push(tenant.to_string());
        self
    }

    pub fn takeover(mut self) -> Self {
        self.order.takeover = true;
        self
    }

    /// Orders it; the answer comes later.
    pub fn start(self) -> Pending<Pushed> {
        self.worker.order(Order::Push(self.order), |a| if let Answer::Pushed(p) = a { Some(p) } else { None })
    }

    /// Orders it, again and again.
    pub fn storm(self) -> Pending<()> {
        self.worker.order(Order::PushStorm(self.order), done)
    }

    #[track_caller]
    pub fn get(self) -> Pushed {
        self.start().get()
    }

    #[track_caller]
    pub fn trouble(self) -> Trouble {
        self.start().trouble()
    }
}

/// A fetch to be ordered.
#[derive(Debug)]
#[must_use]
pub struct FetchCall<'a> {
    worker: &'a mut Worker,
    order: FetchOrder,
}

impl<'a> FetchCall<'a> {
    pub(crate) fn new(worker: &'a mut Worker, order: FetchOrder) -> FetchCall<'a> {
        FetchCall { worker, order }
    }
}

#[allow(missing_docs)]
impl FetchCall<'_> {
    pub fn exactly(mut self, version: u64) -> Self {
        self.order.select = Select::Exactly(version);
        self
    }

    pub fn at_least(mut self, version: u64) -> Self {
        self.order.select = Select::AtLeast(version);
        self
    }

    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.order.timeout = timeout;
        self
    }

    pub fn require(mut self, fabric: &str) -> Self {
        self.order.require = Some(fabric.to_owned());
        self
    }

    /// The tensor is kept, under this name.
    pub fn hold(mut self, name: &str) -> Self {
        self.order.hold = Some(name.to_owned());
        self
    }

    /// Orders it; the answer comes later.
    pub fn start(self) -> Pending<Fetched> {
        self.worker.order(Order::Fetch(self.order), |a| if let Answer::Fetched(f) = a { Some(f) } else { None })
    }

    /// Orders it, again and again.
    pub fn storm(self) -> Pending<()> {
        self.worker.order(Order::FetchStorm(self.order), done)
    }

    #[track_caller]
    pub fn get(self) -> Fetched {
        self.start().get()
    }

    #[track_caller]
    pub fn trouble(self) -> Trouble {
        self.start().trouble()
    }
}
