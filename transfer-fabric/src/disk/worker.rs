//! The thread that writes and reads versions.

use super::store::{Place, Store, Write};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use transfer_core::protocol::{SpillId, Tenant};

/// A job of the thread. The state machine bounds how many there are: two writes, and a read for each range of a pool.
enum Job {
    Write { id: SpillId, tenant: Tenant, from: Vec<Place>, len: u64 },
    Read { id: SpillId, ranges: Vec<(u64, u64)>, to: Place, tag: u64 },
    Free(SpillId),
}

/// A job that is done. The error says why it was not.
pub(crate) enum Done {
    Written(SpillId, Result<(), String>),
    Read(u64, Result<(), String>),
}

/// The handle of the thread. It ends when the handle is dropped.
pub(crate) struct Disk {
    jobs: Sender<Job>,
    done: Receiver<Done>,
}

impl Disk {
    /// Starts the thread. It rings the bell after each job.
    pub(crate) fn start(store: Store, bell: Arc<OwnedFd>) -> std::io::Result<Disk> {
        let ((jobs, todo), (tell, done)) = (unbounded(), unbounded());
        let thread = std::thread::Builder::new().name("transfer-disk".into());
        thread.spawn(move || Worker { store, todo, tell, bell, writes: VecDeque::new() }.run())?;
        Ok(Disk { jobs, done })
    }

    pub(crate) fn write(&self, id: SpillId, tenant: Tenant, from: Vec<Place>, len: u64) {
        let _ = self.jobs.send(Job::Write { id, tenant, from, len });
    }

    pub(crate) fn read(&self, id: SpillId, ranges: Vec<(u64, u64)>, to: Place, tag: u64) {
        let _ = self.jobs.send(Job::Read { id, ranges, to, tag });
    }

    pub(crate) fn free(&self, id: SpillId) {
        let _ = self.jobs.send(Job::Free(id));
    }

    /// Returns a job that is done.
    pub(crate) fn done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }
}

struct Worker {
    store: Store,
    todo: Receiver<Job>,
    tell: Sender<Done>,
    bell: Arc<OwnedFd>,
    writes: VecDeque<Write>,
}

impl Worker {
    fn run(mut self) {
        loop {
            // Reads come before the next piece of a write.
            while let Ok(job) = self.todo.try_recv() {
                self.take(job);
            }
            match self.writes.pop_front() {
                Some(write) => self.go_on(write),
                None => match self.todo.recv() {
                    Ok(job) => self.take(job),
                    // The engine has ended.
                    Err(_) => return,
                },
            }
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Write { id, tenant, from, len } => match self.store.begin(id, tenant, from, len) {
                Ok(write) => self.writes.push_back(write),
                Err(why) => self.tell(Done::Written(id, Err(why))),
            },
            Job::Read { id, ranges, to, tag } => {
                let result = self.store.read(id, &ranges, &to);
                self.tell(Done::Read(tag, result));
            }
            Job::Free(id) => self.store.free(id),
        }
    }

    fn go_on(&mut self, write: Write) {
        let id = write.id;
        match self.store.step(write) {
            Ok(Some(write)) => self.writes.push_front(write),
            Ok(None) => self.tell(Done::Written(id, Ok(()))),
            Err(why) => self.tell(Done::Written(id, Err(why))),
        }
    }

    fn tell(&self, done: Done) {
        let _ = self.tell.send(done);
        // The write fails only when the counter is full, and then the engine is being woken already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}
