//! RDMA verbs as objects that cannot be used in the wrong order.
//!
//! All code that calls libibverbs or librdmacm is here, and it knows nothing of its users. The two libraries are
//! opened on first use, so a program starts even if they are missing, and [`available`] returns the reason why there
//! are no verbs.
//!
//! # Guarantees
//! - Every object keeps alive what it was made from (a region its domain, a domain its context), so they can be dropped
//!   in any order.
//! - A queue pair's state is its type: operations that a state does not allow do not compile.
//! - Local and remote keys are different types, and an [`Element`] of a gather list comes only from the region that it
//!   lies in.
//! - Memory that a device may access stays mapped as long as it is registered ([`DeviceMemory`]).
//!
//! # Layout
//! - [`devices`], [`Context`], [`Port`], [`Gid`]: the hardware; [`choose`] picks by rule, [`report`] describes it all.
//! - [`ProtectionDomain`], [`MemoryRegion`], [`MemoryWindow`]: memory and its keys.
//! - [`CompletionChannel`], [`CompletionQueue`], [`Completion`]: completions.
//! - [`QueuePair`], [`SendList`], [`ReceiveList`], [`SharedReceiveQueue`]: work requests.
//! - [`cm`]: connections by librdmacm, for queue pairs that this crate makes.
//! - `sys`: the two libraries' functions, looked up at run time.

mod async_events;
mod attributes;
mod channel;
pub mod choose;
pub mod cm;
mod completion;
mod completion_queue;
mod context;
mod device;
mod domain;
mod error;
mod gid;
mod key;
mod limits;
mod port;
mod queue_pair;
mod receive_list;
mod region;
pub mod report;
mod send_list;
mod shared_receive_queue;
mod status;
mod sys;
mod window;

pub use async_events::{AsyncEvent, AsyncEvents, AsyncSource};
pub use attributes::{Destination, InitAttributes, ReceiveAttributes, RemoteAccess, SendAttributes};
pub use channel::CompletionChannel;
pub use completion::{Completion, Done, Opcode};
pub use completion_queue::CompletionQueue;
pub use context::Context;
pub use device::{Device, Guid, NodeType, devices};
pub use domain::ProtectionDomain;
pub use error::{LockedLimit, ModifyError, PostError, RegisterError, Transition, VerbsError};
pub use gid::{Gid, GidEntry, GidKind};
pub use key::{LocalKey, RemoteKey};
pub use limits::{Atomics, DeviceLimits};
pub use port::{LinkLayer, Mtu, PhysicalState, Port, PortState};
pub use queue_pair::{
    Errored, Init, QueuePair, QueuePairOptions, QueuePairState, ReadyToReceive, ReadyToSend, Receives, Refused, Reset,
};
pub use receive_list::ReceiveList;
pub use region::{Access, DeviceMemory, Element, MemoryRegion};
pub use send_list::{Data, SendKind, SendList, SendRequest};
pub use shared_receive_queue::{SharedReceiveQueue, SharedReceiveQueueOptions};
pub use status::Status;
pub use sys::{Unavailable, available};
pub use window::MemoryWindow;
