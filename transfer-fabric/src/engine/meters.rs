//! What the engine's thread counts of itself: plain numbers that it alone writes, copied out when somebody asks.

use super::boards::BoardMeters;
use super::handle::FabricDescription;
use std::time::Duration;
use transfer_core::drive::PostMeter;
use transfer_core::protocol::{Meters, Snapshot};

/// What the engine's thread has done since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineMeters {
    /// Rounds of its loop in which there was something to do.
    pub rounds: u64,
    /// The time that these rounds took.
    pub busy: Duration,
    /// How often it went to sleep.
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

/// Everything that metrics are made of, at one moment.
#[derive(Debug, Clone)]
pub struct Measured {
    /// What there is now.
    pub snapshot: Snapshot,
    /// What was counted of transfers.
    pub meters: Meters,
    /// What the thread has done.
    pub engine: EngineMeters,
    /// What the fabrics run with, and what they counted.
    pub fabrics: Vec<FabricDescription>,
    /// What was looked up on boards.
    pub boards: BoardMeters,
    /// What was posted to them and what they reported, in the same order.
    pub posts: Vec<PostMeter>,
    /// Commands of the control plane that wait.
    pub commands_waiting: u64,
    /// Replies that wait for their workers to read.
    pub replies_waiting: u64,
}
