//! A sidecar inside this process: a thread that waits for its answer turns the engine, in place of waiting for another
//! thread that does.

use super::Session;
use super::reader::Reader;
use super::wait::Parker;
use crate::error::{Error, SessionEnd};
use std::fmt;
use std::time::Instant;
use transfer_core::tensor::Name;
use transfer_memory::arena::Block;
use transfer_memory::segment::OwnedMemory;
#[cfg(feature = "embedded")]
use {
    super::wait::Interrupt,
    std::ops::ControlFlow,
    std::sync::Arc,
    std::time::Duration,
    transfer_server::{Follower, PollPoint, RegisteredMemory, Sidecar},
};

/// The interval at which a thread that polls looks at the socket: the sidecar may have ended the session.
#[cfg(feature = "embedded")]
const LOOK_UP: Duration = Duration::from_millis(1);

/// A sidecar that runs in this process, and lives at least as long as the session.
#[cfg(feature = "embedded")]
#[derive(Clone)]
pub(crate) struct Inside(pub(crate) Arc<Sidecar>);

/// There is none.
#[cfg(not(feature = "embedded"))]
#[derive(Clone)]
pub(crate) enum Inside {}

#[cfg(not(feature = "embedded"))]
type Follower = std::convert::Infallible;

#[cfg(feature = "embedded")]
impl Inside {
    /// Never stops the sidecar, which belongs to the parent of this process.
    pub(super) fn forget(self) {
        std::mem::forget(self);
    }

    /// Counts the caller as one that waits while others turn the engine, until the result is dropped.
    pub(super) fn follow(&self) -> Follower {
        self.0.turns().follow()
    }

    /// Does in this thread what the session has asked for, if the engine sleeps. Returns whether it was done.
    pub(super) fn step(&self) -> bool {
        self.0.turns().step()
    }

    /// The same for a thread that has begun something, and does not wait for it yet.
    pub(super) fn go_on(&self) {
        self.0.turns().go_on();
    }

    /// Wakes the thread that turns the engine, if it sleeps.
    pub(super) fn interrupt(&self) {
        self.0.turns().interrupt();
    }

    /// Turns the engine until replies have come, at the latest until `until` or until `parker` is woken. `None` if others turn it.
    pub(super) fn turn(
        &self,
        session: &Session,
        reader: &mut Reader,
        parker: &Parker,
        until: Instant,
    ) -> Option<Result<(), SessionEnd>> {
        let (mut looked_up, mut asleep) = (None, None);
        let turned = self.0.turns().turn(until, reader.spins_for(), |between| {
            asleep = None;
            match reader.drain(session) {
                Ok(false) if !parker.is_notified() => {}
                any => return ControlFlow::Break(any.map(|_| ())),
            }
            let looks = match between {
                PollPoint::Sleep => true,
                PollPoint::Rounds(now) => {
                    let is_time = now.saturating_duration_since(*looked_up.get_or_insert(now)) > LOOK_UP;
                    if is_time {
                        looked_up = Some(now);
                    }
                    is_time || session.waits_for_bell()
                }
            };
            if looks {
                match reader.read_message(session) {
                    Ok(false) => {}
                    any => return ControlFlow::Break(any.map(|_| ())),
                }
            }
            if between == PollPoint::Sleep {
                asleep = parker.sleep_by(Interrupt::Engine(self.clone()));
                if asleep.is_none() {
                    return ControlFlow::Break(Ok(()));
                }
            }
            ControlFlow::Continue(())
        });
        Some(turned.ok()?.unwrap_or(Ok(())))
    }
}

#[cfg(feature = "embedded")]
impl Inside {
    /// Registers memory of this process with the sidecar.
    pub(super) fn register(
        &self,
        session: &Session,
        worker: &Name,
        owner: Box<dyn OwnedMemory>,
    ) -> Result<Block, (Error, Option<Box<dyn OwnedMemory>>)> {
        match self.0.register(session.notices.session, worker, owner) {
            Ok(RegisteredMemory { place, mapping, registration }) => {
                Ok(session.arena().adopt(place, mapping, Box::new(registration)))
            }
            Err((e, owner)) => Err((Error::NotRegistered { reason: e.to_string() }, owner)),
        }
    }
}

#[cfg(not(feature = "embedded"))]
impl Inside {
    pub(super) fn register(
        &self,
        _: &Session,
        _: &Name,
        _: Box<dyn OwnedMemory>,
    ) -> Result<Block, (Error, Option<Box<dyn OwnedMemory>>)> {
        match *self {}
    }

    pub(super) fn forget(self) {
        match self {}
    }

    pub(super) fn follow(&self) -> Follower {
        match *self {}
    }

    pub(super) fn step(&self) -> bool {
        match *self {}
    }

    pub(super) fn go_on(&self) {
        match *self {}
    }

    pub(super) fn turn(&self, _: &Session, _: &mut Reader, _: &Parker, _: Instant) -> Option<Result<(), SessionEnd>> {
        match *self {}
    }
}

/// Counts a thread or an async client as a follower until it is dropped. Empty if the sidecar is another process.
#[derive(Default)]
pub(crate) struct Following(Option<Follower>);

impl Following {
    pub(crate) fn of(inside: Option<&Inside>) -> Following {
        Following(inside.map(Inside::follow))
    }
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inside")
    }
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Following").field(&self.0.is_some()).finish()
    }
}
