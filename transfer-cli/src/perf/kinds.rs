//! Queue pairs of the three kinds behind one interface.

use super::error::PerfError;
use super::message::Endpoint;
use super::terms::{Atomic, Kind, Setup, Verb};
use transfer_verbs::choose::Chosen;
use transfer_verbs::{
    AddressHandle, Data, Datagram, DatagramAttributes, DatagramRequest, Destination, Element, Gid, Init,
    InitAttributes, Mtu, ProtectionDomain, QueuePair, QueuePairOptions, ReadyToSend, ReceiveAttributes, ReceiveList,
    Reliable, RemoteAccess, RemoteKey, Reset, SendAttributes, SendKind, SendList, SendRequest, Transport, Unreliable,
    UnreliableAttributes, UnreliableKind, UnreliableRequest,
};

/// The wait for an acknowledgement and its repetitions, as perftest's: 67 ms, and seven tries.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 6;
/// The wait of a sender that finds no receive: 31 ms, so that a receiver that was not scheduled for a while does not
/// end the test.
pub(super) const RECEIVER_NOT_READY: u8 = 23;
/// Every queue pair for datagrams has this key.
pub(super) const QUEUE_KEY: u32 = 0x1111_1111;

/// A work request.
pub(super) struct Work<'a> {
    /// Its id.
    pub(super) id: u64,
    /// Whether it completes when it succeeds.
    pub(super) signaled: bool,
    /// The bytes of a SEND or WRITE.
    pub(super) data: Data<'a>,
    /// The place for the result of a READ or an atomic operation.
    pub(super) into: Element,
    /// What a compare-and-swap expects and writes; the second is what FETCH_ADD adds.
    pub(super) words: (u64, u64),
}

/// Queue pairs that are not connected.
pub(super) trait Unconnected {
    /// Their numbers.
    fn numbers(&self) -> Vec<u32>;

    /// Connects each to the peer's of the same place.
    fn connect(self: Box<Self>, route: &PathSetup<'_>, peers: &[Endpoint]) -> Result<Box<dyn Ends>, PerfError>;
}

/// Queue pairs that send and receive.
pub(super) trait Ends {
    /// Adds a work request to the next list.
    fn push(&mut self, pair: usize, work: &Work<'_>);

    /// Posts the list.
    fn post(&mut self, pair: usize) -> Result<(), PerfError>;

    /// Posts receives.
    fn post_receives(&mut self, pair: usize, list: &mut ReceiveList) -> Result<(), PerfError>;
}

/// What connecting needs of this end.
pub(super) struct PathSetup<'a> {
    /// The port.
    pub(super) chosen: &'a Chosen,
    /// The domain of all objects.
    pub(super) domain: &'a ProtectionDomain,
    /// The largest packet that the test allows.
    pub(super) mtu: Option<u32>,
    /// The number of the first packet of each queue pair here.
    pub(super) packet_number: u32,
}

impl PathSetup<'_> {
    fn destination(&self, peer: &Endpoint) -> Destination {
        let gid_index = self.chosen.gid.as_ref().and_then(|gid| u8::try_from(gid.index).ok()).unwrap_or_default();
        // A GID is needed on Ethernet alone; in a subnet of InfiniBand the LID is enough.
        let gid = peer.gid.filter(|_| self.chosen.gid.is_some()).map(Gid);
        Destination { gid, gid_index, lid: peer.lid, ..Destination::default() }
    }

    fn path_mtu(&self, peer: &Endpoint) -> Mtu {
        let own = self.chosen.port.mtu_active.len_bytes();
        let least = own.min(peer.mtu).min(self.mtu.unwrap_or(u32::MAX));
        Mtu::from_len_bytes(least).unwrap_or(Mtu::B256)
    }
}

/// Makes the queue pairs of a test, in INIT.
pub(super) fn make(
    setup: &Setup,
    chosen: &Chosen,
    domain: &ProtectionDomain,
    options: &QueuePairOptions,
) -> Result<Box<dyn Unconnected>, PerfError> {
    Ok(match setup.kind {
        Kind::RC => Box::new(Fresh::<Reliable>::make(setup, chosen, domain, options, operation(setup))?),
        Kind::UC => Box::new(Fresh::<Unreliable>::make(setup, chosen, domain, options, setup.verb == Verb::Write)?),
        Kind::UD => Box::new(Fresh::<Datagram>::make(setup, chosen, domain, options, ())?),
    })
}

/// Uses reliable queue pairs that were connected by other means.
pub(super) fn connected(setup: &Setup, pairs: Vec<QueuePair<ReadyToSend>>, peers: &[Endpoint]) -> Box<dyn Ends> {
    let peers = peers.iter().map(Remote::of).collect();
    Box::new(Ready::<Reliable> { pairs, peers, list: SendList::new(), operation: operation(setup) })
}

/// The operation of a reliable queue pair.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
}

fn operation(setup: &Setup) -> Operation {
    match (setup.verb, setup.atomic) {
        (Verb::Send, _) => Operation::Send,
        (Verb::Write, _) => Operation::Write,
        (Verb::Read, _) => Operation::Read,
        (Verb::Atomic, Atomic::FetchAndAdd) => Operation::FetchAdd,
        (Verb::Atomic, Atomic::CmpAndSwap) => Operation::CompareSwap,
    }
}

/// The operations that a peer may do in a test.
pub(super) fn access(verb: Verb) -> RemoteAccess {
    RemoteAccess { write: verb == Verb::Write, read: verb == Verb::Read, atomic: verb == Verb::Atomic }
}

/// The peer's memory.
#[derive(Debug, Clone, Copy)]
struct Remote {
    address: u64,
    key: RemoteKey,
}

impl Remote {
    fn of(peer: &Endpoint) -> Remote {
        Remote { address: peer.address, key: RemoteKey::from_peer(peer.key) }
    }
}

/// The peer of a datagram.
#[derive(Debug)]
struct Addressee {
    handle: AddressHandle,
    queue_pair: u32,
    queue_key: u32,
}

/// What differs from kind to kind.
trait Wire: Transport + Sized {
    /// The operations that a test may use.
    type Operation: Copy + 'static;
    /// What a work request names of the peer.
    type Peer: 'static;

    fn init(pair: QueuePair<Reset, Self>, port: u8, access: RemoteAccess) -> Result<QueuePair<Init, Self>, PerfError>;

    fn connect(
        pair: QueuePair<Init, Self>,
        route: &PathSetup<'_>,
        peer: &Endpoint,
    ) -> Result<(QueuePair<ReadyToSend, Self>, Self::Peer), PerfError>;

    fn push(list: &mut SendList<Self>, operation: Self::Operation, peer: &Self::Peer, work: &Work<'_>);
}

impl Wire for Reliable {
    type Operation = Operation;
    type Peer = Remote;

    fn init(pair: QueuePair<Reset>, port: u8, access: RemoteAccess) -> Result<QueuePair<Init>, PerfError> {
        Ok(pair.init(&InitAttributes { port, pkey_index: 0, access })?)
    }

    fn connect(
        pair: QueuePair<Init>,
        route: &PathSetup<'_>,
        peer: &Endpoint,
    ) -> Result<(QueuePair<ReadyToSend>, Remote), PerfError> {
        let limits = route.chosen.context.limits();
        let most = |limit: u32| u8::try_from(limit).unwrap_or(u8::MAX);
        let pair = pair.ready_to_receive(&ReceiveAttributes {
            destination: route.destination(peer),
            queue_pair: peer.queue_pair,
            packet_number: peer.packet_number,
            path_mtu: route.path_mtu(peer),
            max_rd_atomic: most(limits.max_qp_rd_atom),
            min_rnr_timer: RECEIVER_NOT_READY,
        })?;
        let pair = pair.ready_to_send(&SendAttributes {
            packet_number: route.packet_number,
            timeout: TIMEOUT,
            retry_count: RETRIES,
            rnr_retry: RETRIES,
            max_rd_atomic: most(limits.max_qp_init_rd_atom).min(peer.answers),
        })?;
        Ok((pair, Remote::of(peer)))
    }

    fn push(list: &mut SendList, operation: Operation, peer: &Remote, work: &Work<'_>) {
        let Remote { address, key } = *peer;
        let Work { id, signaled, data, into, words } = *work;
        let kind = match operation {
            Operation::Send => SendKind::Send { data, immediate: None },
            Operation::Write => SendKind::Write { data, address, key, immediate: None },
            Operation::Read => SendKind::Read { into: &[into], address, key },
            Operation::FetchAdd => SendKind::FetchAdd { into, address, key, add: words.1 },
            Operation::CompareSwap => SendKind::CompareSwap { into, address, key, compare: words.0, swap: words.1 },
        };
        list.push(SendRequest { work_id: id, signaled, fence: false, kind });
    }
}

impl Wire for Unreliable {
    /// Whether it is a WRITE, and not a SEND.
    type Operation = bool;
    type Peer = Remote;

    fn init(
        pair: QueuePair<Reset, Unreliable>,
        port: u8,
        access: RemoteAccess,
    ) -> Result<QueuePair<Init, Unreliable>, PerfError> {
        Ok(pair.init(&InitAttributes { port, pkey_index: 0, access })?)
    }

    fn connect(
        pair: QueuePair<Init, Unreliable>,
        route: &PathSetup<'_>,
        peer: &Endpoint,
    ) -> Result<(QueuePair<ReadyToSend, Unreliable>, Remote), PerfError> {
        let pair = pair.ready_to_receive(&UnreliableAttributes {
            destination: route.destination(peer),
            queue_pair: peer.queue_pair,
            packet_number: peer.packet_number,
            path_mtu: route.path_mtu(peer),
        })?;
        Ok((pair.ready_to_send(route.packet_number)?, Remote::of(peer)))
    }

    fn push(list: &mut SendList<Unreliable>, writes: bool, peer: &Remote, work: &Work<'_>) {
        let Work { id, signaled, data, .. } = *work;
        let kind = match writes {
            true => UnreliableKind::Write { data, address: peer.address, key: peer.key, immediate: None },
            false => UnreliableKind::Send { data, immediate: None },
        };
        list.push(UnreliableRequest { work_id: id, signaled, kind });
    }
}

impl Wire for Datagram {
    type Operation = ();
    type Peer = Addressee;

    fn init(
        pair: QueuePair<Reset, Datagram>,
        port: u8,
        _: RemoteAccess,
    ) -> Result<QueuePair<Init, Datagram>, PerfError> {
        Ok(pair.init(&DatagramAttributes { port, pkey_index: 0, queue_key: QUEUE_KEY })?)
    }

    fn connect(
        pair: QueuePair<Init, Datagram>,
        route: &PathSetup<'_>,
        peer: &Endpoint,
    ) -> Result<(QueuePair<ReadyToSend, Datagram>, Addressee), PerfError> {
        let pair = pair.ready_to_receive()?.ready_to_send(route.packet_number)?;
        let handle = AddressHandle::new(route.domain, route.chosen.port.number, &route.destination(peer))?;
        Ok((pair, Addressee { handle, queue_pair: peer.queue_pair, queue_key: peer.queue_key }))
    }

    fn push(list: &mut SendList<Datagram>, (): (), peer: &Addressee, work: &Work<'_>) {
        let Work { id, signaled, data, .. } = *work;
        let Addressee { handle, queue_pair, queue_key } = peer;
        let (queue_pair, queue_key) = (*queue_pair, *queue_key);
        list.push(DatagramRequest { work_id: id, signaled, data, immediate: None, to: handle, queue_pair, queue_key });
    }
}

struct Fresh<T: Wire> {
    pairs: Vec<QueuePair<Init, T>>,
    operation: T::Operation,
}

impl<T: Wire> Fresh<T> {
    fn make(
        setup: &Setup,
        chosen: &Chosen,
        domain: &ProtectionDomain,
        options: &QueuePairOptions,
        operation: T::Operation,
    ) -> Result<Self, PerfError> {
        let make = |_| T::init(QueuePair::of_kind(domain, options)?, chosen.port.number, access(setup.verb));
        Ok(Fresh { pairs: (0..setup.queue_pairs).map(make).collect::<Result<_, _>>()?, operation })
    }
}

impl<T: Wire> Unconnected for Fresh<T> {
    fn numbers(&self) -> Vec<u32> {
        self.pairs.iter().map(QueuePair::number).collect()
    }

    fn connect(self: Box<Self>, route: &PathSetup<'_>, peers: &[Endpoint]) -> Result<Box<dyn Ends>, PerfError> {
        let ready = self.pairs.into_iter().zip(peers).map(|(pair, peer)| T::connect(pair, route, peer));
        let (pairs, peers) = ready.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        Ok(Box::new(Ready { pairs, peers, list: SendList::default(), operation: self.operation }))
    }
}

struct Ready<T: Wire> {
    pairs: Vec<QueuePair<ReadyToSend, T>>,
    peers: Vec<T::Peer>,
    list: SendList<T>,
    operation: T::Operation,
}

impl<T: Wire> Ends for Ready<T> {
    fn push(&mut self, pair: usize, work: &Work<'_>) {
        T::push(&mut self.list, self.operation, &self.peers[pair], work);
    }

    fn post(&mut self, pair: usize) -> Result<(), PerfError> {
        Ok(self.pairs[pair].post_send(&mut self.list)?)
    }

    fn post_receives(&mut self, pair: usize, list: &mut ReceiveList) -> Result<(), PerfError> {
        Ok(self.pairs[pair].post_receive(list)?)
    }
}
