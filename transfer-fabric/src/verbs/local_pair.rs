//! Two queue pairs of one device that are connected to each other. They serve to try out the device, and for its
//! atomic operations on own memory.

use super::device::Device;
use super::device_error;
use std::time::{Duration, Instant};
use transfer_core::fabric::FabricError;
use transfer_verbs::{Completion, CompletionQueue, ProtectionDomain, QueuePair, ReadyToSend};

/// Both ends, ready to send. `asks` posts the operations, and `answers` is kept to answer them.
pub(super) struct LocalPair {
    pub(super) asks: QueuePair<ReadyToSend>,
    pub(super) answers: QueuePair<ReadyToSend>,
}

impl LocalPair {
    pub(super) fn new(
        device: &Device,
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        max_send: u32,
    ) -> Result<LocalPair, FabricError> {
        let step = "connecting a queue pair to one of the same device";
        let make = || {
            let queue_pair = device.queue_pair(domain, queue, max_send, 1)?;
            queue_pair.init(&device.init_attributes()).map_err(device_error(step))
        };
        let (asks, answers) = (make()?, make()?);
        let ends = [device.endpoint(asks.number(), 1), device.endpoint(answers.number(), 2)];
        let connect = |queue_pair: QueuePair<_>, own: usize| {
            let peer = &ends[1 - own];
            let ready = queue_pair.ready_to_receive(&device.receive_attributes(peer)).map_err(device_error(step))?;
            let attributes = device.send_attributes(ends[own].packet_number, peer.read_depth);
            ready.ready_to_send(&attributes).map_err(device_error(step))
        };
        Ok(LocalPair { asks: connect(asks, 0)?, answers: connect(answers, 1)? })
    }
}

/// Waits up to 5 s for the next completion.
pub(super) fn wait(queue: &CompletionQueue) -> Result<Completion, FabricError> {
    let start = Instant::now();
    let mut completion = [Completion::EMPTY];
    loop {
        let polled = queue.poll(&mut completion).map_err(device_error("polling a completion queue"))?;
        if polled > 0 {
            return Ok(completion[0]);
        }
        if start.elapsed() > Duration::from_secs(5) {
            let why = "nothing completed within 5 s".to_owned();
            return Err(FabricError::Device { what: "trying the device", why });
        }
        std::thread::yield_now();
    }
}
