//! The engine: the data-plane thread.
//!
//! One thread at a time owns everything that a transfer touches: the workers' rings, the protocol's state machine, the
//! fabrics. So the hot path has no hand-over between threads. It is a thread of the engine's own, or, inside a worker's
//! process, one that waits for its answer. The control plane sends it [`EngineCommand`]s through
//! a bounded channel, and gets its requests through a [`ControlSink`].
//!
//! # Layout
//! - `handle`: commands and requests.
//! - `listing`: lists in pages.
//! - `round`: one round, and the sleep.
//! - `clock`: the time of the node, and the clocks of the host.
//! - `run`: the state, and what is done with commands and actions.
//! - `workers`: the rings and doorbells of the workers.
//! - `deltas`: deltas that are applied, on other threads.
//! - `boards`: versions that workers look up in shared memory.
//! - `memory`: the segments by number, and the landing headers in them.
//! - `meters`: the counts of the thread.
//! - `pings`: round trips to peers.
//! - `readers`: sessions of the sidecar's own services.
//! - `spill`: versions that are written to disk and read back.
//! - `tables`: bodies in several ranges of an arena, and tables of bundles. `long_tables`: those that take several rounds.
//! - `trace`: finished transfers, for another thread.
//! - `turns`: which thread runs it.
//! - `wait`: the decision between polling and sleeping.

mod boards;
mod clock;
mod copies;
mod deltas;
mod digests;
mod handle;
mod listing;
mod long_tables;
mod looked_up;
mod memory;
mod meters;
mod pings;
mod readers;
mod round;
mod run;
mod spill;
mod tables;
mod trace;
mod turns;
#[cfg(test)]
mod turns_tests;
mod unmapping;
mod wait;
mod workers;

pub use boards::BoardMeters;
pub use clock::Clock;
pub use handle::{
    Answer, ControlRequest, ControlSink, EngineCommand, FabricDescription, NotRegistered, Operate, PeerInfo,
};
pub use listing::{Listing, PageFrom, SegmentRole, SegmentStatus};
pub use meters::{EngineMeters, Measured};
pub use pings::PingError;
pub use readers::{ReaderReply, ReaderSink};
pub use trace::TraceSink;
pub use turns::{Follower, NotTurned, PollPoint, Turns};
pub use wait::PollStrategy;

pub use crate::disk::DiskError;

use crate::disk::{Disk, Store};
use crossbeam_channel::{Receiver, Sender, TrySendError};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use transfer_core::fabric::{Fabric, FabricError};
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::protocol::{COUNTER_WORDS_BYTES, NodeConfig};
use transfer_core::wire::landing::HEADER_BYTES;
use transfer_memory::segment::{PinnedBudget, Segment, SegmentError, SegmentOptions};

/// A fabric as the engine holds it.
pub type BoxedFabric = Box<dyn Fabric<Memory = Arc<Segment>>>;

/// The number of the segment of outgoing landing headers, which the engine makes for itself. The caller assigns all
/// other numbers except [`COUNTER_SEGMENT`].
pub const HEADER_SEGMENT: SegmentId = SegmentId(0);

/// The number of the segment that holds the words of counters. The engine makes it if the device of a fabric operates
/// on words. It is separate from the headers, because a device that does not check bounds opens the whole segment with
/// a grant of one word.
pub const COUNTER_SEGMENT: SegmentId = SegmentId(u32::MAX);

/// The most transfers in flight at once, over all links. Further transfers wait.
const HEADER_CELLS: u64 = 4096;

/// The most commands that wait in the channel. [`EngineHandle::send`] waits while it is full.
const MAX_WAITING_COMMANDS: usize = 4096;

/// The configuration of an engine.
pub struct EngineConfig {
    /// Identity and limits.
    pub node: NodeConfig,
    /// The fabrics between nodes. If several have the same kind, the first one serves that kind.
    pub fabrics: Vec<BoxedFabric>,
    /// How to wait for work.
    pub poll: PollStrategy,
    /// The folder in which versions are written to disk, if the node's configuration says that they are.
    pub disk: Option<PathBuf>,
    /// The receiver of finished transfers, if transfers can be traced.
    pub trace: Option<TraceSink>,
    /// The budget of the engine's own small segments.
    pub budget: PinnedBudget,
    /// The options of these segments; the engine sets their lengths.
    pub segment: SegmentOptions,
}

/// The reason why the engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine's own memory could not be made.
    #[error("the engine's own segment: {0}")]
    Segment(#[from] SegmentError),
    /// A fabric refused to register that memory.
    #[error("registering the engine's own segment: {0}")]
    Register(#[from] FabricError),
    /// The folder for versions on disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A system call failed.
    #[error("{what}: {why}")]
    System {
        /// The call.
        what: &'static str,
        /// The system's error.
        why: std::io::Error,
    },
}

/// The engine has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine has ended")]
pub struct EngineGone;

/// The handle of a running engine. Cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<EngineCommand>,
    bell: Arc<OwnedFd>,
}

impl EngineHandle {
    /// Sends the engine a command. Waits while the channel is full, with thousands of commands; the engine handles
    /// those within milliseconds.
    ///
    /// # Errors
    /// [`EngineGone`].
    pub fn send(&self, command: EngineCommand) -> Result<(), EngineGone> {
        self.commands.send(command).map_err(|_| EngineGone)?;
        ring(&self.bell);
        Ok(())
    }

    /// Sends the engine a command, from a thread that may turn the engine itself and so must not wait for it.
    pub fn send_later(&self, command: EngineCommand) {
        match self.commands.try_send(command) {
            Err(TrySendError::Full(command)) => {
                let handle = self.clone();
                // Without a thread the memory stays registered until its session ends.
                let _ = std::thread::Builder::new().name("transfer-send".into()).spawn(move || handle.send(command));
            }
            // An engine that has ended knows no memory.
            Err(TrySendError::Disconnected(_)) => {}
            Ok(()) => ring(&self.bell),
        }
    }
}

/// Wakes the engine.
fn ring(bell: &OwnedFd) {
    // The write fails only when the counter is full, and then the engine is being woken already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// A running engine.
pub struct Engine {
    handle: EngineHandle,
    turns: Turns,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn start(config: EngineConfig, sink: ControlSink) -> Result<Engine, EngineError> {
        let system = |what| move |e: rustix::io::Errno| EngineError::System { what, why: e.into() };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("eventfd"))?;
        let bell = Arc::new(bell);
        let (commands, inbox): (_, Receiver<EngineCommand>) = crossbeam_channel::bounded(MAX_WAITING_COMMANDS);
        let options = SegmentOptions { len: HEADER_CELLS * HEADER_BYTES, ..config.segment };
        let headers = Segment::create("transfer-headers", &options, &config.budget)?;
        let cells = LocalSlice { segment: HEADER_SEGMENT, offset: 0, len: HEADER_CELLS * HEADER_BYTES };
        let node = transfer_core::protocol::Node::new(config.node, cells);
        let mut run = run::Run::new(node, config.fabrics, config.poll, inbox, bell.clone(), (sink, config.trace))?;
        run.add_segment(HEADER_SEGMENT, headers, SegmentRole::Headers)?;
        if let Some(folder) = config.disk {
            let start = Disk::start(Store::new(folder)?, bell.clone());
            run.disk =
                Some(start.map_err(|why| EngineError::System { what: "starting the thread for the disk", why })?);
        }
        if run.needs_words() {
            let options = SegmentOptions { len: COUNTER_WORDS_BYTES, ..config.segment };
            run.add_words(Segment::create("transfer-counters", &options, &config.budget)?)?;
        }
        let clock = run.clock;
        let turns = Turns::new(run).map_err(system("epoll"))?;
        let keeper = turns.clone();
        let thread = std::thread::Builder::new()
            .name("transfer-data".into())
            .spawn(move || keeper.keep())
            .map_err(|why| EngineError::System { what: "starting the data-plane thread", why })?;
        Ok(Engine { handle: EngineHandle { commands, bell }, turns, clock, thread: Some(thread) })
    }

    /// Returns the engine's handle.
    #[must_use]
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// The engine, for threads of this process that wait for it.
    #[must_use]
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Returns the engine's clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Stops the engine, and waits until its thread has returned. Its sessions and links are closed then.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            // If the engine has ended by itself, this command has no receiver.
            let _ = self.handle.send(EngineCommand::Stop);
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}
