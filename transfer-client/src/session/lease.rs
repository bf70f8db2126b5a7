//! The right to read a version.

use super::{Answered, Ended, Session};
use crate::error::Error;
use std::sync::Arc;
use transfer_core::op::{Answer, FetchedTensor, LeaseId};
use transfer_memory::board::HazardPointer;

/// The right to read a version, which does not change until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    session: Arc<Session>,
    hold: Hold,
}

/// The protection of the version.
#[derive(Debug)]
enum Hold {
    /// A lease of the sidecar.
    Lease(LeaseId),
    /// It was found on the board, and a hazard pointer protects it.
    HazardPointer(HazardPointer),
}

impl Lease {
    pub(crate) fn handed_out(session: &Arc<Session>, id: LeaseId) -> Arc<Lease> {
        Arc::new(Lease { session: session.clone(), hold: Hold::Lease(id) })
    }

    pub(crate) fn looked_up(session: &Arc<Session>, hazard: HazardPointer) -> Arc<Lease> {
        Arc::new(Lease { session: session.clone(), hold: Hold::HazardPointer(hazard) })
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match &self.hold {
            Hold::Lease(id) => self.session.release(*id),
            Hold::HazardPointer(hazard) => self.session.clear_hazard(hazard),
        }
    }
}

impl Answered {
    /// What a fetch has got.
    ///
    /// # Errors
    /// The reason why it has got nothing.
    pub(crate) fn fetched(ended: Ended, session: &Arc<Session>) -> Result<(Arc<Lease>, FetchedTensor), Error> {
        ended?.read(|answer| match answer {
            Answer::Fetched { lease, tensor } => Some((Lease::handed_out(session, lease), tensor)),
            _ => None,
        })
    }
}
