//! The receiving direction of a link. Records are checked before any byte is copied, and this side copies.

use super::copy_pool::MIN_SHARED_COPY_BYTES;
use super::job::{Job, Span};
use super::link::{Landing, Link, ReceiveContext};
use super::record::{self, HEAD_BYTES, Record, Write};
use crate::links::Sink;
use smallvec::SmallVec;
use std::sync::Arc;
use transfer_core::fabric::{DownReason, FabricEvent};
use transfer_core::memory::SegmentId;
use transfer_memory::ring::MAX_RECORD_BYTES;

/// The most records of one link that are taken in one round.
const RECORDS: usize = 256;

/// The bytes of a copy that the data-plane thread copies at a time, in about 30 µs.
const STEP_BYTES: u64 = 256 << 10;

fn violation(why: impl std::fmt::Display) -> DownReason {
    DownReason::Violation(why.to_string())
}

impl Link {
    /// Takes the records that the peer has posted, copies up to about `limit` bytes, and reports the events. Returns
    /// whether there was anything.
    pub(super) fn receive(
        &mut self,
        context: ReceiveContext<'_>,
        limit: u64,
        sink: &mut Sink<'_>,
    ) -> Result<bool, DownReason> {
        // Most rounds find nothing. To clear this memory each time would take longer than to look.
        let mut buffer = self.record.take().unwrap_or_else(|| Box::new([0; MAX_RECORD_BYTES]));
        let result = self.receive_into(&mut buffer, context, limit, sink);
        self.record = Some(buffer);
        result
    }

    fn receive_into(
        &mut self,
        buffer: &mut [u8; MAX_RECORD_BYTES],
        context: ReceiveContext<'_>,
        limit: u64,
        sink: &mut Sink<'_>,
    ) -> Result<bool, DownReason> {
        self.report_coming(sink)?;
        let (mut moved, mut left, mut popped) = (false, limit, 0);
        self.map(context);
        let result = loop {
            if self.landing.is_some() {
                let (done, stepped) = self.land(sink)?;
                moved |= stepped;
                if !done {
                    break Ok(moved);
                }
                left = left.saturating_sub(STEP_BYTES);
            }
            if left == 0 || popped == RECORDS {
                break Ok(true);
            }
            let (record, len) = match self.stuck.take() {
                Some(write) => (Record::Write(write), 0),
                None => {
                    let Some(bytes) = self.shared.incoming.try_pop(buffer).map_err(violation)? else {
                        break Ok(moved);
                    };
                    popped += 1;
                    let (record, placed) = record::decode(bytes).map_err(violation)?;
                    let len = bytes.len();
                    // Works that the peer acknowledges before a mistake are completed all the same.
                    self.complete(placed, sink)?;
                    (record, len)
                }
            };
            if std::mem::take(&mut self.asleep) {
                self.shared.incoming.awake();
            }
            let link = self.id;
            match record {
                Record::Write(write) => match self.begin(write, context, sink)? {
                    None => break Ok(moved),
                    Some(copied) => left = left.saturating_sub(copied),
                },
                Record::Send => {
                    self.acks.message_placed();
                    sink(FabricEvent::Message { link, bytes: buffer.get(HEAD_BYTES..len).unwrap_or(&[]) });
                }
                Record::Ack => {}
                Record::Forget(handle) => {
                    self.forgotten(handle, context)?;
                    if self.mark.is_some() {
                        self.coming.retain(|coming| *coming != handle);
                        sink(FabricEvent::SegmentGone { link, handle });
                    }
                }
                // A segment that was taken back meanwhile is ignored.
                Record::Kept(handle) => {
                    if self.mark.is_some() && self.passed.contains(&SegmentId(handle)) {
                        sink(FabricEvent::SegmentKept { link, segment: SegmentId(handle) });
                    }
                }
            }
            moved = true;
        };
        if popped > 0 && self.shared.incoming.should_wake() {
            self.ring()?;
        }
        result
    }

    /// Reports the segments that have come and are mapped.
    fn report_coming(&mut self, sink: &mut Sink<'_>) -> Result<(), DownReason> {
        let mut at = 0;
        while let Some(handle) = self.coming.get(at).copied() {
            match self.theirs.get(&handle).and_then(|(theirs, _)| theirs.get()) {
                None => at += 1,
                // Otherwise requests would wait for this segment in vain.
                Some(Err(why)) => return Err(violation(why)),
                Some(Ok(_)) => {
                    self.coming.swap_remove(at);
                    sink(FabricEvent::SegmentCame { link: self.id, handle });
                }
            }
        }
        Ok(())
    }

    /// Begins to place a write; a short one is placed at once. Returns the number of copied bytes, or `None` if a
    /// segment is not mapped yet.
    fn begin(
        &mut self,
        write: Write,
        context: ReceiveContext<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<Option<u64>, DownReason> {
        let place = context.regions.place(self.id, write.remote).map_err(violation)?;
        let mut spans = SmallVec::<[Span; 2]>::new();
        for element in &write.elements {
            if !self.theirs.contains_key(&element.handle) {
                // The peer passed the segment before it showed the record.
                self.hear(context, sink)?;
            }
            let unknown = || violation(format!("a write from segment {}, which was not passed", element.handle));
            let (theirs, _) = self.theirs.get(&element.handle).ok_or_else(unknown)?;
            let from = match theirs.get() {
                None => {
                    self.stuck = Some(write);
                    return Ok(None);
                }
                Some(Err(why)) => return Err(violation(why)),
                Some(Ok(segment)) => segment.mapping().clone(),
            };
            from.ptr_at(element.offset, element.len).map_err(violation)?;
            spans.push(Span { from, offset: element.offset, len: element.len });
        }
        let Write { remote, immediate, .. } = write;
        let Some(place) = place else {
            self.placed(immediate, 0, sink)?;
            return Ok(Some(0));
        };
        let job = Job::new(place.mapping, place.offset, spans);
        if remote.len <= STEP_BYTES {
            job.step(STEP_BYTES);
            self.copied(&job, immediate, sink)?;
            return Ok(Some(remote.len));
        }
        let job = Arc::new(job);
        if remote.len >= MIN_SHARED_COPY_BYTES {
            context.copy_pool.copy(&job);
        }
        self.landing = Some(Landing { job, key: place.key, immediate });
        Ok(Some(0))
    }

    /// Continues the copy in progress. Returns whether it is done, and whether this step did anything.
    fn land(&mut self, sink: &mut Sink<'_>) -> Result<(bool, bool), DownReason> {
        let Some(Landing { job, immediate, .. }) = &self.landing else { return Ok((true, false)) };
        let stepped = job.step(STEP_BYTES).is_some();
        self.shared.beat();
        if !job.is_over() {
            return Ok((false, stepped));
        }
        let (job, immediate) = (job.clone(), *immediate);
        self.landing = None;
        self.copied(&job, immediate, sink)?;
        Ok((true, true))
    }

    fn copied(&mut self, job: &Job, immediate: Option<u32>, sink: &mut Sink<'_>) -> Result<(), DownReason> {
        if job.has_failed() {
            return Err(violation("memory that was granted cannot be written"));
        }
        if !self.shared.peer_stands() {
            // The memory that the bytes came from may have been used again.
            let ended = || DownReason::Lost("the peer has ended the link while its bytes were copied".into());
            return Err(self.farewell.take().unwrap_or_else(ended));
        }
        self.copied += job.len();
        self.placed(immediate, job.len(), sink)
    }

    fn placed(&mut self, immediate: Option<u32>, len_bytes: u64, sink: &mut Sink<'_>) -> Result<(), DownReason> {
        self.acks.write_placed();
        if let Some(value) = immediate {
            let copied = std::mem::take(&mut self.copied);
            sink(FabricEvent::Immediate { link: self.id, value, len_bytes, copied });
        }
        Ok(())
    }

    /// Reports the works that the peer has placed.
    fn complete(&mut self, placed: u64, sink: &mut Sink<'_>) -> Result<(), DownReason> {
        let (before, sent) = (self.works.placed(), self.works.posted());
        if placed < before || placed > sent {
            return Err(violation(format!("{placed} works acknowledged, after {before}, of {sent} sent")));
        }
        self.works.complete(self.id, placed, sink);
        Ok(())
    }
}
