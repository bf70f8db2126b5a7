//! The copy pool: threads for work that would hold up the data plane. They help with large copies, and map and unmap
//! the segments of peers.

use super::job::Job;
use super::quota::Share;
use crossbeam_channel::{Receiver, Sender};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use transfer_core::fabric::FabricError;
use transfer_memory::segment::{Segment, SegmentError};

/// The bytes that a thread of the pool takes of a copy at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// The shortest copy that is worth waking a thread for.
pub(super) const MIN_SHARED_COPY_BYTES: u64 = 2 << 20;

/// A segment that the peer has passed, and its mapping once it is made.
#[derive(Debug, Default)]
pub(super) struct Theirs {
    segment: OnceLock<Result<Arc<Segment>, SegmentError>>,
    /// Declared after the segment, so that it counts until the segment is gone.
    share: OnceLock<Share>,
}

impl Theirs {
    /// Returns the segment, or the reason why it cannot be mapped. Returns `None` if it is not mapped yet.
    pub(super) fn get(&self) -> Option<&Result<Arc<Segment>, SegmentError>> {
        self.segment.get()
    }

    /// Counts the segment from now on: there is room for it.
    pub(super) fn count(&self, share: Share) {
        // Nothing else sets it.
        let _ = self.share.set(share);
    }
}

/// A segment that is to be mapped.
#[derive(Debug)]
pub(super) struct ToMap {
    pub(super) fd: OwnedFd,
    pub(super) len: u64,
    pub(super) incarnation: u64,
    /// The link's mark, if the segment is kept for workers that read it by reference.
    pub(super) mark: Option<u64>,
    pub(super) into: Arc<Theirs>,
}

enum Task {
    /// A weak pointer: a copy that is over before a thread comes to it keeps no memory mapped.
    Copy(Weak<Job>),
    Map(ToMap),
    /// Unmapping takes a while, too.
    Drop(Vec<Arc<Theirs>>, Option<Arc<Job>>),
}

impl Task {
    fn run(self, bell: &OwnedFd) {
        match self {
            Task::Copy(job) => {
                let Some(job) = job.upgrade() else { return };
                while let Some(last) = job.step(PIECE_BYTES) {
                    if last {
                        ring(bell);
                    }
                }
            }
            Task::Map(ToMap { fd, len, incarnation, mark, into }) => {
                // If the peer has taken the segment back meanwhile, or the link has ended, nothing would use the
                // mapping.
                if Arc::strong_count(&into) > 1 {
                    // Nothing else sets it.
                    let _ = into.segment.set(Segment::adopt_from_peer(fd, len, incarnation, mark).map(Arc::new));
                }
                // This may be the last reference. Dropping it then makes room for another segment.
                drop(into);
                ring(bell);
            }
            Task::Drop(theirs, job) => {
                drop((theirs, job));
                ring(bell);
            }
        }
    }
}

fn ring(bell: &OwnedFd) {
    // The write fails only when the counter is full, and then the bell is ringing. No other process has this
    // descriptor.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// The threads. Dropping the pool ends them, and waits for their end.
#[derive(Debug)]
pub(super) struct CopyPool {
    tasks: Option<Sender<Task>>,
    threads: Vec<JoinHandle<()>>,
    bell: Arc<OwnedFd>,
}

impl CopyPool {
    /// Starts up to `threads` threads, or as many as the system allows.
    pub(super) fn start(threads: usize) -> Result<CopyPool, FabricError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(crate::device("eventfd"))?;
        let bell = Arc::new(bell);
        let (tasks, receiver): (_, Receiver<Task>) = crossbeam_channel::unbounded();
        let start = |_| {
            let (receiver, bell) = (receiver.clone(), bell.clone());
            let thread = std::thread::Builder::new().name("transfer-copy".into());
            thread.spawn(move || receiver.iter().for_each(|task| task.run(&bell))).ok()
        };
        let threads: Vec<_> = (0..threads).map_while(start).collect();
        Ok(CopyPool { tasks: Some(tasks), threads, bell })
    }

    /// Returns a descriptor that is readable when a task was done.
    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Resets the bell.
    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
    }

    /// Has the threads help with a copy. The caller takes part in it, and copies alone if there is no thread.
    pub(super) fn copy(&self, job: &Arc<Job>) {
        let helpers = usize::try_from(job.len() / PIECE_BYTES).unwrap_or(usize::MAX).min(self.threads.len());
        for _ in 0..helpers {
            self.give(Task::Copy(Arc::downgrade(job)));
        }
    }

    /// Has a segment mapped.
    pub(super) fn map(&self, to_map: ToMap) {
        self.give(Task::Map(to_map));
    }

    /// Drops segments that are no longer needed, and the last copy from them, on a thread of the pool.
    pub(super) fn discard(&self, theirs: Vec<Arc<Theirs>>, last: Option<Arc<Job>>) {
        if !theirs.is_empty() || last.is_some() {
            self.give(Task::Drop(theirs, last));
        }
    }

    fn give(&self, task: Task) {
        let task = match &self.tasks {
            Some(tasks) if !self.threads.is_empty() => tasks.send(task).err().map(|unsent| unsent.0),
            _ => Some(task),
        };
        if let Some(task) = task {
            task.run(&self.bell);
        }
    }
}

impl Drop for CopyPool {
    fn drop(&mut self) {
        self.tasks = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a copying thread has panicked");
            }
        }
    }
}
