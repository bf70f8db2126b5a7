//! RDMA verbs as objects that cannot be used in the wrong order.
//!
//! All code that calls libibverbs or librdmacm is here, and it knows nothing of its users. The two libraries are
//! opened on first use, so a program starts even if they are missing, and [`available`] returns the reason why there
//! are no verbs.
//!
//! # Guarantees
//! - Every object keeps alive what it was made from (a region its domain, a domain its context), so they can be dropped
//!   in any order.
//! - A queue pair's state and its kind (RC, UC, UD) are its type: operations that a state does not allow, or that a kind
//!   does not have, do not compile.
//! - Local and remote keys are different types, and an [`Element`] of a gather list comes only from the region that it
//!   lies in.
//! - Memory that a device may access stays mapped as long as it is registered ([`DeviceMemory`]).
//!
//! # Layout
//! - [`devices`], [`Context`], [`Port`], [`Gid`]: the hardware; [`choose`] picks by rule, [`report`] describes it all.
//! - [`ProtectionDomain`], [`MemoryRegion`], [`MemoryWindow`]: memory and its keys. [`Buffer`]: some memory.
//! - [`CompletionChannel`], [`CompletionQueue`], [`Completion`]: completions.
//! - [`QueuePair`], [`SendList`], [`ReceiveList`], [`SharedReceiveQueue`]: work requests. [`Reliable`], [`Unreliable`],
//!   [`Datagram`]: the kinds of queue pairs. [`AddressHandle`]: the way to a port, for datagrams.
//! - [`cm`]: connections by librdmacm, for queue pairs that this crate makes.
//! - `sys`: the two libraries' functions, looked up at run time.

mod address_handle;
mod async_events;
mod attributes;
mod buffer;
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
mod send_request;
mod shared_receive_queue;
mod status;
mod sys;
mod transport;
mod window;

pub use address_handle::{AddressHandle, ROUTING_HEADER_BYTES};
pub use async_events::{AsyncEvent, AsyncEvents, AsyncSource};
pub use attributes::{
    DatagramAttributes, Destination, InitAttributes, ReceiveAttributes, RemoteAccess, SendAttributes,
    UnreliableAttributes,
};
pub use buffer::{Buffer, OutOfBounds};
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
pub use send_list::SendList;
pub use send_request::{Data, DatagramRequest, SendKind, SendRequest, UnreliableKind, UnreliableRequest};
pub use shared_receive_queue::{SharedReceiveQueue, SharedReceiveQueueOptions};
pub use status::Status;
pub use sys::{Unavailable, available};
pub use transport::{Connected, Datagram, Reliable, Transport, Unreliable};
pub use window::MemoryWindow;
