//! One end of a test: its device, memory, queues and queue pairs, first unconnected, then ready.

use super::cm::Connections;
use super::error::PerfError;
use super::kinds::{self, Ends, PathSetup, QUEUE_KEY, Unconnected, Work};
use super::memory::{Memory, swap};
use super::message::Endpoint;
use super::room::{self, Room};
use super::terms::{Kind, Setup, Verb};
use super::wait::Completions;
use transfer_verbs::choose::Chosen;
use transfer_verbs::{
    Data, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveList, Reset, SharedReceiveQueue,
    SharedReceiveQueueOptions,
};

/// An end whose queue pairs are not connected.
pub(super) struct Fresh {
    parts: Parts,
    stage: Stage,
    ends: Vec<Endpoint>,
}

enum Stage {
    /// In INIT, to be connected by what the ends tell each other.
    Told(Box<dyn Unconnected>),
    /// In RESET, to be connected by librdmacm.
    ByRdmaCm(Vec<QueuePair<Reset>>),
}

struct Parts {
    setup: Setup,
    chosen: Chosen,
    domain: ProtectionDomain,
    memory: Memory,
    sends: Completions,
    receives: Completions,
    shared: Option<SharedReceiveQueue>,
    packet_number: u32,
}

impl Fresh {
    /// Makes everything that this end needs.
    pub(super) fn new(setup: &Setup, chosen: &Chosen) -> Result<Fresh, PerfError> {
        let Chosen { context, port, .. } = chosen;
        setup.check()?;
        let mtu = port.mtu_active.len_bytes();
        if let Some(value) = setup.mtu.filter(|value| *value > mtu) {
            let (value, most) = (u64::from(value), u64::from(mtu));
            let why = "; the most is what the port carries";
            return Err(super::error::PlanError::Range { flag: "--mtu", value, least: 256, most, why }.into());
        }
        setup.check_path(port.max_message_bytes.into(), setup.mtu.unwrap_or(mtu))?;
        let domain = ProtectionDomain::new(context)?;
        let memory = Memory::new(&domain, setup)?;
        let sends = Completions::new(context, setup.depth * setup.queue_pairs, setup.events)?;
        let received = if setup.verb == Verb::Send { setup.receives } else { 1 };
        let receives = Completions::new(context, received * setup.queue_pairs, setup.events)?;
        let shared = setup.shared_receives.then(|| {
            let max_receive = setup.receives * setup.queue_pairs;
            SharedReceiveQueue::new(&domain, SharedReceiveQueueOptions { max_receive, max_receive_elements: 1 })
        });
        let shared = shared.transpose()?;
        let options = QueuePairOptions {
            send_queue: sends.queue().clone(),
            receive_queue: receives.queue().clone(),
            max_send: setup.depth,
            max_receive: if shared.is_some() { 0 } else { received },
            shared_receives: shared.clone(),
            max_send_elements: 1,
            max_receive_elements: 1,
            max_inline: setup.inline_bytes,
        };
        let stage = match setup.by_rdma_cm {
            true => {
                let make = |_| QueuePair::create(&domain, &options);
                Stage::ByRdmaCm((0..setup.queue_pairs).map(make).collect::<Result<_, _>>()?)
            }
            false => Stage::Told(kinds::make(setup, chosen, &domain, &options)?),
        };
        let numbers = match &stage {
            Stage::Told(pairs) => pairs.numbers(),
            Stage::ByRdmaCm(pairs) => pairs.iter().map(QueuePair::number).collect(),
        };
        // Any number will do; one that differs from test to test keeps late packets of an earlier one out.
        let packet_number = numbers.first().map_or(0, |number| number.wrapping_mul(0x9e37) & 0xff_ffff);
        let end = |(pair, queue_pair)| Endpoint {
            queue_pair,
            packet_number,
            lid: port.lid,
            gid: chosen.gid.as_ref().map(|gid| gid.gid.0),
            mtu,
            answers: u8::try_from(context.limits().max_qp_rd_atom).unwrap_or(u8::MAX),
            queue_key: QUEUE_KEY,
            address: memory.address(pair, setup.verb),
            key: memory.key(),
        };
        let ends = numbers.into_iter().enumerate().map(end).collect();
        let (setup, chosen) = (setup.clone(), chosen.clone());
        let parts = Parts { setup, chosen, domain, memory, sends, receives, shared, packet_number };
        Ok(Fresh { parts, stage, ends })
    }

    /// Its queue pairs, for the peer.
    pub(super) fn ends(&self) -> &[Endpoint] {
        &self.ends
    }

    /// Connects the queue pairs to those of the peer, of which there are as many. `by_rdma_cm` connects them if the
    /// set-up says so.
    pub(super) fn connect(
        self,
        peers: &[Endpoint],
        by_rdma_cm: impl FnOnce(Vec<QueuePair<Reset>>, &Chosen, Verb) -> Result<Connections, PerfError>,
    ) -> Result<Rig, PerfError> {
        let Fresh { parts, stage, .. } = self;
        let Parts { setup, chosen, domain, memory, sends, receives, shared, packet_number } = parts;
        let (ends, kept) = match stage {
            Stage::Told(pairs) => {
                let route = PathSetup { chosen: &chosen, domain: &domain, mtu: setup.mtu, packet_number };
                (pairs.connect(&route, peers)?, None)
            }
            Stage::ByRdmaCm(pairs) => {
                let mut connections = by_rdma_cm(pairs, &chosen, setup.verb)?;
                (kinds::connected(&setup, connections.take_pairs(), peers), Some(connections))
            }
        };
        let rooms = vec![Room::new(&setup); setup.queue_pairs as usize];
        let mut rig = Rig {
            ends,
            _kept: kept,
            memory,
            sends,
            receives,
            shared,
            rooms,
            reposts: Vec::new(),
            inline: Vec::new(),
            setup,
        };
        rig.post_first_receives()?;
        Ok(rig)
    }
}

/// An end that is ready.
pub(super) struct Rig {
    /// The set-up.
    pub(super) setup: Setup,
    /// Its memory.
    pub(super) memory: Memory,
    /// Completions of what it posts.
    pub(super) sends: Completions,
    /// Completions of receives.
    pub(super) receives: Completions,
    /// The places of each queue pair.
    pub(super) rooms: Vec<Room>,
    ends: Box<dyn Ends>,
    shared: Option<SharedReceiveQueue>,
    /// Receives that are to be posted again, for each queue that they are of.
    reposts: Vec<ReceiveList>,
    /// The bytes of messages that go inside their work requests.
    inline: Vec<u8>,
    _kept: Option<Connections>,
}

impl Rig {
    /// The number of queue pairs.
    pub(super) fn pairs(&self) -> usize {
        self.rooms.len()
    }

    /// Sets the bytes that leave inside work requests.
    pub(super) fn set_inline(&mut self, bytes: Vec<u8>) {
        self.inline = bytes;
    }

    /// Changes the last byte of the messages that leave.
    pub(super) fn mark(&mut self, pair: usize, size: usize, mark: u8) -> Result<(), PerfError> {
        if let Some(last) = self.inline.last_mut() {
            *last = mark;
        }
        self.memory.mark(pair, size, mark)
    }

    /// Adds a work request to the list of a queue pair, which has room. `number` counts those of this run.
    pub(super) fn push(&mut self, pair: usize, size: usize, number: u64, last: bool) -> Result<(), PerfError> {
        let (place, signaled) = self.rooms[pair].take(last);
        let source = [self.memory.source(pair, size)?];
        let inline = [&self.inline[..]];
        let data = if self.inline.is_empty() { Data::Gather(&source) } else { Data::Inline(&inline) };
        let into = self.memory.target(pair, size)?;
        let id = room::id(pair, place);
        self.ends.push(pair, &Work { id, signaled, data, into, words: swap(self.setup.atomic, number) });
        Ok(())
    }

    /// Posts the list.
    pub(super) fn post(&mut self, pair: usize) -> Result<(), PerfError> {
        self.ends.post(pair)
    }

    fn receives_messages(&self) -> bool {
        self.setup.verb == Verb::Send
    }

    fn post_first_receives(&mut self) -> Result<(), PerfError> {
        let queues = if self.shared.is_some() { 1 } else { self.pairs() };
        let each =
            if self.shared.is_some() { self.setup.receives * self.setup.queue_pairs } else { self.setup.receives };
        self.reposts = (0..queues).map(|_| ReceiveList::new()).collect();
        if self.receives_messages() {
            for queue in 0..queues {
                (0..each).try_for_each(|_| self.add_receive(queue))?;
                self.post_receives(queue)?;
            }
        }
        Ok(())
    }

    fn add_receive(&mut self, queue: usize) -> Result<(), PerfError> {
        let element = self.memory.receive(queue)?;
        self.reposts[queue].push(queue as u64, &[element]);
        Ok(())
    }

    /// Posts a receive again that has completed with this id, at the latest with several others.
    pub(super) fn receive_again(&mut self, id: u64) -> Result<(), PerfError> {
        let queue = (id as usize).min(self.reposts.len().saturating_sub(1));
        self.add_receive(queue)?;
        if self.reposts[queue].len() as u32 >= (self.setup.receives / 4).clamp(1, 32) {
            self.post_receives(queue)?;
        }
        Ok(())
    }

    fn post_receives(&mut self, queue: usize) -> Result<(), PerfError> {
        match &self.shared {
            Some(shared) => Ok(shared.post_receive(&mut self.reposts[queue])?),
            None => self.ends.post_receives(queue, &mut self.reposts[queue]),
        }
    }

    /// What may explain that nothing comes.
    pub(super) fn hint(&self) -> &'static str {
        match self.setup.kind {
            Kind::RC => "",
            Kind::UC | Kind::UD => ": what is lost is not repeated, RC repeats it",
        }
    }
}
