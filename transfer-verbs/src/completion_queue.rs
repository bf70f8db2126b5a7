//! Completion queues.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rdma_sys::{ibv_cq, ibv_wc, ibv_wc_flags};

use crate::sys::{Handle, Verbs};
use crate::{Completion, CompletionChannel, Context, Done, Opcode, Status, VerbsError};

/// The number of events that are acknowledged together, because each acknowledgement takes a lock
/// (ibv_get_cq_event(3)).
const ACKNOWLEDGED_TOGETHER: u32 = 64;

/// A completion queue. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue(pub(crate) Arc<CompletionQueueInner>);

#[derive(Debug)]
pub(crate) struct CompletionQueueInner {
    pub(crate) raw: Handle<ibv_cq>,
    context: Context,
    channel: Option<CompletionChannel>,
    /// The number of events that were taken from the channel and not acknowledged. The library knows its address.
    unacknowledged: Box<AtomicU32>,
    capacity: Mutex<u32>,
}

/// Counts an event of a queue.
///
/// # Safety
/// `queue` is alive, was made with `user`, and the lock of its channel is held.
pub(crate) unsafe fn count_event(library: &Verbs, queue: *mut ibv_cq, user: *mut c_void) {
    // SAFETY: as the caller says; the count is used only through shared references.
    let unacknowledged = unsafe { &*user.cast::<AtomicU32>() };
    let count = unacknowledged.fetch_add(1, Ordering::Relaxed) + 1;
    if count == ACKNOWLEDGED_TOGETHER {
        unacknowledged.store(0, Ordering::Relaxed);
        // SAFETY: `count` events of the queue were taken and not acknowledged.
        unsafe { (library.ibv_ack_cq_events)(queue, count) };
    }
}

impl CompletionQueue {
    /// Makes a queue for at least `capacity` completions that are not polled yet. If there are more, every queue pair
    /// that uses it fails.
    pub fn new(context: &Context, capacity: u32, channel: Option<&CompletionChannel>) -> Result<Self, VerbsError> {
        let count = checked_capacity(context, capacity)?;
        let unacknowledged = Box::new(AtomicU32::new(0));
        let user = ptr::from_ref(&*unacknowledged).cast_mut().cast();
        let events = channel.map_or(ptr::null_mut(), |channel| channel.0.raw.raw());
        // SAFETY: the context is open and the channel, if there is one, is alive; both stay so for the queue's life.
        // The count of events stays where it is until the queue is gone.
        let raw = unsafe { (context.0.functions.ibv_create_cq)(context.0.raw.raw(), count, user, events, 0) };
        let raw = Handle::new(raw).map_err(|why| VerbsError::because(context.device_name(), "ibv_create_cq", why))?;
        // SAFETY: the queue was just made; nothing else knows it.
        let capacity = unsafe { (*raw.raw()).cqe };
        Ok(Self(Arc::new(CompletionQueueInner {
            raw,
            context: context.clone(),
            channel: channel.cloned(),
            unacknowledged,
            capacity: Mutex::new(u32::try_from(capacity).unwrap_or(0)),
        })))
    }

    /// Returns the number of completions that it can hold: the requested number, or more.
    pub fn capacity(&self) -> u32 {
        *self.0.capacity.lock()
    }

    /// Takes completions, oldest first, and returns their number.
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        const TOGETHER: usize = 16;
        let mut polled = 0;
        while polled < into.len() {
            let mut raw = [const { MaybeUninit::<ibv_wc>::uninit() }; TOGETHER];
            let asked = TOGETHER.min(into.len() - polled);
            // SAFETY: there is room for that many. The function is a pointer in the context, not one that has to be
            // linked.
            let count = unsafe { rdma_sys::ibv_poll_cq(self.0.raw.raw(), asked as i32, raw.as_mut_ptr().cast()) };
            let count = usize::try_from(count)
                .map_err(|_| VerbsError::code(self.0.context.device_name(), "ibv_poll_cq", count))?;
            for (raw, into) in raw.iter().zip(&mut into[polled..]).take(count) {
                // SAFETY: the library has filled the first `count`.
                *into = completion(unsafe { raw.assume_init_ref() });
            }
            polled += count;
            if count < asked {
                break;
            }
        }
        Ok(polled)
    }

    /// Requests an event on the channel for the next completion. Poll once more after this, because earlier completions
    /// cause no event.
    pub fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue is alive. The function is a pointer in the context, not one that has to be linked.
        match unsafe { rdma_sys::ibv_req_notify_cq(self.0.raw.raw(), 0) } {
            0 => Ok(()),
            code => Err(VerbsError::code(self.0.context.device_name(), "ibv_req_notify_cq", code)),
        }
    }

    /// Resizes the queue for at least `capacity` completions.
    pub fn resize(&self, capacity: u32) -> Result<(), VerbsError> {
        let context = &self.0.context;
        let count = checked_capacity(context, capacity)?;
        let mut present = self.0.capacity.lock();
        // SAFETY: the queue is alive.
        let code = unsafe { (context.0.functions.ibv_resize_cq)(self.0.raw.raw(), count) };
        if code != 0 {
            return Err(VerbsError::code(context.device_name(), "ibv_resize_cq", code));
        }
        // SAFETY: only a resize writes the field, under the lock that is held here.
        let capacity = unsafe { (*self.0.raw.raw()).cqe };
        *present = u32::try_from(capacity).unwrap_or(0);
        Ok(())
    }

    pub(crate) fn is_of(&self, context: &Context) -> bool {
        Arc::ptr_eq(&self.0.context.0, &context.0)
    }
}

fn checked_capacity(context: &Context, capacity: u32) -> Result<i32, VerbsError> {
    let limit = context.limits().max_cqe;
    if capacity == 0 || capacity > limit {
        return Err(VerbsError::Limit {
            device: context.device_name().to_owned(),
            asked: u64::from(capacity),
            limit_name: "max_cqe",
            limit: u64::from(limit),
        });
    }
    Ok(i32::try_from(capacity).unwrap_or(i32::MAX))
}

/// Converts a completion, without its undefined fields: of a failure only the identity, the status and the vendor's
/// code are valid (ibv_poll_cq(3)).
fn completion(raw: &ibv_wc) -> Completion {
    let flag = |flag: ibv_wc_flags| raw.wc_flags & flag.0 != 0;
    let result = match Status::from_code(raw.status) {
        Some(status) => Err(status),
        None => Ok(Done {
            opcode: Opcode::from_code(raw.opcode),
            len_bytes: raw.byte_len,
            // SAFETY: the flag says that the field is set; both variants are plain numbers.
            immediate: flag(ibv_wc_flags::IBV_WC_WITH_IMM)
                .then(|| u32::from_be(unsafe { raw.imm_data_invalidated_rkey_union.imm_data })),
            // SAFETY: as above.
            invalidated: flag(ibv_wc_flags::IBV_WC_WITH_INV)
                .then_some(unsafe { raw.imm_data_invalidated_rkey_union.invalidated_rkey }),
        }),
    };
    Completion { work_id: raw.wr_id, result, queue_pair: raw.qp_num, vendor_error: raw.vendor_err }
}

impl Drop for CompletionQueueInner {
    fn drop(&mut self) {
        // An event that is taken now would be counted and never acknowledged.
        let _taking = self.channel.as_ref().map(|channel| channel.0.taking.lock());
        let library = self.context.0.functions;
        let count = self.unacknowledged.swap(0, Ordering::Relaxed);
        // SAFETY: `count` events were taken and not acknowledged. The queue pairs that complete here hold the queue,
        // so this is its last use.
        let code = unsafe {
            if count > 0 {
                (library.ibv_ack_cq_events)(self.raw.raw(), count);
            }
            (library.ibv_destroy_cq)(self.raw.raw())
        };
        if code != 0 {
            let device = self.context.device_name();
            tracing::warn!(device, code, "a completion queue could not be given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem;

    use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

    use super::completion;
    use crate::{Done, Opcode, Status};

    fn raw() -> ibv_wc {
        // SAFETY: plain numbers, for which zeros are valid.
        unsafe { mem::zeroed() }
    }

    #[test]
    fn immediate_is_reported_in_host_order_and_only_if_present() {
        let mut wc = raw();
        (wc.wr_id, wc.qp_num, wc.byte_len) = (7, 17, 100);
        wc.opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
        wc.imm_data_invalidated_rkey_union.imm_data = u32::from_ne_bytes([1, 2, 3, 4]);
        let done = Done { opcode: Opcode::ReceiveWriteImmediate, len_bytes: 100, immediate: None, invalidated: None };
        assert_eq!(completion(&wc).result, Ok(done));
        wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
        assert_eq!(completion(&wc).result, Ok(Done { immediate: Some(0x0102_0304), ..done }));
        assert_eq!((completion(&wc).work_id, completion(&wc).queue_pair), (7, 17));
    }

    #[test]
    fn failure_reports_its_status_and_no_undefined_field() {
        let mut wc = raw();
        (wc.status, wc.vendor_err, wc.opcode) = (ibv_wc_status::IBV_WC_REM_ACCESS_ERR, 0x88, 77);
        let failed = completion(&wc);
        assert_eq!((failed.result, failed.vendor_error), (Err(Status::RemoteAccess), 0x88));
    }

    #[test]
    fn key_invalidated_by_the_peer_is_reported() {
        let mut wc = raw();
        wc.opcode = ibv_wc_opcode::IBV_WC_RECV;
        wc.imm_data_invalidated_rkey_union.invalidated_rkey = 0x1234;
        wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_INV.0;
        let done = completion(&wc).result.expect("a success");
        assert_eq!((done.invalidated, done.immediate), (Some(0x1234), None));
    }
}
