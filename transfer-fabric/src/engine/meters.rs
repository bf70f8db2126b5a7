//! The counts of the engine's thread: plain numbers that only it writes, copied out on request.

use super::boards::BoardMeters;
use super::handle::FabricDescription;
use std::time::Duration;
use transfer_core::drive::PostMeter;
use transfer_core::protocol::{Meters, Snapshot};

/// The counts of the engine's thread since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineMeters {
    /// Rounds of its loop with work.
    pub rounds: u64,
    /// The time that these rounds took.
    pub busy: Duration,
    /// The number of sleeps.
    pub sleeps: u64,
    /// Commands of the control plane.
    pub commands: u64,
    /// Records taken out of workers' submission rings.
    pub submissions: u64,
    /// Replies written into workers' completion rings.
    pub replies: u64,
    /// Replies that found the ring or the socket of their worker full, and had to wait.
    pub replies_delayed: u64,
    /// Doorbells rung at workers.
    pub doorbells_rung: u64,
    /// Doorbells of workers that woke this thread.
    pub doorbells_taken: u64,
}

/// Everything that the metrics need, at one moment.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The overview of the node.
    pub snapshot: Snapshot,
    /// The counts of transfers.
    pub meters: Meters,
    /// The counts of the thread.
    pub engine: EngineMeters,
    /// The descriptions of the fabrics.
    pub fabrics: Vec<FabricDescription>,
    /// The look-ups on boards.
    pub boards: BoardMeters,
    /// The posts and completions of the fabrics, in the order of `fabrics`.
    pub posts: Vec<PostMeter>,
    /// Commands of the control plane that wait in the channel.
    pub commands_waiting: u64,
    /// Replies that wait for their workers to read.
    pub replies_waiting: u64,
}
