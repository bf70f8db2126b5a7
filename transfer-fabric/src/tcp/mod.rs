//! The fabric over TCP sockets, for peers that share neither a host nor an RDMA network.
//!
//! One socket carries one link: frames in posting order, so the order of the contract is TCP's own. A write's body goes from the
//! sender's segments into the socket and from the socket into the receiver's segment, with no buffer of ours between, and the
//! receiver checks each write before it takes a byte of it. Every frame's header says how many writes and messages its sender has
//! placed so far; that, and not the socket having taken the bytes, completes them at the other side.
//!
//! # Layout
//! - `frame`: the layout of a frame's header.
//! - `offer`: what the control plane carries, and the tokens that a socket must show.
//! - `wire`: the socket as it is, or `tls` on it.
//! - `outbox`, `inbox`: the two directions of a link; `link`: both, and the works in flight.
//! - `socket`, `iovec`: system calls; all the unsafe ones are in `iovec`.
//! - `connecting`, `progress`, `ending`: the fabric's work on its links, by their age.
//!
//! # How a link begins
//! The initiator's offer has a random token T1. The acceptor answers with a random T2 and the address of its listener. The
//! initiator connects and shows T2 in its first frame, a Hello; the acceptor finds the link by it and shows T1 in a Welcome. A token
//! is good for one socket and until [`TcpConfig::handshake_timeout`]; a socket without one is told so and closed. Where links are
//! encrypted, TLS comes between the Hello and the Welcome (`tls`).
//!
//! # How a link ends
//! In good order with a Bye, after a mistake of the peer's with a Refuse that says which; either is the last frame, behind at most
//! the rest of one that was partly sent. From then on nothing is placed.

mod connecting;
mod ending;
mod frame;
mod inbox;
mod iovec;
mod link;
mod offer;
mod outbox;
mod progress;
mod socket;
#[cfg(test)]
mod tests;
mod tls;
mod wire;

pub use tls::TlsSource;

use crate::device;
use crate::pending::PendingConnections;
use crate::poller::{self, Poller, Source};
use crate::regions::Regions;
use connecting::{PendingConnection, Waiting};
use ending::Parting;
use frame::{Header, Kind};
use hashbrown::HashMap;
use link::Link;
use outbox::Body;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::fabric::{
    Capabilities, DownReason, Fabric, FabricError, FabricEvent, FabricKind, GrantAccess, LinkId, Offer, PostError,
    WorkId,
};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use transfer_memory::segment::Segment;

const MAX_SGE: usize = 256;
const MAX_WRITE_BYTES: u64 = 1 << 40;
const MAX_MESSAGE_BYTES: usize = 4096;

/// Where to listen, and the bounds.
#[derive(Debug, Clone)]
pub struct TcpConfig {
    /// Where to listen for peers. Port 0: any free one.
    pub listen: SocketAddr,
    /// The address that peers are told, where it differs; needed when `listen` is a wildcard. Port 0: the one listened on.
    pub advertise: Option<SocketAddr>,
    /// How long a link may take to connect, and a token is good.
    pub handshake_timeout: Duration,
    /// How long a peer may be silent, though spoken to, before its link is lost.
    pub peer_timeout: Duration,
    /// Writes and messages posted and not completed, per link, before [`PostError::Full`].
    pub send_queue: usize,
    /// Messages and immediates that the peer of a link may have under way. It costs nothing here but what they need themselves.
    pub receive_slots: u32,
    /// About how many bytes one poll sends and receives per link, so that no link starves the others.
    pub round_bytes: usize,
    /// The kernel's buffers of each socket; `None`: as the kernel tunes them.
    pub socket_buffer_bytes: Option<usize>,
    /// Encrypts every link, where there is one. Both sides have to.
    pub tls: Option<Arc<dyn TlsSource>>,
}

impl TcpConfig {
    /// The defaults, listening at `listen`.
    #[must_use]
    pub fn new(listen: SocketAddr) -> TcpConfig {
        TcpConfig {
            listen,
            advertise: None,
            handshake_timeout: Duration::from_secs(10),
            peer_timeout: Duration::from_secs(15),
            send_queue: 1024,
            receive_slots: Capabilities::new().receive_slots,
            round_bytes: 2 << 20,
            socket_buffer_bytes: None,
            tls: None,
        }
    }
}

/// What waits to be reported.
#[derive(Debug)]
enum Report {
    Connected(LinkId),
    Granted { link: LinkId, tag: u64, remote: RemoteSlice },
    Revoked { link: LinkId, key: RemoteKey, tag: u64 },
    Down { link: LinkId, reason: DownReason },
}

/// The fabric. See the [module](self).
#[derive(Debug)]
pub struct TcpFabric {
    config: TcpConfig,
    capabilities: Capabilities,
    /// As peers are told.
    address: SocketAddr,
    listener: OwnedFd,
    listener_paused: bool,
    poller: Poller,
    regions: Regions,
    waiting: HashMap<LinkId, Waiting>,
    pending: PendingConnections<IpAddr, PendingConnection>,
    links: HashMap<LinkId, Link>,
    /// Links that may have something to send.
    to_send: Vec<LinkId>,
    /// Links of which something has arrived that no socket tells of any more.
    to_receive: Vec<LinkId>,
    partings: VecDeque<Parting>,
    reports: VecDeque<Report>,
    /// No deadline passes before.
    alarm: Option<Instant>,
}

impl TcpFabric {
    /// Begins to listen.
    ///
    /// # Errors
    /// [`FabricError::Device`] with the system call that failed, or where peers could not be told an address.
    pub fn new(config: TcpConfig) -> Result<TcpFabric, FabricError> {
        let (listener, bound) = socket::listen(&config)?;
        let mut address = config.advertise.unwrap_or(bound);
        if address.port() == 0 {
            address.set_port(bound.port());
        }
        if address.ip().is_unspecified() {
            return Err(device("listening")("peers cannot connect to a wildcard: an address to advertise is needed"));
        }
        let poller = Poller::new()?;
        poller.add(&listener, Source::Listener)?;
        let capabilities = {
            let mut capabilities = Capabilities::new();
            capabilities.max_sge = MAX_SGE;
            capabilities.max_write_bytes = MAX_WRITE_BYTES;
            capabilities.max_message_bytes = MAX_MESSAGE_BYTES;
            capabilities.receive_slots = config.receive_slots;
            // Into the socket; out of it is counted by the receiver.
            let (sender, receiver) =
                if config.tls.is_some() { (tls::SENDER_COPIES, tls::RECEIVER_COPIES) } else { (1, 1) };
            capabilities.sender_copies = sender;
            capabilities.receiver_copies = receiver;
            capabilities
        };
        Ok(TcpFabric {
            config,
            capabilities,
            address,
            listener,
            listener_paused: false,
            poller,
            regions: Regions::default(),
            waiting: HashMap::new(),
            pending: PendingConnections::new(),
            links: HashMap::new(),
            to_send: Vec::new(),
            to_receive: Vec::new(),
            partings: VecDeque::new(),
            reports: VecDeque::new(),
            alarm: None,
        })
    }

    /// The address that peers are told.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The link, where it is connected.
    fn up(&mut self, link: LinkId) -> Result<&mut Link, PostError> {
        let down = PostError::LinkDown(link);
        self.links.get_mut(&link).filter(|link| matches!(link.stage, link::Stage::Up)).ok_or(down)
    }

    fn post(&mut self, link: LinkId, work: WorkId, header: Header, body: Body) -> Result<(), PostError> {
        let found = self.up(link)?;
        found.post(work, header, body);
        if found.watch.is_off() {
            self.watch(link);
        }
        self.list(link);
        Ok(())
    }

    /// Has `link` looked at when this round sends.
    fn list(&mut self, link: LinkId) {
        if let Some(found) = self.links.get_mut(&link)
            && !std::mem::replace(&mut found.listed, true)
        {
            self.to_send.push(link);
        }
    }
}

impl Fabric for TcpFabric {
    type Memory = Arc<Segment>;

    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, segment: SegmentId, memory: Arc<Segment>) -> Result<(), FabricError> {
        self.regions.register(segment, memory)
    }

    /// What was posted from the segment before is still sent; its memory stays mapped until then.
    fn deregister(&mut self, segment: SegmentId) -> Result<(), FabricError> {
        for (link, key, tag) in self.regions.deregister(segment)? {
            self.revoked(link, key, tag);
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
        let pieces = sgl.iter().map(|slice| self.regions.source(slice));
        let pieces = pieces.collect::<Result<_, _>>()?;
        let header = Header { immediate, remote, ..Header::new(Kind::Write, 0) };
        self.post(link, work, header, Body::Gather(pieces))
    }

    fn post_send(&mut self, link: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError> {
        let send_queue = self.config.send_queue;
        self.up(link)?.check_room(send_queue)?;
        self.capabilities.check_message(message)?;
        self.post(link, work, Header::new(Kind::Send, message.len() as u64), Body::Bytes(message.into()))
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        self.progress(sink)
    }

    fn arm(&mut self) {
        // Sockets wake by themselves; only deadlines need the timer.
        self.poller.wake_at(self.alarm);
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.poller.fd()]
    }

    fn describe(&self) -> Vec<(&'static str, String)> {
        let encryption = if self.config.tls.is_some() { "TLS 1.3, with certificates of both sides" } else { "none" };
        vec![("address", self.address.to_string()), ("encryption", encryption.to_owned())]
    }
}
