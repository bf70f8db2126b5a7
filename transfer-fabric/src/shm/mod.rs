//! The fabric through shared memory, for two sidecars of one host that share a directory, also if each has a container
//! of its own.
//!
//! Each side passes the other its segments as descriptors, read-only and sealed. To write, a side posts a record that
//! names ranges of its segments and the target. The *receiver* checks the target against its grants and copies. So no
//! side can write the other's memory, and a revoke is immediate. Every byte is copied once, by the receiver.
//!
//! # Layout
//! - `offer`, `note`, `record`: the data that the control plane, the socket and the rings carry.
//! - `shared`: the memory that both sides write, with the rings.
//! - `link`: one link; `send` and `receive` are its two directions.
//! - `quota`: the limit of the peer's memory that is mapped.
//! - `job`, `copy_pool`: copies in pieces, and the threads that help with large ones and map the passed segments.
//! - `connecting`, `progress`, `ending`: the fabric's work on its links at each stage of their lives.
//!
//! # How a link begins
//! The initiator's offer contains a random token T1 and the name of its socket in the shared directory. The acceptor
//! connects to the socket of that name *in its own directory*. If there is none, it refuses the offer, so that another
//! fabric is tried at once. The acceptor shows T1 in a Hello, which carries the descriptor of new shared memory that
//! contains a nonce. Its answer through the control plane contains T2. The initiator shows T2 in a Welcome, with the
//! nonce that it read in that memory. **Only this proves that both are on one host**: addresses and host names are not
//! checked. Both sides have to run as the same user, by what the kernel says, because a process that is passed a
//! segment can read all of it.
//!
//! # Doorbells
//! A doorbell is one byte on the socket of the link. It wakes a side that has said in the ring that it sleeps. An
//! eventfd would be faster by a microsecond, but both sides would share its open file: a peer could make it block, or
//! fill it, and so hold up this side's thread.
//!
//! # What a peer can do
//! It can write anything into the rings, and nothing else. Indexes and records are copied out and checked, and a
//! mistake ends the link. The peer's segments are mapped only if they have all seals, so that nothing the peer does
//! can make an access fault; see [`Segment::adopt_from_peer`]. If the peer changes a segment while it is copied, a
//! mixture of its own bytes arrives.
//!
//! # How a link ends
//! The side that ends a link says so in the shared memory before anything else, because its memory may be used again
//! from then on. The receiver discards a copy that was completed later. Then the side sends a Bye, or a Refuse that
//! says which mistake the peer made. A peer that is killed says nothing. The memory from which it had posted does not
//! change until this side releases it, because mapped segments are marked as read.

mod connecting;
mod copy_pool;
mod ending;
mod job;
mod link;
mod note;
mod offer;
mod progress;
mod quota;
mod receive;
mod record;
mod send;
mod shared;
#[cfg(test)]
mod tests;

use crate::device;
use crate::links::{LinkTable, PendingConnections, SentCounts};
use crate::poller::{Poller, Source};
use crate::regions::Regions;
use connecting::Waiting;
use copy_pool::CopyPool;
use link::Link;
use record::{Record, Write};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use transfer_core::fabric::{
    Capabilities, DownReason, Fabric, FabricError, FabricEvent, FabricKind, GrantAccess, LinkId, Offer, PostError,
    Sharing, WorkId,
};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use transfer_memory::segment::{MemoryKind, PinnedBudget, Segment};
use transfer_memory::socket::{Listener, Socket};

const MAX_SGE: usize = 64;
const MAX_WRITE_BYTES: u64 = 1 << 40;
/// The longest message: the part of a record behind its head.
const MAX_MESSAGE_BYTES: usize = transfer_memory::ring::MAX_RECORD_BYTES - record::HEAD_BYTES;

/// The most segments that a peer may have passed at a time.
const MAX_SEGMENTS: usize = 4096;

/// The most bytes of the shared memory of all links: enough for several hundred links. This memory is not pinned, so
/// it does not count as pinned memory.
const LINKS_BYTES: u64 = 256 << 20;

/// The suffix of the names of sockets. Files in the directory with another suffix do not belong to this fabric, and no
/// peer can make it connect to them.
pub const SOCKET_SUFFIX: &str = ".shm";

/// The mode of the socket: only this user may connect.
const SOCKET_MODE: u32 = 0o600;

/// The configuration of the fabric.
#[derive(Debug, Clone)]
pub struct ShmConfig {
    /// The directory that the sidecars of this host share.
    pub directory: PathBuf,
    /// The name of this sidecar's socket there. It has ASCII letters, digits, `-`, `_` and `.`, ends with
    /// [`SOCKET_SUFFIX`], and is unique in that directory.
    pub name: String,
    /// This sidecar's incarnation, with which peers mark the segments that it passes.
    pub incarnation: u64,
    /// The time within which a link has to connect.
    pub handshake_timeout: Duration,
    /// The time after which a link is lost, if its peer has something to do and does nothing.
    pub peer_timeout: Duration,
    /// The most writes and messages of a link that are posted and not completed, before [`PostError::Full`].
    pub send_queue: usize,
    /// The most messages and immediates that the peer of a link may have in flight.
    pub receive_slots: u32,
    /// The approximate number of bytes that one poll copies per link, so that no link starves the others.
    pub round_bytes: u64,
    /// The number of threads that help with copies of at least 2 MiB. With 0, the data-plane thread copies everything,
    /// in pieces.
    pub copy_threads: usize,
    /// The most bytes of one peer's segments that are mapped.
    pub max_mapped_bytes: u64,
    /// Whether workers of other sidecars of this host may read this sidecar's memory by reference, and the other way
    /// round. Both sides have to allow it; otherwise the receiving side copies.
    pub references: bool,
}

impl ShmConfig {
    /// The defaults, with a socket of this name in `directory`.
    #[must_use]
    pub fn new(directory: &Path, name: &str, incarnation: u64) -> ShmConfig {
        ShmConfig {
            directory: directory.to_owned(),
            name: name.to_owned(),
            incarnation,
            handshake_timeout: Duration::from_secs(10),
            peer_timeout: Duration::from_secs(15),
            send_queue: 1024,
            receive_slots: Capabilities::new().receive_slots,
            round_bytes: 1 << 20,
            copy_threads: crate::helping_threads(),
            max_mapped_bytes: 1 << 40,
            references: true,
        }
    }
}

/// The fabric. See the [module](self).
#[derive(Debug)]
pub struct ShmFabric {
    config: ShmConfig,
    links_budget: PinnedBudget,
    capabilities: Capabilities,
    /// The user namespace in which this sidecar knows its workers; 0 if it allows no references.
    namespace: u64,
    poller: Poller,
    regions: Regions,
    pending: PendingConnections<Listener, u32, Socket>,
    links: LinkTable<Link, Waiting>,
    counts: SentCounts,
    /// Whether the next round has to check the sockets, whatever the rings say.
    watchful: bool,
    rounds: u8,
    /// Declared last: its threads end once nothing can give them work.
    copy_pool: CopyPool,
}

impl ShmFabric {
    /// Makes the fabric, and begins to listen.
    ///
    /// # Errors
    /// [`FabricError::Device`] with what failed, such as making the socket there.
    pub fn new(config: ShmConfig) -> Result<ShmFabric, FabricError> {
        if !offer::is_name(&config.name) {
            let why = format!(
                "{:?} is no name for a socket: give ASCII letters, digits, '-', '_' and '.', and {SOCKET_SUFFIX} at the end",
                config.name
            );
            return Err(FabricError::Device { what: "naming the socket", why });
        }
        let listener = Listener::bind(&config.directory.join(&config.name), SOCKET_MODE);
        let listener = listener.map_err(device("listening"))?;
        let poller = Poller::new()?;
        let pending = PendingConnections::new(&poller, listener, "the listener for peers of this host")?;
        let copy_pool = CopyPool::start(config.copy_threads)?;
        poller.add(copy_pool.bell(), Source::Bell)?;
        let mut capabilities = Capabilities::new();
        capabilities.max_sge = MAX_SGE;
        capabilities.max_write_bytes = MAX_WRITE_BYTES;
        capabilities.max_message_bytes = MAX_MESSAGE_BYTES;
        capabilities.receive_slots = config.receive_slots;
        capabilities.receiver_copies = 1;
        let namespace = if config.references { user_namespace() } else { 0 };
        Ok(ShmFabric {
            config,
            namespace,
            links_budget: PinnedBudget::new(LINKS_BYTES),
            capabilities,
            poller,
            regions: Regions::default(),
            pending,
            links: LinkTable::new(),
            counts: SentCounts::default(),
            watchful: false,
            rounds: 0,
            copy_pool,
        })
    }

    /// Returns the path of its socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.pending.listener().path()
    }

    /// Calls `pass`, which passes the peer a segment, and ends the link if that has failed for good.
    fn passing<T>(
        &mut self,
        id: LinkId,
        pass: impl FnOnce(&mut Link, &Regions) -> Result<T, PostError>,
    ) -> Result<T, PostError> {
        let ShmFabric { links, regions, .. } = self;
        let link = links.get_mut(id).ok_or(PostError::LinkDown(id))?;
        let passed = pass(link, regions);
        if passed.is_err()
            && let Some(reason) = link.farewell.take()
        {
            // A caller that gets `LinkDown` counts on an event that reports it.
            self.end(id, reason);
        }
        passed
    }
}

/// Returns the user namespace of this process, as the kernel numbers it, or 0 if the system does not tell. Within one
/// namespace, a user id is one user.
fn user_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/user").map_or(0, |stat| stat.st_ino)
}

/// Lends a descriptor to one message.
fn lent(fd: &OwnedFd) -> [BorrowedFd<'_>; 1] {
    [fd.as_fd()]
}

impl Fabric for ShmFabric {
    type Memory = Arc<Segment>;

    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// What is sent is copied by the peer, which cannot map memory of this process. It may land there.
    fn register(&mut self, segment: SegmentId, memory: Arc<Segment>) -> Result<(), FabricError> {
        let kind = memory.memory_kind();
        self.regions.register(segment, memory)?;
        match kind {
            MemoryKind::Registered => Err(FabricError::Unreadable { why: "it is memory of this process alone".into() }),
            _ => Ok(()),
        }
    }

    /// Peers have mapped the segment, so they still copy what was posted from it before.
    fn deregister(&mut self, segment: SegmentId) -> Result<(), FabricError> {
        for (link, key, tag) in self.regions.deregister(segment)? {
            self.revoked(link, key, tag);
        }
        for link in self.links.all_up() {
            link.forget(segment);
        }
        Ok(())
    }

    fn check_slice(&self, slice: &LocalSlice) -> Result<(), PostError> {
        self.regions.source(slice).map(drop)
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
        if let Some(reason) = self.links.end_waiting(link, reason) {
            self.end(link, reason);
        }
    }

    fn grant(&mut self, link: LinkId, range: LocalSlice, access: GrantAccess, tag: u64) -> Result<(), PostError> {
        if access != GrantAccess::Write {
            return Err(PostError::Unsupported { link, what: "open words to atomic operations" });
        }
        self.links.up(link)?;
        let remote = self.regions.grant(link, range, tag)?;
        self.links.report(FabricEvent::Granted { link, tag, remote });
        Ok(())
    }

    fn revoke(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> Result<(), PostError> {
        self.links.up(link)?;
        self.regions.revoke(link, key, tag);
        self.revoked(link, key, tag);
        Ok(())
    }

    fn post_write(
        &mut self,
        link: LinkId,
        work: WorkId,
        sgl: &[LocalSlice],
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        self.links.up(link)?.works.check_room(link, self.config.send_queue)?;
        self.capabilities.check_write(sgl, &remote)?;
        let elements = self.passing(link, |link, regions| link.elements(sgl, regions))?;
        self.links.up(link)?.post(work, &Record::Write(Write { elements, remote, immediate }), &[]);
        self.watch(link);
        Ok(())
    }

    fn post_send(&mut self, link: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError> {
        self.links.up(link)?.works.check_room(link, self.config.send_queue)?;
        self.capabilities.check_message(message)?;
        self.links.up(link)?.post(work, &Record::Send, message);
        self.watch(link);
        Ok(())
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing<Memory = Arc<Segment>>> {
        Some(self)
    }

    fn report(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        self.links.drain_events(sink)
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        self.progress(sink)
    }

    fn arm(&mut self) {
        for link in self.links.all_up() {
            // If something has come by now, the poll that follows finds it.
            link.asleep = link.shared.incoming.prepare_sleep();
        }
        // What comes over a socket ends the wait, and the wait reports it.
        self.poller.wake_at(self.links.alarm());
    }

    fn woken(&mut self) {
        self.watchful = true;
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.poller.fd()]
    }

    fn describe(&self) -> Vec<(&'static str, String)> {
        let threads = self.config.copy_threads.to_string();
        let references = if self.namespace == 0 { "off" } else { "on" };
        vec![
            ("socket", self.path().display().to_string()),
            ("copy threads", threads),
            ("references", references.into()),
        ]
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counts.named()
    }
}

impl Sharing for ShmFabric {
    type Memory = Arc<Segment>;

    fn share(&mut self, link: LinkId, segment: SegmentId) -> Result<(), PostError> {
        if self.links.up(link)?.mark.is_none() {
            return Err(PostError::Unsupported { link, what: "refer to memory" });
        }
        self.passing(link, |link, regions| link.pass(segment, regions))
    }

    fn keep(&mut self, link: LinkId, handle: u32) -> Option<(Arc<Segment>, u64)> {
        let link = self.links.up(link).ok().filter(|link| link.mark.is_some())?;
        let (theirs, len) = link.theirs.get(&handle)?;
        let (segment, len) = (theirs.get()?.as_ref().ok()?.clone(), *len);
        link.push(&Record::Kept(handle), &[]);
        Some((segment, len))
    }
}

impl Drop for ShmFabric {
    fn drop(&mut self) {
        for link in self.links.values() {
            link.shared.end();
            if let Some(landing) = &link.landing {
                landing.job.cancel();
            }
        }
    }
}
