//! Many messages in flight: the client posts as long as there is room, the server takes what comes.

use super::error::PerfError;
use super::figures::Times;
use super::message::Message;
use super::rig::Rig;
use super::room::complete;
use super::terms::Run;
use super::wait::Watch;
use std::time::{Duration, Instant};

/// How long a server waits for what has left and was perhaps lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(500);
/// While the client sends, only its end ends the wait.
const NO_LIMIT: Duration = Duration::from_secs(1 << 30);

/// What a client has sent.
pub(super) struct Sent {
    /// The messages of each queue pair.
    pub(super) messages: Vec<u64>,
    /// From the first post to the last completion.
    pub(super) elapsed: Duration,
    /// When they were posted and completed.
    pub(super) times: Times,
}

/// The client's part.
pub(super) fn send(rig: &mut Rig, run: &Run, watch: &mut Watch<'_>) -> Result<Sent, PerfError> {
    let pairs = rig.pairs();
    let most = run.messages.unwrap_or(u64::MAX);
    let mut times = Times::of(run.messages.map(|messages| messages.saturating_mul(pairs as u64)));
    let mut posted = vec![0; pairs];
    let mut over = false;
    let started = Instant::now();
    loop {
        if let Some(seconds) = run.seconds {
            over = over || started.elapsed() >= Duration::from_secs(seconds.into());
        }
        for (pair, posted) in posted.iter_mut().enumerate() {
            let left = |posted: u64| if over { 0 } else { most - posted };
            while left(*posted) > 0 {
                let list = u64::from(rig.setup.post_list).min(left(*posted));
                if rig.rooms[pair].free() < list {
                    break;
                }
                if times.are_recorded() {
                    times.posted(list, started.elapsed());
                }
                for _ in 0..list {
                    rig.push(pair, run.size as usize, *posted, *posted + 1 == most)?;
                    *posted += 1;
                }
                rig.post(pair)?;
            }
            // When the time is over, one more completes those that nothing stands for.
            if over && !rig.rooms[pair].ends_signaled() && rig.rooms[pair].free() > 0 {
                rig.push(pair, run.size as usize, *posted, true)?;
                *posted += 1;
                rig.post(pair)?;
            }
        }
        if rig.rooms.iter().all(|room| room.is_idle()) && (over || posted.iter().all(|posted| *posted == most)) {
            break;
        }
        for completion in rig.sends.wait(watch)? {
            let (_, count) = complete(&mut rig.rooms, completion.work_id);
            watch.messages += count;
            if times.are_recorded() {
                times.completed(count, started.elapsed());
            }
        }
        watch.expect_nothing()?;
    }
    Ok(Sent { messages: posted, elapsed: started.elapsed(), times })
}

/// The server's part of SEND: receives until the client is done and all is here, or lost. Returns what the client has
/// sent, and the number of messages that have arrived.
pub(super) fn receive(rig: &mut Rig, watch: &mut Watch<'_>) -> Result<(Vec<u64>, u64), PerfError> {
    let mut arrived: u64 = 0;
    let mut sent: Option<Vec<u64>> = None;
    watch.set_limit(NO_LIMIT);
    let mut again = Vec::new();
    loop {
        if let Some(messages) = sent.take_if(|sent| arrived >= total(sent)) {
            return Ok((messages, arrived));
        }
        match rig.receives.wait(watch) {
            Ok(completions) => again.extend(completions.iter().map(|completion| completion.work_id)),
            Err(PerfError::Stalled { .. }) if sent.is_some() && !rig.setup.is_reliable() => {
                return Ok((sent.unwrap_or_default(), arrived));
            }
            Err(error) => return Err(error),
        }
        arrived += again.len() as u64;
        watch.messages = arrived;
        again.drain(..).try_for_each(|id| rig.receive_again(id))?;
        if let Some(message) = watch.said.take() {
            let Message::Done { messages } = message else { return Err(watch.unexpected(&message, "Done")) };
            sent = Some(messages);
            watch.is_done = true;
            watch.set_limit(if rig.setup.is_reliable() { super::wait::COMPLETION_TIMEOUT } else { LOSS_TIMEOUT });
            watch.progress();
        }
    }
}

/// The sum of a client's words, which may be anything.
pub(super) fn total(messages: &[u64]) -> u64 {
    messages.iter().fold(0, |sum, count| sum.saturating_add(*count))
}
