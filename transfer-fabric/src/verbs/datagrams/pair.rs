//! The queue pair, its memory, and its completions.

use super::super::device::Device;
use super::super::device_error;
use super::endpoint::{Route, USER_KEY};
use super::message::{LEN_BYTES, Message};
use crate::random;
use std::sync::Arc;
use transfer_core::fabric::FabricError;
use transfer_verbs::{
    Access, AddressHandle, Buffer, Completion, CompletionChannel, CompletionQueue, Data, Datagram, DatagramAttributes,
    DatagramRequest, Element, MemoryRegion, OutOfBounds, ProtectionDomain, QueuePair, QueuePairOptions,
    ROUTING_HEADER_BYTES, ReadyToSend, ReceiveList, SendList, VerbsError,
};

/// The receives and the datagrams on their way out. What arrives when no receive is posted, the device drops.
const RECEIVES: u32 = 64;
const SENDS: u32 = 64;

/// The completions that are taken together.
pub(super) const COMPLETIONS_PER_POLL: usize = 16;

/// Is set in the work id of a receive; the rest is its slot.
const RECEIVE: u64 = 1 << 32;

/// The queue pair does not work any more, and why.
#[derive(Debug)]
pub(super) struct Broken(pub(super) String);

impl From<VerbsError> for Broken {
    fn from(error: VerbsError) -> Broken {
        Broken(error.to_string())
    }
}

impl From<transfer_verbs::PostError> for Broken {
    fn from(error: transfer_verbs::PostError) -> Broken {
        Broken(error.to_string())
    }
}

impl From<OutOfBounds> for Broken {
    fn from(error: OutOfBounds) -> Broken {
        Broken(error.to_string())
    }
}

pub(super) struct Pair {
    pair: QueuePair<ReadyToSend, Datagram>,
    pub(super) queue: CompletionQueue,
    pub(super) channel: CompletionChannel,
    pub(super) key: u32,
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    receive_bytes: usize,
    free_sends: Vec<u32>,
    /// The ways of datagrams that have not left yet, by slot: a device may need them until then.
    leaving: Vec<Option<AddressHandle>>,
    receives: ReceiveList,
    sends: SendList<Datagram>,
    /// What a poll has found; `None`: no message.
    pub(super) arrived: Vec<Option<Message>>,
}

impl Pair {
    pub(super) fn new(device: &Device, domain: &ProtectionDomain) -> Result<Pair, FabricError> {
        let failed = "making a queue pair for datagrams";
        // A device may end a queue pair for which a datagram is too long, so the largest packet has to fit.
        let receive_bytes = ROUTING_HEADER_BYTES + device.port.mtu_max.len_bytes() as usize;
        let len_bytes = RECEIVES as usize * receive_bytes + SENDS as usize * LEN_BYTES;
        let buffer = Buffer::new(len_bytes).map_err(device_error("making memory for datagrams"))?;
        let access = Access { local_write: true, ..Access::default() };
        let region = MemoryRegion::register(domain, buffer.clone(), access);
        let region = region.map_err(device_error("registering memory for datagrams"))?;
        let channel = device.channel.clone();
        let queue = CompletionQueue::new(&device.context, RECEIVES + SENDS, Some(&channel));
        let queue = queue.map_err(device_error("making a completion queue for datagrams"))?;
        let options = QueuePairOptions {
            send_queue: queue.clone(),
            receive_queue: queue.clone(),
            shared_receives: None,
            max_send: SENDS,
            max_receive: RECEIVES,
            max_send_elements: 1,
            max_receive_elements: 1,
            max_inline: 0,
        };
        let [key, packet_number] = [u32::from_le_bytes(random::bytes()?), u32::from_le_bytes(random::bytes()?)];
        let key = key & USER_KEY;
        let attributes =
            DatagramAttributes { port: device.port.number, pkey_index: device.pkey_index(), queue_key: key };
        let pair = QueuePair::<_, Datagram>::of_kind(domain, &options).map_err(device_error(failed))?;
        let pair = pair.init(&attributes).map_err(device_error(failed))?;
        let pair = pair.ready_to_receive().map_err(device_error(failed))?;
        let pair = pair.ready_to_send(packet_number & 0xff_ffff).map_err(device_error(failed))?;
        let mut made = Pair {
            pair,
            queue,
            channel,
            key,
            buffer,
            region,
            receive_bytes,
            free_sends: (0..SENDS).collect(),
            leaving: vec![None; SENDS as usize],
            receives: ReceiveList::new(),
            sends: SendList::default(),
            arrived: Vec::with_capacity(COMPLETIONS_PER_POLL),
        };
        let posted = (0..RECEIVES).try_for_each(|slot| made.add_receive(slot)).and_then(|()| made.post());
        posted.map_err(|Broken(why)| FabricError::Device { what: failed, why })?;
        Ok(made)
    }

    pub(super) fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Takes completions, at most `most` of [`COMPLETIONS_PER_POLL`], and returns their number. What has arrived is in `arrived`.
    pub(super) fn poll(&mut self, most: u32) -> Result<usize, Broken> {
        self.arrived.clear();
        let mut batch = [Completion::EMPTY; COMPLETIONS_PER_POLL];
        let most = COMPLETIONS_PER_POLL.min(most as usize);
        let count = self.queue.poll(&mut batch[..most])?;
        for completion in &batch[..count] {
            let slot = completion.work_id as u32;
            match completion.result {
                Err(status) => return Err(Broken(format!("queue pair {}: {status}", completion.queue_pair))),
                Ok(done) if completion.work_id & RECEIVE != 0 => {
                    let message = self.read(slot, done.len_bytes)?;
                    self.arrived.push(message);
                    self.add_receive(slot)?;
                }
                Ok(_) => {
                    self.leaving[slot as usize] = None;
                    self.free_sends.push(slot);
                }
            }
        }
        Ok(count)
    }

    /// Copies a datagram out of its slot. Its bytes are looked at only in the copy.
    fn read(&self, slot: u32, len_bytes: u32) -> Result<Option<Message>, Broken> {
        if len_bytes as usize != ROUTING_HEADER_BYTES + LEN_BYTES {
            return Ok(None);
        }
        let mut bytes = [0; LEN_BYTES];
        self.buffer.read(self.receive_at(slot) + ROUTING_HEADER_BYTES, &mut bytes)?;
        Ok(Message::decode(&bytes))
    }

    /// Adds a datagram to those that are posted next. Returns whether there was room for it.
    pub(super) fn send(&mut self, to: &Route, message: &Message) -> Result<bool, Broken> {
        let Some(slot) = self.free_sends.pop() else { return Ok(false) };
        let at = RECEIVES as usize * self.receive_bytes + slot as usize * LEN_BYTES;
        self.buffer.write(at, &message.encode())?;
        self.leaving[slot as usize] = Some(to.handle.clone());
        let element = self.element(at, LEN_BYTES)?;
        self.sends.push(DatagramRequest {
            work_id: slot.into(),
            signaled: true,
            data: Data::Gather(&[element]),
            immediate: None,
            to: &to.handle,
            queue_pair: to.queue_pair,
            queue_key: to.queue_key,
        });
        Ok(true)
    }

    /// Posts all that was added.
    pub(super) fn post(&mut self) -> Result<(), Broken> {
        self.pair.post_receive(&mut self.receives)?;
        Ok(self.pair.post_send(&mut self.sends)?)
    }

    fn add_receive(&mut self, slot: u32) -> Result<(), Broken> {
        let element = self.element(self.receive_at(slot), self.receive_bytes)?;
        self.receives.push(RECEIVE | u64::from(slot), &[element]);
        Ok(())
    }

    fn receive_at(&self, slot: u32) -> usize {
        slot as usize * self.receive_bytes
    }

    fn element(&self, offset: usize, len_bytes: usize) -> Result<Element, Broken> {
        let size = self.region.len();
        Ok(self.region.element(offset, len_bytes).ok_or(OutOfBounds { offset, len_bytes, size })?)
    }
}
