//! Notices a peer that is stopped. Its kernel keeps its sockets open and its memory mapped, so only the lack of signs
//! of life reveals it.

use std::time::{Duration, Instant};
use transfer_core::fabric::DownReason;

/// Watches the peer of one link. `S` holds the signs of life that the fabric has seen so far.
#[derive(Debug)]
pub(crate) struct PeerWatch<S>(Option<(Instant, S)>);

impl<S: PartialEq> PeerWatch<S> {
    /// Returns a watch that is off, because nothing was posted to the peer.
    pub(crate) fn off() -> PeerWatch<S> {
        PeerWatch(None)
    }

    pub(crate) fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// Begins the watch after a post. The peer has until `due` to show a sign of life beyond `signs`.
    pub(crate) fn begin(&mut self, due: Instant, signs: S) {
        self.0 = Some((due, signs));
    }

    /// The time at which [`PeerWatch::check`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.as_ref().map(|(due, _)| *due)
    }

    /// Compares the signs of life if they are due. `works` is the number of posts that are not completed. Returns the
    /// reason if the link is lost.
    pub(crate) fn check(&mut self, now: Instant, works: usize, signs: S, timeout: Duration) -> Option<DownReason> {
        let (_, before) = self.0.take_if(|(due, _)| *due <= now)?;
        if works == 0 {
            return None;
        }
        if before == signs {
            let long = timeout.as_secs();
            let text = format!("the peer has done nothing for {long} s, with {works} works posted to it");
            return Some(DownReason::Lost(text));
        }
        self.begin(now + timeout, signs);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(15);

    #[test]
    fn a_peer_without_signs_is_lost_when_they_are_due() {
        let start = Instant::now();
        let mut watch = PeerWatch::off();
        assert!(watch.is_off() && watch.check(start, 1, 0, TIMEOUT).is_none());
        watch.begin(start + TIMEOUT, 0);
        assert!(watch.check(start + TIMEOUT / 2, 1, 0, TIMEOUT).is_none(), "not yet");
        assert_eq!(watch.due(), Some(start + TIMEOUT));
        let lost = watch.check(start + TIMEOUT, 3, 0, TIMEOUT);
        assert!(matches!(&lost, Some(DownReason::Lost(why)) if why.contains("15 s, with 3 works")), "{lost:?}");
    }

    #[test]
    fn a_peer_with_signs_is_watched_on_and_one_without_works_is_not() {
        let start = Instant::now();
        let mut watch = PeerWatch::off();
        watch.begin(start + TIMEOUT, 0);
        assert!(watch.check(start + TIMEOUT, 1, 1, TIMEOUT).is_none());
        assert_eq!(watch.due(), Some(start + 2 * TIMEOUT));
        assert!(watch.check(start + 2 * TIMEOUT, 0, 1, TIMEOUT).is_none());
        assert!(watch.is_off());
    }
}
