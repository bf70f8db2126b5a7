//! Requests of a worker to its sidecar, and the replies.
//!
//! A worker sends a [`Request`]; most begin an operation by a [`Command`]. Each operation ends with one [`Answer`], which comes in a
//! [`Reply`]. These are the values; [`crate::wire::session`] has their bytes in the rings.

mod answer;
mod destination;
mod failure;
mod report;
mod request;
mod roster;

pub use answer::{Answer, FetchedTensor, Reply};
pub use destination::{Destination, MAX_LANDING_RANGES, Otherwise, check_fit};
pub use failure::{Failure, FailureCode, Fault};
pub use report::{CounterPath, CounterReport, Report};
pub use request::{
    Announced, Command, Content, CounterAsk, CounterCommand, DeltaOf, Deltas, Fetch, FetchInto, Gather, MAX_NOTICES,
    MAX_READERS, MAX_WRONG_DIGEST_BYTES, Push, Request, Reserve, TakeBack, announced_ticket,
};
pub use roster::{
    CommittedRank, MAX_LISTED_RANKS, MAX_WORLD_SIZE, RankCommit, RosterAnswer, RosterAsk, digest_of_ranks,
};

/// The number that a worker gives one of its operations. The answer names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// The number that a sidecar gives the range that a fetch handed out, until the worker releases it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);
