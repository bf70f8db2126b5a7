//! The copy pool: threads for work that would hold up the data plane. They help with large copies, and map and unmap the segments of peers.

use super::job::Job;
use super::quota::Share;
use crossbeam_channel::{Receiver, Sender};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use transfer_core::fabric::FabricError;
use transfer_memory::segment::{Segment, SegmentError};

/// How much one of these threads copies before it looks for what else there is.
const PIECE_BYTES: u64 = 1 << 20;

/// The least for which waking one is worth its while.
pub(super) const LEAST_BYTES: u64 = 2 << 20;

/// A peer's segment, once it is mapped.
#[derive(Debug, Default)]
pub(super) struct Theirs {
    segment: OnceLock<Result<Arc<Segment>, SegmentError>>,
    /// Behind the segment: it counts until that is gone.
    share: OnceLock<Share>,
}

impl Theirs {
    /// It, or why it cannot be mapped. `None`: not yet.
    pub(super) fn get(&self) -> Option<&Result<Arc<Segment>, SegmentError>> {
        self.segment.get()
    }

    /// There is room for it: from now on it counts.
    pub(super) fn count(&self, share: Share) {
        // Nobody else sets it.
        let _ = self.share.set(share);
    }
}

/// What is to be mapped.
#[derive(Debug)]
pub(super) struct ToMap {
    pub(super) fd: OwnedFd,
    pub(super) len: u64,
    pub(super) incarnation: u64,
    /// The link's mark, where it is to be kept for those who read by reference.
    pub(super) mark: Option<u64>,
    pub(super) into: Arc<Theirs>,
}

enum Task {
    /// Not kept for its own sake: one that is over by the time somebody comes to it keeps no memory mapped.
    Copy(Weak<Job>),
    Map(ToMap),
    /// To unmap takes a while, too.
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
                // The peer may have taken it back meanwhile, or the link has ended: then nobody would use it.
                if Arc::strong_count(&into) > 1 {
                    // Nobody else sets it.
                    let _ = into.segment.set(Segment::adopt_from_peer(fd, len, incarnation, mark).map(Arc::new));
                }
                // It may be the last that keeps it: then there is room for another one.
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
    // It fails only when the counter is full, and then the bell is ringing. No other process has this descriptor.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// The threads. They end, and have ended, when this is dropped.
#[derive(Debug)]
pub(super) struct CopyPool {
    tasks: Option<Sender<Task>>,
    threads: Vec<JoinHandle<()>>,
    bell: Arc<OwnedFd>,
}

impl CopyPool {
    /// Up to so many threads; as many as the system gives.
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

    /// Readable when something was done.
    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Takes the ringing back.
    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
    }

    /// Has a copy begun. The caller takes part in it, and does it alone where there is no thread.
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

    /// Has segments unmapped that are not needed any more, and let go of by the last copy from them.
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
