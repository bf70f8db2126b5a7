//! Orders to a worker: how a test builds them, and how it waits for their results.

use crate::order::{
    Answer, FetchOrder, Fetched, Order, PushMode, PushOrder, Pushed, Select, Trouble, Until, UpdateOrder,
};
use crate::{WAIT_LIMIT, Worker};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

/// An order that the worker has not answered yet.
#[derive(Debug)]
pub struct Pending<T> {
    what: String,
    answer: Receiver<Result<Answer, Trouble>>,
    take: fn(Answer) -> Option<T>,
}

/// How an order ended.
#[derive(Debug)]
pub enum Ended<T> {
    /// The order succeeded.
    Well(T),
    /// The order failed with an error of the client.
    InTrouble(Trouble),
    /// The worker is gone.
    Gone,
}

/// Returns the checksum of an answer.
pub fn sum(answer: Answer) -> Option<u64> {
    if let Answer::Sum(sum) = answer { Some(sum) } else { None }
}

/// Returns the number of an answer.
pub fn number(answer: Answer) -> Option<u64> {
    if let Answer::Number(n) = answer { Some(n) } else { None }
}

/// Returns `()` for an answer without a value.
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

    /// Waits for the result. `None`: the worker is gone.
    pub(crate) fn outcome(&self) -> Option<Result<T, Trouble>> {
        match self.answer.recv_timeout(WAIT_LIMIT) {
            Ok(result) => {
                Some(result.map(|answer| (self.take)(answer).unwrap_or_else(|| panic!("{}: wrong answer", self.what))))
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("{}: no answer", self.what),
        }
    }

    /// Returns the result if the worker has answered.
    ///
    /// # Panics
    /// If the worker answers something else than it was asked.
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

    /// Waits for the result.
    ///
    /// # Errors
    /// The client's error.
    ///
    /// # Panics
    /// If the worker dies before.
    #[track_caller]
    pub fn wait(self) -> Result<T, Trouble> {
        self.outcome().unwrap_or_else(|| panic!("{}: the worker has ended", self.what))
    }

    /// Waits for the result, which has to be a success.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn get(self) -> T {
        let what = self.what.clone();
        self.wait().unwrap_or_else(|trouble| panic!("{what}: {trouble}"))
    }

    /// Waits for the result, which has to be an error.
    ///
    /// # Panics
    /// If it succeeds.
    #[track_caller]
    pub fn trouble(self) -> Trouble
    where
        T: std::fmt::Debug,
    {
        let what = self.what.clone();
        self.wait().err().unwrap_or_else(|| panic!("{what}: it succeeded"))
    }
}

/// Lets one worker update a tensor in place while others watch it. Returns how many versions each of them has seen.
///
/// # Panics
/// If a worker fails, or sees a torn version.
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

    pub fn way(mut self, way: PushMode) -> Self {
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

    /// Sends the order. The answer comes later.
    pub fn start(self) -> Pending<Pushed> {
        self.worker.order(Order::Push(self.order), |a| if let Answer::Pushed(p) = a { Some(p) } else { None })
    }

    /// Orders the push repeatedly, until one fails.
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

    /// Keeps the tensor under this name.
    pub fn hold(mut self, name: &str) -> Self {
        self.order.hold = Some(name.to_owned());
        self
    }

    /// Sends the order. The answer comes later.
    pub fn start(self) -> Pending<Fetched> {
        self.worker.order(Order::Fetch(self.order), |a| if let Answer::Fetched(f) = a { Some(f) } else { None })
    }

    /// Orders the fetch repeatedly, until one fails.
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
