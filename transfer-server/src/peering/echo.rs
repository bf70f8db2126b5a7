//! Datagrams to and from other nodes: who may send them here, and where they go.
//!
//! Two nodes tell each other their queue pairs for datagrams by one call, which is authenticated as every other one is.
//! What it has told is kept for a while, so that a series of round trips measures datagrams alone.

use super::links::Links;
use crate::text;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, oneshot};
use tonic::{Code, Status};
use transfer_core::tensor::Name;
use transfer_fabric::verbs::datagrams::{DatagramEndpoint, DatagramError, Datagrams};
use transfer_proto::v1;
use transfer_verbs::{Gid, GidKind};
use v1::peering_client::PeeringClient;

/// The time-out of asking a node for its queue pair.
const ASK_DEADLINE: Duration = Duration::from_secs(5);

/// The time for which an answer to that is used. A node that has restarted has another queue pair.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// The longest part of a wrong name that is shown, in characters.
const LONGEST_NAME: usize = 128;

/// The most nodes whose queue pairs are kept.
const MAX_KNOWN: usize = 256;

/// The calls of each kind in which the kernel may look for a port at a time. Each has a thread.
const MAX_LOOKUPS: usize = 4;

/// The time for which a call waits for one of these threads.
const LOOKUP_DEADLINE: Duration = Duration::from_secs(2);

/// The datagrams of this node. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Echo(Arc<EchoShared>);

#[derive(Debug)]
struct EchoShared {
    links: Links,
    /// The queue pair, or the reason why there is none, which names the node.
    own: Result<Datagrams, String>,
    known: Mutex<HashMap<Name, Known>>,
    /// Peers that are admitted, and own requests. Neither kind takes the places of the other.
    admitting: Semaphore,
    sending: Semaphore,
}

/// What a node has answered.
#[derive(Debug, Clone)]
struct Known {
    endpoint: DatagramEndpoint,
    token: [u8; 16],
    /// When to ask again: after a while, or at once after a datagram that was lost.
    until: Instant,
}

impl Echo {
    pub(crate) fn new(links: Links, own: Result<Datagrams, String>) -> Echo {
        let [admitting, sending] = [(); 2].map(|()| Semaphore::new(MAX_LOOKUPS));
        Echo(Arc::new(EchoShared { links, own, known: Mutex::default(), admitting, sending }))
    }

    /// Admits a peer's queue pair.
    pub(super) async fn admit(&self, request: v1::EchoRequest) -> Result<v1::EchoResponse, Status> {
        let v1::EchoRequest { node, to, from } = request;
        let peer = Name::new(&node).map_err(|e| Status::invalid_argument(format!("node: {e}")))?;
        let me = &self.0.links.identity().node;
        if peer == *me {
            let why = format!("two sidecars have the name {me}: give one of them another --node");
            return Err(Status::invalid_argument(why));
        }
        if to != me.as_str() {
            let to = text::printable(&to, LONGEST_NAME);
            let why = format!("this is node {me}, not {to}: two sidecars advertise the same address");
            return Err(Status::failed_precondition(why));
        }
        let from = from_message(from).map_err(|why| Status::invalid_argument(format!("node {peer}: {why}")))?;
        let own = self.own()?;
        let admitted = self.blocking(&self.0.admitting, move || own.admit(peer.as_str(), &from)).await?;
        let (endpoint, token) = admitted.map_err(|e| self.refusal(&e))?;
        Ok(v1::EchoResponse { endpoint: Some(to_message(&endpoint)), token: token.to_vec() })
    }

    /// Sends a datagram to a node, and waits for its echo.
    pub(crate) async fn ping(&self, peer: &Name, timeout: Duration) -> Result<v1::PingResponse, Status> {
        let own = self.own()?;
        let kept = self.0.known.lock().get(peer).cloned();
        let mut unasked = None;
        let known = match kept {
            Some(known) if Instant::now() < known.until => known,
            // A node that is stopped does not answer calls either. The datagram shows whether its device does.
            Some(old) => match self.ask(peer, timeout).await {
                Err(why) if why.code() == Code::Unavailable => {
                    unasked = Some(why);
                    old
                }
                asked => asked?,
            },
            None => self.ask(peer, ASK_DEADLINE).await?,
        };
        let (took, from) = self.trip(own, peer, &known, timeout).await.map_err(|lost| {
            // It may have another queue pair by now, or may have forgotten this one.
            if let Some(known) = self.0.known.lock().get_mut(peer) {
                known.until = Instant::now();
            }
            match &unasked {
                Some(why) => Status::new(lost.code(), format!("{}; {}", lost.message(), why.message())),
                None => lost,
            }
        })?;
        Ok(v1::PingResponse {
            round_trip_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            fabric: v1::Fabric::Verbs.into(),
            from: Some(shown(&from)),
            to: Some(shown(&known.endpoint)),
            ..v1::PingResponse::default()
        })
    }

    async fn trip(
        &self,
        own: Datagrams,
        peer: &Name,
        to: &Known,
        timeout: Duration,
    ) -> Result<(Duration, DatagramEndpoint), Status> {
        let (tell, told) = oneshot::channel();
        let Known { endpoint, token, .. } = to.clone();
        // A caller that has hung up needs no answer.
        let answered = Box::new(move |took| drop(tell.send(took)));
        let sent = self.blocking(&self.0.sending, move || own.send(&endpoint, token, timeout, answered)).await?;
        let from = sent.map_err(|e| self.refusal(&e))?;
        match told.await {
            Ok(Ok(took)) => Ok((took, from)),
            Ok(Err(error)) => Err(self.refusal(&error)),
            Err(_) => {
                Err(Status::deadline_exceeded(format!("node {peer} has not echoed a datagram within {timeout:?}")))
            }
        }
    }

    /// Asks a node for its queue pair.
    async fn ask(&self, peer: &Name, patience: Duration) -> Result<Known, Status> {
        let late =
            |_| Status::unavailable(format!("node {peer} has not said within {patience:?} where it echoes datagrams"));
        let answer = tokio::time::timeout(patience.min(ASK_DEADLINE), self.call(peer)).await.map_err(late)??;
        let wrong = |why: String| Status::failed_precondition(format!("node {peer} has given a wrong answer: {why}"));
        let endpoint = from_message(answer.endpoint).map_err(wrong)?;
        let token = <[u8; 16]>::try_from(&answer.token[..]);
        let token = token.map_err(|_| wrong(format!("its token has {} bytes, 16 is right", answer.token.len())))?;
        let answered = Known { endpoint, token, until: Instant::now() + ASK_AGAIN };
        let mut known = self.0.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(peer.clone(), answered.clone());
        Ok(answered)
    }

    async fn call(&self, peer: &Name) -> Result<v1::EchoResponse, Status> {
        let own = self.own()?;
        let from = self.blocking(&self.0.sending, move || own.endpoint()).await?.map_err(|e| self.refusal(&e))?;
        let channel = self.0.links.channel_to(peer).await.map_err(Status::unavailable)?;
        let node = self.0.links.identity().node.to_string();
        let request = v1::EchoRequest { node, to: peer.to_string(), from: Some(to_message(&from)) };
        let answer = PeeringClient::new(channel).echo(request).await.map_err(|status| {
            let why = text::printable(&text::status(&status), 1024);
            match status.code() {
                Code::FailedPrecondition | Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => {
                    Status::failed_precondition(why)
                }
                _ => Status::unavailable(format!("node {peer}: {why}")),
            }
        })?;
        Ok(answer.into_inner())
    }

    fn own(&self) -> Result<Datagrams, Status> {
        self.0.own.clone().map_err(Status::failed_precondition)
    }

    /// Does what may block while the kernel looks for a port.
    async fn blocking<T: Send + 'static>(
        &self,
        places: &Semaphore,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let busy = || {
            Status::unavailable(format!("node {} looks for other ports at this moment", self.0.links.identity().node))
        };
        let place = tokio::time::timeout(LOOKUP_DEADLINE, places.acquire()).await.map_err(|_| busy())?;
        let _place = place.map_err(|_| busy())?;
        tokio::task::spawn_blocking(call).await.map_err(|_| Status::internal("the sidecar is stopping"))
    }

    fn refusal(&self, error: &DatagramError) -> Status {
        let why = format!("node {}: {error}", self.0.links.identity().node);
        match error {
            DatagramError::Peer(_) => Status::failed_precondition(why),
            DatagramError::TooMany => Status::resource_exhausted(why),
            _ => Status::unavailable(why),
        }
    }
}

const KINDS: [(v1::AddressKind, GidKind); 4] = [
    (v1::AddressKind::Infiniband, GidKind::InfiniBand),
    (v1::AddressKind::RoceV1, GidKind::RoceV1),
    (v1::AddressKind::RoceV2Ipv4, GidKind::RoceV2Ipv4),
    (v1::AddressKind::RoceV2Ipv6, GidKind::RoceV2Ipv6),
];

fn to_message(endpoint: &DatagramEndpoint) -> v1::DatagramEndpoint {
    let DatagramEndpoint { device, port, kind, gid, lid, queue_pair, queue_key } = endpoint.clone();
    let address_kind = KINDS.iter().find(|(_, known)| *known == kind).map_or(0, |(message, _)| i32::from(*message));
    let gid = if gid.is_zero() { Vec::new() } else { gid.0.to_vec() };
    v1::DatagramEndpoint { device, port: port.into(), address_kind, gid, lid: lid.into(), queue_pair, queue_key }
}

/// Converts an endpoint for people. They need no key.
fn shown(endpoint: &DatagramEndpoint) -> v1::DatagramEndpoint {
    v1::DatagramEndpoint { queue_key: 0, ..to_message(endpoint) }
}

fn from_message(message: Option<v1::DatagramEndpoint>) -> Result<DatagramEndpoint, String> {
    let message = message.ok_or("it tells no queue pair")?;
    let kind = KINDS.iter().find(|(known, _)| *known == message.address_kind());
    let kind = kind.ok_or_else(|| format!("address_kind is {}, 1 to 4 are known", message.address_kind))?.1;
    let v1::DatagramEndpoint { device, port, gid, lid, queue_pair, queue_key, .. } = message;
    let gid = match &gid[..] {
        [] => Gid::default(),
        bytes => Gid(bytes.try_into().map_err(|_| format!("its GID has {} bytes, 16 is right", bytes.len()))?),
    };
    let port = u8::try_from(port).map_err(|_| format!("its port is {port}, 1 to 255 would be right"))?;
    let lid = u16::try_from(lid).map_err(|_| format!("its LID is {lid}, at most 65535 would be right"))?;
    // The fabric checks the values themselves.
    Ok(DatagramEndpoint { device, port, kind, gid, lid, queue_pair, queue_key })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> DatagramEndpoint {
        DatagramEndpoint {
            device: "mlx5_0".to_owned(),
            port: 2,
            kind: GidKind::RoceV2Ipv4,
            gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]),
            lid: 3,
            queue_pair: 17,
            queue_key: 0x1234,
        }
    }

    #[test]
    fn endpoints_read_back() {
        for (_, kind) in KINDS {
            let endpoint = DatagramEndpoint { kind, ..example() };
            assert_eq!(from_message(Some(to_message(&endpoint))), Ok(endpoint));
        }
        let without = DatagramEndpoint { gid: Gid::default(), ..example() };
        assert_eq!(from_message(Some(to_message(&without))), Ok(without));
        assert_eq!(shown(&example()).queue_key, 0, "a key is for peers alone");
    }

    #[test]
    fn invalid_endpoints_are_named() {
        let refused = |change: fn(&mut v1::DatagramEndpoint)| {
            let mut message = to_message(&example());
            change(&mut message);
            from_message(Some(message)).unwrap_err()
        };
        assert!(from_message(None).unwrap_err().contains("no queue pair"));
        assert!(refused(|m| m.address_kind = 0).contains("address_kind is 0"));
        assert!(refused(|m| m.address_kind = 77).contains("address_kind is 77"));
        assert!(refused(|m| m.gid = vec![1; 15]).contains("15 bytes"));
        assert!(refused(|m| m.port = 256).contains("port is 256"));
        assert!(refused(|m| m.lid = 1 << 16).contains("LID is 65536"));
    }
}
