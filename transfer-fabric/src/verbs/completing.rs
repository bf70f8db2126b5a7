//! Takes completions, and applies them to the links.

use super::VerbsFabric;
use super::counters::Counters;
use super::link::{Link, Posted, RECEIVE, Stage};
use super::notice::Notice;
use crate::links::Sink;
use transfer_core::fabric::{DownReason, FabricEvent, LinkId};
use transfer_core::memory::RemoteKey;
use transfer_verbs::{Completion, Done, Opcode, Status};

/// The most completions that are taken in one call.
const COMPLETIONS_PER_POLL: usize = 32;

/// The most calls in a row for each queue, in one round.
const BATCHES: usize = 8;

/// The effect of a completion on its link.
enum After {
    Nothing,
    /// The goodbye of a link that ends has completed.
    Gone,
    /// The link fails for this reason. The flag says whether the reason is sure: no better one will follow.
    Fail(DownReason, bool),
}

impl VerbsFabric {
    /// Takes completions. Returns whether there were any, and whether the queues were empty in the end.
    pub(super) fn take_completions(&mut self, sink: &mut Sink<'_>) -> (bool, bool) {
        let (mut moved, mut emptied) = (false, true);
        while let Some(completion) = self.backlog.pop_front() {
            moved = true;
            self.completed(&completion, sink);
        }
        for number in 0..self.queues.len() {
            let mut batches = BATCHES;
            loop {
                let mut batch = [Completion::EMPTY; COMPLETIONS_PER_POLL];
                let count = self.poll_queue(number, &mut batch);
                moved |= count > 0;
                for completion in &batch[..count] {
                    self.completed(completion, sink);
                }
                if count < COMPLETIONS_PER_POLL {
                    break;
                }
                batches -= 1;
                if batches == 0 {
                    emptied = false;
                    break;
                }
            }
        }
        self.repost();
        if moved {
            self.let_go();
        }
        (moved, emptied)
    }

    fn poll_queue(&mut self, number: usize, batch: &mut [Completion]) -> usize {
        self.counters.polls += 1;
        let Some(queue) = self.queues.get(number) else { return 0 };
        match queue.poll(batch) {
            Ok(count) => count.min(batch.len()),
            Err(error) => {
                self.device_failed(&error.to_string());
                0
            }
        }
    }

    /// Sets the completions in one queue aside until the next poll, so that the queue is empty.
    pub(super) fn stash(&mut self, number: usize) {
        loop {
            let mut batch = [Completion::EMPTY; COMPLETIONS_PER_POLL];
            let count = self.poll_queue(number, &mut batch);
            self.backlog.extend(&batch[..count]);
            if count < COMPLETIONS_PER_POLL {
                return;
            }
        }
    }

    fn completed(&mut self, completion: &Completion, sink: &mut Sink<'_>) {
        let id = LinkId((completion.work_id >> 32) as u32);
        let number = completion.work_id as u32;
        // The queue may still have held a completion of a link that is gone.
        let Some(link) = self.links.get_mut(id) else { return };
        link.heard = true;
        let after = if number & RECEIVE != 0 {
            let slot = number & !RECEIVE;
            let after = received(link, slot, completion, sink, &mut self.counters);
            if completion.result.is_ok() {
                if link.reposts.is_empty() {
                    self.to_repost.push(id);
                }
                link.repost(slot);
            }
            after
        } else {
            let after = sent(link, number, completion, sink, &mut self.counters);
            if link.sends.waiting() > 0 {
                self.list(id);
            }
            after
        };
        match after {
            After::Nothing => {}
            After::Gone => self.fail(id, DownReason::Lost(String::new()), true),
            After::Fail(reason, sure) => self.fail(id, reason, sure),
        }
    }

    /// Posts the receive slots again whose messages were reported. No credit for them can have left yet: a credit is a
    /// message, and leaves with the next poll.
    fn repost(&mut self) {
        for id in std::mem::take(&mut self.to_repost) {
            let Some(link) = self.links.get_mut(id) else { continue };
            if let Err(reason) = link.post_receives() {
                self.fail(id, reason, false);
            }
        }
    }

    /// Releases segments that no work request reads any longer.
    pub(super) fn let_go(&mut self) {
        if self.regions.any_retired() {
            let links = &self.links;
            self.regions.let_go(|id, number| links.get(id).is_some_and(|link| link.sends.up_to(number).is_some()));
        }
    }
}

/// Handles the completion of a receive.
fn received(
    link: &mut Link,
    slot: u32,
    completion: &Completion,
    sink: &mut Sink<'_>,
    counters: &mut Counters,
) -> After {
    let done = match completion.result {
        Ok(done) => done,
        Err(status) => return After::Fail(receive_failed(status), status != Status::Flushed),
    };
    counters.receives += 1;
    if !matches!(link.stage, Stage::Greeting { .. } | Stage::Up) {
        return After::Nothing;
    }
    if VerbsFabric::connected(link) {
        sink(FabricEvent::Connected { link: link.id });
    }
    match arrived(link, slot, &done, sink) {
        Ok(()) => After::Nothing,
        Err(reason) => After::Fail(reason, true),
    }
}

fn arrived(link: &Link, slot: u32, done: &Done, sink: &mut Sink<'_>) -> Result<(), DownReason> {
    let violation = |what: &str| Err(DownReason::Violation(what.to_owned()));
    let id = link.id;
    if done.invalidated.is_some() {
        return violation("it invalidated a key of this side by itself");
    }
    if done.opcode == Opcode::ReceiveWriteImmediate {
        let Some(value) = done.immediate else { return violation("a write with an immediate, and without") };
        sink(FabricEvent::Immediate { link: id, value, len_bytes: done.len_bytes.into(), copied: 0 });
        return Ok(());
    }
    let Some(bytes) = link.area.received(slot, done.len_bytes) else { return violation("a message that is too long") };
    let Some(number) = done.immediate else {
        sink(FabricEvent::Message { link: id, bytes });
        return Ok(());
    };
    let text = || String::from_utf8_lossy(bytes).into_owned();
    match Notice::from_number(number) {
        Some(Notice::Hello) => Ok(()),
        Some(Notice::Bye) => Err(DownReason::PeerClosed(text())),
        Some(Notice::Refuse) => Err(DownReason::Refused(text())),
        None => violation("a notice of an unknown kind"),
    }
}

/// Handles the completion of a work request, which also completes all earlier requests.
fn sent(link: &mut Link, number: u32, completion: &Completion, sink: &mut Sink<'_>, counters: &mut Counters) -> After {
    // The request is not of this link, or a later one has completed it: nothing is known of it any longer.
    let Some(count) = link.sends.up_to(number) else { return After::Nothing };
    counters.signaled += 1;
    let quiet = matches!(link.stage, Stage::Draining { .. });
    let mut after = After::Nothing;
    let good = if completion.result.is_ok() { count } else { count - 1 };
    for _ in 0..good {
        let Some(posted) = link.sends.pop() else { break };
        if let Posted::Goodbye = posted {
            after = After::Gone;
        }
        if !quiet {
            done(link, posted, sink);
        }
    }
    if let Err(status) = completion.result
        && let Some(posted) = link.sends.pop()
    {
        after = After::Fail(send_failed(&posted, status), status != Status::Flushed);
    }
    after
}

/// Reports a request that succeeded.
fn done(link: &mut Link, posted: Posted, sink: &mut Sink<'_>) {
    let id = link.id;
    match posted {
        Posted::Write(work, _) => sink(FabricEvent::WriteDone { link: id, work }),
        Posted::Send(work, slot) => {
            if let Some(slot) = slot {
                link.area.free_send(slot);
            }
            sink(FabricEvent::SendDone { link: id, work });
        }
        Posted::Atomic(work, word) => {
            let old = link.area.free_word(word);
            sink(FabricEvent::AtomicDone { link: id, work, old });
        }
        Posted::Bind(None) | Posted::Probe | Posted::Goodbye => {}
        Posted::Bind(Some((tag, remote))) => sink(FabricEvent::Granted { link: id, tag, remote }),
        Posted::Invalidate(index) => {
            if let Some(window) = link.windows.window(index) {
                window.release_region();
            }
            let Some(gone) = link.windows.invalidated(index) else { return };
            // A window without a fresh key is deallocated here.
            drop(gone.worn);
            for _ in 0..gone.asked {
                sink(FabricEvent::Revoked { link: id, key: RemoteKey(gone.key), tag: gone.tag });
            }
        }
        Posted::Hello => {
            if VerbsFabric::connected(link) {
                // Reported at once, because the peer's answer may have completed right behind this request.
                sink(FabricEvent::Connected { link: id });
            }
        }
    }
}

/// Returns the reason why a failed receive ends its link.
fn receive_failed(status: Status) -> DownReason {
    match status {
        // Only the device stops a queue pair that this side has not stopped. It does so when it refuses a request of
        // the peer, and reports nothing more about that here.
        Status::Flushed => DownReason::Violation(
            "the device stopped the queue pair, as it does after a write to memory that is not open to the peer"
                .to_owned(),
        ),
        Status::LocalLength | Status::LocalAccess => DownReason::Violation(format!("a receive failed: {status}")),
        status => DownReason::Lost(format!("a receive failed: {status}")),
    }
}

/// Returns the reason why a failed work request ends its link.
fn send_failed(posted: &Posted, status: Status) -> DownReason {
    let what = posted.name();
    match status {
        Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation => {
            DownReason::Refused(format!("{what}: {status}"))
        }
        Status::Flushed => receive_failed(status),
        status => DownReason::Lost(format!("{what}: {status}")),
    }
}
