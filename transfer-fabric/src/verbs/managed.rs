//! Links that begin by rdma_cm.
//!
//! The initiator's offer contains a random token T1. The acceptor answers with a random T2 and the address of its
//! listener. The initiator resolves the address and the route, makes its queue pair and connects, showing T2 in the
//! request's private data. The acceptor finds the link by T2, makes its own queue pair ready, and accepts, showing T1.
//! The initiator makes its queue pair ready and confirms. A token is valid for one request, and until
//! [`VerbsConfig::handshake_timeout`](super::VerbsConfig::handshake_timeout).

use super::config::Connecting;
use super::device::Device;
use super::link::{At, Link, Stage};
use super::offer;
use super::{VerbsFabric, device_error};
use crate::links::WaitingLink;
use crate::token::Token;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Instant;
use transfer_core::fabric::{DownReason, FabricError, FabricEvent, LinkId, Offer};
use transfer_verbs::VerbsError;
use transfer_verbs::cm::{
    ConnectParameters, ConnectRequest, Event, EventChannel, EventKind, Id, IdNumber, PeerParameters,
};

/// The most requests that may wait to be answered.
const BACKLOG: u32 = 128;

/// A link without a queue pair, and the event that it waits for.
pub(super) enum Waiting {
    /// The link is offered, and waits for the acceptor's answer. The acceptor has to show this token.
    Answer(Token),
    /// The link waits for the route to the acceptor, which has to show `expect`, and will be shown `show`.
    Route { expect: Token, show: Token, id: Id, address: SocketAddr, deadline: Instant },
    /// The link is accepted, and waits for a request that shows `expect`, and that will be shown `show`.
    Request { expect: Token, show: Token, deadline: Instant },
}

impl WaitingLink for Waiting {
    fn deadline(&self) -> Option<Instant> {
        match self {
            Waiting::Answer(_) => None,
            Waiting::Route { deadline, .. } | Waiting::Request { deadline, .. } => Some(*deadline),
        }
    }

    fn missing(&self) -> &'static str {
        match self {
            Waiting::Answer(_) | Waiting::Request { .. } => "the peer did not come",
            Waiting::Route { .. } => "no way to the peer was found",
        }
    }
}

/// A link's end of its connection.
pub(super) struct Connection {
    pub(super) id: Id,
    /// The token that the acceptor still has to show.
    expect: Option<Token>,
}

/// The listener of rdma_cm, and the channel of its events.
pub(super) struct Manager {
    channel: EventChannel,
    /// Listens for as long as it lives.
    _listener: Id,
    address: SocketAddr,
}

impl Manager {
    /// Listens, if links are made by rdma_cm. Returns `None` if they are not.
    pub(super) fn new(connect: &Connecting) -> Result<Option<Manager>, FabricError> {
        let Connecting::RdmaCm { listen } = connect else { return Ok(None) };
        let what = "listening by rdma_cm";
        if listen.ip().is_unspecified() {
            let why = format!("{listen} is a wildcard: an address of the device is needed");
            return Err(FabricError::Device { what, why });
        }
        transfer_verbs::cm::available().map_err(device_error(what))?;
        let channel = EventChannel::new().map_err(device_error(what))?;
        let listener = Id::new(&channel).map_err(device_error(what))?;
        listener.listen(*listen, BACKLOG).map_err(device_error(what))?;
        let address = listener.local_address().unwrap_or(*listen);
        Ok(Some(Manager { channel, _listener: listener, address }))
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Returns the reason for a step of rdma_cm that failed.
fn failed(step: &str, why: impl std::fmt::Display) -> DownReason {
    DownReason::NotConnected(format!("rdma_cm, {step}: {why}"))
}

/// Returns the meaning of an event's status.
fn status(event: &Event) -> String {
    match event.status {
        0 => "no reason given".to_owned(),
        status if status < 0 => std::io::Error::from_raw_os_error(-status).to_string(),
        reason => format!("reason {reason}"),
    }
}

impl VerbsFabric {
    /// Waits, as the acceptor, for a request. Returns the answer to the offer.
    pub(super) fn expect_pending(&mut self, id: LinkId, show: Token) -> Result<Offer, FabricError> {
        let Some(manager) = &self.manager else { return Err(FabricError::WrongState { link: id, what: "accept" }) };
        let expect = Token::random()?;
        let answer = offer::encode_cm_acceptor(&expect, manager.address);
        let deadline = self.links.deadline_after(self.config.handshake_timeout);
        self.links.wait(id, Waiting::Request { expect, show, deadline });
        Ok(answer)
    }

    /// Begins, as the initiator, to resolve the route to the acceptor.
    pub(super) fn resolve(
        &mut self,
        id: LinkId,
        expect: Token,
        show: Token,
        address: SocketAddr,
    ) -> Result<(), FabricError> {
        let Some(manager) = &self.manager else { return Err(FabricError::WrongState { link: id, what: "connect" }) };
        self.links.stop_waiting(id);
        let deadline = self.links.deadline_after(self.config.handshake_timeout);
        let connection = Id::new(&manager.channel).map_err(device_error("rdma_create_id"))?;
        // The source is the address of this device, so that the route leads over it.
        let source = SocketAddr::new(manager.address.ip(), 0);
        connection
            .resolve_address(Some(source), address, self.config.handshake_timeout)
            .map_err(device_error("rdma_resolve_addr"))?;
        self.links.wait(id, Waiting::Route { expect, show, id: connection, address, deadline });
        Ok(())
    }

    /// Handles the events of rdma_cm.
    pub(super) fn poll_cm_events(&mut self) {
        while let Some(manager) = &self.manager {
            match manager.channel.next() {
                Ok(Some(event)) => self.manager_says(event),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "the events of rdma_cm cannot be read");
                    return;
                }
            }
        }
    }

    fn manager_says(&mut self, event: Event) {
        if let EventKind::ConnectRequest(request) = event.kind {
            return self.pending(request, &event.private_data);
        }
        let waits = self.links.find_waiting(|id, waiting| match waiting {
            Waiting::Route { id: connection, .. } if connection.number() == event.id => Some(id),
            _ => None,
        });
        if let Some(id) = waits {
            return self.on_the_way(id, &event);
        }
        let of = |link: &Link, number: IdNumber| link.connection.as_ref().is_some_and(|c| c.id.number() == number);
        let Some(id) = self.links.values().find(|link| of(link, event.id)).map(|link| link.id) else { return };
        match &event.kind {
            EventKind::ConnectResponse(peer) => {
                if let Err(reason) = self.answered(id, peer, &event.private_data) {
                    self.fail(id, reason, true);
                }
            }
            EventKind::Established(_) => {
                if let Some(link) = self.links.get_mut(id)
                    && VerbsFabric::connected(link)
                {
                    self.links.report(FabricEvent::Connected { link: id });
                }
            }
            EventKind::Disconnected => {
                self.fail(id, DownReason::Lost("the peer disconnected without a word".to_owned()), false);
            }
            EventKind::Rejected => {
                let end = event.private_data.iter().position(|b| *b == 0).unwrap_or(event.private_data.len());
                let words = String::from_utf8_lossy(&event.private_data[..end]).into_owned();
                let why = if words.is_empty() { status(&event) } else { words };
                self.fail(id, failed("the peer rejected the request", why), true);
            }
            EventKind::ConnectError => self.fail(id, failed("rdma_connect", status(&event)), true),
            EventKind::Unreachable => self.fail(id, failed("rdma_connect, unreachable", status(&event)), true),
            EventKind::DeviceRemoval => self.device_failed("it was removed"),
            _ => {}
        }
    }

    /// Handles an event of a link that resolves the route to its acceptor.
    fn on_the_way(&mut self, id: LinkId, event: &Event) {
        let Some(Waiting::Route { id: connection, address, .. }) = self.links.waiting(id) else { return };
        let ours = self.device.context.device_name();
        let reason = match &event.kind {
            EventKind::AddressResolved => match connection.device() {
                Some((theirs, _)) if theirs == ours => {
                    let timed = connection.set_ack_timeout(self.device.timeout());
                    let timed = timed.and_then(|()| connection.set_type_of_service(self.device.traffic_class()));
                    if let Err(error) = timed {
                        tracing::warn!(%error, "rdma_cm does not take a setting");
                    }
                    match connection.resolve_route(self.config.handshake_timeout) {
                        Ok(()) => return,
                        Err(error) => failed("rdma_resolve_route", error),
                    }
                }
                other => {
                    let over = other.map_or_else(|| "no device".to_owned(), |(name, _)| name);
                    failed("rdma_resolve_addr", format!("the way to {address} leads over {over}, not {ours}"))
                }
            },
            EventKind::RouteResolved => match self.ask(id) {
                Ok(()) => return,
                Err(reason) => reason,
            },
            EventKind::AddressError => failed("rdma_resolve_addr", format!("{address}: {}", status(event))),
            EventKind::RouteError => failed("rdma_resolve_route", format!("{address}: {}", status(event))),
            _ => return,
        };
        self.links.end_waiting(id, reason);
    }

    /// Makes the queue pair and sends the request to the acceptor, once the route is known.
    fn ask(&mut self, id: LinkId) -> Result<(), DownReason> {
        let Some(Waiting::Route { expect, show, id: connection, address, deadline }) = self.links.stop_waiting(id)
        else {
            return Ok(());
        };
        let link = self.link_of(id, deadline, &connection);
        let mut link = match link {
            Ok(link) => link,
            Err(error) => {
                self.links.wait(id, Waiting::Route { expect, show, id: connection, address, deadline });
                return Err(failed("rdma_connect", error));
            }
        };
        let parameters = self.parameters(link.number, show, self.device.posts_reads);
        let connected = connection.connect(&parameters);
        link.connection = Some(Connection { id: connection, expect: Some(expect) });
        self.links.insert(id, link);
        if let Err(error) = connected {
            self.fail(id, failed("rdma_connect", error), true);
        }
        Ok(())
    }

    /// Makes a link whose queue pair has the connection's attributes.
    fn link_of(&mut self, id: LinkId, deadline: Instant, connection: &Id) -> Result<Link, FabricError> {
        self.new_link(id, Stage::Greeting { deadline }, |queue_pair, device| {
            let attributes = connection.init_attributes();
            let mut attributes = attributes.map_err(device_error("rdma_init_qp_attr for INIT"))?;
            attributes.set_access(device.access());
            queue_pair.init_by(&attributes).map_err(device_error("connecting"))
        })
    }

    fn parameters(&self, queue_pair: u32, show: Token, initiator_depth: u8) -> ConnectParameters {
        let (retry_count, rnr_retry) = self.device.retries();
        ConnectParameters {
            queue_pair,
            responder_resources: self.device.answers_reads,
            initiator_depth,
            retry_count,
            rnr_retry,
            private_data: show.bytes().to_vec(),
        }
    }

    /// Handles the acceptor's acceptance.
    fn answered(&mut self, id: LinkId, peer: &PeerParameters, private_data: &[u8]) -> Result<(), DownReason> {
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let Some(Connection { id: connection, expect }) = &mut link.connection else { return Ok(()) };
        let shown = Token::leading(private_data);
        if !expect.take().zip(shown).is_some_and(|(expect, shown)| expect.is(&shown)) {
            return Err(failed("rdma_connect", "the acceptor shows the wrong token"));
        }
        let at = std::mem::replace(&mut link.at, At::LOST);
        let reads = self.device.posts_reads.min(peer.initiator_depth);
        link.at = make_ready(at, connection, &self.device, reads).map_err(|error| failed("rdma_connect", error))?;
        link.reads = reads > 0;
        connection.establish().map_err(|error| failed("rdma_establish", error))?;
        if VerbsFabric::connected(link) {
            self.links.report(FabricEvent::Connected { link: id });
        }
        Ok(())
    }

    /// Handles a connect request of a peer.
    fn pending(&mut self, request: ConnectRequest, private_data: &[u8]) {
        let shown = Token::leading(private_data);
        let found = self.links.find_waiting(|id, waiting| match waiting {
            Waiting::Request { expect, show, deadline } if shown.is_some_and(|shown| expect.is(&shown)) => {
                Some((id, *show, *deadline))
            }
            _ => None,
        });
        let refuse = |request: &ConnectRequest, why: &str| {
            tracing::warn!(peer = ?request.id.peer_address(), why, "a connection was refused");
            if let Err(error) = request.id.reject(why.as_bytes()) {
                tracing::debug!(%error, "the peer could not be told");
            }
        };
        let Some((id, show, deadline)) = found else {
            return refuse(&request, "the token is unknown, used or too late");
        };
        let ours = self.device.context.device_name();
        if request.id.device().is_none_or(|(name, _)| name != ours) {
            return refuse(&request, "the request came over another device");
        }
        self.links.stop_waiting(id);
        if let Err(why) = self.admit(id, show, deadline, request) {
            self.links.down(id, failed("rdma_accept", why));
        }
    }

    fn admit(&mut self, id: LinkId, show: Token, deadline: Instant, request: ConnectRequest) -> Result<(), String> {
        let ConnectRequest { id: connection, peer } = request;
        let text = |error: VerbsError| error.to_string();
        connection.set_ack_timeout(self.device.timeout()).map_err(text)?;
        let mut link = self.link_of(id, deadline, &connection).map_err(|error| error.to_string())?;
        let depth = self.device.posts_reads.min(peer.initiator_depth);
        link.reads = depth > 0;
        let parameters = self.parameters(link.number, show, depth);
        let at = std::mem::replace(&mut link.at, At::LOST);
        let accepted = make_ready(at, &connection, &self.device, depth).and_then(|at| {
            link.at = at;
            connection.accept(&parameters).map_err(text)
        });
        if let Err(why) = accepted {
            self.forget(link);
            return Err(why);
        }
        link.connection = Some(Connection { id: connection, expect: None });
        self.links.insert(id, link);
        Ok(())
    }
}

/// Takes the queue pair from INIT to ready-to-send with the connection's attributes, and with up to `reads` READs and
/// atomic operations in flight.
fn make_ready(at: At, connection: &Id, device: &Device, reads: u8) -> Result<At, String> {
    let At::Init(queue_pair) = at else { return Err("the queue pair is not in INIT".to_owned()) };
    let text = |error: VerbsError| error.to_string();
    let mut attributes = connection.ready_to_receive_attributes().map_err(text)?;
    attributes.set_min_rnr_timer(device.min_rnr_timer());
    attributes.set_max_rd_atomic(device.answers_reads);
    let ready = queue_pair.ready_to_receive_by(&attributes).map_err(|refused| refused.to_string())?;
    let mut attributes = connection.ready_to_send_attributes().map_err(text)?;
    attributes.set_max_rd_atomic(reads);
    attributes.set_rnr_retry(device.retries().1);
    Ok(At::Ready(ready.ready_to_send_by(&attributes).map_err(|refused| refused.to_string())?))
}
