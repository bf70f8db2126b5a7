//! Round trips of datagrams (UD) between two nodes, beside the links: for an operator who wants to know whether a
//! device's packets arrive, and how long they take.
//!
//! A sidecar with RDMA has one queue pair for this, and a thread that sleeps until something arrives. It answers
//! requests of peers, and sends requests of its own.
//!
//! # Rules
//! - A peer tells its queue pair over the control plane, which knows who calls, and gets a random token. A request
//!   without such a token is not answered. An answer goes to the queue pair that was told; nothing in a datagram says
//!   where it goes.
//! - An answer is as long as its request, and is never answered.
//! - A datagram of another length, version or kind, and an answer that nobody waits for, are counted and dropped.
//! - At most 64 datagrams are looked at in 10 ms. The device drops what comes beyond.
//! - A queue pair that has failed is made again, at most once in a second. Its number and key are other ones then, so
//!   both sides have to ask again. If the device has failed, the thread ends.
//!
//! # Layout
//! - this file: the handle, which any thread uses. `echo`: the thread.
//! - `pair`: the queue pair. `message`: the bytes. `endpoint`: addresses, and ways to them.
//! - `peers`: whose requests are answered. `trips`: the requests of this side. `budget`: the limit of work.

mod budget;
mod echo;
mod endpoint;
mod message;
mod pair;
mod peers;
#[cfg(test)]
mod tests;
mod trips;

pub use endpoint::{BadEndpoint, DatagramEndpoint};
pub use trips::Answered;

use super::config::VerbsConfig;
use super::device::Device;
use super::device_error;
use crate::token::{TOKEN_BYTES, Token};
use crossbeam_channel::{Sender, bounded};
use echo::Echo;
use endpoint::{Route, RouteMaker};
use pair::Pair;
use peers::Peers;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use transfer_core::fabric::FabricError;
use transfer_verbs::{Gid, ProtectionDomain, VerbsError};
use trips::MAX_TRIPS;

/// The commands that may wait for the thread.
const COMMANDS: usize = 2 * MAX_TRIPS;

/// The reason why there is no round trip.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The device or the system refused.
    #[error(transparent)]
    Device(#[from] FabricError),
    /// The queue pair does not work now.
    #[error("the queue pair for datagrams does not work: {why}")]
    Down {
        /// The reason.
        why: String,
    },
    /// Nothing can be sent to the peer's queue pair.
    #[error(transparent)]
    Peer(#[from] BadEndpoint),
    /// The network knows no way to the peer's port.
    #[error("there is no way to the peer's port: {0}")]
    NoRoute(#[from] VerbsError),
    /// Too many requests are not answered.
    #[error("{MAX_TRIPS} datagrams are not answered, and there may be no more at a time")]
    TooMany,
}

/// The queue pair for datagrams, and its thread. Clones are the same. The thread ends with [`Datagrams::stop`], or with
/// the last clone.
#[derive(Debug, Clone)]
pub struct Datagrams(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    shared: Arc<EchoState>,
    commands: Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread and its users share.
#[derive(Debug)]
struct EchoState {
    /// Wakes the thread.
    bell: OwnedFd,
    place: Mutex<DatagramSlot>,
    peers: Mutex<Peers<Route>>,
    counts: Counts,
}

/// The device and the queue pair. Everything of the device goes when it has failed, or the kernel could not remove it.
struct DatagramSlot {
    open: Option<(Device, ProtectionDomain)>,
    /// The number and the key of the queue pair.
    pair: Option<(u32, u32)>,
    /// Why there is none.
    why: String,
}

impl std::fmt::Debug for DatagramSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatagramSlot").field("pair", &self.pair).field("why", &self.why).finish_non_exhaustive()
    }
}

enum Command {
    Stop,
    Send(Trip),
}

/// A round trip to begin.
struct Trip {
    route: Route,
    token: Token,
    timeout: Duration,
    answered: Answered,
}

/// What has become of datagrams.
#[derive(Debug, Default)]
struct Counts {
    answered: Count,
    round_trips: Count,
    strangers: Count,
    unasked: Count,
    malformed: Count,
    no_room: Count,
}

#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EchoState {
    /// Makes another queue pair in place of one that has failed.
    fn make_pair(&self) -> Result<Pair, String> {
        let mut place = locked(&self.place);
        let Some((device, domain)) = &mut place.open else { return Err(place.why.clone()) };
        let pair = Pair::new(device, domain).map_err(|e| e.to_string())?;
        place.pair = Some((pair.number(), pair.key));
        Ok(pair)
    }

    fn pair_failed(&self, why: &str) {
        let mut place = locked(&self.place);
        place.pair = None;
        place.why = why.to_owned();
    }

    /// Drops everything of the device.
    fn end(&self, why: &str) {
        self.pair_failed(why);
        locked(&self.peers).clear();
        drop(locked(&self.place).open.take());
    }

    fn route_of(&self, token: &Token) -> Option<Route> {
        locked(&self.peers).route(token).cloned()
    }

    /// Looks at the port again, and returns the own endpoint, and what makes the way to the peer's.
    fn prepare(&self, to: Option<&DatagramEndpoint>) -> Result<(DatagramEndpoint, Option<RouteMaker>), DatagramError> {
        let mut place = locked(&self.place);
        let DatagramSlot { open, pair, why } = &mut *place;
        let (Some((device, domain)), Some((queue_pair, queue_key))) = (open, *pair) else {
            return Err(DatagramError::Down { why: why.clone() });
        };
        device.look_again()?;
        let own = DatagramEndpoint {
            device: device.context.device_name().to_owned(),
            port: device.port.number,
            kind: device.kind,
            gid: device.gid.as_ref().map_or(Gid::default(), |gid| gid.gid),
            lid: device.port.lid,
            queue_pair,
            queue_key,
        };
        let Some(to) = to else { return Ok((own, None)) };
        to.check(device.kind)?;
        Ok((own, Some(RouteMaker::new(device, domain, to))))
    }
}

impl Datagrams {
    /// Opens the device, makes the queue pair, and starts the thread.
    ///
    /// # Errors
    /// The device or the system refused.
    pub fn start(config: &VerbsConfig) -> Result<Datagrams, FabricError> {
        let device = Device::open(config)?;
        let domain = ProtectionDomain::new(&device.context).map_err(device_error("making a protection domain"))?;
        let events = device.context.async_events().map_err(device_error("hearing of the device's events"))?;
        let pair = Pair::new(&device, &domain)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(device_error("eventfd"))?;
        let place =
            DatagramSlot { pair: Some((pair.number(), pair.key)), open: Some((device, domain)), why: String::new() };
        let (peers, counts) = (Mutex::default(), Counts::default());
        let shared = Arc::new(EchoState { bell, place: Mutex::new(place), peers, counts });
        let (commands, received) = bounded(COMMANDS);
        let echo = Echo::new(shared.clone(), received, events);
        let thread = std::thread::Builder::new().name("transfer-echo".into()).spawn(move || echo.run(pair));
        let thread = Mutex::new(Some(thread.map_err(device_error("starting the thread for datagrams"))?));
        Ok(Datagrams(Arc::new(Owner { shared, commands, thread })))
    }

    /// Returns the queue pair of this side, as its port is now.
    ///
    /// # Errors
    /// The port is down, or the queue pair does not work.
    pub fn endpoint(&self) -> Result<DatagramEndpoint, DatagramError> {
        self.0.shared.prepare(None).map(|(own, _)| own)
    }

    /// Admits a peer: requests with the token that this returns are answered to that endpoint. Returns the queue pair
    /// of this side, too. May block for a second or more, while the kernel looks for the peer's port.
    ///
    /// # Errors
    /// The endpoint is none, or there is no way to it.
    pub fn admit(
        &self,
        node: &str,
        from: &DatagramEndpoint,
    ) -> Result<(DatagramEndpoint, [u8; TOKEN_BYTES]), DatagramError> {
        let (own, route) = self.route(from)?;
        let token = locked(&self.0.shared.peers).admit(node, from, Token::random()?, route);
        Ok((own, *token.bytes()))
    }

    /// Sends a request to an endpoint that has admitted this side with this token. Returns the queue pair that sends it.
    /// `answered` is dropped when no answer has come within `timeout`. May block as [`Datagrams::admit`] does.
    ///
    /// # Errors
    /// The endpoint is none, or there is no way to it. `answered` is not called then.
    pub fn send(
        &self,
        to: &DatagramEndpoint,
        token: [u8; TOKEN_BYTES],
        timeout: Duration,
        answered: Answered,
    ) -> Result<DatagramEndpoint, DatagramError> {
        let (own, route) = self.route(to)?;
        let trip = Trip { route, token: Token(token), timeout, answered };
        self.0.commands.try_send(Command::Send(trip)).map_err(|_| DatagramError::TooMany)?;
        self.0.ring();
        Ok(own)
    }

    fn route(&self, to: &DatagramEndpoint) -> Result<(DatagramEndpoint, Route), DatagramError> {
        let (own, maker) = self.0.shared.prepare(Some(to))?;
        let Some(maker) = maker else { return Err(DatagramError::Down { why: "no way was looked for".to_owned() }) };
        Ok((own, maker.make()?))
    }

    /// Returns how many datagrams there were, by what has become of them.
    #[must_use]
    pub fn counts(&self) -> [(&'static str, u64); 6] {
        let Counts { answered, round_trips, strangers, unasked, malformed, no_room } = &self.0.shared.counts;
        [
            ("answered", answered),
            ("round_trip", round_trips),
            ("unknown_token", strangers),
            ("unasked_answer", unasked),
            ("malformed", malformed),
            ("no_room", no_room),
        ]
        .map(|(name, count)| (name, count.0.load(Ordering::Relaxed)))
    }

    /// Ends the thread, and closes the device.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl Owner {
    fn ring(&self) {
        // The write fails only when the counter is full, and then the thread is being woken already.
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
    }

    fn stop(&self) {
        let Some(thread) = locked(&self.thread).take() else { return };
        // The thread takes commands until it has ended, so there will be room. It fails if the thread has ended.
        self.ring();
        let _ = self.commands.send(Command::Stop);
        self.ring();
        if thread.join().is_err() {
            tracing::error!("the thread for datagrams has panicked");
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
    }
}
