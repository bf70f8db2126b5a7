//! The fabric over RDMA verbs: one port of one device, one reliable connected queue pair for each link.
//!
//! docs/adr/0001 describes how real verbs behave, and the rules that follow from it; this module keeps them. All
//! unsafe code for verbs is in `transfer-verbs`.
//!
//! # Layout
//! - `config`: the settings.
//! - `device`: the open device, and its limits; `bounds`: whether it checks the bounds of a window.
//! - `offer`: the offers that the control plane carries.
//! - `connecting`: links that begin by queue-pair data; `managed`: links that begin by rdma_cm.
//! - `link`: one link, with its `area` of message slots, its `windows`, and the account of its `send_queue`.
//! - `posting`: posts and grants.
//! - `completing`: their completions, and what the peer has sent; `queues`: the completion queues.
//! - `ending`: the end of links, deadlines and probes; `notice`: the messages between the fabrics themselves.
//! - `regions`: registered segments.
//! - `loopback`: atomic operations on own words, through a `local_pair`.
//! - `clock`, `waking`: when to look for events, and what wakes a sleeping thread.
//! - `counters`: the counts.
//! - [`datagrams`]: round trips of datagrams, beside the links.
//!
//! # How work leaves
//! Posts are put into a list for each link. [`poll`](Fabric::poll) hands each list to the device with one doorbell,
//! unless a short list should wait for more (`send_queue`). Grants are binds and revokes are invalidations in the same
//! lists, so the queue pair itself orders them among messages and writes.
//!
//! # How a link ends
//! A link ends in good order with a Bye, or after a mistake of the peer with a Refuse that names the mistake.
//! Otherwise it ends with the first work request that fails, whose status is the reason. In each case the queue pair
//! is stopped and drained before the end is reported.

mod area;
mod bounds;
mod clock;
mod completing;
mod config;
mod connecting;
mod counters;
pub mod datagrams;
mod device;
mod ending;
mod link;
mod local_pair;
mod loopback;
mod managed;
mod notice;
mod offer;
mod posting;
mod queues;
mod regions;
mod send_queue;
#[cfg(test)]
mod tests;
mod waking;
mod windows;

pub use config::{BadSetting, Connecting, GrantReport, VerbsConfig};
pub use counters::Counters;

use crate::links::{LinkTable, Sink};
use clock::Clock;
use device::Device;
use link::Link;
use loopback::Loopback;
use managed::{Manager, Waiting};
use queues::Queues;
use regions::Regions;
use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::fabric::{
    AtomicOp, Atomics, Capabilities, DownReason, Fabric, FabricError, FabricEvent, FabricKind, GrantAccess, Isolation,
    LinkId, Offer, PostError, WorkId,
};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use transfer_memory::segment::Segment;
use transfer_verbs::{AsyncEvents, Completion, ProtectionDomain};
use waking::{PollScope, Waking};

/// The longest message: the least that a user needs, and room for the bytes that rails add.
const MAX_MESSAGE_BYTES: usize = Capabilities::MIN_MESSAGE_BYTES + 64;

/// Receives for which no credit was given: one for the peer's goodbye, and one that is always posted, so that a queue
/// pair that the device stops hands a receive back.
const SPARE_RECEIVES: u32 = 2;

/// How long deregistering waits for grants to be revoked before it ends their links.
const TAKE_BACK: Duration = Duration::from_secs(1);

/// The fabric. See the [module](self).
pub struct VerbsFabric {
    // Links are dropped before the parts that they are made of.
    links: LinkTable<Link, Waiting>,
    loopback: Option<Loopback>,
    manager: Option<Manager>,
    queues: Queues,
    regions: Regions,
    async_events: AsyncEvents,
    device: Device,
    config: VerbsConfig,
    capabilities: Capabilities,
    counters: Counters,
    /// Links that may have requests to ring for.
    to_ring: Vec<LinkId>,
    /// Links with receive slots to be posted again.
    to_repost: Vec<LinkId>,
    /// Links whose queue pair is stopped, and whether all queues were found empty since then.
    draining: Vec<(LinkId, bool)>,
    /// Completions that were taken out of their queue outside of a poll.
    backlog: VecDeque<Completion>,
    /// Whether the last poll only reported.
    only_reported: bool,
    clock: Clock,
    waking: Waking,
    /// The reason why the device no longer works.
    broken: Option<String>,
}

/// Converts an error of the system or the device into a [`FabricError`].
fn device_error<E: Display>(what: &'static str) -> impl FnOnce(E) -> FabricError {
    move |error| FabricError::Device { what, why: error.to_string() }
}

impl VerbsFabric {
    /// Opens the device.
    ///
    /// # Errors
    /// [`FabricError::Device`]: a setting is out of its bounds, there is no such device or no active port, or the
    /// device refused something.
    pub fn open(config: VerbsConfig) -> Result<VerbsFabric, FabricError> {
        config.check().map_err(device_error("configuring RDMA"))?;
        let device = Device::open(&config)?;
        let async_events = device.context.async_events().map_err(device_error("asking for the device's events"))?;
        let domain = ProtectionDomain::new(&device.context).map_err(device_error("making a protection domain"))?;
        let isolation = if device.windows { config.isolation } else { Isolation::Segment };
        let capabilities = {
            let mut capabilities = Capabilities::new();
            capabilities.max_sge = device.max_elements as usize;
            capabilities.max_write_bytes = device.max_write_bytes();
            capabilities.max_message_bytes = MAX_MESSAGE_BYTES;
            capabilities.receive_slots = config.receive_slots;
            capabilities.isolation = isolation;
            capabilities.checks_bounds = isolation == Isolation::Grant && bounds::are_checked(&device)?;
            // A word is opened by a window, whatever opens a range for writes.
            capabilities.atomics = device.atomics && device.windows;
            capabilities.acknowledges_unannounced = true;
            capabilities
        };
        Ok(VerbsFabric {
            links: LinkTable::new(),
            loopback: None,
            manager: Manager::new(&config.connect)?,
            queues: Queues::new(config.completion_queue, &device.context),
            regions: Regions::new(domain, config.max_registered_bytes, device.windows, isolation),
            async_events,
            device,
            config,
            capabilities,
            counters: Counters::default(),
            to_ring: Vec::new(),
            to_repost: Vec::new(),
            draining: Vec::new(),
            backlog: VecDeque::new(),
            only_reported: false,
            clock: Clock::new()?,
            waking: Waking::default(),
            broken: None,
        })
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the device's name.
    #[must_use]
    pub fn device_name(&self) -> &str {
        self.device.context.device_name()
    }

    fn poll_loopback(&mut self, sink: &mut Sink<'_>) -> bool {
        let Some(loopback) = &mut self.loopback else { return false };
        match loopback.poll(sink) {
            Ok(moved) => moved,
            Err(why) => {
                tracing::warn!(why, "the queue pair for operations on own words has failed, and will be made anew");
                self.lose_loopback(&why);
                true
            }
        }
    }

    /// Gives up the queue pair for operations on own words, and reports its operations as failed.
    fn lose_loopback(&mut self, why: &str) {
        for work in self.loopback.take().into_iter().flat_map(Loopback::into_lost) {
            self.links.report(FabricEvent::LocalAtomicDone { work, old: Err(why.to_owned()) });
        }
    }

    /// Revokes the grants into a segment, and waits for that. Links that are late are ended. Nothing is awaited of
    /// links that are not concerned, whatever they are doing.
    fn take_back(&mut self, segment: SegmentId) {
        let mut waits: Vec<(LinkId, u32)> = Vec::new();
        for id in self.links.ids() {
            let Ok(link) = self.links.up(id) else { continue };
            for (key, tag) in link.keys_into(segment) {
                self.invalidate(id, RemoteKey(key), tag);
            }
            let is_open = self.regions.is_open(segment);
            let Some(link) = self.links.get_mut(id) else { continue };
            let invalidated = link.sends.last().filter(|_| link.windows.is_leaving(segment));
            // A pool's key ends with its region, so requests that still read the region have to complete before.
            let read = link.last_reading(segment).filter(|_| is_open);
            // The invalidations are behind everything that was posted before.
            let Some(last) = invalidated.or(read) else { continue };
            match link.ring(&mut self.counters) {
                Ok(()) => waits.push((id, last)),
                Err(reason) => self.fail(id, reason, true),
            }
        }
        let start = Instant::now();
        while !waits.is_empty() && start.elapsed() < TAKE_BACK {
            let seen = self.backlog.len();
            for number in 0..self.queues.len() {
                self.stash(number);
            }
            for completion in self.backlog.iter().skip(seen) {
                let (id, number) = (LinkId((completion.work_id >> 32) as u32), completion.work_id as u32);
                // A request that failed will end its link. Then nothing more is awaited of that link.
                let (links, failed) = (&self.links, completion.result.is_err());
                let reached = |last: u32| {
                    let ahead = |number| links.get(id).and_then(|link| link.sends.up_to(number));
                    number & link::RECEIVE == 0 && ahead(number) >= ahead(last)
                };
                waits.retain(|(link, last)| *link != id || !(failed || reached(*last)));
            }
            std::thread::yield_now();
        }
        for (id, _) in waits {
            let why = format!("{segment} is deregistered, and its grants could not be taken back in time");
            self.fail(id, DownReason::Closed(why), true);
        }
    }
}

impl fmt::Debug for VerbsFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsFabric")
            .field("device", &self.device_name())
            .field("links", &self.links.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Fabric for VerbsFabric {
    type Memory = Arc<Segment>;

    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, segment: SegmentId, memory: Arc<Segment>) -> Result<(), FabricError> {
        if let Some(why) = &self.broken {
            return Err(FabricError::Device { what: "registering memory", why: why.clone() });
        }
        self.regions.register(segment, memory)
    }

    /// Waits for the grants into the segment to be revoked. The device does that by itself, unless it is behind large
    /// writes. Writes that were posted from the segment are still sent, and it stays registered until then.
    fn deregister(&mut self, segment: SegmentId) -> Result<(), FabricError> {
        if !self.regions.knows(segment) {
            return Err(FabricError::UnknownSegment(segment));
        }
        self.take_back(segment);
        if let Some(loopback) = &mut self.loopback {
            loopback.forget(segment);
        }
        let reading = self.links.values().filter_map(|link| Some((link.id, link.last_reading(segment)?)));
        // Under a pool's key, the region itself is open, so it is deregistered now.
        let waits = if self.regions.is_open(segment) { Vec::new() } else { reading.collect() };
        self.regions.deregister(segment, waits);
        Ok(())
    }

    fn check_slice(&self, slice: &LocalSlice) -> Result<(), PostError> {
        self.regions.find(slice).map(drop)
    }

    fn offer(&mut self, link: LinkId) -> Result<Offer, FabricError> {
        self.begin_offer(link)
    }

    fn accept(&mut self, link: LinkId, peer: &Offer) -> Result<Offer, FabricError> {
        self.begin_accept(link, peer)
    }

    fn connect(&mut self, link: LinkId, peer: &Offer) -> Result<(), FabricError> {
        self.begin_connect(link, peer)
    }

    fn disconnect(&mut self, link: LinkId, reason: DownReason) {
        self.end(link, reason);
    }

    fn grant(&mut self, link: LinkId, range: LocalSlice, access: GrantAccess, tag: u64) -> Result<(), PostError> {
        self.open_range(link, range, access, tag)
    }

    fn revoke(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> Result<(), PostError> {
        self.close_range(link, key, tag)
    }

    fn post_write(
        &mut self,
        link: LinkId,
        work: WorkId,
        sgl: &[LocalSlice],
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        self.write(link, work, sgl, remote, immediate)
    }

    fn post_send(&mut self, link: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError> {
        self.send(link, work, message)
    }

    fn describe(&self) -> Vec<(&'static str, String)> {
        let (device, capabilities) = (&self.device, &self.capabilities);
        let gid = device
            .gid
            .as_ref()
            .map_or_else(|| "none".to_owned(), |gid| format!("{} ({}), index {}", gid.gid, gid.kind, gid.index));
        let isolation = match capabilities.isolation {
            Isolation::Grant => "window: each grant has a key of its own",
            Isolation::Segment if device.windows => "pool: one key for all of a segment",
            Isolation::Segment => {
                "pool: one key for all of a segment, since the device has no memory windows of type 2B"
            }
        };
        let connect = match &self.manager {
            Some(manager) => format!("rdma_cm, listening at {}", manager.address()),
            None => "queue-pair data".to_owned(),
        };
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let mut facts = vec![
            ("device", self.device_name().to_owned()),
            ("encryption", "none: RDMA is not encrypted; its links begin by a call that may be".to_owned()),
            ("port", device.port.number.to_string()),
            ("gid", gid),
            ("lid", device.port.lid.to_string()),
            ("path mtu", format!("{} bytes, or the peer's where that is less", device.mtu)),
            ("connects by", connect),
            ("isolation", isolation.to_owned()),
            ("checks the bounds of windows", yes(capabilities.checks_bounds)),
            ("atomics", yes(capabilities.atomics)),
            ("elements of a gather list", capabilities.max_sge.to_string()),
            ("longest write", format!("{} bytes", capabilities.max_write_bytes)),
            ("inline", format!("{} bytes", device.inline_bytes)),
            ("send queue", self.config.send_queue.to_string()),
            ("receive slots", self.config.receive_slots.to_string()),
            ("registered", format!("{} bytes", self.regions.used_bytes())),
            ("links", self.links.len().to_string()),
        ];
        facts.extend(self.broken.iter().map(|why| ("broken", why.clone())));
        facts
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.by_name().to_vec()
    }

    fn atomics(&mut self) -> Option<&mut dyn Atomics> {
        if self.capabilities.atomics { Some(self) } else { None }
    }

    /// Reports, then rings, then takes completions. A poll that had something to report only does that, so that posts
    /// made in answer leave with the same doorbell as the requests that were reported.
    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        if self.links.drain_events(sink) && !std::mem::replace(&mut self.only_reported, true) {
            return true;
        }
        self.only_reported = false;
        let mut moved = self.ring();
        let look: PollScope = self.waking.poll();
        self.look(look);
        // Events about a link come before the data that it brings.
        moved |= self.links.drain_events(sink);
        let (completed, emptied) = self.take_completions(sink);
        moved |= completed | self.poll_loopback(sink);
        self.finish_drained(emptied);
        // If a queue pair was stopped just now, another round looks at it.
        moved
            | self.links.drain_events(sink)
            | !self.to_ring.is_empty()
            | self.draining.iter().any(|(_, polled)| !polled)
    }

    fn arm(&mut self) {
        self.arm_all();
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.device.channel.as_fd(), self.async_events.as_fd(), self.clock.fd()];
        fds.extend(self.manager.as_ref().map(Manager::fd));
        fds
    }
}

impl Atomics for VerbsFabric {
    fn post_atomic(&mut self, link: LinkId, work: WorkId, remote: RemoteSlice, op: AtomicOp) -> Result<(), PostError> {
        self.operate(link, work, remote, op)
    }

    fn post_local_atomic(&mut self, work: WorkId, word: LocalSlice, op: AtomicOp) -> Result<(), FabricError> {
        let what = "an operation on an own word";
        let refuse = |why: String| Err(FabricError::Device { what, why });
        if let Some(why) = &self.broken {
            return refuse(why.clone());
        }
        let found = self.regions.find_writable(&word).map_err(device_error(what))?;
        if word.len != 8 || !word.offset.is_multiple_of(8) {
            return refuse(format!("{word} is no word of 8 bytes at a multiple of 8"));
        }
        let segment = found.segment.clone();
        if self.loopback.is_none() {
            self.loopback = Some(Loopback::new(&self.device)?);
            self.waking.queue_made();
        }
        self.loopback.as_mut().map_or(Ok(()), |loopback| loopback.post(work, &segment, word, op))
    }
}
