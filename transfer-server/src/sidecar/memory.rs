//! The memory that a sidecar has for its workers.

use super::StartError;
use crate::config::{Config, ConfigError, Locking, Size, group_limit};
use crate::sessions::Granted;
use std::time::Duration;
use transfer_memory::segment::{Lock, Pages, PinnedBudget, SegmentOptions};
use transfer_memory::session::SidecarPolicy;

/// The time-out of a worker's handshake, which includes prefaulting its arena at some GiB/s.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(15);

/// The size of each ring, in bytes: some thousand records.
const RING_BYTES: u32 = 256 << 10;

/// What a sidecar may pin, and what its workers get of it.
pub(super) struct Memory {
    pub(super) budget: PinnedBudget,
    pub(super) policy: SidecarPolicy,
    pub(super) granted: Granted,
}

impl Memory {
    pub(super) fn of(config: &Config, incarnation: u64) -> Result<Memory, StartError> {
        let budget = budget(config.pinned_limit, group_limit())?;
        let lock = match config.lock {
            Locking::Try => Lock::Try,
            Locking::Require => Lock::Require,
            Locking::No => Lock::No,
        };
        let pages = if config.huge_pages { Pages::Huge } else { Pages::Base };
        let pool = SegmentOptions { len: config.pool_bytes.0, pages, lock };
        let granted = Granted { pool, board_entries: config.board_entries, sessions: config.limits.all().sessions };
        let policy = SidecarPolicy {
            node: config.node.clone(),
            incarnation,
            max_arena_bytes: config.max_arena_bytes.0,
            submission_capacity: RING_BYTES,
            completion_capacity: RING_BYTES,
            pages,
            lock,
            budget: budget.clone(),
            timeout: HANDSHAKE_DEADLINE,
        };
        Ok(Memory { budget, policy, granted })
    }
}

/// Returns the budget of pinned memory in a process whose control group allows this much.
fn budget(limit: Size, group_limit: Option<u64>) -> Result<PinnedBudget, ConfigError> {
    match group_limit {
        Some(group_limit) if limit.0 > group_limit => Err(ConfigError::OverGroup { limit, group_limit }),
        _ => Ok(PinnedBudget::within(limit.0, group_limit)),
    }
}
