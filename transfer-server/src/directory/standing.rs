//! Whether a host of the directory answers at present.

use super::settling::Settling;
use tokio::time::Instant;

#[derive(Debug)]
pub(super) enum Standing {
    /// It is the only host.
    Only,
    /// It is one of several, and the one that answers until then.
    Leads {
        until: Instant,
        settling: Option<Settling>,
        /// When it last gave all nodes a sign of life.
        alive_at: Instant,
    },
    /// Another host answers, or none.
    StandsBy,
}

impl Standing {
    pub(super) fn leads(&self, now: Instant) -> bool {
        match self {
            Standing::Only => true,
            Standing::Leads { until, .. } => now < *until,
            Standing::StandsBy => false,
        }
    }

    pub(super) fn settling(&mut self) -> Option<&mut Settling> {
        match self {
            Standing::Leads { settling, .. } => settling.as_mut(),
            _ => None,
        }
    }
}
