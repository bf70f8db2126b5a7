//! Work requests to be posted together.

use std::marker::PhantomData;
use std::sync::Arc;
use std::{fmt, mem, ptr};

use rdma_sys::ibv_wr_opcode::*;
use rdma_sys::{atomic_t, bind_mw_t, ibv_mw_bind_info, ibv_send_flags, ibv_send_wr, ibv_sge, rdma_t, ud_t};

use crate::receive_list::{Untaken, index_of};
use crate::{
    Data, Datagram, DatagramRequest, Element, ProtectionDomain, Reliable, RemoteKey, SendKind, SendRequest, Transport,
    Unreliable, UnreliableKind, UnreliableRequest, address_handle, region, window,
};

/// A list of work requests for a queue pair of the kind `T`, which is posted in order with one call (one doorbell) and
/// can be used again. A window may be bound only once in a list.
///
/// It takes the operations that the kind has. An unreliable queue pair has no READ, atomic operation or window:
///
/// ```
/// # use transfer_verbs::*;
/// fn wrote(list: &mut SendList<Unreliable>, address: u64, key: RemoteKey) {
///     let kind = UnreliableKind::Write { data: Data::Inline(&[b"x"]), address, key, immediate: None };
///     list.push(UnreliableRequest { work_id: 1, signaled: true, kind });
/// }
/// ```
///
/// ```compile_fail
/// # use transfer_verbs::*;
/// fn read(list: &mut SendList<Unreliable>, into: &[Element], address: u64, key: RemoteKey) {
///     let kind = UnreliableKind::Read { into, address, key };
///     list.push(UnreliableRequest { work_id: 1, signaled: true, kind });
/// }
/// ```
///
/// ```compile_fail
/// # use transfer_verbs::*;
/// fn reliable(list: &mut SendList<Unreliable>, into: &[Element], address: u64, key: RemoteKey) {
///     let kind = SendKind::Read { into, address, key };
///     list.push(SendRequest { work_id: 1, signaled: true, fence: false, kind });
/// }
/// ```
///
/// A datagram is a SEND, and has an address:
///
/// ```
/// # use transfer_verbs::*;
/// fn sent(list: &mut SendList<Datagram>, to: &AddressHandle) {
///     let data = Data::Inline(&[b"x"]);
///     list.push(DatagramRequest {
///         work_id: 1, signaled: true, data, immediate: None, to, queue_pair: 17, queue_key: 1,
///     });
/// }
/// ```
///
/// ```compile_fail
/// # use transfer_verbs::*;
/// fn wrote(list: &mut SendList<Datagram>, address: u64, key: RemoteKey) {
///     let kind = UnreliableKind::Write { data: Data::Inline(&[b"x"]), address, key, immediate: None };
///     list.push(UnreliableRequest { work_id: 1, signaled: true, kind });
/// }
/// ```
///
/// ```compile_fail
/// # use transfer_verbs::*;
/// fn without_address(list: &mut SendList<Datagram>) {
///     let data = Data::Inline(&[b"x"]);
///     list.push(DatagramRequest { work_id: 1, signaled: true, data, immediate: None, queue_pair: 17, queue_key: 1 });
/// }
/// ```
pub struct SendList<T: Transport = Reliable> {
    requests: Vec<ibv_send_wr>,
    elements: Vec<ibv_sge>,
    /// Inline data, which the elements of inline requests name by its place here until the list is posted.
    bytes: Vec<u8>,
    binds: Vec<Bind>,
    /// Those that the requests point to; neighbours differ.
    handles: Vec<Arc<address_handle::AddressHandleInner>>,
    transport: PhantomData<T>,
}

struct Bind {
    request: usize,
    window: Arc<window::WindowInner>,
    region: Arc<region::RegionInner>,
    key: RemoteKey,
}

// SAFETY: the pointers in the requests point into the same list, or to windows, regions and address handles that it
// holds. They are set, and followed, only while the list is posted, which takes it mutably.
unsafe impl<T: Transport> Send for SendList<T> {}
// SAFETY: as above: a shared list's pointers are not followed.
unsafe impl<T: Transport> Sync for SendList<T> {}

impl<T: Transport> Default for SendList<T> {
    fn default() -> Self {
        Self {
            requests: Vec::new(),
            elements: Vec::new(),
            bytes: Vec::new(),
            binds: Vec::new(),
            handles: Vec::new(),
            transport: PhantomData,
        }
    }
}

impl SendList {
    /// Makes an empty list for a reliable queue pair. Those of the other kinds are made by `default`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a work request at the end.
    pub fn push(&mut self, request: SendRequest<'_>) {
        let mut raw = raw(request.work_id, request.signaled);
        if request.fence {
            raw.send_flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        }
        match request.kind {
            SendKind::Send { data, immediate } => self.send(&mut raw, data, immediate),
            SendKind::Write { data, address, key, immediate } => self.write(&mut raw, data, address, key, immediate),
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
}

impl SendList<Unreliable> {
    /// Adds a work request at the end.
    pub fn push(&mut self, request: UnreliableRequest<'_>) {
        let mut raw = raw(request.work_id, request.signaled);
        match request.kind {
            UnreliableKind::Send { data, immediate } => self.send(&mut raw, data, immediate),
            UnreliableKind::Write { data, address, key, immediate } => {
                self.write(&mut raw, data, address, key, immediate);
            }
        }
        self.requests.push(raw);
    }
}

impl SendList<Datagram> {
    /// Adds a work request at the end.
    pub fn push(&mut self, request: DatagramRequest<'_>) {
        let mut raw = raw(request.work_id, request.signaled);
        self.send(&mut raw, request.data, request.immediate);
        let handle = &request.to.0;
        raw.wr.ud = ud_t { ah: handle.raw.raw(), remote_qpn: request.queue_pair, remote_qkey: request.queue_key };
        if self.handles.last().is_none_or(|last| !Arc::ptr_eq(last, handle)) {
            self.handles.push(handle.clone());
        }
        self.requests.push(raw);
    }
}

impl<T: Transport> SendList<T> {
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
        self.handles.clear();
    }

    /// Makes the last work request complete when it succeeds, however it was pushed. This serves lists whose end is
    /// not known before they are posted.
    pub fn signal_last(&mut self) {
        if let Some(last) = self.requests.last_mut() {
            last.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }

    fn send(&mut self, raw: &mut ibv_send_wr, data: Data<'_>, immediate: Option<u32>) {
        self.data(raw, data);
        raw.opcode = opcode(raw, immediate, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM);
    }

    fn write(&mut self, raw: &mut ibv_send_wr, data: Data<'_>, address: u64, key: RemoteKey, immediate: Option<u32>) {
        self.data(raw, data);
        raw.wr.rdma = rdma_t { remote_addr: address, rkey: key.0 };
        raw.opcode = opcode(raw, immediate, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM);
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
        // A window, region or address handle of another device would be read under another lock than is held here, or
        // its number would be taken for that of one of this device.
        let foreign = |bind: &Bind| {
            !(Arc::ptr_eq(&bind.window.domain.0, &domain.0) && Arc::ptr_eq(&bind.region.domain.0, &domain.0))
        };
        let is_foreign = |handle: &Arc<address_handle::AddressHandleInner>| !Arc::ptr_eq(&handle.domain.0, &domain.0);
        if self.binds.iter().any(foreign) || self.handles.iter().any(is_foreign) {
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

/// Makes a work request without an operation.
fn raw(work_id: u64, signaled: bool) -> ibv_send_wr {
    // SAFETY: plain numbers and pointers, for which zeros are valid.
    let mut raw: ibv_send_wr = unsafe { mem::zeroed() };
    raw.wr_id = work_id;
    if signaled {
        raw.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    raw
}

/// Returns the operation without or with the immediate, and stores the immediate, in network order.
fn opcode(raw: &mut ibv_send_wr, immediate: Option<u32>, without: u32, with: u32) -> u32 {
    let Some(immediate) = immediate else { return without };
    raw.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
    with
}

impl<T: Transport> fmt::Debug for SendList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} work requests", self.len())
    }
}
