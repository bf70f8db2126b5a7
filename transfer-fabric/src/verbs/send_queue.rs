//! The account of a link's send queue: the requests that are posted, have left or have completed, and when to ring.
//!
//! Nothing is left to the device: it would take twice as many requests as were asked for and then fail
//! (docs/adr/0001), and its completions name only some of the work requests. A request is *posted* when it is in the
//! list that will leave, and *rung* when it has left behind a doorbell. The last request of each doorbell asks for a
//! completion, which is the doorbell's answer. In a long list, so does every `signaled_every`th request. So each
//! request that has left is followed by one that will complete, and a full queue always gets room again.

use std::collections::VecDeque;

/// A list of at least this length leaves at once.
const LONG_LIST: u32 = 32;

/// A shorter list waits while this many doorbells have no answer. More requests come while it waits, and then one
/// doorbell and one completion serve all of them. A request that is alone leaves at once, and so does the next one.
const UNANSWERED: usize = 2;

/// The bits of a request's number; one more bit tells sends from receives.
pub(super) const NUMBER_BITS: u32 = 31;
const NUMBERS: u32 = (1 << NUMBER_BITS) - 1;

/// The requests that have not completed, oldest first.
#[derive(Debug)]
pub(super) struct SendQueue<E> {
    capacity: u32,
    signaled_every: u32,
    entries: VecDeque<E>,
    /// The number of the oldest entry.
    first: u32,
    /// The number of entries that have left.
    rung: u32,
    /// The number of the last request of each doorbell that has no answer.
    doorbells: VecDeque<u32>,
    unsignaled: u32,
}

/// The number of a posted request, and whether it is signaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) number: u32,
    /// Whether it has to ask for a completion, although more requests may follow it.
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

    /// Returns the number of requests that are posted and not completed.
    pub(super) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Returns the number of requests that are posted and have not left.
    pub(super) fn waiting(&self) -> u32 {
        self.len() - self.rung
    }

    /// Returns the number of requests that have left and not completed.
    pub(super) fn in_flight(&self) -> u32 {
        self.rung
    }

    /// Returns whether `more` requests fit, with `reserve` places left.
    pub(super) fn has_room(&self, more: u32, reserve: u32) -> bool {
        self.len().saturating_add(more).saturating_add(reserve) <= self.capacity
    }

    /// Adds a request. The caller has checked that there is room.
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

    /// Returns the number of the last posted request, or `None` if all have completed.
    pub(super) fn last(&self) -> Option<u32> {
        (!self.entries.is_empty()).then(|| self.first.wrapping_add(self.len() - 1) & NUMBERS)
    }

    /// Returns the number of the last request of that kind that has not completed.
    pub(super) fn last_where(&self, is: impl Fn(&E) -> bool) -> Option<u32> {
        let at = self.entries.iter().rposition(is)?;
        Some(self.first.wrapping_add(at as u32) & NUMBERS)
    }

    /// Returns whether the waiting requests should leave now.
    pub(super) fn should_ring(&self) -> bool {
        self.waiting() > 0 && (self.doorbells.len() < UNANSWERED || self.waiting() >= LONG_LIST)
    }

    /// Records that the first `taken` waiting requests have left, the last of them signaled. Usually these are all.
    /// [`SendQueue::forget_waiting`] drops those that the device did not take.
    pub(super) fn rang(&mut self, taken: u32) {
        let taken = taken.min(self.waiting());
        if taken == 0 {
            return;
        }
        self.rung += taken;
        self.unsignaled = 0;
        self.doorbells.push_back(self.first.wrapping_add(self.rung - 1) & NUMBERS);
    }

    /// Drops the requests that have not left, and never will.
    pub(super) fn forget_waiting(&mut self) {
        self.entries.truncate(self.rung as usize);
        self.unsignaled = 0;
    }

    /// Returns how many requests in flight are not younger than this one, or `None` for a number that is not in
    /// flight.
    pub(super) fn up_to(&self, number: u32) -> Option<u32> {
        let distance = number.wrapping_sub(self.first) & NUMBERS;
        (distance < self.rung).then_some(distance + 1)
    }

    /// Removes the oldest request, which has completed.
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
        for n in 3..3 + LONG_LIST - 1 {
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
        assert_eq!(complete(&mut queue, last.number).len(), LONG_LIST as usize);
        assert_eq!((queue.len(), queue.in_flight(), queue.waiting()), (1, 0, 1));
    }

    /// Returns the doorbells per request of a sender that keeps `window` requests in flight, if the peer answers each
    /// doorbell as a whole.
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
    fn request_numbers_wrap_around() {
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
        /// However requests are posted, rung and completed, the account is that of a device that completes in order.
        /// The device is never given more than its queue takes, and its queue is never full of requests that will not
        /// complete.
        #[test]
        fn account_matches_a_model(capacity in 16_u32..80, every in 1_u32..80, steps in proptest::collection::vec(0_u8..5, 0..900)) {
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
                        // The device completes its oldest signaled request, and with it all earlier ones.
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
