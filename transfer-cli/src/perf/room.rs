//! The places of a send queue: what is in flight, and which of it completes.

use super::terms::Setup;

/// Where the number of the queue pair begins in the id of a work request.
const PAIR_SHIFT: u32 = 48;

/// The work requests in flight of one queue pair.
#[derive(Debug, Clone)]
pub(super) struct Room {
    depth: u64,
    every: u64,
    posted: u64,
    done: u64,
    /// The last one that will complete.
    signaled: u64,
}

impl Room {
    pub(super) fn new(setup: &Setup) -> Room {
        Room { depth: setup.depth.into(), every: setup.signal_every.into(), posted: 0, done: 0, signaled: 0 }
    }

    /// How many more may be posted.
    pub(super) fn free(&self) -> u64 {
        self.depth - (self.posted - self.done)
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.posted == self.done
    }

    /// Whether the last one that was posted will complete.
    pub(super) fn ends_signaled(&self) -> bool {
        self.posted == self.signaled
    }

    /// Takes a place: its number, and whether it is to complete.
    pub(super) fn take(&mut self, last: bool) -> (u64, bool) {
        self.posted += 1;
        // Of any `depth` requests in a row one completes, because `every` is no larger.
        let signaled = last || self.posted.is_multiple_of(self.every);
        if signaled {
            self.signaled = self.posted;
        }
        (self.posted, signaled)
    }

    /// A completion stands for all before it.
    fn complete(&mut self, number: u64) -> u64 {
        let count = number.saturating_sub(self.done);
        self.done += count;
        count
    }
}

/// The id of a work request: its queue pair and its place.
pub(super) fn id(pair: usize, place: u64) -> u64 {
    (pair as u64) << PAIR_SHIFT | place
}

/// Takes note of a completion. Returns its queue pair, and for how many requests it stands.
pub(super) fn complete(rooms: &mut [Room], id: u64) -> (usize, u64) {
    let pair = (id >> PAIR_SHIFT) as usize;
    (pair, rooms[pair].complete(id & ((1 << PAIR_SHIFT) - 1)))
}

#[cfg(test)]
mod tests {
    use super::super::terms::tests::setup;
    use super::super::terms::{Kind, Measure, Verb};
    use super::{PAIR_SHIFT, Room, complete};

    fn room(depth: u32, every: u32) -> Room {
        let mut setup = setup(Verb::Write, Measure::Bw, Kind::RC);
        (setup.depth, setup.signal_every) = (depth, every);
        Room::new(&setup)
    }

    #[test]
    fn full_queue_always_has_a_completion_to_wait_for() {
        for (depth, every) in [(1, 1), (4, 3), (5, 5), (128, 100)] {
            let mut room = room(depth, every);
            for _ in 0..1000 {
                while room.free() > 0 {
                    room.take(false);
                }
                assert!(room.signaled > room.done, "{depth} {every}");
                let number = room.signaled;
                assert!(room.complete(number) > 0);
            }
        }
    }

    #[test]
    fn completion_stands_for_those_before_it() {
        let mut rooms = [room(8, 4), room(8, 4)];
        (0..6).for_each(|_| assert!(rooms[1].take(false).0 > 0));
        assert!(!rooms[1].ends_signaled());
        assert_eq!(rooms[1].take(true), (7, true));
        assert_eq!(complete(&mut rooms, 1 << PAIR_SHIFT | 4), (1, 4));
        assert_eq!((rooms[1].free(), rooms[1].is_idle()), (5, false));
        assert_eq!(complete(&mut rooms, 1 << PAIR_SHIFT | 7), (1, 3));
        assert!(rooms[1].is_idle() && rooms[1].ends_signaled() && rooms[0].is_idle());
    }
}
