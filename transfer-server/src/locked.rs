//! The limit of locked memory of this process. Memory that is registered with an RDMA device is locked too.

use rustix::process::{Resource, getrlimit};

/// Returns the limit in bytes; `None`: no limit.
pub(crate) fn limit_bytes() -> Option<u64> {
    getrlimit(Resource::Memlock).current.filter(|_| !is_exempt())
}

/// Returns whether the process is exempt from the limit by CAP_IPC_LOCK, which root has unless it was taken away.
fn is_exempt() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1)
}
