//! The fabric through shared memory, for two sidecars of one host that share a directory: also two in containers of their own.
//!
//! Each passes the other its segments as descriptors, read-only and sealed. To write, a side posts a record that names ranges of its
//! segments and the target; the *receiver* checks the target against its grants and copies. So nobody can write another's memory, and a
//! revoke is immediate. Every byte is copied once, by the receiver.
//!
//! # Layout
//! - `offer`, `note`, `record`: what the control plane, the socket and the rings carry.
//! - `shared`: the memory that both sides write: the rings.
//! - `link`: one link; `send`, `receive`: its two directions; `quota`: how much of its peer's memory is mapped.
//! - `job`, `copy_pool`: copies in pieces, and the threads that help with large ones and map what is passed.
//! - `connecting`, `progress`, `ending`: the fabric's work on its links, by their age.
//!
//! # How a link begins
//! The initiator's offer has a random token T1 and the name of its socket in the shared directory. The acceptor connects to the socket of
//! that name *in its own directory*, and where there is none it refuses the offer, so that another fabric is tried at once. It shows T1 in
//! a Hello that brings the descriptor of new shared memory, in which it wrote a nonce. Its answer through the control plane has T2. The
//! initiator shows T2 in a Welcome, with the nonce that it read in that memory. **That both are on one host is proved by this, and by
//! nothing else**: addresses and host names are not looked at. Both run as the same user in the kernel's word, or there is no link: who is
//! passed a segment can read all of it.
//!
//! # Doorbells
//! One byte on the socket of the link, to a side that has said in the ring that it sleeps. An eventfd would be cheaper by a microsecond,
//! but the two would share its open file: a peer could make it block, or fill it, and hold this side's thread with that.
//!
//! # What a peer can do
//! It can write anything into the rings, and nothing else: indexes and records are copied out and checked, and a mistake ends the link. Its
//! segments are mapped only where no seal is missing, so that nothing it does can make an access fault; see
//! [`Segment::adopt_from_peer`]. What it changes in a segment while it is copied arrives as some mixture: of its own bytes.
//!
//! # How a link ends
//! The side that ends it says so in the shared memory before anything else, as its memory may be used again from then on, and the receiver
//! believes no copy that was completed later. Then it sends a Bye, or a Refuse that says which mistake the peer made. A peer that is
//! killed says nothing; what it had posted stays as it was until this side lets go of it, since mapped segments are marked as read.

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
use crate::pending::PendingConnections;
use crate::poller::{Poller, Source};
use crate::regions::Regions;
use connecting::{PendingConnection, Waiting};
use copy_pool::CopyPool;
use hashbrown::HashMap;
use link::Link;
use record::{Record, Write};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::fabric::{
    Capabilities, DownReason, Fabric, FabricError, FabricEvent, FabricKind, GrantAccess, LinkId, Offer, PostError,
    Sharing, WorkId,
};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use transfer_memory::segment::{PinnedBudget, Segment};
use transfer_memory::socket::Listener;

const MAX_SGE: usize = 64;
const MAX_WRITE_BYTES: u64 = 1 << 40;
/// What a record holds behind its head.
const MAX_MESSAGE_BYTES: usize = transfer_memory::ring::MAX_RECORD_BYTES - record::HEAD_BYTES;

/// How many segments a peer may have passed at a time.
const MAX_SEGMENTS: usize = 4096;

/// What the memory of all links may take together: some hundred of them. It is not pinned, so it does not count as that.
const LINKS_BYTES: u64 = 256 << 20;

/// How the names of sockets end: those in the directory that end otherwise are others', and no peer can have them connected to.
pub const SOCKET_SUFFIX: &str = ".shm";

/// Who may connect to the socket: this user.
const SOCKET_MODE: u32 = 0o600;

/// Where to meet peers, and the bounds.
#[derive(Debug, Clone)]
pub struct ShmConfig {
    /// The directory that the sidecars of this host share.
    pub directory: PathBuf,
    /// The name of this one's socket there: ASCII letters, digits, `-`, `_` and `.`, with [`SOCKET_SUFFIX`] at the end; no other
    /// sidecar's in that directory.
    pub name: String,
    /// This sidecar's incarnation, by which the segments that it passes are marked as read.
    pub incarnation: u64,
    /// How long a link may take to connect.
    pub handshake_timeout: Duration,
    /// How long a peer may do nothing, though there is something for it to do, before its link is lost.
    pub peer_timeout: Duration,
    /// Writes and messages posted and not completed, per link, before [`PostError::Full`].
    pub send_queue: usize,
    /// Messages and immediates that the peer of a link may have under way.
    pub receive_slots: u32,
    /// About how many bytes one poll copies per link, so that no link starves the others.
    pub round_bytes: u64,
    /// Threads that help with copies of more than a few MiB. 0: the data plane's does all, in pieces.
    pub copy_threads: usize,
    /// The most bytes of one peer's segments that are mapped.
    pub max_mapped_bytes: u64,
    /// Whether workers of this host's other sidecars may read memory of this one's where it lies, and the other way round. Both sides have to
    /// want it; else the receiving side copies.
    pub references: bool,
}

impl ShmConfig {
    /// The defaults, with a socket of this name in `directory`.
    #[must_use]
    pub fn new(directory: &Path, name: &str, incarnation: u64) -> ShmConfig {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        ShmConfig {
            directory: directory.to_owned(),
            name: name.to_owned(),
            incarnation,
            handshake_timeout: Duration::from_secs(10),
            peer_timeout: Duration::from_secs(15),
            send_queue: 1024,
            receive_slots: Capabilities::new().receive_slots,
            round_bytes: 1 << 20,
            // More do not copy faster: a few fill the memory's bandwidth.
            copy_threads: (processors / 2).clamp(1, 4),
            max_mapped_bytes: 1 << 40,
            references: true,
        }
    }
}

/// What waits to be reported.
#[derive(Debug)]
enum Report {
    Connected(LinkId),
    References { link: LinkId, mark: u64 },
    Granted { link: LinkId, tag: u64, remote: RemoteSlice },
    Revoked { link: LinkId, key: RemoteKey, tag: u64 },
    Down { link: LinkId, reason: DownReason },
}

/// The fabric. See the [module](self).
#[derive(Debug)]
pub struct ShmFabric {
    config: ShmConfig,
    links_budget: PinnedBudget,
    capabilities: Capabilities,
    /// The user namespace in which this sidecar knows its workers; 0 where it allows no references.
    namespace: u64,
    listener: Listener,
    listener_paused: bool,
    poller: Poller,
    regions: Regions,
    waiting: HashMap<LinkId, Waiting>,
    pending: PendingConnections<u32, PendingConnection>,
    links: HashMap<LinkId, Link>,
    reports: VecDeque<Report>,
    /// No deadline passes before.
    alarm: Option<Instant>,
    /// How many rounds are still to look at the sockets, whatever the rings say.
    watchful: u8,
    rounds: u8,
    /// Last: its threads end when nothing gives them work any more.
    copy_pool: CopyPool,
}

impl ShmFabric {
    /// Begins to listen.
    ///
    /// # Errors
    /// [`FabricError::Device`] with what failed: the socket cannot be made there.
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
        poller.add(&listener, Source::Listener)?;
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
            listener,
            listener_paused: false,
            poller,
            regions: Regions::default(),
            waiting: HashMap::new(),
            pending: PendingConnections::new(),
            links: HashMap::new(),
            reports: VecDeque::new(),
            alarm: None,
            watchful: 0,
            rounds: 0,
            copy_pool,
        })
    }

    /// Where its socket is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.listener.path()
    }

    /// The link, where it is connected.
    fn up(&mut self, link: LinkId) -> Result<&mut Link, PostError> {
        let down = PostError::LinkDown(link);
        self.links.get_mut(&link).filter(|link| link.is_up()).ok_or(down)
    }

    /// Does what passes the peer a segment.
    fn passing<T>(
        &mut self,
        id: LinkId,
        pass: impl FnOnce(&mut Link, &Regions) -> Result<T, PostError>,
    ) -> Result<T, PostError> {
        let ShmFabric { links, regions, .. } = self;
        let link = links.get_mut(&id).ok_or(PostError::LinkDown(id))?;
        let passed = pass(link, regions);
        if passed.is_err()
            && let Some(reason) = link.farewell.take()
        {
            // Whoever posts counts on an event that says so.
            self.end(id, reason);
        }
        passed
    }
}

/// The user namespace of this process, as the kernel numbers it: within one, a user id is one user. 0 where the system does not tell.
fn user_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/user").map_or(0, |stat| stat.st_ino)
}

/// A descriptor that is passed on.
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

    fn register(&mut self, segment: SegmentId, memory: Arc<Segment>) -> Result<(), FabricError> {
        self.regions.register(segment, memory)
    }

    /// What was posted from the segment before is still copied by peers, who have mapped it.
    fn deregister(&mut self, segment: SegmentId) -> Result<(), FabricError> {
        for (link, key, tag) in self.regions.deregister(segment)? {
            self.revoked(link, key, tag);
        }
        for link in self.links.values_mut().filter(|link| link.is_up()) {
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
        if self.waiting.remove(&link).is_some() {
            self.reports.push_back(Report::Down { link, reason });
        } else {
            self.end(link, reason);
        }
    }

    fn grant(&mut self, link: LinkId, range: LocalSlice, access: GrantAccess, tag: u64) -> Result<(), PostError> {
        if access != GrantAccess::Write {
            return Err(PostError::Unsupported { link, what: "open words to atomic operations" });
        }
        self.up(link)?;
        let remote = self.regions.grant(link, range, tag)?;
        self.reports.push_back(Report::Granted { link, tag, remote });
        Ok(())
    }

    fn revoke(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> Result<(), PostError> {
        self.up(link)?;
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
        let send_queue = self.config.send_queue;
        self.up(link)?.check_room(send_queue)?;
        self.capabilities.check_write(sgl, &remote)?;
        let elements = self.passing(link, |link, regions| link.elements(sgl, regions))?;
        self.up(link)?.post(work, &Record::Write(Write { elements, remote, immediate }), &[]);
        self.watch(link);
        Ok(())
    }

    fn post_send(&mut self, link: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError> {
        let send_queue = self.config.send_queue;
        self.up(link)?.check_room(send_queue)?;
        self.capabilities.check_message(message)?;
        self.up(link)?.post(work, &Record::Send, message);
        self.watch(link);
        Ok(())
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing<Memory = Arc<Segment>>> {
        Some(self)
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        self.progress(sink)
    }

    fn arm(&mut self) {
        for link in self.links.values_mut().filter(|link| link.is_up()) {
            // Where there is something by now, the poll that follows finds it.
            link.asleep = link.shared.incoming.prepare_sleep();
        }
        // The poll that follows looks at the sockets, and so does the one after the sleep.
        self.watchful = 2;
        self.poller.wake_at(self.alarm);
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
}

impl Sharing for ShmFabric {
    type Memory = Arc<Segment>;

    fn share(&mut self, link: LinkId, segment: SegmentId) -> Result<(), PostError> {
        if self.up(link)?.mark.is_none() {
            return Err(PostError::Unsupported { link, what: "refer to memory" });
        }
        self.passing(link, |link, regions| link.pass(segment, regions))
    }

    fn keep(&mut self, link: LinkId, handle: u32) -> Option<(Arc<Segment>, u64)> {
        let link = self.up(link).ok().filter(|link| link.mark.is_some())?;
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
