//! Carries out the decisions of [`super::state`]: calls, waits, and commands to the engine.

use super::choice::{self, Identity};
use super::reaching::Reaching;
use super::state::{Action, Attempt, Peers, Verdict};
use crate::directory::DirectoryClient;
use crate::drain::Drain;
use crate::engine::{EngineClient, EngineCommand, PeerInfo};
use crate::security::{Caller, Expected, Security};
use crate::text;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use transfer_core::fabric::{FabricKind, LinkId, Offer};
use transfer_core::protocol::{PassedOver, Vouches};
use transfer_core::tensor::Name;
use transfer_core::wire::message::LAYOUT_VERSION;
use transfer_proto::v1;
use v1::peering_client::PeeringClient;

/// The version of the message protocol between sidecars. Both sides of a link must speak the same version.
pub(crate) const PROTOCOL_VERSION: u32 = LAYOUT_VERSION as u32;

/// The time-out of the directory's answer about a node.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(2);

/// The time-out of a TCP connection to a peer, and of the call on it.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// The failure of a call.
struct DialError {
    kind: DialErrorKind,
    why: String,
    /// Whether only this fabric failed. Another fabric may work.
    of_fabric: bool,
}

#[derive(PartialEq)]
enum DialErrorKind {
    /// The peer refused the call, because its own call to this node wins.
    Yield,
    /// Another call may succeed.
    Retry,
    /// No further call can succeed.
    Final,
}

fn failed(kind: DialErrorKind, why: impl Into<String>) -> DialError {
    DialError { kind, why: why.into(), of_fabric: false }
}

fn fabric_failed(kind: DialErrorKind, why: impl Into<String>) -> DialError {
    DialError { kind, why: why.into(), of_fabric: true }
}

/// The most peers whose last incarnation is remembered, for the log and the list of peers. The number is limited,
/// because a caller can use any name.
const MAX_INCARNATIONS: usize = 4096;

/// A link that was made.
#[derive(Debug)]
struct Made {
    peer: Name,
    number_at_peer: u32,
    vouches: Vouches,
}

/// Links to peers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Links(Arc<LinksShared>);

#[derive(Debug)]
struct LinksShared {
    me: Identity,
    peers: Mutex<Peers>,
    /// The last incarnation of each peer with which a link was made.
    incarnations: Mutex<HashMap<Name, u64>>,
    /// The peer's number for each link, and the proof with which the link was made.
    made: Mutex<HashMap<LinkId, Made>>,
    reaching: Reaching,
    engine: EngineClient,
    directory: DirectoryClient,
    drain: Drain,
    security: Security,
}

impl Links {
    /// Makes an empty set of links.
    pub(crate) fn new(
        me: Identity,
        engine: EngineClient,
        directory: DirectoryClient,
        drain: Drain,
        security: Security,
    ) -> Links {
        let peers = Mutex::new(Peers::new(me.node.clone(), me.usable()));
        Links(Arc::new(LinksShared {
            me,
            peers,
            incarnations: Mutex::default(),
            made: Mutex::default(),
            reaching: Reaching::default(),
            engine,
            directory,
            drain,
            security,
        }))
    }

    /// Makes a link that the engine has requested.
    pub(crate) fn wanted(&self, peer: &Name) {
        let action = self.0.peers.lock().wanted(peer);
        self.act(action);
    }

    /// Records that a link is up.
    pub(crate) fn link_up(&self, peer: &Name, link: LinkId) {
        self.0.peers.lock().link_up(peer, link);
        self.0.reaching.end(peer, &Ok(link));
    }

    /// Returns the link to a peer. Makes one if there is none.
    ///
    /// # Errors
    /// The reason why no link can be made.
    pub(crate) async fn reach(&self, peer: &Name) -> Result<LinkId, String> {
        // Registered first, so that a link that comes up in this moment is not missed.
        let reached = self.0.reaching.begin(peer);
        let action = {
            let mut peers = self.0.peers.lock();
            if let Some(link) = peers.link_to(peer) {
                return Ok(link);
            }
            peers.wanted(peer)
        };
        self.act(action);
        reached.await.unwrap_or_else(|_| Err("the sidecar is stopping".to_owned()))
    }

    /// Records that a link is dead.
    pub(crate) fn link_down(&self, peer: &Name, link: LinkId, why: &str) {
        self.0.made.lock().remove(&link);
        let action = self.0.peers.lock().link_down(peer, link, why);
        self.act(action);
    }

    fn act(&self, action: Option<Action>) {
        let links = self.clone();
        match action {
            None => {}
            Some(Action::Fail { peer, link, why }) => {
                tracing::warn!(%peer, why, "no link");
                self.0.reaching.end(&peer, &Err(why.clone()));
                // An engine that has ended needs no news.
                let _ = self.0.engine.send(EngineCommand::ConnectFailed { peer, link, why });
            }
            Some(Action::Wait { peer, attempt, long }) => drop(tokio::spawn(async move {
                tokio::time::sleep(long).await;
                let action = links.0.peers.lock().waited(&peer, attempt);
                links.act(action);
            })),
            Some(Action::Dial { peer, attempt, pause, instead_of }) => {
                if let Some(link) = instead_of {
                    self.0.engine.abandon_link(link, "it did not come up in time");
                }
                drop(tokio::spawn(async move {
                    tokio::time::sleep(pause).await;
                    links.dial(peer, attempt).await;
                }));
            }
        }
    }

    async fn dial(&self, peer: Name, attempt: Attempt) {
        let Err(DialError { kind, why, .. }) = self.call(&peer, attempt).await else { return };
        tracing::debug!(%peer, why, "a call brought no link");
        let action = match kind {
            DialErrorKind::Yield => self.0.peers.lock().yielded(&peer, attempt),
            kind => self.0.peers.lock().dial_failed(&peer, attempt, kind == DialErrorKind::Retry, why),
        };
        self.act(action);
    }

    /// Calls a peer over the best fabric, and over the next one if that fails.
    async fn call(&self, peer: &Name, attempt: Attempt) -> Result<(), DialError> {
        let LinksShared { me, directory, .. } = &*self.0;
        if *peer == me.node {
            return Err(failed(DialErrorKind::Final, "it is this node itself"));
        }
        let nothing = || failed(DialErrorKind::Final, me.has_nothing());
        self.0.peers.lock().fabric_for(peer, attempt).ok_or_else(nothing)?;
        let (address, channel, met) = self.dial_node(peer, directory).await?;
        let vouches = self.0.security.vouches(peer.as_str(), &met);
        loop {
            let next = self.0.peers.lock().fabric_for(peer, attempt);
            // This error is ignored if another call has won in the meantime.
            let (fabric, tried) = next.ok_or_else(nothing)?;
            let passed_over = [me.passed_over(fabric), tried].concat();
            let called = self.call_over(fabric, passed_over, (peer, &vouches), attempt, channel.clone()).await;
            let Err(DialError { kind, why, of_fabric }) = called else { return Ok(()) };
            if !of_fabric || !self.0.peers.lock().pass_over(peer, attempt, fabric, &why) {
                // The refused fabric may be the only one left here.
                let lacks = me.passed_over(fabric).into_iter().map(|passed| format!("; {}", passed.why));
                let lacks: String = lacks.filter(|_| of_fabric).collect();
                return Err(failed(kind, format!("at {address}: {why}{lacks}")));
            }
            tracing::info!(%peer, %fabric, why, "no link over this fabric; trying the next one");
        }
    }

    async fn call_over(
        &self,
        fabric: FabricKind,
        passed_over: Vec<PassedOver>,
        (peer, vouches): (&Name, &Vouches),
        attempt: Attempt,
        channel: Channel,
    ) -> Result<(), DialError> {
        let LinksShared { me, engine, .. } = &*self.0;
        let begun = engine.begin_link(peer.clone(), fabric).await;
        let begun = begun.map_err(|e| fabric_failed(DialErrorKind::Final, format!("node {}: {e}", me.node)));
        let (link, offer, receive_slots) = begun?;
        let request = v1::ConnectRequest {
            protocol_version: PROTOCOL_VERSION,
            node: me.node.to_string(),
            incarnation: me.incarnation,
            fabric: v1::Fabric::from(Kind(fabric)).into(),
            offer: offer.0,
            receive_slots,
            link: link.0,
            to: peer.to_string(),
            passed_over: choice::to_message(&passed_over),
        };
        let answer = PeeringClient::new(channel).connect(request).await;
        let answer = answer.map_err(|status| {
            let kind = match status.code() {
                Code::Aborted => DialErrorKind::Yield,
                Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => DialErrorKind::Final,
                Code::PermissionDenied | Code::Unauthenticated => DialErrorKind::Final,
                _ => DialErrorKind::Retry,
            };
            let of_fabric = choice::is_refusal(&status, fabric);
            DialError { kind, why: text::status(&status), of_fabric }
        });
        let answer = match answer {
            Ok(answer) => answer.into_inner(),
            Err(e) => {
                engine.abandon_link(link, "the call brought no link");
                return Err(e);
            }
        };
        if answer.node != peer.as_str() || answer.protocol_version != PROTOCOL_VERSION {
            let why = format!("it calls itself {:?}, version {}", answer.node, answer.protocol_version);
            engine.abandon_link(link, "the call brought no link");
            return Err(failed(DialErrorKind::Final, why));
        }
        // A separate statement, because the lock must not be held for `act`.
        let go_on = self.0.peers.lock().answered(peer, attempt, link, fabric);
        let Some(wait) = go_on else {
            // The peer's own call has won in the meantime.
            engine.abandon_link(link, "the peer's own call was faster");
            return Ok(());
        };
        let Action::Wait { attempt, .. } = wait else { return Ok(()) };
        self.act(Some(wait));
        self.note_incarnation(peer, answer.incarnation);
        self.0
            .made
            .lock()
            .insert(link, Made { peer: peer.clone(), number_at_peer: answer.link, vouches: vouches.clone() });
        let v1::ConnectResponse { incarnation, receive_slots, offer, .. } = answer;
        let (name, vouches) = (peer.clone(), vouches.clone());
        let info = PeerInfo { name, incarnation, receive_slots, vouches, passed_over };
        if let Err(e) = engine.finish_link(link, info, Offer(offer)).await {
            self.0.made.lock().remove(&link);
            let why = format!("node {} cannot finish the {fabric} link: {e}", me.node);
            let action = {
                let mut peers = self.0.peers.lock();
                peers.pass_over(peer, attempt, fabric, &why);
                peers.finish_failed(peer, attempt, why)
            };
            self.act(action);
        }
        Ok(())
    }

    /// Connects to the gRPC services of a node. Returns their address, too.
    async fn dial_node(
        &self,
        peer: &Name,
        directory: &DirectoryClient,
    ) -> Result<(Arc<str>, Channel, Caller), DialError> {
        if !self.0.security.policy().is_peer(peer.as_str()) {
            let why = format!("--peers of node {} does not name it", self.0.me.node);
            return Err(failed(DialErrorKind::Final, why));
        }
        let at = directory.node(peer, RESOLVE_DEADLINE).await;
        let at = at.map_err(|e| failed(DialErrorKind::Retry, format!("it cannot be found: {e}")))?;
        let Some(at) = at else {
            let why = "it is not attached to the directory: its sidecar is not running, or cut off";
            return Err(failed(DialErrorKind::Retry, why));
        };
        if at.address.is_empty() {
            let why = "its sidecar was started without --listen";
            return Err(failed(DialErrorKind::Final, why));
        }
        let cannot = |why: String| format!("at {}: {why}", at.address);
        let endpoint = Endpoint::from_shared(format!("http://{}", at.address))
            .map_err(|e| failed(DialErrorKind::Final, cannot(text::chain(&e))))?;
        let endpoint = endpoint.connect_timeout(CONNECT_DEADLINE).timeout(CALL_DEADLINE);
        let reached = self.0.security.reach(endpoint, &at.local, Expected::Node(peer.clone())).await;
        let (channel, met) = reached.map_err(|e| failed(DialErrorKind::Retry, cannot(text::chain(&e))))?;
        Ok((at.address, channel, met))
    }

    /// Connects to the gRPC services of a node.
    pub(super) async fn channel_to(&self, peer: &Name) -> Result<Channel, String> {
        let dialed = self.dial_node(peer, &self.0.directory).await;
        dialed.map(|(_, channel, _)| channel).map_err(|e| format!("node {peer} {}", e.why))
    }

    pub(super) fn number_at_peer(&self, link: LinkId) -> Option<u32> {
        self.0.made.lock().get(&link).map(|made| made.number_at_peer)
    }

    /// Returns whether this caller, as that node, has the proof with which the link was made. `None`: there is no such
    /// link yet.
    pub(super) fn is_made_with(&self, link: LinkId, node: &Name, caller: &Caller) -> Option<bool> {
        let vouches = self.0.security.vouches(node.as_str(), caller);
        self.0.made.lock().get(&link).map(|made| made.vouches == vouches)
    }

    pub(super) fn engine(&self) -> &EngineClient {
        &self.0.engine
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.0.me
    }

    /// Returns the peers whose names start with `prefix` and sort after `after`. The second value is the last of these
    /// names if more peers follow, else empty.
    pub(crate) fn peers(&self, prefix: &str, after: &str, limit: usize) -> (Vec<v1::Peer>, String) {
        let (mut peers, next) = self.0.peers.lock().page(prefix, after, limit);
        let incarnations = self.0.incarnations.lock();
        for peer in &mut peers {
            peer.incarnation = incarnations.get(peer.node.as_str()).copied().unwrap_or(0);
        }
        (peers, next)
    }

    fn note_incarnation(&self, peer: &Name, incarnation: u64) {
        let mut incarnations = self.0.incarnations.lock();
        if incarnations.len() >= MAX_INCARNATIONS {
            incarnations.clear();
        }
        let before = incarnations.insert(peer.clone(), incarnation);
        drop(incarnations);
        if let Some(before) = before.filter(|b| *b != incarnation) {
            tracing::info!(%peer, before, now = incarnation, "the peer was restarted: it is another incarnation");
        }
    }

    /// Answers a peer's call.
    pub(crate) async fn accept(
        &self,
        request: v1::ConnectRequest,
        caller: &Caller,
    ) -> Result<v1::ConnectResponse, tonic::Status> {
        let their_number = request.link;
        if self.0.drain.is_under_way() {
            let why = format!("node {} is draining: it takes no new links, for it is about to leave", self.0.me.node);
            return Err(tonic::Status::unavailable(why));
        }
        let (info, fabric, offer) = self.check(request, caller)?;
        let verdict = self.0.peers.lock().incoming(&info.name, fabric);
        let (attempt, wait) = match verdict {
            Verdict::Accept(attempt, wait) => (attempt, wait),
            Verdict::TurnAway => {
                let me = &self.0.me.node;
                let why = format!("node {me} calls node {} at this moment, and its name is the smaller one", info.name);
                return Err(tonic::Status::aborted(why));
            }
        };
        self.act(Some(wait));
        // A task of its own, so that a caller that hangs up does not leave the link half recorded.
        let links = self.clone();
        let accepting = tokio::spawn(async move { links.accept_as(attempt, info, fabric, offer, their_number).await });
        accepting.await.unwrap_or_else(|_| Err(tonic::Status::internal("the sidecar is stopping")))
    }

    fn check(
        &self,
        request: v1::ConnectRequest,
        caller: &Caller,
    ) -> Result<(PeerInfo, FabricKind, Offer), tonic::Status> {
        let Identity { node, .. } = &self.0.me;
        let name = Name::new(&request.node).map_err(|e| tonic::Status::invalid_argument(format!("node: {e}")))?;
        if request.protocol_version != PROTOCOL_VERSION {
            return Err(tonic::Status::failed_precondition(format!(
                "node {name} speaks version {} of the message protocol, node {node} speaks {PROTOCOL_VERSION}: run the same \
                 release on both",
                request.protocol_version
            )));
        }
        if name == *node {
            let why = format!("two sidecars have the name {node}: give one of them another --node");
            return Err(tonic::Status::invalid_argument(why));
        }
        if !request.to.is_empty() && request.to != node.as_str() {
            let why = format!("this is node {node}, not {}: two sidecars advertise the same address", request.to);
            return Err(tonic::Status::failed_precondition(why));
        }
        let Some(Kind(fabric)) = Kind::of(request.fabric()) else {
            return Err(tonic::Status::invalid_argument(format!("fabric {} is none that is known", request.fabric)));
        };
        let refused = |why| choice::refusal(Code::FailedPrecondition, fabric, why);
        self.0.me.agree(fabric).map_err(refused)?;
        if request.receive_slots == 0 {
            return Err(tonic::Status::invalid_argument("receive_slots is 0; at least 1 is needed"));
        }
        let v1::ConnectRequest { incarnation, receive_slots, offer, passed_over, .. } = request;
        let passed_over = choice::from_message(&passed_over);
        let vouches = self.0.security.vouches(name.as_str(), caller);
        if let Some(why) = self.belongs_to_another(&name, &vouches) {
            return Err(tonic::Status::permission_denied(why));
        }
        Ok((PeerInfo { name, incarnation, receive_slots, vouches, passed_over }, fabric, Offer(offer)))
    }

    /// Returns the reason why a caller with this proof may not call as that node: the call would end a link that was
    /// made with more proof. `None`: it may.
    fn belongs_to_another(&self, name: &Name, vouches: &Vouches) -> Option<String> {
        let made = self.0.made.lock();
        let keeps = made.values().any(|made| made.peer == *name && !vouches.covers(&made.vouches));
        keeps.then(|| {
            let why = vouches.why_not();
            format!("node {name} has a link here already, and this one may not take its place: {why}; give it another --node")
        })
    }

    async fn accept_as(
        &self,
        attempt: Attempt,
        info: PeerInfo,
        fabric: FabricKind,
        offer: Offer,
        their_number: u32,
    ) -> Result<v1::ConnectResponse, tonic::Status> {
        let LinksShared { me, engine, .. } = &*self.0;
        let (peer, vouches) = (info.name.clone(), info.vouches.clone());
        self.note_incarnation(&peer, info.incarnation);
        match engine.accept_link(info, fabric, offer).await {
            Ok((link, offer, receive_slots)) => {
                self.0.peers.lock().accepted(&peer, attempt, link);
                let made = Made { peer, number_at_peer: their_number, vouches };
                self.0.made.lock().insert(link, made);
                Ok(v1::ConnectResponse {
                    protocol_version: PROTOCOL_VERSION,
                    node: me.node.to_string(),
                    incarnation: me.incarnation,
                    fabric: v1::Fabric::from(Kind(fabric)).into(),
                    offer: offer.0,
                    receive_slots,
                    link: link.0,
                })
            }
            Err(e) => {
                let why = format!("node {} cannot take up the {fabric} link: {e}", me.node);
                let action = {
                    let mut peers = self.0.peers.lock();
                    peers.pass_over(&peer, attempt, fabric, &why);
                    peers.accept_failed(&peer, attempt, why.clone())
                };
                self.act(action);
                Err(choice::refusal(Code::Unavailable, fabric, why))
            }
        }
    }
}

/// Converts a fabric between its type and its message.
pub(crate) struct Kind(pub(crate) FabricKind);

impl Kind {
    pub(crate) fn of(fabric: v1::Fabric) -> Option<Kind> {
        u8::try_from(i32::from(fabric)).ok().and_then(FabricKind::from_wire).map(Kind)
    }
}

impl From<Kind> for v1::Fabric {
    fn from(kind: Kind) -> v1::Fabric {
        // The numbers are the same; a test checks that.
        v1::Fabric::try_from(i32::from(kind.0 as u8)).unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "links_tests.rs"]
mod tests;
