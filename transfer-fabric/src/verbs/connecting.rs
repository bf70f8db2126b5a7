//! Links that begin by queue-pair data, and the parts that both ways of connecting share.
//!
//! When the initiator's offer leaves, its queue pair is in INIT and its receives are posted. The acceptor takes its
//! own queue pair to ready-to-send, and stays silent, because the initiator cannot receive yet. The initiator follows
//! with the acceptor's answer, and sends a Hello. When the Hello is acknowledged, the acceptor can receive, so the
//! link is up for the initiator. When the Hello arrives, the link is up for the acceptor.

use super::area::Area;
use super::device::Device;
use super::device_error;
use super::link::{At, Link, Posted, Stage};
use super::managed::Waiting;
use super::notice::Notice;
use super::offer::{self, Endpoint, OfferError, Role};
use super::send_queue::SendQueue;
use super::windows::Windows;
use super::{SPARE_RECEIVES, VerbsFabric};
use crate::random;
use crate::token::Token;
use transfer_core::fabric::{FabricError, LinkId, Offer};
use transfer_verbs::{Data, Init, QueuePair, ReceiveList, Reset, SendKind, SendList};

/// Packet numbers have 24 bits.
const PACKET_NUMBERS: u32 = 0xFF_FFFF;

impl VerbsFabric {
    fn expect_new(&self, link: LinkId, what: &'static str) -> Result<(), FabricError> {
        if let Some(why) = &self.broken {
            return Err(FabricError::Device { what: "making a link", why: why.clone() });
        }
        self.links.expect_new(link, what)
    }

    pub(super) fn begin_offer(&mut self, id: LinkId) -> Result<Offer, FabricError> {
        self.expect_new(id, "offer")?;
        if self.manager.is_some() {
            let token = Token::random()?;
            self.links.wait(id, Waiting::Answer(token));
            return Ok(offer::encode_cm_initiator(&token));
        }
        self.device.look_again()?;
        let link = self.new_link(id, Stage::Offered, |queue_pair, device| {
            queue_pair.init(&device.init_attributes()).map_err(device_error("connecting"))
        })?;
        let endpoint = self.endpoint(&link);
        self.links.insert(id, link);
        Ok(endpoint.encode(Role::Initiator))
    }

    pub(super) fn begin_accept(&mut self, id: LinkId, peer: &Offer) -> Result<Offer, FabricError> {
        self.expect_new(id, "accept")?;
        let bad = |error: OfferError| FabricError::BadOffer { link: id, why: error.to_string() };
        if self.manager.is_some() {
            let show = offer::decode_cm_initiator(peer).map_err(bad)?;
            return self.expect_pending(id, show);
        }
        self.device.look_again()?;
        let peer = Endpoint::decode(peer, Role::Initiator, self.device.kind).map_err(bad)?;
        let deadline = self.links.deadline_after(self.config.handshake_timeout);
        let mut link = self.new_link(id, Stage::Greeting { deadline }, |queue_pair, device| {
            queue_pair.init(&device.init_attributes()).map_err(device_error("connecting"))
        })?;
        if let Err(error) = make_ready(&self.device, &mut link, &peer) {
            self.forget(link);
            return Err(error);
        }
        let endpoint = self.endpoint(&link);
        self.links.insert(id, link);
        Ok(endpoint.encode(Role::Acceptor))
    }

    pub(super) fn begin_connect(&mut self, id: LinkId, peer: &Offer) -> Result<(), FabricError> {
        let bad = |error: OfferError| FabricError::BadOffer { link: id, why: error.to_string() };
        if let Some(Waiting::Answer(expect)) = self.links.waiting(id) {
            let expect = *expect;
            let (show, address) = offer::decode_cm_acceptor(peer).map_err(bad)?;
            return self.resolve(id, expect, show, address);
        }
        if !self.links.get(id).is_some_and(|link| matches!(link.stage, Stage::Offered)) {
            return Err(FabricError::WrongState { link: id, what: "connect" });
        }
        let peer = Endpoint::decode(peer, Role::Acceptor, self.device.kind).map_err(bad)?;
        let deadline = self.links.deadline_after(self.config.handshake_timeout);
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        if let Err(error) = make_ready(&self.device, link, &peer) {
            if let Some(link) = self.links.remove(id) {
                self.forget(link);
            }
            return Err(error);
        }
        link.stage = Stage::Greeting { deadline };
        link.post(Posted::Hello, SendKind::Send { data: Data::Inline(&[]), immediate: Some(Notice::Hello.number()) });
        self.counters.notices += 1;
        self.list(id);
        Ok(())
    }

    fn endpoint(&self, link: &Link) -> Endpoint {
        self.device.endpoint(link.number, link.packet_number)
    }

    /// Makes a link with a queue pair that `init` takes to INIT, and with its receives posted.
    pub(super) fn new_link(
        &mut self,
        id: LinkId,
        stage: Stage,
        init: impl FnOnce(QueuePair<Reset>, &Device) -> Result<QueuePair<Init>, FabricError>,
    ) -> Result<Link, FabricError> {
        let sends = self.config.send_queue;
        let receives = self.config.receive_slots + SPARE_RECEIVES;
        let bytes = Area::len_bytes(receives, self.send_slots());
        self.regions.reserve(bytes)?;
        let made = self.make_link(id, stage, sends, receives, init);
        if made.is_err() {
            self.regions.release(bytes);
        }
        made
    }

    /// Returns the number of slots in which messages that are too long for inline wait for their completion.
    pub(super) fn send_slots(&self) -> u32 {
        self.config.send_queue.min(self.config.receive_slots)
    }

    fn make_link(
        &mut self,
        id: LinkId,
        stage: Stage,
        sends: u32,
        receives: u32,
        init: impl FnOnce(QueuePair<Reset>, &Device) -> Result<QueuePair<Init>, FabricError>,
    ) -> Result<Link, FabricError> {
        let packet_number = u32::from_ne_bytes(random::bytes()?) & PACKET_NUMBERS;
        let domain = self.regions.domain();
        let area = Area::new(domain, receives, self.send_slots())?;
        let need = sends + receives;
        let queues = self.queues.len();
        let (number, queue) = self.queues.take(need, &self.device.context, &self.device.channel)?;
        if self.queues.len() > queues {
            self.counters.completion_queues = self.queues.len() as u64;
            self.waking.queue_made();
        }
        let queue_pair = self.device.queue_pair(domain, &queue, sends, receives);
        let queue_pair = queue_pair.and_then(|queue_pair| init(queue_pair, &self.device));
        let queue_pair = queue_pair.inspect_err(|_| self.queues.give_back(number, need))?;
        let mut link = Link {
            id,
            stage,
            windows: Windows::new(),
            number: queue_pair.number(),
            at: At::Init(queue_pair),
            area,
            completions: (number, need),
            packet_number,
            sends: SendQueue::new(sends, self.config.signaled_every),
            list: SendList::new(),
            reposts: ReceiveList::new(),
            reads: false,
            heard: true,
            stalled_since: None,
            listed: false,
            connection: None,
        };
        for slot in 0..receives {
            link.repost(slot);
        }
        if let Err(reason) = link.post_receives() {
            drop(link);
            self.queues.give_back(number, need);
            return Err(device_error("posting receives")(reason));
        }
        self.clock.start_probing(self.config.probe_interval);
        Ok(link)
    }

    /// Drops a link, and releases its memory and its room in the completion queue. Reports nothing.
    pub(super) fn forget(&mut self, link: Link) {
        let (number, need) = link.completions;
        drop(link);
        self.regions.release(Area::len_bytes(self.config.receive_slots + SPARE_RECEIVES, self.send_slots()));
        // The completions that it has left in the queue would count against the next link.
        self.stash(number);
        self.queues.give_back(number, need);
    }

    /// Handles the first message of the peer, or its acknowledgement. Returns whether that has brought the link up.
    pub(super) fn connected(link: &mut Link) -> bool {
        let greeting = matches!(link.stage, Stage::Greeting { .. });
        if greeting {
            link.stage = Stage::Up;
        }
        greeting
    }
}

/// Takes the queue pair from INIT to ready-to-send, connected to that peer.
fn make_ready(device: &Device, link: &mut Link, peer: &Endpoint) -> Result<(), FabricError> {
    let at = std::mem::replace(&mut link.at, At::LOST);
    let At::Init(queue_pair) = at else {
        link.at = at;
        return Err(FabricError::WrongState { link: link.id, what: "connect" });
    };
    let step = "connecting";
    let ready = queue_pair.ready_to_receive(&device.receive_attributes(peer)).map_err(device_error(step))?;
    let attributes = device.send_attributes(link.packet_number, peer.read_depth);
    link.reads = attributes.max_rd_atomic > 0;
    link.at = At::Ready(ready.ready_to_send(&attributes).map_err(device_error(step))?);
    Ok(())
}
