//! Work requests to be posted together.

use std::sync::Arc;
use std::{fmt, mem, ptr};

use rdma_sys::ibv_wr_opcode::*;
use rdma_sys::{atomic_t, bind_mw_t, ibv_mw_bind_info, ibv_send_flags, ibv_send_wr, ibv_sge, rdma_t};

use crate::receive_list::{Untaken, index_of};
use crate::{Element, MemoryRegion, MemoryWindow, ProtectionDomain, RemoteAccess, RemoteKey, region, window};

/// The source of the bytes of a SEND or WRITE.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Ranges of registered memory, read by the device until the work request completes.
    Gather(&'a [Element]),
    /// Bytes that are copied into the work request one behind the other when it is pushed, so that the memory may be
    /// changed at once. Their sum is at most the queue pair's `max_inline`.
    Inline(&'a [&'a [u8]]),
}

/// The operation of a work request.
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

/// A work request.
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

/// A list of work requests, which is posted in order with one call (one doorbell) and can be used again. A window may
/// be bound only once in a list.
#[derive(Default)]
pub struct SendList {
    requests: Vec<ibv_send_wr>,
    elements: Vec<ibv_sge>,
    /// Inline data, which the elements of inline requests name by its place here until the list is posted.
    bytes: Vec<u8>,
    binds: Vec<Bind>,
}

struct Bind {
    request: usize,
    window: Arc<window::Inner>,
    region: Arc<region::Inner>,
    key: RemoteKey,
}

// SAFETY: the pointers in the requests point into the same list, or to windows and regions that `binds` holds. They are
// set, and followed, only while the list is posted, which takes it mutably.
unsafe impl Send for SendList {}
// SAFETY: as above: a shared list's pointers are not followed.
unsafe impl Sync for SendList {}

impl SendList {
    /// Makes an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a work request at the end.
    pub fn push(&mut self, request: SendRequest<'_>) {
        // SAFETY: plain numbers and pointers, for which zeros are valid.
        let mut raw: ibv_send_wr = unsafe { mem::zeroed() };
        raw.wr_id = request.work_id;
        let flag = |set: bool, flag: ibv_send_flags| if set { flag.0 } else { 0 };
        raw.send_flags = flag(request.signaled, ibv_send_flags::IBV_SEND_SIGNALED)
            | flag(request.fence, ibv_send_flags::IBV_SEND_FENCE);
        match request.kind {
            SendKind::Send { data, immediate } => {
                self.data(&mut raw, data);
                raw.opcode = opcode(&mut raw, immediate, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM);
            }
            SendKind::Write { data, address, key, immediate } => {
                self.data(&mut raw, data);
                raw.wr.rdma = rdma_t { remote_addr: address, rkey: key.0 };
                raw.opcode = opcode(&mut raw, immediate, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM);
            }
            SendKind::Read { into, address, key } => {
                self.data(&mut raw, Data::Gather(into));
                raw.wr.rdma = rdma_t { remote_addr: address, rkey: key.0 };
                raw.opcode = IBV_WR_RDMA_READ;
            }
            SendKind::FetchAdd { into, address, key, add } => {
                self.data(&mut raw, Data::Gather(&[into]));
                raw.wr.atomic = atomic_t { remote_addr: address, compare_add: add, swap: 0, rkey: key.0 };
                raw.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
            }
            SendKind::CompareSwap { into, address, key, compare, swap } => {
                self.data(&mut raw, Data::Gather(&[into]));
                raw.wr.atomic = atomic_t { remote_addr: address, compare_add: compare, swap, rkey: key.0 };
                raw.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
            }
            SendKind::BindWindow { window, region, offset, len_bytes, access } => {
                let key = window.next_key();
                raw.bind_mw_tso_union.bind_mw = bind_mw_t {
                    mw: window.0.raw.raw(),
                    rkey: key.0,
                    bind_info: ibv_mw_bind_info {
                        mr: region.0.raw.raw(),
                        addr: region.address().wrapping_add(offset as u64),
                        length: len_bytes as u64,
                        mw_access_flags: access.flags(),
                    },
                };
                raw.opcode = IBV_WR_BIND_MW;
                let (window, region) = (window.0.clone(), region.0.clone());
                self.binds.push(Bind { request: self.requests.len(), window, region, key });
            }
            SendKind::LocalInvalidate { key } => {
                raw.imm_data_invalidated_rkey_union.invalidated_rkey = key.0;
                raw.opcode = IBV_WR_LOCAL_INV;
            }
        }
        self.requests.push(raw);
    }

    /// Returns the number of work requests in the list.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Empties the list. Its requests are not posted.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.elements.clear();
        self.bytes.clear();
        self.binds.clear();
    }

    /// Makes the last work request complete when it succeeds, however it was pushed. This serves lists whose end is
    /// not known before they are posted.
    pub fn signal_last(&mut self) {
        if let Some(last) = self.requests.last_mut() {
            last.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }

    fn data(&mut self, raw: &mut ibv_send_wr, data: Data<'_>) {
        match data {
            Data::Gather(elements) => {
                self.elements.extend(elements.iter().map(Element::raw));
                raw.num_sge = i32::try_from(elements.len()).unwrap_or(i32::MAX);
            }
            Data::Inline(parts) => {
                let place = self.bytes.len();
                parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
                // A length that does not fit is far beyond every device's limit and stays so.
                let length = u32::try_from(self.bytes.len() - place).unwrap_or(u32::MAX >> 1);
                if length > 0 {
                    self.elements.push(ibv_sge { addr: place as u64, length, lkey: 0 });
                    raw.num_sge = 1;
                    raw.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
                }
            }
        }
    }

    /// Posts the list to a queue pair of `domain` and empties it. `post` gets the first request. If its result is not
    /// 0, it also sets the first request that was not taken.
    pub(crate) fn post(
        &mut self,
        domain: &ProtectionDomain,
        post: impl FnOnce(*mut ibv_send_wr, &mut *mut ibv_send_wr) -> libc::c_int,
    ) -> Result<(), Untaken> {
        let len = self.requests.len();
        if len == 0 {
            return Ok(());
        }
        // A window or region of another device would be read under another lock than is held here, or its number would
        // be taken for that of one of this device.
        let foreign = |bind: &Bind| {
            !(Arc::ptr_eq(&bind.window.domain.0, &domain.0) && Arc::ptr_eq(&bind.region.domain.0, &domain.0))
        };
        if self.binds.iter().any(foreign) {
            self.clear();
            return Err(Untaken::new(libc::EINVAL, 0, len));
        }
        let first = self.requests.as_mut_ptr();
        let mut element = self.elements.as_mut_ptr();
        for (index, request) in self.requests.iter_mut().enumerate() {
            if request.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
                // SAFETY: an inline request has one element, within the list's elements.
                let place = unsafe { &mut (*element).addr };
                *place += self.bytes.as_ptr() as u64;
            }
            request.sg_list = element;
            element = element.wrapping_add(usize::try_from(request.num_sge).unwrap_or(0));
            request.next = if index + 1 < len { first.wrapping_add(index + 1) } else { ptr::null_mut() };
        }
        let binding = (!self.binds.is_empty()).then(|| domain.context().0.binding.lock());
        let mut refused = ptr::null_mut();
        let code = post(first, &mut refused);
        let taken = if code == 0 { len } else { index_of(refused, first, len) };
        for bind in self.binds.drain(..).filter(|bind| bind.request < taken) {
            bind.window.bound(bind.key, bind.region);
        }
        drop(binding);
        self.clear();
        if code == 0 { Ok(()) } else { Err(Untaken::new(code, taken, len)) }
    }
}

/// Returns the operation without or with the immediate, and stores the immediate, in network order.
fn opcode(raw: &mut ibv_send_wr, immediate: Option<u32>, without: u32, with: u32) -> u32 {
    let Some(immediate) = immediate else { return without };
    raw.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
    with
}

impl fmt::Debug for SendList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} work requests", self.len())
    }
}
