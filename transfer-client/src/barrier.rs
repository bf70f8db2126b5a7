//! A barrier of the job.

use crate::Error;
use crate::connection::Connection;
use crate::counting::Counting;
use crate::face::Face;
use crate::session::Outcome;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use transfer_core::op::{CounterAsk, CounterReport};
use transfer_core::tensor::Name;

/// A barrier that exists once in the job: who arrives waits until all have, round after round.
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
/// - The number of members is that of the name's first arrival; who says another number gets an error
///   ([`Invalid`](crate::FailureCode::Invalid)) and does not count. A number that was wrong can be corrected until the first round is
///   complete, once nobody waits any more.
/// - An arrival is a call, not a worker: a worker that calls twice at a time counts twice.
/// - It lives, as a counter does, at the sidecar of the worker that first named it; names of barriers and of counters are apart.
///   When that sidecar ends, who waits hears it ([`OutcomeUnknown`](crate::FailureCode::OutcomeUnknown)), and the next to arrive makes
///   a new one whose rounds begin at 0.
///
/// # Giving up
/// A wait that ends before its round is complete is *withdrawn*: its time is over, its future is dropped, its worker dies, its link is
/// lost. It does not count any more; the others go on waiting for somebody in its place, and a round is complete only when as many wait
/// at the same time as it has members. So a barrier is never broken, and whoever gave up may simply arrive again. One thing nobody can
/// know: whether the last member came in the very moment at which a wait from another node was given up. Then the round was complete, and
/// counted it; [`Round::number`] of the next wait shows it.
pub struct Barrier<F> {
    connection: Arc<Connection>,
    name: Result<Name, Error>,
    members: u32,
    face: PhantomData<F>,
}

/// A round of a barrier that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Round {
    /// Which one: 0 is the first of this barrier.
    pub number: u64,
    /// Whether this caller was the last to arrive. Exactly one of a round is.
    pub leader: bool,
    /// Which way it went. What it `flew` is how long this caller waited.
    pub report: CounterReport,
}

impl<F> Clone for Barrier<F> {
    fn clone(&self) -> Self {
        let Barrier { connection, name, members, .. } = self;
        Barrier { connection: connection.clone(), name: name.clone(), members: *members, face: PhantomData }
    }
}

impl<F> fmt::Debug for Barrier<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Barrier { name, members, .. } = self;
        f.debug_struct("Barrier").field("name", name).field("members", members).finish_non_exhaustive()
    }
}

impl<F: Face> Barrier<F> {
    pub(crate) fn new(connection: Arc<Connection>, name: Result<Name, Error>, members: u32) -> Self {
        Barrier { connection, name, members, face: PhantomData }
    }

    /// Arrives, and waits until all have.
    pub fn wait(&self) -> Counting<F, Round> {
        let ask = CounterAsk::Wait { members: self.members };
        Counting::new(&self.connection.session(), self.name.clone(), ask, |outcome| match outcome {
            Outcome::Released { round, leader, report } => Some(Round { number: round, leader, report }),
            _ => None,
        })
    }
}
