//! The threads that write and read versions.

use super::file::Piece;
use super::store::{MemoryRange, Store, Write};
use crossbeam_channel::{Receiver, Sender, select, unbounded};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use transfer_core::protocol::{SpillId, Tenant};
use transfer_core::tensor::Packing;

/// How many threads there are. One copies bytes and sums them up while another one waits for the disk.
const DISK_THREADS: usize = 2;

/// A version to write. The state machine writes two at the same time.
struct ToWrite {
    id: SpillId,
    tenant: Tenant,
    from: Vec<MemoryRange>,
    len: u64,
}

/// What comes before the next piece of a write. The state machine bounds how many there are: a read for each range of a
/// pool, and the versions that it has.
enum Urgent {
    Read { id: SpillId, packing: Packing, to: MemoryRange, tag: u64 },
    Free(SpillId),
}

/// A job that is done. The error says why it was not.
pub(crate) enum Done {
    Written(SpillId, Result<(), String>),
    Read(u64, Result<(), String>),
}

/// The handle of the threads. They end when the handle is dropped.
pub(crate) struct Disk {
    urgent: Sender<Urgent>,
    writes: Sender<ToWrite>,
    done: Receiver<Done>,
}

impl Disk {
    /// Starts the threads. They ring the bell after each job.
    pub(crate) fn start(store: Store, bell: Arc<OwnedFd>) -> std::io::Result<Disk> {
        let ((urgent, urgently), (writes, to_write), (tell, done)) = (unbounded(), unbounded(), unbounded());
        let store = Arc::new(store);
        for _ in 0..DISK_THREADS {
            let worker = Worker {
                store: store.clone(),
                urgent: urgently.clone(),
                writes: to_write.clone(),
                tell: tell.clone(),
                bell: bell.clone(),
                piece: Piece::new(),
                write: None,
            };
            std::thread::Builder::new().name("transfer-disk".into()).spawn(move || worker.run())?;
        }
        Ok(Disk { urgent, writes, done })
    }

    pub(crate) fn write(&self, id: SpillId, tenant: Tenant, from: Vec<MemoryRange>, len: u64) {
        let _ = self.writes.send(ToWrite { id, tenant, from, len });
    }

    pub(crate) fn read(&self, id: SpillId, packing: Packing, to: MemoryRange, tag: u64) {
        let _ = self.urgent.send(Urgent::Read { id, packing, to, tag });
    }

    pub(crate) fn free(&self, id: SpillId) {
        let _ = self.urgent.send(Urgent::Free(id));
    }

    /// Returns a job that is done.
    pub(crate) fn done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }
}

struct Worker {
    store: Arc<Store>,
    urgent: Receiver<Urgent>,
    writes: Receiver<ToWrite>,
    tell: Sender<Done>,
    bell: Arc<OwnedFd>,
    piece: Piece,
    /// What is left of the version that it is writing.
    write: Option<Write>,
}

impl Worker {
    fn run(mut self) {
        loop {
            while let Ok(job) = self.urgent.try_recv() {
                self.take(job);
            }
            match self.write.take() {
                Some(write) => self.go_on(write),
                // An error: the engine has ended.
                None => select! {
                    recv(self.urgent) -> job => match job {
                        Ok(job) => self.take(job),
                        Err(_) => return,
                    },
                    recv(self.writes) -> job => match job {
                        Ok(job) => self.begin(job),
                        Err(_) => return,
                    },
                },
            }
        }
    }

    fn take(&mut self, job: Urgent) {
        match job {
            Urgent::Read { id, packing, to, tag } => {
                let result = self.store.read(id, packing, &to, &mut self.piece);
                self.tell(Done::Read(tag, result));
            }
            Urgent::Free(id) => self.store.free(id),
        }
    }

    fn begin(&mut self, ToWrite { id, tenant, from, len }: ToWrite) {
        match self.store.begin(id, tenant, from, len) {
            Ok(write) => self.write = Some(write),
            Err(why) => self.tell(Done::Written(id, Err(why))),
        }
    }

    fn go_on(&mut self, write: Write) {
        let id = write.id;
        match self.store.step(write, &mut self.piece) {
            Ok(left @ Some(_)) => self.write = left,
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
