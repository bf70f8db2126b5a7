//! The registered parts of mapped segments.
//!
//! A GPU reads and writes host memory by itself, at full speed, only if its driver has registered the memory
//! (`cuMemHostRegister`). That pins the pages: the kernel neither moves nor reclaims them. Registration takes about as
//! long as a copy, so it is done once.
//!
//! - **What is pinned**: a mapping is divided into chunks of [`CHUNK_BYTES`]. The first copy from or to a chunk registers
//!   that chunk, and no other. A small tensor of a large segment so pins at most two chunks.
//! - **For how long**: until the segment is unmapped in this process. The mapping owns its registrations, as its
//!   [companion](Mapping::companion), and they end before it does.
//! - **What it costs**: pages of segments exist already, and count against the sidecar's limit of pinned memory.
//!   Registration adds no memory. The pages of a landing pool are shared: other processes map the same ones, and may
//!   register them as well, each for itself.
//! - **Read-only mappings**, which is how a worker sees what it has fetched, are registered as such
//!   (`CU_MEMHOSTREGISTER_READ_ONLY`), where the GPU supports it. Otherwise they are copied as pageable memory, and the
//!   report of the copy says so.
//!
//! A chunk that the driver has refused is not tried again.

use crate::{CudaError, Gpu};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use transfer_memory::segment::{Access, Mapping};

/// The length of the parts of a mapping that are registered one by one, in bytes.
pub const CHUNK_BYTES: u64 = 32 << 20;

/// `CU_MEMHOSTREGISTER_PORTABLE`: the memory counts as registered for all contexts.
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTREGISTER_READ_ONLY`.
const READ_ONLY: u32 = 8;

/// The reason why host memory is copied as pageable memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotRegistered {
    /// The memory lies in no mapped segment.
    #[error("the memory lies in no segment that is mapped here")]
    NoSegment,
    /// The GPU supports no registration of this kind of mapping.
    #[error("GPU {device} supports no registration of {} memory", if *.read_only { "read-only" } else { "host" })]
    Unsupported {
        /// The GPU's number.
        device: u32,
        /// Whether the memory is mapped read-only.
        read_only: bool,
    },
    /// The driver refused.
    #[error("the driver does not register it: {0}")]
    Refused(CudaError),
}

/// The registrations of a mapping, which owns them as its companion.
#[derive(Debug, Default)]
struct Registrations(Mutex<BTreeMap<u64, Result<Registered, NotRegistered>>>);

/// A registered part of a mapping.
#[derive(Debug)]
struct Registered {
    gpu: Gpu,
    start: *mut c_void,
    len_bytes: u64,
}

// SAFETY: the pointer is only passed to the driver, whose functions may be called by any thread.
unsafe impl Send for Registered {}

/// The chunks that a range touches, each with its part of the range. All are bytes from the mapping's start.
pub(crate) fn pieces(range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let chunk = at / CHUNK_BYTES;
        let from = at;
        at = ((chunk + 1) * CHUNK_BYTES).min(end);
        Some((chunk, from..at))
    })
}

/// Registers a chunk of a mapping, unless it is registered. What the driver has refused once is not tried again.
///
/// # Errors
/// [`NotRegistered`].
pub(crate) fn register(gpu: &Gpu, mapping: &Mapping, chunk: u64) -> Result<(), NotRegistered> {
    let (supports, read_only) = (gpu.registers(), mapping.access() == Access::ReadOnly);
    if !(if read_only { supports.read_only } else { supports.writable }) {
        return Err(NotRegistered::Unsupported { device: gpu.ordinal(), read_only });
    }
    let Some(registrations) = mapping.companion::<Registrations>() else { return Err(NotRegistered::NoSegment) };
    let mut known = registrations.0.lock();
    let found = known.entry(chunk).or_insert_with(|| register_now(gpu, mapping, chunk));
    found.as_ref().map(drop).map_err(NotRegistered::clone)
}

fn register_now(gpu: &Gpu, mapping: &Mapping, chunk: u64) -> Result<Registered, NotRegistered> {
    let flags = match mapping.access() {
        Access::ReadOnly => PORTABLE | READ_ONLY,
        Access::ReadWrite => PORTABLE,
    };
    let at = chunk * CHUNK_BYTES;
    let len_bytes = mapping.len().saturating_sub(at).min(CHUNK_BYTES);
    let start = mapping.ptr_at(at, len_bytes).map_err(|_| NotRegistered::NoSegment)?.cast::<c_void>();
    let entered = gpu.enter().map_err(NotRegistered::Refused)?;
    // SAFETY: these are bytes of a mapping, and stay mapped until its companion, which gets the result, has been dropped.
    let status = unsafe { (entered.driver.mem_host_register)(start, len_bytes as usize, flags) };
    entered.check("cuMemHostRegister", status).map_err(NotRegistered::Refused)?;
    Ok(Registered { gpu: gpu.clone(), start, len_bytes })
}

/// The number of bytes of a mapping that are registered.
#[must_use]
pub fn registered_bytes(mapping: &Mapping) -> u64 {
    let known = mapping.companion::<Registrations>().map(|registrations| registrations.0.lock());
    known.map_or(0, |known| known.values().flatten().map(|registered| registered.len_bytes).sum())
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(entered) = self.gpu.enter() {
            // SAFETY: the memory was registered by `register_now`, and is still mapped. No copy uses it: a copy owns a
            // reference to the mapping, and the mapping owns this.
            let _ = unsafe { (entered.driver.mem_host_unregister)(self.start) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK_BYTES, pieces};

    #[test]
    fn a_range_is_cut_at_the_chunks_and_loses_no_byte() {
        let cut = |range| pieces(range).collect::<Vec<_>>();
        assert_eq!(cut(5..5), []);
        assert_eq!(cut(5..9), [(0, 5..9)]);
        assert_eq!(cut(CHUNK_BYTES..CHUNK_BYTES + 1), [(1, CHUNK_BYTES..CHUNK_BYTES + 1)]);
        assert_eq!(
            cut(CHUNK_BYTES - 1..2 * CHUNK_BYTES + 7),
            [
                (0, CHUNK_BYTES - 1..CHUNK_BYTES),
                (1, CHUNK_BYTES..2 * CHUNK_BYTES),
                (2, 2 * CHUNK_BYTES..2 * CHUNK_BYTES + 7)
            ]
        );
    }
}
