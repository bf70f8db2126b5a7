//! The ids of a node's tables.
//!
//! A machine that stores the id of another machine's entry needs the id, but not the entry. So each id type is named by
//! a marker in this module, and the machine that owns a table chooses the type of its entries.

use super::slab::Id;
use crate::fabric::LinkId;
use crate::tensor::Name;
use std::num::NonZeroU64;
use xxhash_rust::xxh3::Xxh3;

/// The number of a worker's connection. It is never reused within one incarnation of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// The markers, one for each table.
pub(super) mod of {
    #[derive(Debug)]
    pub(crate) enum Blob {}
    #[derive(Debug)]
    pub(crate) enum Record {}
    #[derive(Debug)]
    pub(crate) enum Operation {}
    #[derive(Debug)]
    pub(crate) enum Slot {}
    #[derive(Debug)]
    pub(crate) enum Pull {}
    #[derive(Debug)]
    pub(crate) enum InFlow {}
    #[derive(Debug)]
    pub(crate) enum OutFlow {}
    #[derive(Debug)]
    pub(crate) enum Copy {}
    #[derive(Debug)]
    pub(crate) enum Proof {}
    #[derive(Debug)]
    pub(crate) enum CounterCall {}
    #[derive(Debug)]
    pub(crate) enum Running {}
}

/// A blob: one published version, counted by references.
pub(super) type BlobId = Id<of::Blob>;
/// A key.
pub(super) type RecordId = Id<of::Record>;
/// A waiting operation of a worker. [`crate::op::OpId`] is the worker's own number for it.
pub(super) type OperationId = Id<of::Operation>;
/// A landing slot of a link.
pub(super) type SlotId = Id<of::Slot>;
/// A request of this node to the peer of a link.
pub(super) type PullId = Id<of::Pull>;
/// A key that the peer of a link pushes here.
pub(super) type InFlowId = Id<of::InFlow>;
/// A key that is pushed to the peer of a link.
pub(super) type OutFlowId = Id<of::OutFlow>;
/// A copy for a reader of another tenant.
pub(super) type CopyId = Id<of::Copy>;
/// A request of this node for a counter or barrier of the peer of a link.
pub(super) type CounterCallId = Id<of::CounterCall>;
/// An operation of a device on the word of a counter.
pub(super) type RunningId = Id<of::Running>;

/// The id of a key that a peer pushes here, and the link to that peer.
pub(super) type FlowAt = (LinkId, InFlowId);

/// Returns the number that tells a publication from all others of the job, except for hash collisions: of its owner, the owner's
/// incarnation, and the owner's number for it. It is never 0.
pub(super) fn publication(owner: &Name, incarnation: u64, identity: NonZeroU64) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(owner.as_str().as_bytes());
    hash.update(&incarnation.to_le_bytes());
    hash.update(&identity.get().to_le_bytes());
    hash.digest().max(1)
}
