//! One message at a time: the client sends and waits, and the server answers where the operation itself brings no
//! answer.

use super::error::PerfError;
use super::figures::Samples;
use super::rig::Rig;
use super::room::complete;
use super::terms::{Run, Verb};
use super::wait::Watch;
use std::time::{Duration, Instant};

/// The client's part. Returns the number of messages, and their times.
pub(super) fn ping(rig: &mut Rig, run: &Run, watch: &mut Watch<'_>) -> Result<(u64, Samples), PerfError> {
    let mut samples = Samples::new(rig.setup.is_ping_pong());
    let until = run.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let mut number = 0;
    let mut before = Instant::now();
    loop {
        if run.messages.is_some_and(|most| number == most) || until.is_some_and(|until| before >= until) {
            return Ok((number, samples));
        }
        match rig.setup.verb {
            Verb::Read | Verb::Atomic => {
                rig.push(0, run.size as usize, number, true)?;
                rig.post(0)?;
                while !rig.rooms[0].is_idle() {
                    reap(rig, watch)?;
                    watch.expect_nothing()?;
                }
            }
            Verb::Send | Verb::Write => {
                post(rig, run, number, watch)?;
                while !arrived(rig, run, number, watch)? {
                    watch.expect_nothing()?;
                }
            }
        }
        let now = Instant::now();
        samples.add(now - before);
        before = now;
        number += 1;
        watch.messages = number;
    }
}

/// The server's part: answers each message until there were as many as agreed, or the client is done. Returns the
/// number of answers.
pub(super) fn pong(rig: &mut Rig, run: &Run, watch: &mut Watch<'_>) -> Result<u64, PerfError> {
    let mut number = 0;
    while run.messages.is_none_or(|most| number < most) {
        while !arrived(rig, run, number, watch)? {
            if watch.said.is_some() {
                return Ok(number);
            }
        }
        post(rig, run, number, watch)?;
        number += 1;
        watch.messages = number;
    }
    Ok(number)
}

/// The last byte of a WRITE shows that it has arrived. It is never that of the one before, nor that of cleared memory.
fn mark(number: u64) -> u8 {
    (number % 255) as u8 + 1
}

fn post(rig: &mut Rig, run: &Run, number: u64, watch: &mut Watch<'_>) -> Result<(), PerfError> {
    let size = run.size as usize;
    if rig.setup.verb == Verb::Write {
        rig.mark(0, size, mark(number))?;
    }
    rig.push(0, size, number, false)?;
    rig.post(0)?;
    // Room for the next one, while this one is under way.
    while rig.rooms[0].free() == 0 {
        reap(rig, watch)?;
    }
    Ok(())
}

/// Waits for completions of what was posted.
fn reap(rig: &mut Rig, watch: &mut Watch<'_>) -> Result<(), PerfError> {
    for completion in rig.sends.wait(watch)? {
        complete(&mut rig.rooms, completion.work_id);
    }
    Ok(())
}

/// Whether the peer's message is here. If it is not, the peer has said something else.
fn arrived(rig: &mut Rig, run: &Run, number: u64, watch: &mut Watch<'_>) -> Result<bool, PerfError> {
    if rig.setup.verb == Verb::Write {
        while rig.memory.marked(0, run.size as usize)? != mark(number) {
            if watch.round()? {
                return Ok(false);
            }
        }
        watch.progress();
        return Ok(true);
    }
    let Some(id) = rig.receives.wait(watch)?.first().map(|completion| completion.work_id) else { return Ok(false) };
    rig.receive_again(id)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::mark;

    #[test]
    fn a_mark_differs_from_the_one_before_and_from_nothing() {
        for number in 0..1000 {
            assert!(mark(number) != mark(number + 1) && mark(number) != 0);
        }
    }
}
