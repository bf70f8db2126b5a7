//! Connecting the queue pairs by librdmacm.

use super::control::{MESSAGE_TIMEOUT, interrupted, timespec};
use super::error::PerfError;
use super::kinds::{RECEIVER_NOT_READY, access};
use super::message::Listener;
use super::terms::Verb;
use rustix::event::{PollFd, PollFlags, poll};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use transfer_verbs::choose::Chosen;
use transfer_verbs::cm::{ConnectParameters, ConnectRequest, Event, EventChannel, EventKind, Id};
use transfer_verbs::{QueuePair, ReadyToSend, Reset};

/// How long the search for an address or a route may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);
const RETRIES: u8 = 6;

/// Connected queue pairs, and what keeps them connected.
pub(super) struct Connections {
    pairs: Vec<QueuePair<ReadyToSend>>,
    _ids: Vec<Id>,
}

impl Connections {
    /// Takes the queue pairs out.
    pub(super) fn take_pairs(&mut self) -> Vec<QueuePair<ReadyToSend>> {
        std::mem::take(&mut self.pairs)
    }
}

/// A server's end, before its client connects.
pub(super) struct Listening {
    channel: EventChannel,
    listener: Id,
    token: u64,
}

impl Listening {
    /// Listens at a free port of the device's address.
    pub(super) fn new(chosen: &Chosen) -> Result<Listening, PerfError> {
        let ip = chosen.gid.as_ref().map(|gid| Ipv6Addr::from(gid.gid.0)).filter(|ip| !ip.is_unicast_link_local());
        let Some(ip) = ip else {
            return Err(failed("the GID of the port is no IP address; --gid-index takes another one"));
        };
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        let channel = EventChannel::new()?;
        let listener = Id::new(&channel)?;
        listener.listen(SocketAddr::new(ip, 0), 64)?;
        let token = RandomState::new().build_hasher().finish();
        Ok(Listening { channel, listener, token })
    }

    /// What the client needs.
    pub(super) fn listener(&self) -> Result<Listener, PerfError> {
        let address = self.listener.local_address().ok_or(failed("the listener has no address"))?;
        Ok(Listener { address, token: self.token })
    }

    /// Accepts as many connections as there are queue pairs, each for the one that it names.
    pub(super) fn accept(
        &self,
        pairs: Vec<QueuePair<Reset>>,
        chosen: &Chosen,
        verb: Verb,
    ) -> Result<Connections, PerfError> {
        let until = Instant::now() + MESSAGE_TIMEOUT;
        let mut waiting: Vec<Option<QueuePair<Reset>>> = pairs.into_iter().map(Some).collect();
        let mut accepted: Vec<Option<(Id, QueuePair<ReadyToSend>)>> = waiting.iter().map(|_| None).collect();
        let mut established = 0;
        while established < accepted.len() {
            let Event { kind, private_data, .. } = next(&self.channel, until)?;
            match kind {
                EventKind::ConnectRequest(ConnectRequest { id, .. }) => {
                    // A request that is dropped is rejected.
                    let Some(place) = self.place(&private_data) else { continue };
                    let Some(pair) = waiting.get_mut(place).and_then(Option::take) else { continue };
                    check_device(&id, chosen)?;
                    let parameters = parameters(pair.number(), chosen, Vec::new());
                    let pair = ready(&id, pair, chosen, verb)?;
                    id.accept(&parameters)?;
                    accepted[place] = Some((id, pair));
                }
                EventKind::Established(_) => established += 1,
                _ => return Err(failed(kind.words())),
            }
        }
        let (ids, pairs) = accepted.into_iter().flatten().unzip();
        Ok(Connections { pairs, _ids: ids })
    }

    /// The place of the queue pair that a request is for.
    fn place(&self, private_data: &[u8]) -> Option<usize> {
        let (token, rest) = private_data.split_first_chunk::<8>()?;
        let place = rest.first_chunk::<4>()?;
        (u64::from_be_bytes(*token) == self.token).then(|| u32::from_be_bytes(*place) as usize)
    }
}

/// Connects a client's queue pairs, one after the other.
pub(super) fn connect(
    listener: Listener,
    pairs: Vec<QueuePair<Reset>>,
    chosen: &Chosen,
    verb: Verb,
) -> Result<Connections, PerfError> {
    let until = Instant::now() + MESSAGE_TIMEOUT;
    let channel = EventChannel::new()?;
    let wanted = |wanted: fn(&EventKind) -> bool| {
        let Event { kind, .. } = next(&channel, until)?;
        if wanted(&kind) { Ok(()) } else { Err(failed(kind.words())) }
    };
    let mut connections = Connections { pairs: Vec::new(), _ids: Vec::new() };
    for (place, pair) in (0u32..).zip(pairs) {
        let id = Id::new(&channel)?;
        id.resolve_address(None, listener.address, RESOLVE_TIMEOUT)?;
        wanted(|kind| matches!(kind, EventKind::AddressResolved))?;
        check_device(&id, chosen)?;
        id.resolve_route(RESOLVE_TIMEOUT)?;
        wanted(|kind| matches!(kind, EventKind::RouteResolved))?;
        let private_data = [&listener.token.to_be_bytes()[..], &place.to_be_bytes()].concat();
        id.connect(&parameters(pair.number(), chosen, private_data))?;
        wanted(|kind| matches!(kind, EventKind::ConnectResponse(_)))?;
        connections.pairs.push(ready(&id, pair, chosen, verb)?);
        id.establish()?;
        connections._ids.push(id);
    }
    Ok(connections)
}

/// The error for queue pairs that are to be connected by librdmacm where nothing listens.
pub(super) fn not_listening() -> PerfError {
    failed("the server does not listen for it")
}

fn failed(why: &'static str) -> PerfError {
    PerfError::Connection { why }
}

/// A queue pair is of the device that was chosen, and so has to be its connection.
fn check_device(id: &Id, chosen: &Chosen) -> Result<(), PerfError> {
    match id.device() {
        Some((name, _)) if name == chosen.context.device_name() => Ok(()),
        _ => Err(failed("the way to the peer is through another device; --ib-dev takes that one")),
    }
}

fn parameters(queue_pair: u32, chosen: &Chosen, private_data: Vec<u8>) -> ConnectParameters {
    let limits = chosen.context.limits();
    let most = |limit: u32| u8::try_from(limit).unwrap_or(u8::MAX);
    ConnectParameters {
        queue_pair,
        responder_resources: most(limits.max_qp_rd_atom),
        initiator_depth: most(limits.max_qp_init_rd_atom),
        retry_count: RETRIES,
        rnr_retry: RETRIES,
        private_data,
    }
}

fn ready(id: &Id, pair: QueuePair<Reset>, chosen: &Chosen, verb: Verb) -> Result<QueuePair<ReadyToSend>, PerfError> {
    let limits = chosen.context.limits();
    let most = |limit: u32| u8::try_from(limit).unwrap_or(u8::MAX);
    let mut init = id.init_attributes()?;
    init.set_access(access(verb));
    let pair = pair.init_by(&init)?;
    let mut receive = id.ready_to_receive_attributes()?;
    receive.set_min_rnr_timer(RECEIVER_NOT_READY);
    receive.set_max_rd_atomic(most(limits.max_qp_rd_atom));
    let mut send = id.ready_to_send_attributes()?;
    send.set_max_rd_atomic(most(limits.max_qp_init_rd_atom));
    send.set_rnr_retry(RETRIES);
    Ok(pair.ready_to_receive_by(&receive)?.ready_to_send_by(&send)?)
}

fn next(channel: &EventChannel, until: Instant) -> Result<Event, PerfError> {
    loop {
        if let Some(event) = channel.next()? {
            return Ok(event);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed("the peer did not connect in time"));
        }
        poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&timespec(left))).map(drop).or_else(interrupted)?;
    }
}
