//! The round trips of this side that are under way.

use super::DatagramError;
use crate::token::Token;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The most round trips at a time. A peer that is stopped answers none.
pub(super) const MAX_TRIPS: usize = 64;

/// Is called with the time of a round trip, or the reason why there is none. It is dropped if no answer comes in time.
pub type Answered = Box<dyn FnOnce(Result<Duration, DatagramError>) + Send>;

/// The round trips under way, by the number of their request.
#[derive(Default)]
pub(super) struct Trips(BTreeMap<u64, Trip>);

struct Trip {
    token: Token,
    sent: Instant,
    until: Instant,
    answered: Answered,
}

impl Trips {
    /// Begins a round trip, or returns `answered` if there is no room for it.
    pub(super) fn begin(
        &mut self,
        number: u64,
        token: Token,
        now: Instant,
        timeout: Duration,
        answered: Answered,
    ) -> Result<(), Answered> {
        if self.0.len() >= MAX_TRIPS || self.0.contains_key(&number) {
            return Err(answered);
        }
        self.0.insert(number, Trip { token, sent: now, until: now + timeout, answered });
        Ok(())
    }

    /// Ends the round trip that this answer is for. Returns whether there is one.
    pub(super) fn answered(&mut self, number: u64, token: &Token, now: Instant) -> bool {
        if !self.0.get(&number).is_some_and(|trip| trip.token.is(token) && now < trip.until) {
            return false;
        }
        let Some(trip) = self.0.remove(&number) else { return false };
        (trip.answered)(Ok(now.saturating_duration_since(trip.sent)));
        true
    }

    /// Ends a round trip whose request was not sent.
    pub(super) fn end(&mut self, number: u64) -> Option<Answered> {
        self.0.remove(&number).map(|trip| trip.answered)
    }

    /// Ends those that have waited long enough.
    pub(super) fn expire(&mut self, now: Instant) {
        self.0.retain(|_, trip| now < trip.until);
    }

    /// Ends all of them.
    pub(super) fn end_all(&mut self) -> Vec<Answered> {
        std::mem::take(&mut self.0).into_values().map(|trip| trip.answered).collect()
    }

    /// Returns when the next one has waited long enough.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.0.values().map(|trip| trip.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, TryRecvError, channel};

    const SECOND: Duration = Duration::from_secs(1);

    fn begin(trips: &mut Trips, number: u64, now: Instant) -> Option<Receiver<Duration>> {
        let (tell, told) = channel();
        let answered: Answered =
            Box::new(move |took| tell.send(took.expect("it is answered")).expect("it is waited for"));
        trips.begin(number, Token([number as u8; 16]), now, SECOND, answered).ok().map(|()| told)
    }

    #[test]
    fn an_answer_ends_its_own_trip_once() {
        let (mut trips, now) = (Trips::default(), Instant::now());
        let (one, other) = (begin(&mut trips, 1, now).unwrap(), begin(&mut trips, 2, now).unwrap());
        assert!(begin(&mut trips, 2, now).is_none(), "the number is in use");
        let later = now + SECOND / 4;
        assert!(!trips.answered(3, &Token([3; 16]), later), "nothing was asked");
        assert!(!trips.answered(1, &Token([2; 16]), later), "of another peer");
        assert!(trips.answered(1, &Token([1; 16]), later));
        assert!(!trips.answered(1, &Token([1; 16]), later), "it is answered already");
        assert_eq!((one.try_recv(), other.try_recv()), (Ok(SECOND / 4), Err(TryRecvError::Empty)));
        drop(trips.end(2));
        assert_eq!(other.try_recv(), Err(TryRecvError::Disconnected));
    }

    // Promise: datagram-ping, seen to fail
    #[test]
    fn a_late_answer_ends_nothing() {
        let (mut trips, now) = (Trips::default(), Instant::now());
        let told = begin(&mut trips, 1, now).unwrap();
        begin(&mut trips, 2, now + SECOND / 2).unwrap();
        assert_eq!(trips.next_end(), Some(now + SECOND));
        assert!(!trips.answered(1, &Token([1; 16]), now + SECOND));
        trips.expire(now + SECOND);
        assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(trips.next_end(), Some(now + SECOND * 3 / 2));
        assert_eq!(trips.end_all().len(), 1);
        assert_eq!(trips.next_end(), None);
    }

    // Promise: datagram-ping, seen to fail
    #[test]
    fn trips_are_bounded() {
        let (mut trips, now) = (Trips::default(), Instant::now());
        let all: Vec<_> = (0..1000).map_while(|number| begin(&mut trips, number, now)).collect();
        assert_eq!(all.len(), MAX_TRIPS);
        drop(trips.end(5));
        assert!(begin(&mut trips, 1000, now).is_some());
    }
}
