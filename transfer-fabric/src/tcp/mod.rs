//! The fabric over TCP sockets, for peers that share neither a host nor an RDMA network.
//!
//! One socket carries one link. Its frames are in posting order, so TCP gives the order that the contract demands. A
//! write's body goes from the sender's segments into the socket, and from the socket into the receiver's segment; only
//! staged bytes are copied once more (`inbox`). The receiver checks each write before it takes a byte of it. Every
//! frame's header tells how many writes and messages its sender has placed so far. That count completes them at the
//! other side; that the socket has taken their bytes does not.
//!
//! # Layout
//! - `frame`: the layout of a frame's header.
//! - `offer`: the offers that the control plane carries, and the tokens that a socket must show.
//! - `wire`: the plain socket, or `tls` on it.
//! - `outbox`, `inbox`: the two directions of a link.
//! - `link`: both directions, and the works in flight.
//! - `socket`, `iovec`: system calls; all unsafe calls are in `iovec`.
//! - `connecting`, `progress`, `ending`: the fabric's work on its links at each stage of their lives.
//! - `attention`: which sockets a round looks at.
//!
//! # How a link begins
//! The initiator's offer contains a random token T1. The acceptor answers with a random T2 and the address of its
//! listener. The initiator connects and shows T2 in its first frame, a Hello. The acceptor finds the link by T2 and
//! shows T1 in a Welcome. A token is valid for one socket, and until [`TcpConfig::handshake_timeout`]. A socket
//! without a valid token is told so and closed. If links are encrypted, TLS comes between the Hello and the Welcome
//! (`tls`).
//!
//! # How a link ends
//! A link ends in good order with a Bye, or after a mistake of the peer with a Refuse that names the mistake. Either
//! is the last frame, and follows at most the rest of a frame that was partly sent. From then on nothing is placed.

mod attention;
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
use crate::links::{LinkTable, PendingConnections, SentCounts};
use crate::poller::Poller;
use crate::regions::Regions;
use attention::Attention;
use connecting::{PendingConnection, Waiting};
use ending::Parting;
use frame::{Header, Kind};
use link::Link;
use outbox::Body;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use transfer_core::fabric::{
    Capabilities, DownReason, Fabric, FabricError, FabricEvent, FabricKind, GrantAccess, LinkId, Offer, PostError,
    WorkId,
};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use transfer_memory::segment::Segment;

const MAX_SGE: usize = 256;
const MAX_WRITE_BYTES: u64 = 1 << 40;
const MAX_MESSAGE_BYTES: usize = 4096;

/// The configuration of the fabric.
#[derive(Debug, Clone)]
pub struct TcpConfig {
    /// The address on which to listen for peers. Port 0: any free one.
    pub listen: SocketAddr,
    /// The address that peers are told, if it differs; needed when `listen` is a wildcard. Port 0: the port listened
    /// on.
    pub advertise: Option<SocketAddr>,
    /// The time within which a link has to connect, and for which a token is valid.
    pub handshake_timeout: Duration,
    /// The time after which a link is lost, if works are posted to its peer and the peer gives no sign of life.
    pub peer_timeout: Duration,
    /// The most writes and messages of a link that are posted and not completed, before [`PostError::Full`].
    pub send_queue: usize,
    /// The most messages and immediates that the peer of a link may have in flight. No memory is reserved for them.
    pub receive_slots: u32,
    /// The approximate number of bytes that one poll sends and receives per link, so that no link starves the others.
    pub round_bytes: usize,
    /// The size of the kernel's buffers of each socket; `None`: as the kernel tunes them.
    pub socket_buffer_bytes: Option<usize>,
    /// If set, every link is encrypted with its configurations. Both sides have to encrypt.
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

/// The fabric. See the [module](self).
#[derive(Debug)]
pub struct TcpFabric {
    config: TcpConfig,
    capabilities: Capabilities,
    /// The address that peers are told.
    address: SocketAddr,
    poller: Poller,
    regions: Regions,
    pending: PendingConnections<OwnedFd, IpAddr, PendingConnection>,
    links: LinkTable<Link, Waiting>,
    /// Links that may have something to send.
    to_send: Vec<LinkId>,
    /// Links that may have received bytes that the socket no longer reports.
    to_receive: Vec<LinkId>,
    attention: Attention,
    counts: SentCounts,
    partings: VecDeque<Parting>,
}

impl TcpFabric {
    /// Makes the fabric, and begins to listen.
    ///
    /// # Errors
    /// [`FabricError::Device`] with the system call that failed, or if there is no address that peers could be told.
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
        let pending = PendingConnections::new(&poller, listener, "the listener for data connections")?;
        let capabilities = {
            let mut capabilities = Capabilities::new();
            capabilities.max_sge = MAX_SGE;
            capabilities.max_write_bytes = MAX_WRITE_BYTES;
            capabilities.max_message_bytes = MAX_MESSAGE_BYTES;
            capabilities.receive_slots = config.receive_slots;
            // The copies into the socket. The receiver counts the copies out of it.
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
            poller,
            regions: Regions::default(),
            pending,
            links: LinkTable::new(),
            to_send: Vec::new(),
            to_receive: Vec::new(),
            attention: Attention::default(),
            counts: SentCounts::default(),
            partings: VecDeque::new(),
        })
    }

    /// The address that peers are told.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn post(&mut self, link: LinkId, work: WorkId, header: Header, body: Body) -> Result<(), PostError> {
        let found = self.links.up(link)?;
        found.post(work, header, body);
        if !found.works.is_watched() {
            self.links.set_deadline(link, self.config.peer_timeout, |link, due| link.works.watch(due, link.signs));
        }
        self.list(link);
        Ok(())
    }

    /// Adds `link` to the links that the next `send` looks at.
    fn list(&mut self, link: LinkId) {
        if let Some(found) = self.links.get_mut(link)
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

    /// Writes that were posted from the segment before are still sent. Its memory stays mapped until then.
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
        let pieces = sgl.iter().map(|slice| self.regions.source(slice));
        let pieces = pieces.collect::<Result<_, _>>()?;
        let header = Header { immediate, remote, ..Header::new(Kind::Write, 0) };
        self.post(link, work, header, Body::Gather(pieces))
    }

    fn post_send(&mut self, link: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError> {
        self.links.up(link)?.works.check_room(link, self.config.send_queue)?;
        self.capabilities.check_message(message)?;
        self.post(link, work, Header::new(Kind::Send, message.len() as u64), Body::Bytes(message.into()))
    }

    fn report(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        self.links.drain_events(sink)
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        self.progress(sink)
    }

    fn arm(&mut self) {
        // Sockets wake the thread by themselves. Only deadlines need the timer.
        self.attention.arm();
        self.poller.wake_at(self.links.alarm());
    }

    fn woken(&mut self) {
        self.attention.wake();
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.poller.fd()]
    }

    fn describe(&self) -> Vec<(&'static str, String)> {
        let encryption = if self.config.tls.is_some() { "TLS 1.3, with certificates of both sides" } else { "none" };
        vec![("address", self.address.to_string()), ("encryption", encryption.to_owned())]
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counts.named()
    }
}
