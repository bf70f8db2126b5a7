//! The works that a link has posted to its peer, for the fabrics whose peers acknowledge works by their count.
//!
//! A peer that is stopped is noticed here too. Its kernel keeps its sockets open and its memory mapped, so only the lack
//! of signs of life reveals it.

use super::Sink;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use transfer_core::fabric::{DownReason, FabricEvent, LinkId, PostError, WorkId};

/// The works in flight, and the watch over the peer that has to place them. `S` holds the signs of life that the fabric
/// has seen so far.
#[derive(Debug)]
pub(crate) struct Works<S> {
    /// The works that are not placed yet, and whether each is a write.
    in_flight: VecDeque<(WorkId, bool)>,
    /// The number of works that the peer has placed.
    placed: u64,
    /// The time at which the peer has to have shown a sign beyond these. `None` while nothing is posted to it.
    watch: Option<(Instant, S)>,
}

impl<S: PartialEq> Works<S> {
    pub(crate) fn new() -> Works<S> {
        Works { in_flight: VecDeque::new(), placed: 0, watch: None }
    }

    /// Checks that fewer than `limit` works are in flight.
    pub(crate) fn check_room(&self, link: LinkId, limit: usize) -> Result<(), PostError> {
        if self.in_flight.len() < limit { Ok(()) } else { Err(PostError::Full(link)) }
    }

    /// Records a work that is posted.
    pub(crate) fn post(&mut self, work: WorkId, is_write: bool) {
        self.in_flight.push_back((work, is_write));
    }

    /// Returns the number of works that were posted.
    pub(crate) fn posted(&self) -> u64 {
        self.placed + self.in_flight.len() as u64
    }

    /// Returns the number of works that the peer has placed.
    pub(crate) fn placed(&self) -> u64 {
        self.placed
    }

    /// Reports the works that the peer has placed, which are the first `placed` in the order of their posts.
    pub(crate) fn complete(&mut self, link: LinkId, placed: u64, sink: &mut Sink<'_>) {
        while self.placed < placed {
            let Some((work, is_write)) = self.in_flight.pop_front() else { break };
            self.placed += 1;
            sink(if is_write { FabricEvent::WriteDone { link, work } } else { FabricEvent::SendDone { link, work } });
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Begins the watch after a post. The peer has until `due` to show a sign of life beyond `signs`.
    pub(crate) fn watch(&mut self, due: Instant, signs: S) {
        self.watch = Some((due, signs));
    }

    /// Returns the time at which [`Works::check_peer`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.watch.as_ref().map(|(due, _)| *due)
    }

    /// Compares the signs of life, if they are due.
    ///
    /// # Errors
    /// The reason, if the link is lost.
    pub(crate) fn check_peer(&mut self, now: Instant, signs: S, timeout: Duration) -> Result<(), DownReason> {
        let Some((_, before)) = self.watch.take_if(|(due, _)| *due <= now) else { return Ok(()) };
        let works = self.in_flight.len();
        if works > 0 && before == signs {
            let long = timeout.as_secs();
            let text = format!("the peer has done nothing for {long} s, with {works} works posted to it");
            return Err(DownReason::Lost(text));
        }
        if works > 0 {
            self.watch(now + timeout, signs);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkId = LinkId(7);
    const TIMEOUT: Duration = Duration::from_secs(15);

    /// Returns works with as many messages in flight.
    fn posted(count: u64) -> Works<u32> {
        let mut works = Works::new();
        (0..count).for_each(|n| works.post(WorkId(n), false));
        works
    }

    fn complete(works: &mut Works<u32>, placed: u64) -> Vec<String> {
        let mut events = Vec::new();
        works.complete(LINK, placed, &mut |event| events.push(format!("{event:?}")));
        events
    }

    #[test]
    fn works_complete_in_the_order_of_their_posts() {
        let mut works = posted(1);
        works.post(WorkId(1), true);
        assert_eq!((works.posted(), works.placed()), (2, 0));
        assert_eq!(works.check_room(LINK, 2), Err(PostError::Full(LINK)));
        assert_eq!(complete(&mut works, 0), [""; 0]);
        assert_eq!(complete(&mut works, 1), ["SendDone { link: LinkId(7), work: WorkId(0) }"]);
        assert_eq!(works.check_room(LINK, 2), Ok(()));
        assert_eq!(complete(&mut works, 9), ["WriteDone { link: LinkId(7), work: WorkId(1) }"], "no more were posted");
        assert_eq!((works.posted(), works.placed()), (2, 2));
    }

    #[test]
    fn a_peer_without_signs_is_lost_when_they_are_due() {
        let start = Instant::now();
        let mut works = posted(3);
        assert!(!works.is_watched() && works.check_peer(start, 0, TIMEOUT).is_ok());
        works.watch(start + TIMEOUT, 0);
        assert_eq!(works.check_peer(start + TIMEOUT / 2, 0, TIMEOUT), Ok(()), "not yet");
        assert_eq!(works.due(), Some(start + TIMEOUT));
        let lost = works.check_peer(start + TIMEOUT, 0, TIMEOUT);
        assert!(matches!(&lost, Err(DownReason::Lost(why)) if why.contains("15 s, with 3 works")), "{lost:?}");
    }

    #[test]
    fn a_peer_with_signs_is_watched_on_and_one_without_works_is_not() {
        let start = Instant::now();
        let mut works = posted(1);
        works.watch(start + TIMEOUT, 0);
        assert_eq!(works.check_peer(start + TIMEOUT, 1, TIMEOUT), Ok(()));
        assert_eq!(works.due(), Some(start + 2 * TIMEOUT));
        complete(&mut works, 1);
        assert_eq!(works.check_peer(start + 2 * TIMEOUT, 1, TIMEOUT), Ok(()));
        assert!(!works.is_watched());
    }
}
