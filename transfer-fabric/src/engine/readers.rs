//! Readers: sessions of the sidecar's own services, which fetch and do nothing else.
//!
//! A reader has no process, no rings and no arena. Its requests are commands, and its replies go to a closure. It gets the
//! memory of a fetched tensor itself instead of a descriptor.

use super::memory::Memory;
use hashbrown::HashMap;
use std::sync::Arc;
use transfer_core::op::{Answer, Failure, FailureCode, FetchedTensor, LeaseId, OpId, Reply};
use transfer_core::protocol::SessionId;
use transfer_memory::segment::Segment;

/// The answer to a reader's fetch.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReaderReply {
    /// The tensor is here, and stays until the lease is released.
    Fetched {
        /// The number of the fetch.
        op: OpId,
        /// The lease.
        lease: LeaseId,
        /// The tensor.
        tensor: FetchedTensor,
        /// The memory in which it lies. Other processes may write it, if they break their contract.
        memory: Arc<Segment>,
    },
    /// The fetch has failed.
    Failed {
        /// The number of the fetch.
        op: OpId,
        /// The reason.
        failure: Failure,
    },
}

/// Takes a reader's replies on the engine's thread; must not block. It is dropped when the session ends.
pub type ReaderSink = Box<dyn FnMut(ReaderReply) + Send>;

/// The open readers.
#[derive(Default)]
pub(super) struct Readers(HashMap<SessionId, ReaderSink>);

impl Readers {
    pub(super) fn open(&mut self, session: SessionId, sink: ReaderSink) {
        self.0.insert(session, sink);
    }

    /// Removes a reader. Returns whether there was one.
    pub(super) fn close(&mut self, session: SessionId) -> bool {
        self.0.remove(&session).is_some()
    }

    pub(super) fn has(&self, session: SessionId) -> bool {
        self.0.contains_key(&session)
    }

    /// Passes a reply on. Returns `false` if the session is none of a reader.
    pub(super) fn reply(&mut self, session: SessionId, reply: &Reply, memory: &Memory) -> bool {
        let Some(sink) = self.0.get_mut(&session) else { return false };
        match reply {
            Reply::Answer { op, answer: Answer::Fetched { lease, tensor } } => match memory.get(tensor.slice.segment) {
                Some(memory) => {
                    let (tensor, memory) = (tensor.clone(), memory.clone());
                    sink(ReaderReply::Fetched { op: *op, lease: *lease, tensor, memory });
                }
                // The node hands out only what lies in memory that the engine knows.
                None => {
                    let failure = Failure::new(FailureCode::PeerLost, "the memory of the tensor is gone");
                    sink(ReaderReply::Failed { op: *op, failure });
                }
            },
            Reply::Answer { op, answer: Answer::Failed { failure, .. } } => {
                sink(ReaderReply::Failed { op: *op, failure: failure.clone() });
            }
            // A reader asks for nothing that has another answer.
            _ => {}
        }
        true
    }
}
