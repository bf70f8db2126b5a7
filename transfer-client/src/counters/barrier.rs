//! Barriers of the job.

use crate::counters::Counting;
use crate::error::Error;
use crate::request::AnyClient;
use crate::session::Connection;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use transfer_core::op::{Answer, CounterAsk, CounterReport};
use transfer_core::tensor::Name;

/// A barrier that exists once in the job. A caller that arrives waits until all members have arrived, round after
/// round.
///
/// ```no_run
/// # use transfer_client::{Client, Error};
/// # use std::time::Duration;
/// # async fn example(client: Client) -> Result<(), Error> {
/// let epoch = client.barrier("epoch", 8);
/// for _ in 0..100 {
///     // ... a step ...
///     let round = epoch.wait().timeout(Duration::from_secs(60)).await?;
///     if round.leader {
///         println!("all 8 are through with round {}", round.number);
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// - The first arrival under the name sets the number of members. An arrival with another number gets an error
///   ([`Invalid`](crate::FailureCode::Invalid)) and does not count. A wrong number can be corrected until the first
///   round is complete, while no caller waits.
/// - An arrival is a call, not a worker: two calls of one worker at a time count twice.
/// - It lives, as a counter does, at the sidecar of the worker that first named it. Barriers and counters have separate
///   names. When that sidecar ends, the waiting calls fail ([`OutcomeUnknown`](crate::FailureCode::OutcomeUnknown)),
///   and the next arrival makes a new barrier whose rounds begin at 0.
///
/// # Giving up
/// A wait that ends before its round is complete is *withdrawn*: its deadline passed, its future was dropped, its
/// worker died, or its link was lost. It does not count, and the others wait for another arrival in its place. A round
/// is complete only when as many callers wait at the same time as it has members. So a barrier is never broken, and a
/// caller that gave up may arrive again. One case stays open: if the last member arrives at the moment at which a wait
/// from another node is given up, the round is complete and has counted that wait. [`Round::number`] of the next wait
/// shows it.
pub struct Barrier<C> {
    connection: Arc<Connection>,
    name: Result<Name, Error>,
    members: u32,
    client: PhantomData<C>,
}

/// A complete round of a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Round {
    /// The number of the round: 0 is the first of this barrier.
    pub number: u64,
    /// Whether this caller was the last to arrive. That is true for exactly one caller of a round.
    pub leader: bool,
    /// The path of the call. Its `in_flight` is how long this caller waited.
    pub report: CounterReport,
}

impl<C> Clone for Barrier<C> {
    fn clone(&self) -> Self {
        let Barrier { connection, name, members, .. } = self;
        Barrier { connection: connection.clone(), name: name.clone(), members: *members, client: PhantomData }
    }
}

impl<C> fmt::Debug for Barrier<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Barrier { name, members, .. } = self;
        f.debug_struct("Barrier").field("name", name).field("members", members).finish_non_exhaustive()
    }
}

impl<C: AnyClient> Barrier<C> {
    pub(crate) fn new(connection: Arc<Connection>, name: Result<Name, Error>, members: u32) -> Self {
        Barrier { connection, name, members, client: PhantomData }
    }

    /// Arrives, and waits until all members have arrived.
    pub fn wait(&self) -> Counting<C, Round> {
        let ask = CounterAsk::Wait { members: self.members };
        Counting::new(&self.connection.session(), self.name.clone(), ask, |answer| match answer {
            Answer::Released { round, leader, report } => Some(Round { number: round, leader, report }),
            _ => None,
        })
    }
}
