//! Completion queues that cannot overrun: each has room for all that its queue pairs can have under way, or another one is made.

use super::device_error;
use transfer_core::fabric::FabricError;
use transfer_verbs::{CompletionChannel, CompletionQueue, Context};

/// How much of one queue is spoken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    capacity: u32,
    spoken_for: u32,
}

impl Room {
    fn take(&mut self, need: u32) -> bool {
        let fits = need <= self.capacity - self.spoken_for;
        if fits {
            self.spoken_for += need;
        }
        fits
    }

    fn give_back(&mut self, need: u32) {
        self.spoken_for = self.spoken_for.saturating_sub(need);
    }
}

/// The completion queues of one fabric.
#[derive(Debug)]
pub(super) struct Queues {
    capacity: u32,
    queues: Vec<(CompletionQueue, Room)>,
}

impl Queues {
    /// Each will have room for `capacity` completions, as far as the device has.
    pub(super) fn new(capacity: u32, context: &Context) -> Queues {
        Queues { capacity: capacity.min(context.limits().max_cqe), queues: Vec::new() }
    }

    /// Sets room for `need` completions aside, in the queue with this number.
    pub(super) fn take(
        &mut self,
        need: u32,
        context: &Context,
        channel: &CompletionChannel,
    ) -> Result<(usize, CompletionQueue), FabricError> {
        for (at, (queue, room)) in self.queues.iter_mut().enumerate() {
            if room.take(need) {
                return Ok((at, queue.clone()));
            }
        }
        let mut room = Room { capacity: self.capacity, spoken_for: 0 };
        if !room.take(need) {
            let why = format!(
                "one link needs {need} entries, and a queue of {} has {}",
                context.device_name(),
                room.capacity
            );
            return Err(FabricError::Device { what: "making a completion queue", why });
        }
        let queue = CompletionQueue::new(context, self.capacity, Some(channel));
        let queue = queue.map_err(device_error("making a completion queue"))?;
        self.queues.push((queue.clone(), room));
        Ok((self.queues.len() - 1, queue))
    }

    /// What was set aside is free: its queue pair is gone, and what it had left in the queue was taken out.
    pub(super) fn give_back(&mut self, number: usize, need: u32) {
        if let Some((_, room)) = self.queues.get_mut(number) {
            room.give_back(need);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn get(&self, number: usize) -> Option<&CompletionQueue> {
        self.queues.get(number).map(|(queue, _)| queue)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &CompletionQueue> {
        self.queues.iter().map(|(queue, _)| queue)
    }

    /// How many entries are spoken for.
    #[cfg(test)]
    pub(super) fn spoken_for(&self) -> u32 {
        self.queues.iter().map(|(_, room)| room.spoken_for).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_more_is_given_than_there_is(needs in proptest::collection::vec(1_u32..400, 0..60), capacity in 1_u32..1000) {
            let mut room = Room { capacity, spoken_for: 0 };
            let mut given = Vec::new();
            for (i, need) in needs.into_iter().enumerate() {
                if room.take(need) {
                    given.push(need);
                } else {
                    prop_assert!(given.iter().sum::<u32>() + need > capacity);
                }
                if i % 3 == 2 && !given.is_empty() {
                    room.give_back(given.remove(0));
                }
                prop_assert_eq!(room.spoken_for, given.iter().sum::<u32>());
                prop_assert!(room.spoken_for <= capacity);
            }
        }
    }
}
