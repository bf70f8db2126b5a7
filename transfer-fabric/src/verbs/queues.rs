//! Completion queues that cannot overrun. Each has room for everything that its queue pairs can have in flight; if
//! there is no room, another queue is made.

use super::device_error;
use transfer_core::fabric::FabricError;
use transfer_verbs::{CompletionChannel, CompletionQueue, Context};

/// The reserved room of one queue.
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
    /// Makes no queue yet. Each will have room for `capacity` completions, or for as many as the device allows.
    pub(super) fn new(capacity: u32, context: &Context) -> Queues {
        Queues { capacity: capacity.min(context.limits().max_cqe), queues: Vec::new() }
    }

    /// Reserves room for `need` completions. Returns the number of the queue, and the queue.
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

    /// Frees reserved room. The queue pair is gone, and the completions that it had left in the queue were taken out.
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

    /// Returns the number of reserved entries.
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
        fn reserved_room_never_exceeds_the_capacity(needs in proptest::collection::vec(1_u32..400, 0..60), capacity in 1_u32..1000) {
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
