//! Checks of memory: the sidecar's limits, and the available memory.

use super::{ok, warn};
use crate::doctor::Finding;
use crate::doctor::facts::Facts;
use transfer_terminal::units::bytes;

/// Checks the limit of locked memory. Registered memory is locked, so the limit applies to RDMA even with --lock no.
pub(super) fn locked_memory(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.sidecar else { return vec![] };
    let limit = match status.locked_limit_bytes {
        None => return ok("locked memory", "the sidecar may lock any amount"),
        Some(limit) => limit,
    };
    let may_pin = status.pinned_limit_bytes;
    let text = format!("the sidecar may lock {}, and pin {} (--pinned-limit)", bytes(limit), bytes(may_pin));
    if limit >= may_pin {
        return ok("locked memory", text);
    }
    let advice = "Raise RLIMIT_MEMLOCK (`ulimit -l unlimited`, LimitMEMLOCK=infinity in the systemd unit, --ulimit memlock=-1 for a \
                  container), or lower --pinned-limit: what is registered with an RDMA device must be locked";
    warn("locked memory", text, advice)
}

/// Checks that this host has the memory that may be pinned.
pub(super) fn pinned(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "memory";
    let Ok(status) = &facts.sidecar else { return vec![] };
    let (now, limit) = (status.pinned_bytes, status.pinned_limit_bytes);
    let pins = format!("{} are pinned of {} (--pinned-limit)", bytes(now), bytes(limit));
    let mut findings = Vec::new();
    match (facts.host.memory_bytes, facts.host.available_bytes) {
        (Some(all), _) if limit > all => {
            let advice = "Lower --pinned-limit below what the host has, and leave some for the workers";
            let text = format!("{pins}, and the host has {}", bytes(all));
            findings.extend(warn(CHECK, text, advice));
        }
        (Some(_), Some(available)) if limit.saturating_sub(now) > available => {
            let advice = "Lower --pinned-limit, or stop what else takes memory: pinned memory is never swapped";
            let text = format!("{pins}, and {} more could be had now", bytes(available));
            findings.extend(warn(CHECK, text, advice));
        }
        _ => findings.extend(ok(CHECK, pins.clone())),
    }
    if let Some(group) = facts.socket.process().and_then(|process| process.group_limit_bytes) {
        let text = format!("the sidecar's control group may have {}; {pins}", bytes(group));
        findings.extend(match limit > group {
            true => {
                let advice = "Raise the container's or unit's memory limit above --pinned-limit, or lower that: the kernel kills the \
                              sidecar when it goes beyond";
                warn("memory limit", text, advice)
            }
            false => ok("memory limit", text),
        });
    }
    findings
}

/// Checks the landing pools.
pub(super) fn pools(facts: &Facts) -> Vec<Finding> {
    let Ok(status) = &facts.sidecar else { return vec![] };
    let one = |pool: &transfer_proto::v1::Pool| {
        let text = format!("of tenant {}: {} of {} in use", pool.tenant, bytes(pool.used_bytes), bytes(pool.bytes));
        match pool.waiting {
            0 => ok("landing pool", text),
            n => {
                let advice = "Raise --pool-bytes, or look with `transferctl tensors` who reads for long";
                warn("landing pool", format!("{text}, and {n} wait for room"), advice)
            }
        }
    };
    status.pools.iter().flat_map(one).collect()
}
