//! The thread that fetches the pieces of a file and writes them.

use super::error::CopyError;
use super::pace::{INTERVAL, Pace};
use super::{CopiesShared, Order};
use crate::engine::{EngineCommand, ReaderReply};
use crossbeam_channel as channel;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::Status;
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Command, Fetch, FetchedTensor, LeaseId, OpId, Request};
use transfer_core::protocol::SessionId;
use transfer_core::tensor::{DType, Name, Select, Version};
use transfer_memory::segment::Segment;
use transfer_proto::v1;

/// The pieces that are fetched ahead of the one that is written.
const PIECES_AHEAD: u64 = 4;

/// The bytes that are copied out, added to the digest and written at once: they stay in the cache meanwhile.
const CHUNK_BYTES: usize = 128 << 10;

/// The interval of reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// The length of the last version: the sender's digest.
const DIGEST_BYTES: u64 = 32;

/// What the thread waits for.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum Heard {
    /// A piece, or its failure.
    Reply(ReaderReply),
    /// The caller has hung up.
    Gone,
    /// The session is over: the sidecar ends.
    Ended,
}

/// Passes the replies on, and tells when no further one can come.
struct Hear(channel::Sender<Heard>);

impl Drop for Hear {
    fn drop(&mut self) {
        // The thread may have ended first.
        let _ = self.0.send(Heard::Ended);
    }
}

/// A copy that begins.
pub(super) struct Receiver {
    /// The name of the session.
    pub(super) name: Name,
    pub(super) order: Order,
    pub(super) reports: mpsc::Sender<Result<v1::CopyProgress, Status>>,
    /// The place of the last report. The caller may read none, and the thread does not wait for it.
    pub(super) last: mpsc::OwnedPermit<Result<v1::CopyProgress, Status>>,
    pub(super) hear: channel::Sender<Heard>,
    pub(super) heard: channel::Receiver<Heard>,
    pub(super) shared: Arc<CopiesShared>,
}

/// A piece that has come. Its memory stays until its lease is released.
struct Piece {
    lease: LeaseId,
    tensor: FetchedTensor,
    memory: Arc<Segment>,
}

/// The session, which ends with this value: also its leases and its fetches.
struct Session<'a> {
    shared: &'a CopiesShared,
    id: SessionId,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // An engine that has ended has no sessions.
        let _ =
            self.shared.engine.send(EngineCommand::CloseReader { session: self.id, why: "the copy is over".into() });
    }
}

impl Session<'_> {
    fn request(&self, request: Request) -> Result<(), CopyError> {
        let sent = self.shared.engine.send(EngineCommand::Reader { session: self.id, request });
        sent.map_err(|_| CopyError::Stopping)
    }
}

impl Receiver {
    /// Receives the file, and sends the last report.
    pub(super) fn run(self) {
        let (path, bytes) = (&self.order.path, self.order.bytes);
        let last = match self.receive() {
            Ok(done) => {
                tracing::info!(path, bytes, fabric = done.fabric, "a file was copied here");
                Ok(v1::CopyProgress { bytes, done: Some(done) })
            }
            Err(error) => {
                tracing::warn!(path, bytes, %error, "a file was not copied here");
                Err(Status::from(error))
            }
        };
        self.last.send(last);
    }

    fn receive(&self) -> Result<v1::CopyDone, CopyError> {
        let Order { path, bytes, message_bytes, overwrite, .. } = &self.order;
        let CopiesShared { folder, room, sessions, tenant, .. } = &*self.shared;
        let place = folder.place(path, *overwrite)?;
        let _reserved = room.reserve(folder, &place, path, *bytes)?;
        let unfinished = place.begin()?;
        self.allocate(unfinished.file())?;
        let hear = Hear(self.hear.clone());
        let sink = move |reply| drop(hear.0.send(Heard::Reply(reply)));
        let id = sessions.open_reader(&self.name, *tenant, Box::new(sink))?;
        let session = Session { shared: &self.shared, id };
        self.report(0);

        let pieces = bytes.div_ceil(*message_bytes);
        let (mut asked, mut next, mut early) = (0, 1, BTreeMap::new());
        let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; CHUNK_BYTES]);
        let (mut at, mut reported, mut way) = (0, Instant::now(), Carried::default());
        let mut pace = Pace::new(reported);
        loop {
            // The version after the pieces is the digest.
            while asked <= pieces && asked < next - 1 + PIECES_AHEAD {
                asked += 1;
                session.request(self.fetch(asked))?;
            }
            let Piece { lease, tensor, memory } = self.wait_for(next, pieces, &mut early)?;
            let wanted = match next > pieces {
                true => DIGEST_BYTES,
                false => (*message_bytes).min(bytes - at),
            };
            let found = tensor.meta.len_bytes();
            let is_plain = tensor.ranges == 0 && tensor.meta.dtype() == DType::U8 && tensor.meta.metadata_bytes() == 0;
            if found != wanted || !is_plain {
                return Err(CopyError::Piece { piece: next, pieces, found, wanted });
            }
            way.add(&tensor);
            if next > pieces {
                let mut told = [0; DIGEST_BYTES as usize];
                copy_out(&memory, tensor.slice.offset, &mut told)?;
                let (found, wanted) = (hasher.finalize(), blake3::Hash::from(told));
                if found != wanted {
                    let [found, wanted] = [found, wanted].map(|digest| digest.to_hex().to_string());
                    return Err(CopyError::Digest { found, wanted });
                }
                break;
            }
            let mut from = tensor.slice.offset;
            let end = at + wanted;
            while at < end {
                // The chunk is at most 128 KiB.
                let chunk = &mut buffer[..CHUNK_BYTES.min(usize::try_from(end - at).unwrap_or(CHUNK_BYTES))];
                copy_out(&memory, from, chunk)?;
                hasher.update(chunk);
                unfinished.file().write_all_at(chunk, at).map_err(|source| self.failed("write", source))?;
                at += chunk.len() as u64;
                from += chunk.len() as u64;
            }
            session.request(Request::Release { lease })?;
            next += 1;
            if next <= pieces {
                pace.moved(Instant::now(), at)?;
            }
            if reported.elapsed() >= REPORT_INTERVAL {
                self.report(at);
                reported = Instant::now();
            }
        }
        // A caller that has hung up is told of no file, so there is none.
        if self.reports.is_closed() {
            return Err(CopyError::Gone);
        }
        place.finish(unfinished)?;
        let fabric = v1::Fabric::from(crate::peering::Kind(way.fabric)).into();
        Ok(v1::CopyDone { blake3: hasher.finalize().as_bytes().to_vec(), fabric, copied_bytes: way.copied })
    }

    /// Takes the room on the disk at once, so that a full disk is found before anything is sent.
    fn allocate(&self, file: &File) -> Result<(), CopyError> {
        if self.order.bytes == 0 {
            return Ok(());
        }
        // Beyond this limit the kernel ends the process by SIGXFSZ, unless its program ignores that.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| self.order.bytes > limit) {
            return Err(self.failed("write", Errno::FBIG.into()));
        }
        match fallocate(file, FallocateFlags::empty(), 0, self.order.bytes) {
            // The file system cannot; a full disk is found later.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(e) => Err(self.failed("write", e.into())),
        }
    }

    fn failed(&self, what: &'static str, source: std::io::Error) -> CopyError {
        CopyError::Disk { what, path: self.order.path.clone(), source }
    }

    /// The fetch of one version.
    fn fetch(&self, version: u64) -> Request {
        let command = Command::Fetch(Fetch {
            key: self.order.key.clone(),
            select: Select::Exactly(Version(version)),
            timeout: INTERVAL,
            require: self.order.require,
            trace: None,
            watches: false,
            excerpt: None,
            base: None,
        });
        Request::Command { op: OpId(version), command }
    }

    /// Waits for a piece. Others that come before it are kept.
    fn wait_for(&self, piece: u64, pieces: u64, early: &mut BTreeMap<u64, Piece>) -> Result<Piece, CopyError> {
        loop {
            if let Some(piece) = early.remove(&piece) {
                return Ok(piece);
            }
            match self.heard.recv() {
                Ok(Heard::Reply(ReaderReply::Fetched { op, lease, tensor, memory })) => {
                    early.insert(op.0, Piece { lease, tensor, memory });
                }
                Ok(Heard::Reply(ReaderReply::Failed { op, failure })) => {
                    return Err(CopyError::Fetch { piece: op.0, pieces, failure });
                }
                Ok(Heard::Gone) => return Err(CopyError::Gone),
                Ok(_) | Err(_) => return Err(CopyError::Stopping),
            }
        }
    }

    /// Reports the bytes that are written. A slow caller misses reports.
    fn report(&self, bytes: u64) {
        let _ = self.reports.try_send(Ok(v1::CopyProgress { bytes, done: None }));
    }
}

fn copy_out(memory: &Segment, offset: u64, to: &mut [u8]) -> Result<(), CopyError> {
    // The engine hands out ranges that lie in their segment.
    memory.mapping().copy_out(offset, to).map_err(|e| CopyError::Internal(e.to_string()))
}

/// What carried the pieces.
struct Carried {
    fabric: FabricKind,
    copied: u64,
}

impl Default for Carried {
    fn default() -> Carried {
        Carried { fabric: FabricKind::Local, copied: 0 }
    }
}

impl Carried {
    fn add(&mut self, tensor: &FetchedTensor) {
        self.fabric = tensor.report.fabric;
        self.copied = self.copied.saturating_add(tensor.report.copied);
    }
}
