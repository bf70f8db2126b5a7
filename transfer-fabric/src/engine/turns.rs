//! Who turns the engine.
//!
//! In `transferd` the engine's own thread does. Where the engine shares its process with its workers, a thread that waits for
//! its answer turns it: then nothing has to be handed to another thread, and no other thread has to be woken. The engine's own
//! thread, the *keeper*, goes on while nobody waits.
//!
//! One thread at a time turns it, and holds its lock:
//! - **The keeper sleeps without the lock**, in a [bed](KeeperBed) of its own. So a waiter takes the engine over without waking it, and what comes
//!   while a waiter sleeps wakes that waiter alone. A waiter that leaves has the bed listen.
//! - **A keeper that is woken and not needed *rests*.** It looks after [`KEEPER_INTERVAL`], and less and less often while waiters come and go, and goes
//!   on if nobody has turned the engine for [`KEEPER_DELAY`]. So a worker that often waits never has to wake it. If that worker stays
//!   away once, what comes meanwhile is served at most [`MAX_KEEPER_INTERVAL`] + [`KEEPER_DELAY`] late. If one turn lasts longer, the keeper sleeps.
//! - **A waiter that usually comes back at once leaves what is to be sent to its next turn**, which saves a system call: an
//!   acknowledgement leaves together with the answer. Otherwise it sends before it goes. It has the keeper go on, unless waiters
//!   are frequent: a keeper that goes on takes a core from the thread that will be back soon.
//! - **A thread that begins something and does not wait yet makes the first step itself**, so that the keeper need not be woken.
//! - **If several threads wait, the keeper turns it.** Each of them would have to hand it over, which is one more wake-up.
//!   Those who find the engine in other hands count as *followers*, and so do async clients, which never turn it.
//! - Commands that belong to the engine's own thread are left to it (a liveness word belongs to the thread that has begun it).

use super::ring;
use super::round::Round;
use super::run::Run;
use super::wait::{KeeperBed, Ready};
use crate::epoll::Epoll;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// After this time the keeper looks whether it is needed.
const KEEPER_INTERVAL: Duration = Duration::from_micros(200);

/// The longest time, after several looks in which it was not needed.
const MAX_KEEPER_INTERVAL: Duration = Duration::from_micros(1600);

/// It is needed once nobody has turned the engine for as long as this.
const KEEPER_DELAY: Duration = Duration::from_micros(100);

/// The time for which a waiter tries the lock before it looks who holds it.
const LOCK_SPIN_TIME: Duration = Duration::from_micros(100);

/// The most rounds after which a waiter that leaves lets the keeper look, in place of announcing its sleep again.
const LAST_ROUNDS: usize = 4;

/// The engine of this process, for threads that wait for it. Cheap to clone.
#[derive(Clone)]
pub struct Turns(Arc<TurnsShared>);

struct TurnsShared {
    /// `None` once it has ended.
    run: Mutex<Option<Run>>,
    sleeper: Arc<Epoll<Ready>>,
    /// Whether a waiter turns it.
    by_waiter: AtomicBool,
    /// The waiters that ask the keeper for it.
    asking: AtomicU32,
    followers: AtomicU32,
    /// The number of turns of waiters so far.
    turns: AtomicU64,
    started: Instant,
    /// When the last of them ended, in microseconds since the start.
    left: AtomicU64,
    bed: KeeperBed,
    /// Whether the keeper sleeps, or is about to take the engine after it slept.
    keeper_sleeps: AtomicBool,
    /// Whether it sleeps until it is woken, and not until [`keeper_until`](Run::keeper_until).
    keeper_untimed: AtomicBool,
    /// How often it was woken.
    #[cfg(test)]
    keeper_wakes: AtomicU64,
    called: Mutex<bool>,
    calls: Condvar,
    /// Wakes a keeper that sleeps.
    bell: Arc<OwnedFd>,
}

/// What a thread that turns the engine looks at between two rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollPoint {
    /// More may come soon. With the time at which the last round began.
    Rounds(Instant),
    /// The thread will sleep.
    Sleep,
}

/// A thread that waits while others turn the engine.
#[must_use]
pub struct Follower(Arc<TurnsShared>);

impl Turns {
    /// # Errors
    /// There is no room for another descriptor.
    pub(super) fn new(run: Run) -> Result<Turns, Errno> {
        Ok(Turns(Arc::new(TurnsShared {
            bed: KeeperBed::new(&run.sleeper)?,
            sleeper: run.sleeper.clone(),
            bell: run.bell.clone(),
            run: Mutex::new(Some(run)),
            by_waiter: AtomicBool::new(false),
            asking: AtomicU32::new(0),
            followers: AtomicU32::new(0),
            turns: AtomicU64::new(0),
            started: Instant::now(),
            left: AtomicU64::new(0),
            keeper_sleeps: AtomicBool::new(false),
            keeper_untimed: AtomicBool::new(false),
            #[cfg(test)]
            keeper_wakes: AtomicU64::new(0),
            called: Mutex::new(false),
            calls: Condvar::new(),
        })))
    }

    /// Turns the engine until `done` breaks, and at the latest until `until`; then returns `None`. `done` is called after each
    /// round, and before each sleep. The thread sleeps only after it has polled for `spin`.
    ///
    /// # Errors
    /// The thread does not turn it, because others do or because it has ended: wait in another way, as a [`Follower`].
    pub fn turn<T>(
        &self,
        until: Instant,
        spin: Duration,
        mut done: impl FnMut(PollPoint) -> ControlFlow<T>,
    ) -> Result<Option<T>, NotTurned> {
        let mut turn = self.0.begin().ok_or(NotTurned)?;
        let mut tired_at = None;
        loop {
            let now = Instant::now();
            let mut ended = None;
            let round = turn.round(now, || {
                ended = done(PollPoint::Rounds(now)).break_value();
                ended.is_some()
            });
            let ended = ended.or_else(|| done(PollPoint::Rounds(now)).break_value());
            if ended.is_some() {
                return Ok(ended);
            }
            let round = round?;
            if now >= until {
                return Ok(None);
            }
            match round {
                Round::Worked => tired_at = None,
                Round::Polled => std::thread::yield_now(),
                Round::Tired if now < *tired_at.get_or_insert(now + spin) => std::thread::yield_now(),
                Round::Tired => {
                    if let ControlFlow::Break(value) = done(PollPoint::Sleep) {
                        return Ok(Some(value));
                    }
                    turn.sleep(until.saturating_duration_since(now))?;
                }
            }
        }
    }

    /// Does in this thread what workers have asked for, if the engine sleeps. That takes less time than to wake the keeper, which would
    /// also compete with this thread for a core. If it returns `false`, nothing was done, and the caller has to ring the bell.
    pub fn step(&self) -> bool {
        let Some(mut turn) = self.0.begin_step() else { return false };
        turn.round(Instant::now(), || false).is_ok()
    }

    /// Wakes the thread that turns the engine, if it sleeps, so that it looks at what it waits for.
    pub fn interrupt(&self) {
        ring(&self.0.bell);
    }

    /// If the engine is awake and nobody turns it, takes the new requests of workers in this thread. What they cause is sent in the next
    /// full round.
    pub fn go_on(&self) {
        if !self.0.keeper_sleeps.load(Ordering::SeqCst)
            && let Some(mut turn) = self.0.begin_step()
        {
            let _ = turn.round(Instant::now(), || true);
        }
    }

    /// Counts this thread, or an async client, as one that waits while others turn the engine, until the result is dropped.
    pub fn follow(&self) -> Follower {
        self.0.followers.fetch_add(1, Ordering::SeqCst);
        self.0.call_keeper();
        Follower(self.0.clone())
    }

    /// Whether the keeper sleeps through a turn, and how often it was woken.
    #[cfg(test)]
    pub(super) fn keeper(&self) -> (bool, u64) {
        let TurnsShared { bed, keeper_sleeps, keeper_wakes, .. } = &*self.0;
        (keeper_sleeps.load(Ordering::SeqCst) && !bed.listens(), keeper_wakes.load(Ordering::SeqCst))
    }

    /// The keeper. Returns when the engine has ended.
    pub(super) fn keep(&self) {
        let kept = catch_unwind(AssertUnwindSafe(|| self.0.keep()));
        // Peers and workers notice the end by their sockets.
        drop(self.0.run.lock().take());
        if let Err(panic) = kept {
            resume_unwind(panic);
        }
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TurnsShared { by_waiter, followers, keeper_sleeps, keeper_untimed, bed, .. } = &*self.0;
        let mut shown = f.debug_struct("Turns");
        shown.field("by_waiter", by_waiter).field("followers", followers).field("keeper_sleeps", keeper_sleeps);
        shown.field("keeper_untimed", keeper_untimed).field("bed", bed).finish_non_exhaustive()
    }
}

/// See [`Turns::turn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("others turn the engine, or it has ended")]
pub struct NotTurned;

impl TurnsShared {
    fn keep(&self) {
        let mut kept = Vec::new();
        let mut run = self.run.lock();
        loop {
            let Some(engine) = run.as_mut() else { return };
            let round = engine.round(Instant::now(), Some(&mut kept), || false);
            if engine.stopping {
                let engine = run.take();
                drop(run);
                return engine.into_iter().for_each(Run::end);
            }
            match round {
                Round::Worked => {}
                Round::Polled => std::thread::yield_now(),
                Round::Tired => {
                    if let Some(timeout) = engine.fall_asleep() {
                        engine.keeper_until = engine.asleep_until;
                        run = self.sleep(run, timeout);
                    }
                }
            }
            if self.asking.load(Ordering::SeqCst) > 0 {
                if let Some(engine) = run.as_mut() {
                    engine.pause(Instant::now());
                    engine.pace.slept();
                }
                MutexGuard::unlock_fair(run);
                run = self.rest();
            }
        }
    }

    /// The keeper sleeps, without the engine.
    fn sleep<'a>(&'a self, run: MutexGuard<'a, Option<Run>>, timeout: Option<Duration>) -> MutexGuard<'a, Option<Run>> {
        // Where no thread ever waits, as in `transferd`, nobody has to be left asleep, and a bed would cost a call more.
        let is_alone = self.turns.load(Ordering::SeqCst) == 0;
        if !is_alone {
            self.bed.listen(true);
        }
        self.keeper_sleeps.store(true, Ordering::SeqCst);
        drop(run);
        let events = if is_alone { self.sleeper.wait(timeout) } else { self.bed.sleep(timeout) };
        self.woken();
        let taken = self.run.try_lock();
        self.keeper_sleeps.store(false, Ordering::SeqCst);
        let mut run = taken.unwrap_or_else(|| self.rest());
        if let Some(engine) = run.as_mut() {
            engine.wake();
            // A waiter may have handled what ended the sleep, so it is looked for again.
            let is_still_alone = is_alone && self.turns.load(Ordering::SeqCst) == 0;
            engine.ready(&if is_still_alone { events } else { self.sleeper.wait(Some(Duration::ZERO)) });
        }
        run
    }

    /// Counts that the keeper was woken.
    #[allow(clippy::unused_self)]
    fn woken(&self) {
        #[cfg(test)]
        self.keeper_wakes.fetch_add(1, Ordering::SeqCst);
    }

    fn begin(&self) -> Option<Turn<'_>> {
        if self.followers.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let asked = Instant::now();
        self.asking.fetch_add(1, Ordering::SeqCst);
        let run = loop {
            if self.by_waiter.load(Ordering::SeqCst) {
                break None;
            }
            if let Some(run) = self.run.try_lock_for(LOCK_SPIN_TIME) {
                break Some(run);
            }
        };
        self.asking.fetch_sub(1, Ordering::SeqCst);
        let mut run = run?;
        let engine = run.as_mut()?;
        if engine.needs_keeper() {
            return None;
        }
        self.by_waiter.store(true, Ordering::SeqCst);
        self.turns.fetch_add(1, Ordering::SeqCst);
        engine.absence.end(asked);
        if engine.asleep {
            // What has come since is found at once, and not after some rounds.
            let events = self.sleeper.wait(Some(Duration::ZERO));
            engine.wake();
            engine.ready(&events);
        }
        Some(Turn { shared: self, run: Some(run), waits: true })
    }

    /// A turn of a thread that does not wait. It does not count as a waiter that comes back. A waiter that comes meanwhile waits until it
    /// is over.
    fn begin_step(&self) -> Option<Turn<'_>> {
        if self.followers.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let mut run = self.run.try_lock()?;
        let engine = run.as_mut()?;
        if engine.needs_keeper() {
            return None;
        }
        self.turns.fetch_add(1, Ordering::SeqCst);
        Some(Turn { shared: self, run: Some(run), waits: false })
    }

    /// Makes the keeper go on, if it rests.
    fn call_keeper(&self) {
        *self.called.lock() = true;
        self.calls.notify_one();
    }

    /// The keeper rests until the engine needs it.
    fn rest(&self) -> MutexGuard<'_, Option<Run>> {
        let (mut seen, mut interval) = (None, KEEPER_INTERVAL);
        loop {
            let mut called = self.called.lock();
            if !*called {
                self.calls.wait_for(&mut called, interval);
                self.woken();
            }
            let is_called = std::mem::take(&mut *called);
            drop(called);
            let turns = self.turns.load(Ordering::SeqCst);
            if !is_called && seen == Some(turns) && self.sleep_through(turns) {
                match self.run.try_lock() {
                    Some(run) => return run,
                    None => (seen, interval) = (None, KEEPER_INTERVAL),
                }
                continue;
            }
            if seen.replace(turns).is_some_and(|seen| seen != turns) {
                interval = MAX_KEEPER_INTERVAL.min(interval * 2);
            }
            let left = Duration::from_micros(self.left.load(Ordering::SeqCst));
            let alone = self.started.elapsed().saturating_sub(left) >= KEEPER_DELAY;
            if (is_called || alone)
                && let Some(run) = self.run.try_lock()
            {
                return run;
            }
        }
    }

    /// If one long turn of a waiter goes on, sleeps until something comes after its end. Returns whether it has slept.
    fn sleep_through(&self, turns: u64) -> bool {
        if !self.by_waiter.load(Ordering::SeqCst) {
            return false;
        }
        // The waiter's own events are nothing to the keeper. From here on a waiter that leaves has the bed listen.
        self.bed.listen(false);
        self.keeper_untimed.store(true, Ordering::SeqCst);
        self.keeper_sleeps.store(true, Ordering::SeqCst);
        let goes_on = self.by_waiter.load(Ordering::SeqCst) && self.turns.load(Ordering::SeqCst) == turns;
        if goes_on {
            let _ = self.bed.sleep(None);
            self.woken();
        }
        self.keeper_sleeps.store(false, Ordering::SeqCst);
        self.keeper_untimed.store(false, Ordering::SeqCst);
        goes_on
    }
}

/// A waiter's turn.
struct Turn<'a> {
    shared: &'a TurnsShared,
    /// `None` while it is being dropped.
    run: Option<MutexGuard<'a, Option<Run>>>,
    /// Whether its thread waits for an answer.
    waits: bool,
}

impl Turn<'_> {
    /// The engine, if nothing in it has to be done by the keeper.
    fn engine(&mut self) -> Result<&mut Run, NotTurned> {
        let engine = self.run.as_mut().and_then(|run| run.as_mut()).ok_or(NotTurned)?;
        if engine.needs_keeper() { Err(NotTurned) } else { Ok(engine) }
    }

    fn round(&mut self, now: Instant, enough: impl FnOnce() -> bool) -> Result<Round, NotTurned> {
        let engine = self.engine()?;
        // A bug in the engine ends the engine, and not the call of an application.
        match catch_unwind(AssertUnwindSafe(|| engine.round(now, None, enough))) {
            Ok(round) => self.engine().map(|_| round),
            Err(_) => {
                if let Some(run) = self.run.as_mut() {
                    **run = None;
                }
                Err(NotTurned)
            }
        }
    }

    /// Sleeps at most this long.
    fn sleep(&mut self, at_most: Duration) -> Result<(), NotTurned> {
        let engine = self.engine()?;
        if let Some(timeout) = engine.fall_asleep() {
            // What comes now concerns this thread alone.
            self.shared.bed.listen(false);
            let events = self.shared.sleeper.wait(Some(timeout.map_or(at_most, |timeout| timeout.min(at_most))));
            let engine = self.engine()?;
            engine.wake();
            engine.ready(&events);
        }
        Ok(())
    }

    /// Prepares the engine for the time without a waiter. Returns what the keeper has to be told.
    fn leave(&mut self, keeper_sleeps: bool, keeper_untimed: bool) -> Tell {
        let waits = self.waits;
        let Ok(engine) = self.engine() else { return Tell::Everything };
        let (now, is_quick) = (Instant::now(), engine.absence.is_short());
        let is_frequent = engine.absence.is_frequent();
        engine.pause(now);
        engine.pace.slept();
        if waits {
            engine.absence.begin(now);
        }
        // What is to be sent waits for a waiter that comes back at once. It often brings more.
        if waits && !is_quick && self.round(now, || false).is_err() {
            return Tell::Everything;
        }
        if !keeper_sleeps {
            return if is_frequent { Tell::Nothing } else { Tell::GoOn };
        }
        // It sleeps on, if it can.
        for _ in 0..LAST_ROUNDS {
            let Ok(engine) = self.engine() else { return Tell::Everything };
            if engine.fall_asleep().is_some() {
                engine.pause(Instant::now());
                let keeper_until = engine.keeper_until.filter(|_| !keeper_untimed);
                let oversleeps = engine.asleep_until.is_some_and(|now| keeper_until.is_none_or(|then| now < then));
                return if oversleeps { Tell::WakeUp } else { Tell::Nothing };
            }
            if self.round(Instant::now(), || false).is_err() {
                return Tell::Everything;
            }
        }
        Tell::WakeUp
    }
}

/// What the keeper is told at the end of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tell {
    Nothing,
    /// It sleeps, and has to look.
    WakeUp,
    /// It rests, and has to go on.
    GoOn,
    /// Whichever it does, it is needed.
    Everything,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let shared = self.shared;
        let keeper_sleeps = shared.keeper_sleeps.load(Ordering::SeqCst);
        let keeper_untimed = shared.keeper_untimed.load(Ordering::SeqCst);
        let mut tell = self.leave(keeper_sleeps, keeper_untimed);
        if self.waits {
            // Only a waiter's turn lets the keeper rest longer. A step does not, however many follow each other.
            let now = u64::try_from(shared.started.elapsed().as_micros()).unwrap_or(u64::MAX);
            shared.left.store(now, Ordering::SeqCst);
            shared.by_waiter.store(false, Ordering::SeqCst);
        }
        // It may have fallen asleep meanwhile, because it saw this turn go on; also after a sleep with an end.
        let sleeps_now = shared.keeper_sleeps.load(Ordering::SeqCst);
        let untimed_now = shared.keeper_untimed.load(Ordering::SeqCst);
        if sleeps_now && (!keeper_sleeps || untimed_now && !keeper_untimed) {
            tell = Tell::Everything;
        }
        if sleeps_now || keeper_sleeps || tell == Tell::Everything {
            shared.bed.listen(true);
        }
        drop(self.run.take());
        if matches!(tell, Tell::WakeUp | Tell::Everything) {
            ring(&shared.bell);
        }
        if matches!(tell, Tell::GoOn | Tell::Everything) || shared.followers.load(Ordering::SeqCst) > 0 {
            shared.call_keeper();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.followers.fetch_sub(1, Ordering::SeqCst);
    }
}
