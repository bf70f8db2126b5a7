//! Questions to the roster of a state, at its home.

use super::layouts::ABSENT;
use super::records::{MANIFEST, read_manifest};
use crate::bundle::{FetchedBundle, take_bundle};
use crate::counters::Counting;
use crate::digest::Proving;
use crate::error::{BundleError, Error, ShardedError};
use crate::fetch::{Fetch, FetchOptions, Tensor};
use crate::request::flow::Io;
use crate::request::{BlockingClient, Call};
use std::convert::Infallible;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, CommittedRank, CounterAsk, Failure, FailureCode, RankCommit, Report};
use transfer_core::op::{RosterAnswer, RosterAsk};
use transfer_core::tensor::{Key, Name, Select, Version};

/// The longest time for a question whose answer only helps.
const HELP: Duration = Duration::from_secs(2);

/// The pause before a question is asked again whose home was lost.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

fn call(io: &Io, key: &Key, ask: RosterAsk, timeout: Duration) -> Counting<BlockingClient, RosterAnswer> {
    let answer = |answer| match answer {
        Answer::Roster(answer) => Some(answer),
        _ => None,
    };
    Counting::new(&io.session(), Ok(Name::from(key.clone())), CounterAsk::Roster(ask), answer).timeout(timeout)
}

async fn ask(io: &Io, key: &Key, ask: RosterAsk, timeout: Duration) -> Result<RosterAnswer, Error> {
    io.run(call(io, key, ask, timeout)).await
}

fn unexpected(key: &Key, answer: &RosterAnswer) -> Error {
    Failure::new(FailureCode::Unknown, format!("the roster of state {key:?} answers {answer:?}")).into()
}

/// Whether the home of a roster was lost, so that another node may be asked.
fn is_lost(error: &Error) -> bool {
    use FailureCode::{CounterLost, NotOwner, OutcomeUnknown, PeerLost, PeerUnreachable};
    let lost = |code| matches!(code, CounterLost | NotOwner | OutcomeUnknown | PeerLost | PeerUnreachable);
    error.failure_code().is_some_and(lost)
}

/// Whether nothing came in time.
pub(super) fn is_late(error: &Error) -> bool {
    error.failure_code().is_some_and(|code| matches!(code, FailureCode::Deadline | FailureCode::UnknownKey))
}

/// Asks until a home answers, which may be a new one. The question may be asked twice.
pub(super) async fn ask_until(io: &Io, key: &Key, question: RosterAsk) -> Result<RosterAnswer, Error> {
    ask_within(io, key, question, Duration::MAX).await
}

/// Asks until a home answers. A home is looked for, and its answer is waited for, so long.
async fn ask_within(io: &Io, key: &Key, question: RosterAsk, patience: Duration) -> Result<RosterAnswer, Error> {
    let begun = Instant::now();
    loop {
        let left = || io.left(patience.saturating_sub(begun.elapsed()));
        match ask(io, key, question.clone(), left()).await {
            Err(e) if is_lost(&e) && left() > RETRY_INTERVAL => io.sleep_until(Instant::now() + RETRY_INTERVAL).await,
            answer => return answer,
        }
    }
}

/// What a roster says of the versions of a state.
#[derive(Debug)]
pub(crate) struct Looked {
    /// With which they have begun.
    pub(crate) restart: u64,
    /// The newest that is whole.
    pub(crate) whole: Option<u64>,
    /// Whether its home knows both that and what is held.
    pub(crate) settled: bool,
    /// Those that are held.
    pub(crate) held: Vec<u64>,
}

/// Looks at the versions of a state. `None` if its home does not answer soon.
pub(super) async fn look(io: &Io, key: &Key) -> Option<Looked> {
    looked(ask(io, key, RosterAsk::Look, io.left(HELP)).await)
}

/// Looks at the versions of a state, also at its next home. `None` if none answers in the time after which a rank counts as gone, too.
pub(super) async fn look_for_home(io: &Io, key: &Key) -> Option<Looked> {
    looked(ask_within(io, key, RosterAsk::Look, ABSENT).await)
}

fn looked(answer: Result<RosterAnswer, Error>) -> Option<Looked> {
    match answer {
        Ok(RosterAnswer::State { restart, whole, settled, held }) => {
            let (whole, held) = (whole.map(|version| version.0), held.into_iter().map(|version| version.0).collect());
            Some(Looked { restart, whole, settled, held })
        }
        _ => None,
    }
}

/// The answer to a wait for a whole version.
pub(super) enum Awaited {
    /// This one is whole, of versions that have begun with this restart.
    Whole { restart: u64, version: u64 },
    /// All ranks have committed it, and the worker that had to publish it was lost with the roster's last home.
    Publish,
}

/// Waits until a version or a later one is whole, also while the home of the roster changes. A reader, which has no rank, asks from time
/// to time whether there is a home at all: after a while the error is a [late](is_late) one.
pub(super) async fn until_whole(
    io: &Io,
    key: &Key,
    restart: u64,
    version: u64,
    rank: Option<u32>,
) -> Result<Awaited, Error> {
    let question = RosterAsk::UntilWhole { restart, version: Version(version), rank };
    let patience = if rank.is_some() { Duration::MAX } else { ABSENT };
    match ask_within(io, key, question, patience).await {
        Ok(RosterAnswer::State { restart, whole, .. }) => {
            Ok(Awaited::Whole { restart, version: whole.map_or(version, |whole| whole.0) })
        }
        Ok(RosterAnswer::Committed { .. }) => Ok(Awaited::Publish),
        Ok(answer) => Err(unexpected(key, &answer)),
        Err(e) if is_late(&e) && (rank.is_some() || io.left(RETRY_INTERVAL) < RETRY_INTERVAL) => {
            Err(not_whole(io, key, version, e).await)
        }
        Err(e) => Err(e),
    }
}

/// Takes a commit back, if that is possible soon. Returns whether it does not count: its version is not whole, or has ended with its
/// restart.
pub(super) async fn withdraw(io: &Io, key: &Key, commit: &RankCommit) -> bool {
    let RankCommit { version, rank, restart, instance, .. } = *commit;
    let question = RosterAsk::Withdraw { version, rank, instance };
    // The call may be late already, and others wait less if this arrives.
    let answer = ask(io, key, question, HELP).await;
    answer.is_ok_and(|answer| counts_not(&answer, restart, version))
}

/// Whether a version that was committed with this restart is surely not whole. A home that is not settled may only not know that it is.
fn counts_not(answer: &RosterAnswer, restart: u64, version: Version) -> bool {
    let RosterAnswer::State { restart: now, whole, settled, .. } = *answer else { return false };
    now > restart || settled && whole < Some(version)
}

/// Ends the whole version, which nobody publishes any more.
pub(super) async fn forget_whole(io: &Io, key: &Key) -> Result<(), Error> {
    if let Some(Looked { restart, whole: Some(whole), .. }) = look(io, key).await {
        ask_until(io, key, RosterAsk::Forget { restart, version: Version(whole) }).await?;
    }
    Ok(())
}

/// All ranks that have committed a version, in order.
pub(super) async fn ranks(io: &Io, key: &Key, version: u64, world_size: u32) -> Result<Vec<CommittedRank>, Error> {
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(rank) = from {
        let answer = ask_until(io, key, RosterAsk::Ranks { version: Version(version), from: rank }).await?;
        let RosterAnswer::Ranks { next, ranks, .. } = answer else { return Err(unexpected(key, &answer)) };
        all.extend(ranks);
        from = next.filter(|next| *next > rank && all.len() < world_size as usize);
    }
    let are_all = (0..world_size).eq(all.iter().map(|rank| rank.rank));
    match are_all {
        true => Ok(all),
        false => {
            let text =
                format!("version {version} of state {key:?} ended, or a rank of it changed, before it was whole");
            Err(Failure::new(FailureCode::VersionGone, text).into())
        }
    }
}

/// Why a version is not there: which ranks are missing.
pub(super) async fn not_whole(io: &Io, key: &Key, version: u64, late: Error) -> Error {
    let waited = io.timeout();
    match ask(io, key, RosterAsk::Missing { version: Version(version) }, HELP).await {
        Ok(RosterAnswer::Missing { world_size, count, first }) if world_size > 0 => {
            ShardedError::NotWhole { key: key.as_str().to_owned(), version, waited, world_size, count, first }.into()
        }
        _ => late,
    }
}

/// Whether anything is published under the state's key.
pub(super) async fn is_published(io: &Io, key: &Key) -> bool {
    let options = FetchOptions { timeout: io.left(ABSENT), watches: false, ..FetchOptions::new() };
    let fetch = Fetch::<BlockingClient, FetchedBundle>::new(io.session(), Ok(key.clone()), take_bundle).with(options);
    let found = io.run(fetch.only([MANIFEST])).await;
    !matches!(found, Err(e) if e.failure_code() == Some(FailureCode::UnknownKey))
}

/// A hold of a version. It ends when it is dropped.
pub(super) struct Hold(Counting<BlockingClient, RosterAnswer>);

impl Hold {
    /// Asks for it. A later question to the roster is answered behind it.
    pub(super) async fn begin(io: &Io, key: &Key, version: u64) -> Hold {
        let mut hold = call(io, key, RosterAsk::Hold { version: Version(version) }, io.left(Duration::MAX));
        poll_fn(|cx| {
            // Its end, if it has one, changes nothing: what is not held may end.
            let step = hold.call.step(cx.waker());
            // Until there is room for it in the ring.
            if step.is_continue() && hold.call.needs_timer() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        Hold(hold)
    }

    /// Goes on holding it, also at another home of the roster once this one is lost. Does not end.
    pub(super) async fn last(self, io: &Io, key: &Key, version: u64) -> Infallible {
        let mut hold = self.0;
        loop {
            match io.run(hold).await {
                Err(e) if is_lost(&e) => io.sleep_until(Instant::now() + RETRY_INTERVAL).await,
                _ => return std::future::pending().await,
            }
            hold = call(io, key, RosterAsk::Hold { version: Version(version) }, io.left(Duration::MAX));
        }
    }
}

/// The manifest of a version.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) version: u64,
    /// The restart with which its versions have begun.
    pub(super) restart: u64,
    /// The number of shards that were compared with no replica.
    pub(super) unproved: u64,
    pub(super) ranks: Vec<CommittedRank>,
    pub(super) report: Report,
    /// The records of all ranks, if they came with it.
    pub(super) layouts: Option<Tensor>,
}

impl Manifest {
    /// Reads the manifest out of this tensor of its version, beside which there may be this one with the layouts.
    pub(super) fn read(key: &Key, tensor: &Tensor, layouts: Option<Tensor>) -> Result<Manifest, Error> {
        // Every byte is read once, so a change behind a check changes nothing.
        let (restart, unproved, ranks) = read_manifest(key, tensor.as_bytes())?;
        Ok(Manifest { version: tensor.version(), restart, unproved, ranks, report: *tensor.report(), layouts })
    }
}

#[cfg(test)]
impl Manifest {
    /// The manifest of one rank, with shards of this number.
    pub(super) fn of_one(version: u64, restart: u64, instance: u64) -> Manifest {
        let (fabric, time) = (transfer_core::fabric::FabricKind::Local, Duration::ZERO);
        let (queued, waited, in_flight) = (time, time, time);
        let report = Report {
            fabric,
            bytes: 0,
            copied: 0,
            verified: 0,
            delta: 0,
            relayed: 0,
            queued,
            waited,
            in_flight,
            origin: None,
        };
        let node = transfer_core::tensor::Name::new("n").expect("a name");
        let ranks = vec![CommittedRank { rank: 0, instance, layout: 0, node }];
        Manifest { version, restart, unproved: 0, ranks, report, layouts: None }
    }
}

/// Fetches the manifest of a version that is whole.
pub(super) async fn manifest(io: &Io, key: &Key, options: FetchOptions) -> Result<Manifest, Error> {
    manifest_within(io, key, options, Duration::MAX).await
}

/// Fetches the manifest of a version within this time.
pub(super) async fn manifest_within(
    io: &Io,
    key: &Key,
    options: FetchOptions,
    at_most: Duration,
) -> Result<Manifest, Error> {
    let (timeout, proving) = (io.left(at_most), Proving::Not);
    let options = FetchOptions { timeout, proving, watches: false, ..options };
    let fetch = Fetch::<BlockingClient, FetchedBundle>::new(io.session(), Ok(key.clone()), take_bundle).with(options);
    let not_sharded = || Error::from(ShardedError::NotSharded { key: key.as_str().to_owned() });
    let bundle = match io.run(fetch.only([MANIFEST])).await {
        Err(Error::Bundle(BundleError::NotABundle { .. } | BundleError::NoSuchTensor { .. })) => {
            return Err(not_sharded());
        }
        // A tensor has no parts of a bundle.
        Err(e) if e.failure_code() == Some(FailureCode::Invalid) => return Err(not_sharded()),
        Err(e) if is_late(&e) => {
            return Err(match options.select {
                Select::AtLeast(version) | Select::Exactly(version) => not_whole(io, key, version.0, e).await,
                _ => e,
            });
        }
        bundle => bundle?,
    };
    let tensor = bundle.get(MANIFEST).ok_or_else(not_sharded)?;
    Manifest::read(key, tensor, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_that_is_taken_back_may_count_where_the_home_is_not_settled() {
        let state = |restart, whole: Option<u64>, settled| RosterAnswer::State {
            restart,
            whole: whole.map(Version),
            settled,
            held: Vec::new(),
        };
        let counts_not = |answer| counts_not(&answer, 1, Version(7));
        assert!(counts_not(state(1, None, true)) && counts_not(state(1, Some(6), true)));
        assert!(!counts_not(state(1, None, false)) && !counts_not(state(1, Some(6), false)));
        assert!(!counts_not(state(1, Some(7), true)));
        assert!(counts_not(state(2, Some(9), false)), "it has ended with its restart");
    }
}
