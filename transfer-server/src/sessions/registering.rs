//! Memory of their own that workers of this process register.

use super::{Sessions, SessionsShared};
use crate::engine::{EngineClient, EngineCommand};
use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use transfer_core::memory::SegmentId;
use transfer_core::protocol::SessionId;
use transfer_core::tensor::Name;
use transfer_fabric::engine::NotRegistered;
use transfer_memory::segment::{Mapping, OwnedMemory, Segment, SegmentError};

/// The time-out of a registration. A device takes a second for some GiB.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why memory is not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// It is not counted as pinned: the limit is reached, or it has no byte.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The data plane refuses it.
    #[error(transparent)]
    Refused(#[from] NotRegistered),
    /// The sidecar is ending, or has not answered.
    #[error("the sidecar has not answered within {TIMEOUT:?}, or has ended")]
    NoAnswer,
}

/// Registered memory. It is released when this is dropped: nothing is published there then, and nothing lands there.
#[derive(Debug)]
pub struct Registration {
    id: SegmentId,
    engine: EngineClient,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.engine.send_later(EngineCommand::ReleaseMemory { id: self.id });
    }
}

/// Memory that is registered: where, and what it is released by.
pub struct RegisteredMemory {
    /// The place by which the worker names it, behind its arena.
    pub place: u64,
    /// The memory.
    pub mapping: Arc<Mapping>,
    /// Releases it.
    pub registration: Registration,
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredMemory").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Sessions {
    /// Registers memory of a worker of this process with all fabrics. Blocks until that is done.
    ///
    /// # Errors
    /// [`RegisterError`], with the memory if no device may have it.
    pub(crate) fn register(
        &self,
        session: u64,
        worker: &Name,
        owner: Box<dyn OwnedMemory>,
    ) -> Result<RegisteredMemory, (RegisterError, Option<Box<dyn OwnedMemory>>)> {
        let shared = &*self.0;
        let segment = Segment::registered(owner, &shared.budget).map_err(|(e, owner)| (e.into(), Some(owner)))?;
        let mapping = segment.mapping().clone();
        match shared.register(session, worker, Arc::new(segment)) {
            Ok((place, registration)) => Ok(RegisteredMemory { place, mapping, registration }),
            Err(e) => {
                let freed = mapping.freed();
                drop(mapping);
                Err((e, freed.and_then(|freed| freed.try_recv().ok())))
            }
        }
    }
}

impl SessionsShared {
    fn register(
        &self,
        session: u64,
        worker: &Name,
        segment: Arc<Segment>,
    ) -> Result<(u64, Registration), RegisterError> {
        let deadline = Instant::now() + TIMEOUT;
        self.wait_until_open(session, worker, deadline)?;
        let (tell, told) = mpsc::sync_channel(1);
        // The caller may have gone.
        let answer = Box::new(move |answer| drop(tell.try_send(answer)));
        let (id, engine) = (self.next_segment(), self.engine.clone());
        let command = EngineCommand::RegisterMemory { session: SessionId(session), id, segment, answer };
        engine.send(command).map_err(|_| RegisterError::NoAnswer)?;
        // Released also if the answer is too late.
        let registration = Registration { id, engine };
        let left = deadline.saturating_duration_since(Instant::now());
        let place = told.recv_timeout(left).map_err(|_| RegisterError::NoAnswer)??;
        Ok((place, registration))
    }

    /// Waits until the engine is told of a worker whose handshake has ended at its own end.
    fn wait_until_open(&self, session: u64, worker: &Name, deadline: Instant) -> Result<(), RegisterError> {
        let mut workers = self.workers.lock();
        loop {
            match workers.get(worker).filter(|held| held.session == session) {
                Some(held) if held.open => return Ok(()),
                Some(_) => {}
                None => return Err(NotRegistered::SessionOver.into()),
            }
            if self.changed.wait_until(&mut workers, deadline).timed_out() {
                return Err(RegisterError::NoAnswer);
            }
        }
    }
}
