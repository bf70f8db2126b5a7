//! The thread: it answers requests, sends those of this side, and sleeps in between.

use super::budget::Budget;
use super::message::{Kind, Message};
use super::pair::{Broken, Pair};
use super::trips::Trips;
use super::{Command, DatagramError, EchoState, Trip};
use crate::random;
use crossbeam_channel::Receiver;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_verbs::{AsyncEvents, AsyncSource, CompletionChannel};

/// A queue pair that has failed is made again at most once in this time.
const REMAKE_INTERVAL: Duration = Duration::from_secs(1);

/// Why the thread leaves a queue pair.
enum End {
    Stopped,
    /// Another queue pair may work.
    Failed(String),
    /// None will.
    Device(String),
}

impl From<Broken> for End {
    fn from(Broken(why): Broken) -> End {
        End::Failed(why)
    }
}

pub(super) struct Echo {
    shared: Arc<EchoState>,
    commands: Receiver<Command>,
    events: AsyncEvents,
    trips: Trips,
    budget: Budget,
}

impl Echo {
    pub(super) fn new(shared: Arc<EchoState>, commands: Receiver<Command>, events: AsyncEvents) -> Echo {
        Echo { shared, commands, events, trips: Trips::default(), budget: Budget::new(Instant::now()) }
    }

    /// Runs until it is stopped, or the device fails. `pair` is the first queue pair.
    pub(super) fn run(mut self, pair: Pair) {
        let mut made = Ok(pair);
        loop {
            let since = Instant::now();
            let end = match made {
                Ok(pair) => self.serve(pair),
                Err(why) => End::Failed(why),
            };
            let end = match end {
                End::Failed(why) => {
                    tracing::warn!(why, "the queue pair for datagrams has failed, and is made again");
                    self.fail(&why);
                    self.rest(since + REMAKE_INTERVAL, &why)
                }
                end => Err(end),
            };
            match end {
                Ok(()) => made = self.shared.make_pair(),
                Err(End::Device(why)) => {
                    tracing::error!(why, "no datagrams can be answered any more");
                    self.fail(&why);
                    return self.shared.end(&why);
                }
                Err(_) => return self.shared.end("the sidecar is stopping"),
            }
        }
    }

    /// Ends all round trips.
    fn fail(&mut self, why: &str) {
        self.shared.pair_failed(why);
        for answered in self.trips.end_all() {
            answered(Err(DatagramError::Down { why: why.to_owned() }));
        }
    }

    /// Waits until another queue pair may be made.
    fn rest(&mut self, until: Instant, why: &str) -> Result<(), End> {
        while Instant::now() < until {
            self.hear_device(None)?;
            while let Ok(command) = self.commands.try_recv() {
                match command {
                    Command::Stop => return Err(End::Stopped),
                    Command::Send(trip) => (trip.answered)(Err(DatagramError::Down { why: why.to_owned() })),
                }
            }
            self.sleep(None, Some(until))?;
        }
        Ok(())
    }

    fn serve(&mut self, mut pair: Pair) -> End {
        let mut armed = false;
        loop {
            if let Err(end) = self.round(&mut pair, &mut armed) {
                return end;
            }
        }
    }

    fn round(&mut self, pair: &mut Pair, armed: &mut bool) -> Result<(), End> {
        self.hear_device(Some(pair.number()))?;
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Stop => return Err(End::Stopped),
                Command::Send(trip) => self.begin(pair, trip)?,
            }
        }
        pair.post()?;
        let now = Instant::now();
        self.trips.expire(now);
        let left = self.budget.left(now);
        if left == 0 {
            // Nothing that arrives wakes the thread before the next interval.
            let next = self.budget.next();
            return self.sleep(None, Some(self.trips.next_end().map_or(next, |end| end.min(next))));
        }
        if pair.poll(left)? > 0 {
            self.look(pair)?;
        } else if !*armed {
            // What came before causes no event, so the next round polls once more.
            pair.queue.arm().map_err(Broken::from)?;
            *armed = true;
        } else {
            self.sleep(Some(&pair.channel), self.trips.next_end())?;
            if pair.channel.take_events().map_err(Broken::from)? > 0 {
                *armed = false;
            }
        }
        Ok(())
    }

    fn begin(&mut self, pair: &mut Pair, trip: Trip) -> Result<(), End> {
        let Trip { route, token, timeout, answered } = trip;
        let number = match random::bytes() {
            Ok(bytes) => u64::from_le_bytes(bytes),
            Err(error) => {
                answered(Err(error.into()));
                return Ok(());
            }
        };
        // Those that have waited long enough make room.
        let now = Instant::now();
        self.trips.expire(now);
        if let Err(answered) = self.trips.begin(number, token, now, timeout, answered) {
            answered(Err(DatagramError::TooMany));
            return Ok(());
        }
        if !pair.send(&route, &Message { kind: Kind::Request, token, number })?
            && let Some(answered) = self.trips.end(number)
        {
            answered(Err(DatagramError::TooMany));
        }
        Ok(pair.post()?)
    }

    /// Looks at what has arrived.
    fn look(&mut self, pair: &mut Pair) -> Result<(), End> {
        let now = Instant::now();
        let arrived = std::mem::take(&mut pair.arrived);
        self.budget.take(arrived.len() as u32);
        let counts = &self.shared.counts;
        for message in &arrived {
            let count = match message {
                None => &counts.malformed,
                Some(Message { kind: Kind::Answer, token, number }) => match self.trips.answered(*number, token, now) {
                    true => &counts.round_trips,
                    false => &counts.unasked,
                },
                Some(request) => match self.shared.route_of(&request.token) {
                    None => &counts.strangers,
                    Some(route) if pair.send(&route, &Message { kind: Kind::Answer, ..*request })? => &counts.answered,
                    Some(_) => &counts.no_room,
                },
            };
            count.add();
        }
        pair.arrived = arrived;
        Ok(pair.post()?)
    }

    fn hear_device(&mut self, pair: Option<u32>) -> Result<(), End> {
        loop {
            let event = self.events.next().map_err(|error| End::Device(error.to_string()))?;
            let Some(event) = event else { return Ok(()) };
            let words = event.words();
            match event.source {
                AsyncSource::Device if event.is_fatal() => return Err(End::Device(words.to_owned())),
                AsyncSource::QueuePair(number) if event.is_fatal() && Some(number) == pair => {
                    return Err(End::Failed(words.to_owned()));
                }
                AsyncSource::CompletionQueue if event.is_fatal() && pair.is_some() => {
                    return Err(End::Failed(words.to_owned()));
                }
                // The fabric of the same device logs the others.
                _ => tracing::debug!(source = ?event.source, words, "an event of the device for datagrams"),
            }
        }
    }

    /// Sleeps until there is a command, an event of the device or of the channel, or this time.
    fn sleep(&self, channel: Option<&CompletionChannel>, until: Option<Instant>) -> Result<(), End> {
        let time = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let bell = self.shared.bell.as_fd();
        let always = [bell, self.events.as_fd()];
        let fds = always.into_iter().chain(channel.map(AsFd::as_fd));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, time.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(End::Device(format!("waiting failed: {error}"))),
        }
        if !fds[0].revents().is_empty() {
            // It is nonblocking, and an empty one has just been emptied.
            let _ = rustix::io::read(bell, &mut [0_u8; 8]);
        }
        Ok(())
    }
}

fn timespec(time: Duration) -> Timespec {
    let tv_sec = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: time.subsec_nanos().into() }
}
