//! Shared receive queues: one pool of receives for many queue pairs.

use std::io;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

use crate::sys::Handle;
use crate::{PostError, ProtectionDomain, ReceiveList, VerbsError};

/// The size of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedReceiveQueueOptions {
    /// The most receives that can be waiting.
    pub max_receive: u32,
    /// The most elements of one receive.
    pub max_receive_elements: u32,
}

/// A shared receive queue. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue(pub(crate) Arc<ReceiveQueueInner>);

#[derive(Debug)]
pub(crate) struct ReceiveQueueInner {
    pub(crate) raw: Handle<ibv_srq>,
    domain: ProtectionDomain,
}

impl SharedReceiveQueue {
    /// Makes a queue.
    pub fn new(domain: &ProtectionDomain, options: SharedReceiveQueueOptions) -> Result<Self, VerbsError> {
        let context = domain.context();
        let limits = context.limits();
        for (asked, limit_name, limit) in [
            (options.max_receive, "max_srq_wr", limits.max_srq_wr),
            (options.max_receive_elements, "max_srq_sge", limits.max_srq_sge),
        ] {
            if asked > limit {
                return Err(VerbsError::Limit {
                    device: context.device_name().to_owned(),
                    asked: u64::from(asked),
                    limit_name,
                    limit: u64::from(limit),
                });
            }
        }
        let mut attr = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ibv_srq_attr { max_wr: options.max_receive, max_sge: options.max_receive_elements, srq_limit: 0 },
        };
        // SAFETY: the domain is alive and stays so for the queue's life.
        let raw = Handle::new(unsafe { (context.0.functions.ibv_create_srq)(domain.0.raw.raw(), &mut attr) })
            .map_err(|why| VerbsError::because(context.device_name(), "ibv_create_srq", why))?;
        Ok(Self(Arc::new(ReceiveQueueInner { raw, domain: domain.clone() })))
    }

    /// Posts the receives and empties the list, even if not all were accepted.
    pub fn post_receive(&self, list: &mut ReceiveList) -> Result<(), PostError> {
        let posted = list.post(|first, refused| {
            // SAFETY: the queue is alive and the list linked. What the elements name is registered, or the device
            // refuses it. The function is a pointer in the context, not one that has to be linked.
            unsafe { rdma_sys::ibv_post_srq_recv(self.0.raw.raw(), first, refused) }
        });
        posted.map_err(|untaken| PostError {
            device: self.0.domain.context().device_name().to_owned(),
            queue: "shared receive queue".to_owned(),
            taken: untaken.taken,
            of: untaken.of,
            why: io::Error::from_raw_os_error(untaken.code),
        })
    }

    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }
}

impl Drop for ReceiveQueueInner {
    fn drop(&mut self) {
        let context = self.domain.context();
        // SAFETY: the queue pairs that receive from it hold it, so this is its last use.
        let code = unsafe { (context.0.functions.ibv_destroy_srq)(self.raw.raw()) };
        if code != 0 {
            tracing::warn!(device = context.device_name(), code, "a shared receive queue could not be given back");
        }
    }
}
