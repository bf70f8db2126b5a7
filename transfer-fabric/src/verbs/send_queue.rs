//! The account of a link's send queue: what was posted, what has left, what has completed, and when to ring.
//!
//! Nothing is left to the device: it would take twice as much as asked for and then fail (docs/adr/0001), and its completions name only
//! some of the work requests. A request is *posted* when it is in the list that will leave, *rung* when it has left behind a doorbell.
//! The last request of each doorbell asks for a completion, its answer, and so does one in so many of a long list. So whatever has left
//! is followed by a request that will complete, and a full queue always has room again.

use std::collections::VecDeque;

/// A list as long as this leaves at once.
const LONG: u32 = 32;

/// A shorter one waits while so many doorbells have no answer: more comes while it waits, and then one doorbell and one completion
/// serve for all of it. A request that is alone leaves at once, and so does the one behind it.
const UNANSWERED: usize = 2;

/// The bits of a request's number; one more bit tells sends from receives.
pub(super) const NUMBER_BITS: u32 = 31;
const NUMBERS: u32 = (1 << NUMBER_BITS) - 1;

/// What is known of each request, oldest first.
#[derive(Debug)]
pub(super) struct SendQueue<E> {
    capacity: u32,
    signaled_every: u32,
    entries: VecDeque<E>,
    /// The number of the oldest entry.
    first: u32,
    /// So many of the entries have left.
    rung: u32,
    /// The number of the last request of each doorbell that has no answer.
    doorbells: VecDeque<u32>,
    unsignaled: u32,
}

/// How a request is to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) number: u32,
    /// It has to ask for a completion, though more may follow it.
    pub(super) signaled: bool,
}

impl<E> SendQueue<E> {
    pub(super) fn new(capacity: u32, signaled_every: u32) -> SendQueue<E> {
        SendQueue {
            capacity,
            signaled_every: signaled_every.clamp(1, capacity),
            entries: VecDeque::new(),
            first: 0,
            rung: 0,
            doorbells: VecDeque::new(),
            unsignaled: 0,
        }
    }

    /// Posted and not completed.
    pub(super) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Posted and not left.
    pub(super) fn waiting(&self) -> u32 {
        self.len() - self.rung
    }

    /// Left and not completed.
    pub(super) fn in_flight(&self) -> u32 {
        self.rung
    }

    /// Whether `more` fit, with `reserve` places left.
    pub(super) fn has_room(&self, more: u32, reserve: u32) -> bool {
        self.len().saturating_add(more).saturating_add(reserve) <= self.capacity
    }

    /// Takes a request in. The caller has looked for room.
    pub(super) fn post(&mut self, entry: E) -> Ticket {
        let number = self.first.wrapping_add(self.len()) & NUMBERS;
        self.entries.push_back(entry);
        self.unsignaled += 1;
        let signaled = self.unsignaled >= self.signaled_every;
        if signaled {
            self.unsignaled = 0;
        }
        Ticket { number, signaled }
    }

    /// The number of the last request that was posted. `None` where all have completed.
    pub(super) fn last(&self) -> Option<u32> {
        (!self.entries.is_empty()).then(|| self.first.wrapping_add(self.len() - 1) & NUMBERS)
    }

    /// The number of the last request of that kind that has not completed.
    pub(super) fn last_where(&self, is: impl Fn(&E) -> bool) -> Option<u32> {
        let at = self.entries.iter().rposition(is)?;
        Some(self.first.wrapping_add(at as u32) & NUMBERS)
    }

    /// Whether what is waiting is to leave now.
    pub(super) fn should_ring(&self) -> bool {
        self.waiting() > 0 && (self.doorbells.len() < UNANSWERED || self.waiting() >= LONG)
    }

    /// The first `taken` of what is waiting have left, the last of them signaled. All of them, as a rule; what the device did not take
    /// is for [`SendQueue::forget_waiting`].
    pub(super) fn rang(&mut self, taken: u32) {
        let taken = taken.min(self.waiting());
        if taken == 0 {
            return;
        }
        self.rung += taken;
        self.unsignaled = 0;
        self.doorbells.push_back(self.first.wrapping_add(self.rung - 1) & NUMBERS);
    }

    /// Drops what has not left. It will not.
    pub(super) fn forget_waiting(&mut self) {
        self.entries.truncate(self.rung as usize);
        self.unsignaled = 0;
    }

    /// How many requests are not younger than this one; `None` for a number that is not in flight.
    pub(super) fn up_to(&self, number: u32) -> Option<u32> {
        let distance = number.wrapping_sub(self.first) & NUMBERS;
        (distance < self.rung).then_some(distance + 1)
    }

    /// Takes out the oldest request, which has completed.
    pub(super) fn pop(&mut self) -> Option<E> {
        if self.rung == 0 {
            return None;
        }
        if self.doorbells.front() == Some(&self.first) {
            self.doorbells.pop_front();
        }
        self.first = self.first.wrapping_add(1) & NUMBERS;
        self.rung -= 1;
        self.entries.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn complete(queue: &mut SendQueue<u32>, number: u32) -> Vec<u32> {
        let count = queue.up_to(number).unwrap();
        (0..count).map(|_| queue.pop().unwrap()).collect()
    }

    #[test]
    fn the_last_of_a_kind_is_found_while_it_is_under_way() {
        let mut queue = SendQueue::new(512, 64);
        let [_, even, _] = [1, 2, 3].map(|n| queue.post(n).number);
        queue.rang(3);
        let later = queue.post(5).number;
        assert_eq!(queue.last_where(|n| n % 2 == 0), Some(even));
        assert_eq!((queue.last_where(|n| *n == 5), queue.last_where(|n| *n > 5)), (Some(later), None));
        complete(&mut queue, even);
        assert_eq!(queue.last_where(|n| n % 2 == 0), None, "it has completed");
    }

    #[test]
    fn a_lone_request_leaves_at_once_and_a_stream_is_gathered() {
        let mut queue = SendQueue::new(512, 64);
        assert!(!queue.should_ring());
        let first = queue.post(1);
        assert!(queue.should_ring());
        queue.rang(1);
        let second = queue.post(2);
        assert!(queue.should_ring());
        queue.rang(1);
        for n in 3..3 + LONG - 1 {
            queue.post(n);
            assert!(!queue.should_ring(), "{n}");
        }
        let last = queue.post(99);
        assert!(queue.should_ring(), "a long list does not wait");
        queue.rang(queue.waiting());
        queue.post(100);
        assert!(!queue.should_ring());
        assert_eq!(complete(&mut queue, first.number), [1]);
        assert!(!queue.should_ring());
        assert_eq!(complete(&mut queue, second.number), [2]);
        assert!(queue.should_ring());
        assert_eq!(complete(&mut queue, last.number).len(), LONG as usize);
        assert_eq!((queue.len(), queue.in_flight(), queue.waiting()), (1, 0, 1));
    }

    /// A sender that keeps `window` requests in flight, and a peer that answers each doorbell as a whole.
    fn ratio(window: u32) -> f64 {
        let mut queue = SendQueue::new(512, 64);
        let (mut posted, mut bells) = (0, 0);
        let mut answers = VecDeque::new();
        while posted < 100_000 {
            while queue.len() < window {
                queue.post(posted);
                posted += 1;
            }
            if queue.should_ring() {
                queue.rang(queue.waiting());
                bells += 1;
                answers.push_back(queue.last().unwrap());
            } else {
                let number = answers.pop_front().expect("a stream that stands still");
                complete(&mut queue, number);
            }
        }
        f64::from(bells) / f64::from(posted)
    }

    #[test]
    fn a_stream_rings_once_for_sixteen_requests_or_more() {
        for window in [32, 33, 48, 64, 65, 100, 128, 256, 500] {
            let ratio = ratio(window);
            assert!(ratio <= 1.0 / 16.0, "{window} in flight: a doorbell for each {} requests", 1.0 / ratio);
        }
    }

    #[test]
    fn numbers_come_round() {
        let mut queue = SendQueue::new(16, 8);
        queue.first = NUMBERS - 1;
        let tickets: Vec<Ticket> = (0..4).map(|n| queue.post(n)).collect();
        assert_eq!(tickets.iter().map(|t| t.number).collect::<Vec<_>>(), [NUMBERS - 1, NUMBERS, 0, 1]);
        queue.rang(3);
        assert_eq!(queue.up_to(1), None, "it has not left");
        assert_eq!(complete(&mut queue, 0), [0, 1, 2]);
        assert_eq!(queue.up_to(0), None, "it has completed");
        queue.forget_waiting();
        assert_eq!((queue.len(), queue.last()), (0, None));
    }

    proptest! {
        /// However it is posted, rung and completed: the account is that of a device that completes in order, which is never given
        /// more than its queue takes, and never has a queue full of requests that will not complete.
        #[test]
        fn against_a_model(capacity in 16_u32..80, every in 1_u32..80, steps in proptest::collection::vec(0_u8..5, 0..900)) {
            let mut queue = SendQueue::new(capacity, every);
            let every = every.min(capacity);
            let mut list: Vec<(u32, u32, bool)> = Vec::new();
            let mut device: VecDeque<(u32, u32, bool)> = VecDeque::new();
            let mut next = 0;
            for step in steps {
                match step {
                    0..=2 => {
                        if !queue.has_room(1, 0) {
                            prop_assert_eq!(device.len() + list.len(), capacity as usize);
                            continue;
                        }
                        let ticket = queue.post(next);
                        list.push((ticket.number, next, ticket.signaled));
                        next += 1;
                    }
                    3 if queue.should_ring() => {
                        list.last_mut().unwrap().2 = true;
                        device.extend(list.drain(..));
                        queue.rang(queue.waiting());
                    }
                    _ => {
                        // The device completes its oldest signaled request, and with it those before.
                        if let Some(at) = device.iter().position(|request| request.2) {
                            prop_assert!(at < every as usize, "{at} requests in a row ask for no completion");
                            let done: Vec<u32> = device.drain(..=at).map(|request| request.1).collect();
                            prop_assert_eq!(complete(&mut queue, (done[at]) & NUMBERS), done);
                        }
                    }
                }
                prop_assert!(device.is_empty() || device.iter().any(|request| request.2));
                prop_assert_eq!(queue.in_flight() as usize, device.len());
                prop_assert!(device.len() <= capacity as usize);
                prop_assert!(queue.waiting() == 0 || queue.should_ring() || !device.is_empty(), "it would wait for ever");
            }
        }
    }
}
