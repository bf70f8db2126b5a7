//! Completions: the results of work requests.

use std::fmt;

use rdma_sys::ibv_wc_opcode::*;

use crate::Status;

/// The operation of a completed work request. Only known if it succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Opcode {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    BindWindow,
    LocalInvalidate,
    /// A message has arrived.
    Receive,
    /// A peer's WRITE with an immediate has arrived.
    ReceiveWriteImmediate,
    /// A code that this crate never posts.
    Other(u32),
}

impl Opcode {
    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            IBV_WC_SEND => Self::Send,
            IBV_WC_RDMA_WRITE => Self::Write,
            IBV_WC_RDMA_READ => Self::Read,
            IBV_WC_COMP_SWAP => Self::CompareSwap,
            IBV_WC_FETCH_ADD => Self::FetchAdd,
            IBV_WC_BIND_MW => Self::BindWindow,
            IBV_WC_LOCAL_INV => Self::LocalInvalidate,
            IBV_WC_RECV => Self::Receive,
            IBV_WC_RECV_RDMA_WITH_IMM => Self::ReceiveWriteImmediate,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::CompareSwap => "CMP_AND_SWP",
            Self::FetchAdd => "FETCH_ADD",
            Self::BindWindow => "BIND_MW",
            Self::LocalInvalidate => "LOCAL_INV",
            Self::Receive => "RECV",
            Self::ReceiveWriteImmediate => "RECV of WRITE_WITH_IMM",
            Self::Other(code) => return write!(f, "operation {code}"),
        })
    }
}

/// The result of a successful work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The operation.
    pub opcode: Opcode,
    /// The number of bytes that arrived: of a receive, of a WRITE with an immediate, of a READ.
    pub len_bytes: u32,
    /// The immediate that came with it, in host order.
    pub immediate: Option<u32>,
    /// The key that the peer has invalidated with it (SEND_WITH_INV).
    pub invalidated: Option<u32>,
}

/// The result of one work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The id with which it was posted.
    pub work_id: u64,
    /// The result.
    pub result: Result<Done, Status>,
    /// The queue pair.
    pub queue_pair: u32,
    /// The device's own code for a failure; its maker knows what it means.
    pub vendor_error: u32,
}

impl Completion {
    /// The initial value for the list that [`CompletionQueue::poll`](crate::CompletionQueue::poll) fills.
    pub const EMPTY: Self = Self { work_id: 0, result: Err(Status::Unknown(0)), queue_pair: 0, vendor_error: 0 };
}
