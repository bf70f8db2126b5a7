//! Work requests, one type for each kind of queue pair.

use crate::{AddressHandle, Element, MemoryRegion, MemoryWindow, RemoteAccess, RemoteKey};

/// The source of the bytes of a SEND or WRITE.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Ranges of registered memory, read by the device until the work request completes.
    Gather(&'a [Element]),
    /// Bytes that are copied into the work request one behind the other when it is pushed, so that the memory may be
    /// changed at once. Their sum is at most the queue pair's `max_inline`.
    Inline(&'a [&'a [u8]]),
}

/// The operation of a work request of a [`Reliable`](crate::Reliable) queue pair.
#[derive(Clone, Copy, Debug)]
pub enum SendKind<'a> {
    /// A message for the peer's oldest receive.
    Send {
        /// The message.
        data: Data<'a>,
        /// The immediate that is sent with it.
        immediate: Option<u32>,
    },
    /// Bytes for the peer's memory.
    Write {
        /// The bytes.
        data: Data<'a>,
        /// The address of the target.
        address: u64,
        /// The key that opens it.
        key: RemoteKey,
        /// The immediate that the peer gets when all bytes are there; it uses the peer's oldest receive.
        immediate: Option<u32>,
    },
    /// Bytes from the peer's memory.
    Read {
        /// The memory to read into.
        into: &'a [Element],
        /// The address to read from.
        address: u64,
        /// The key that opens it.
        key: RemoteKey,
    },
    /// Adds to a word of 8 bytes in the peer's memory.
    FetchAdd {
        /// The memory for the value before, 8 bytes.
        into: Element,
        /// The word, at a multiple of 8.
        address: u64,
        /// The key that opens it.
        key: RemoteKey,
        /// The number to add; the sum wraps.
        add: u64,
    },
    /// Sets a word of 8 bytes in the peer's memory if it has a certain value.
    CompareSwap {
        /// The memory for the value before, 8 bytes.
        into: Element,
        /// The word, at a multiple of 8.
        address: u64,
        /// The key that opens it.
        key: RemoteKey,
        /// The value that it has to have.
        compare: u64,
        /// The value that it gets.
        swap: u64,
    },
    /// Opens a window under its [`next_key`](MemoryWindow::next_key), which changes when the request is posted.
    BindWindow {
        /// The window, which is not open.
        window: &'a MemoryWindow,
        /// The region, registered with `window_bind`.
        region: &'a MemoryRegion,
        /// The start of the range in the region.
        offset: usize,
        /// The length of the range.
        len_bytes: usize,
        /// The operations that the peer may do.
        access: RemoteAccess,
    },
    /// Closes the window that is open under this key.
    LocalInvalidate {
        /// The window's key.
        key: RemoteKey,
    },
}

/// A work request of a [`Reliable`](crate::Reliable) queue pair.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The id that comes back with the completion.
    pub work_id: u64,
    /// Whether it has a completion when it succeeds. It always has one when it fails.
    pub signaled: bool,
    /// Whether it waits for earlier READs and atomics.
    pub fence: bool,
    /// The operation.
    pub kind: SendKind<'a>,
}

/// The operation of a work request of an [`Unreliable`](crate::Unreliable) queue pair.
#[derive(Clone, Copy, Debug)]
pub enum UnreliableKind<'a> {
    /// A message for the peer's oldest receive; it is dropped if there is none.
    Send {
        /// The message.
        data: Data<'a>,
        /// The immediate that is sent with it.
        immediate: Option<u32>,
    },
    /// Bytes for the peer's memory.
    Write {
        /// The bytes.
        data: Data<'a>,
        /// The address of the target.
        address: u64,
        /// The key that opens it.
        key: RemoteKey,
        /// The immediate that the peer gets when all bytes are there; it uses the peer's oldest receive.
        immediate: Option<u32>,
    },
}

/// A work request of an [`Unreliable`](crate::Unreliable) queue pair.
#[derive(Clone, Copy, Debug)]
pub struct UnreliableRequest<'a> {
    /// The id that comes back with the completion.
    pub work_id: u64,
    /// Whether it has a completion when it succeeds. It always has one when it fails.
    pub signaled: bool,
    /// The operation.
    pub kind: UnreliableKind<'a>,
}

/// A work request of a [`Datagram`](crate::Datagram) queue pair: a message for a receive of any other one.
#[derive(Clone, Copy, Debug)]
pub struct DatagramRequest<'a> {
    /// The id that comes back with the completion.
    pub work_id: u64,
    /// Whether it has a completion when it succeeds. It always has one when it fails.
    pub signaled: bool,
    /// The message, at most one packet.
    pub data: Data<'a>,
    /// The immediate that is sent with it.
    pub immediate: Option<u32>,
    /// The way to the peer's port.
    pub to: &'a AddressHandle,
    /// The peer's queue pair.
    pub queue_pair: u32,
    /// The queue key of the peer's queue pair, which drops messages with another one. Its highest bit is for keys of
    /// the system.
    pub queue_key: u32,
}
