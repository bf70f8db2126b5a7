//! Finds out whether the device checks the bounds of a window. No attribute tells that, so this opens a window on a
//! scratch page and writes beyond it.

use super::area::SegmentMemory;
use super::device::Device;
use super::device_error;
use super::local_pair::{LocalPair, wait};
use std::sync::Arc;
use transfer_core::fabric::FabricError;
use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};
use transfer_verbs::{
    Access, CompletionQueue, Data, MemoryRegion, MemoryWindow, ProtectionDomain, RemoteAccess, SendKind, SendList,
    SendRequest, Status,
};

const PAGE: usize = 4096;
const WINDOW: usize = 64;

/// Returns whether a write one byte beyond a window's end is refused.
pub(super) fn are_checked(device: &Device) -> Result<bool, FabricError> {
    let what = "trying whether the device checks the bounds of memory windows";
    let domain = ProtectionDomain::new(&device.context).map_err(device_error(what))?;
    let queue = CompletionQueue::new(&device.context, 16, None).map_err(device_error(what))?;
    let options = SegmentOptions { len: PAGE as u64, pages: Pages::Base, lock: Lock::No };
    let scratch =
        Segment::create("verbs scratch", &options, &PinnedBudget::new(PAGE as u64)).map_err(device_error(what))?;
    let access = Access { local_write: true, window_bind: true, ..Access::default() };
    let memory = Arc::new(SegmentMemory(Arc::new(scratch)));
    let region = MemoryRegion::register(&domain, memory, access).map_err(device_error(what))?;
    // The window is declared before the queue pairs, so it would be dropped after them. `stop` deallocates it earlier.
    let window = MemoryWindow::allocate(&domain).map_err(device_error(what))?;
    let mut pair = LocalPair::new(device, &domain, &queue, 4)?;
    let mut list = SendList::new();
    let key = window.next_key();
    let access = RemoteAccess { write: true, ..RemoteAccess::default() };
    let kind = SendKind::BindWindow { window: &window, region: &region, offset: 0, len_bytes: WINDOW, access };
    list.push(SendRequest { work_id: 1, signaled: true, fence: false, kind });
    pair.answers.post_send(&mut list).map_err(device_error(what))?;
    let mut outcome = wait(&queue)?.result;
    // The last write is one byte too long.
    for len in [WINDOW, WINDOW + 1] {
        if outcome.is_err() {
            break;
        }
        let element = region.element(PAGE / 2, len);
        let data = Data::Gather(element.as_slice());
        let kind = SendKind::Write { data, address: region.address(), key, immediate: None };
        list.push(SendRequest { work_id: len as u64, signaled: true, fence: false, kind });
        pair.asks.post_send(&mut list).map_err(device_error(what))?;
        let completion = wait(&queue)?;
        outcome = completion.result;
        if completion.work_id == WINDOW as u64 + 1 {
            let checked = matches!(outcome, Err(Status::RemoteAccess));
            // The window is deallocated before its queue pair is destroyed, which could take very long otherwise
            // (docs/adr/0001).
            stop(pair, window);
            return match outcome {
                Ok(_) => Ok(false),
                Err(_) if checked => Ok(true),
                Err(status) => Err(FabricError::Device { what, why: status.to_string() }),
            };
        }
    }
    stop(pair, window);
    let why = outcome.err().map_or_else(String::new, |status| format!("a good write or bind failed: {status}"));
    Err(FabricError::Device { what, why })
}

fn stop(pair: LocalPair, window: MemoryWindow) {
    let stopped = (pair.asks.into_error(), pair.answers.into_error());
    drop(window);
    drop(stopped);
}
