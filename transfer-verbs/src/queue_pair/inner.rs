//! The library's queue pair.

use std::{io, mem};

use rdma_sys::{ibv_qp, ibv_qp_init_attr};

use super::QueuePairOptions;
use super::step::{Step, Wrong};
use crate::sys::Handle;
use crate::{
    CompletionQueue, ModifyError, PostError, ProtectionDomain, ReceiveList, SendList, SharedReceiveQueue, Transport,
    VerbsError, receive_list,
};

pub(super) struct QueuePairInner {
    raw: Handle<ibv_qp>,
    pub(super) domain: ProtectionDomain,
    pub(super) number: u32,
    pub(super) max_inline: u32,
    /// Known from INIT on.
    pub(super) port: u8,
    _queues: (CompletionQueue, CompletionQueue, Option<SharedReceiveQueue>),
}

impl QueuePairInner {
    pub(super) fn create<T: Transport>(
        domain: &ProtectionDomain,
        options: &QueuePairOptions,
    ) -> Result<Self, VerbsError> {
        let context = domain.context();
        let device = context.device_name();
        let limits = context.limits();
        for (asked, limit_name, limit) in [
            (options.max_send, "max_qp_wr", limits.max_qp_wr),
            (options.max_receive, "max_qp_wr", limits.max_qp_wr),
            (options.max_send_elements, "max_sge", limits.max_sge),
            (options.max_receive_elements, "max_sge", limits.max_sge),
        ] {
            if asked > limit {
                let (device, asked, limit) = (device.to_owned(), u64::from(asked), u64::from(limit));
                return Err(VerbsError::Limit { device, asked, limit_name, limit });
            }
        }
        let foreign = |what| VerbsError::Foreign { device: device.to_owned(), what };
        if !(options.send_queue.is_of(context) && options.receive_queue.is_of(context)) {
            return Err(foreign("completion queue"));
        }
        let shared = options.shared_receives.as_ref();
        if shared.is_some_and(|shared| !std::sync::Arc::ptr_eq(&shared.domain().context().0, &context.0)) {
            return Err(foreign("shared receive queue"));
        }
        // SAFETY: plain numbers and pointers, for which zeros are valid.
        let mut attr: ibv_qp_init_attr = unsafe { mem::zeroed() };
        attr.send_cq = options.send_queue.0.raw.raw();
        attr.recv_cq = options.receive_queue.0.raw.raw();
        attr.srq = shared.map_or(std::ptr::null_mut(), |shared| shared.0.raw.raw());
        attr.cap.max_send_wr = options.max_send;
        attr.cap.max_recv_wr = options.max_receive;
        attr.cap.max_send_sge = options.max_send_elements;
        attr.cap.max_recv_sge = options.max_receive_elements;
        attr.cap.max_inline_data = options.max_inline;
        attr.qp_type = T::CODE;
        // SAFETY: the domain and the queues are alive, of one context, and kept by what is made here.
        let raw = Handle::new(unsafe { (context.0.functions.ibv_create_qp)(domain.0.raw.raw(), &mut attr) })
            .map_err(|why| VerbsError::because(device, "ibv_create_qp", why))?;
        // SAFETY: the queue pair was just made, and its number never changes.
        let number = unsafe { (*raw.raw()).qp_num };
        Ok(Self {
            raw,
            domain: domain.clone(),
            number,
            max_inline: attr.cap.max_inline_data,
            port: 0,
            _queues: (options.send_queue.clone(), options.receive_queue.clone(), options.shared_receives.clone()),
        })
    }

    /// Takes a step, or returns the attribute that is wrong.
    pub(super) fn modify(&mut self, step: Result<Step, Wrong>) -> Result<(), ModifyError> {
        let context = self.domain.context();
        let refused = |wrong: Wrong| ModifyError {
            device: context.device_name().to_owned(),
            number: self.number,
            transition: wrong.transition,
            attribute: wrong.attribute,
            value: wrong.value,
            why: wrong.why,
        };
        let mut step = step.map_err(refused)?;
        // SAFETY: the queue pair is alive, and this has the only access to it. The mask says which attributes are set.
        let code = unsafe { (context.0.functions.ibv_modify_qp)(self.raw.raw(), &mut step.attributes, step.mask) };
        if code != 0 {
            return Err(refused(step.blame(context, self.port, io::Error::from_raw_os_error(code))));
        }
        if let Some(port) = step.port() {
            self.port = port;
        }
        Ok(())
    }

    pub(super) fn post_receive(&mut self, list: &mut ReceiveList) -> Result<(), PostError> {
        let posted = list.post(|first, refused| {
            // SAFETY: the queue pair is alive and the list linked. What the elements name is registered, or the device
            // refuses it. The function is a pointer in the context, not one that has to be linked.
            unsafe { rdma_sys::ibv_post_recv(self.raw.raw(), first, refused) }
        });
        posted.map_err(|untaken| self.untaken(&untaken))
    }

    /// Posts a list of the kind `T`, which must be that of the queue pair.
    pub(super) fn post_send<T: Transport>(&mut self, list: &mut SendList<T>) -> Result<(), PostError> {
        let posted = list.post(&self.domain, |first, refused| {
            // SAFETY: as for receives. Inline bytes are in the list; windows and regions that are bound, and address
            // handles, are held by it. Its requests are those of the queue pair's kind.
            unsafe { rdma_sys::ibv_post_send(self.raw.raw(), first, refused) }
        });
        posted.map_err(|untaken| self.untaken(&untaken))
    }

    fn untaken(&self, untaken: &receive_list::Untaken) -> PostError {
        PostError {
            device: self.domain.context().device_name().to_owned(),
            queue: format!("queue pair {}", self.number),
            taken: untaken.taken,
            of: untaken.of,
            why: io::Error::from_raw_os_error(untaken.code),
        }
    }
}

impl Drop for QueuePairInner {
    fn drop(&mut self) {
        let context = self.domain.context();
        // SAFETY: there is one owner, so this is the queue pair's last use.
        let code = unsafe { (context.0.functions.ibv_destroy_qp)(self.raw.raw()) };
        if code != 0 {
            tracing::warn!(device = context.device_name(), code, "queue pair {} could not be given back", self.number);
        }
    }
}
