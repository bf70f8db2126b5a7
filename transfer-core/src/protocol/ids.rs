//! The ids of a node's tables.
//!
//! A machine that keeps an id of another one's entry needs the id, and not the entry: so ids are named by markers, here on the ground,
//! and whoever owns a table says which entries it holds.

use super::slab::Id;
use crate::fabric::LinkId;

/// A worker's connection, as the state machine numbers it. Never reused within one incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Markers: one for each table.
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
    pub(crate) enum CounterCall {}
    #[derive(Debug)]
    pub(crate) enum Running {}
}

/// A version: a range of memory that is counted by references.
pub(super) type BlobId = Id<of::Blob>;
/// A key.
pub(super) type RecordId = Id<of::Record>;
/// An operation of a worker that waits. [`crate::op::OpId`] is the worker's own number for it.
pub(super) type OperationId = Id<of::Operation>;
/// A landing slot of a link.
pub(super) type SlotId = Id<of::Slot>;
/// A request of ours to the peer of a link.
pub(super) type PullId = Id<of::Pull>;
/// A key that the peer of a link pushes here.
pub(super) type InFlowId = Id<of::InFlow>;
/// A key that is pushed to the peer of a link.
pub(super) type OutFlowId = Id<of::OutFlow>;
/// A copy for a reader of another tenant.
pub(super) type CopyId = Id<of::Copy>;
/// A request of ours for a counter or barrier of the peer of a link.
pub(super) type CounterCallId = Id<of::CounterCall>;
/// An operation of a device on the word of a counter.
pub(super) type RunningId = Id<of::Running>;

/// A key that a peer pushes here, and the link over which it does.
pub(super) type FlowAt = (LinkId, InFlowId);
