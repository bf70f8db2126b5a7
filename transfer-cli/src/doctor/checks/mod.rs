//! The checks.
//!
//! # Layout
//! - `host`, `memory`: this host, and the sidecar's limits on it.
//! - `service`: the sidecar and its addresses; `rdma`: devices, and the sidecar's use of them.
//! - `gpus`: GPUs.
//! - `certificates`: their validity.
//! - `moved`: transfers of real bytes; `peer`: another node.

mod certificates;
mod gpus;
mod host;
mod memory;
mod moved;
mod peer;
mod rdma;
mod service;
#[cfg(test)]
mod tests;

use super::facts::Facts;
use super::{Finding, Verdict};

/// All checks, in the order in which they are printed. Each returns no, one or several findings.
pub(super) const ALL: [fn(&Facts) -> Vec<Finding>; 23] = [
    service::sidecar,
    service::version,
    service::directory,
    service::believes,
    service::socket,
    service::data_port,
    host::kernel,
    host::open_files,
    host::huge_pages,
    memory::locked_memory,
    memory::pinned,
    memory::pools,
    rdma::verbs_library,
    rdma::cm_library,
    rdma::devices,
    rdma::ports,
    rdma::verbs_fabric,
    gpus::all,
    service::links,
    service::digests,
    certificates::all,
    moved::here,
    peer::all,
];

fn ok(check: &'static str, text: impl Into<String>) -> Vec<Finding> {
    found(check, Verdict::Ok, text, None)
}

fn warn(check: &'static str, text: impl Into<String>, advice: &str) -> Vec<Finding> {
    found(check, Verdict::Warn, text, Some(advice))
}

fn fail(check: &'static str, text: impl Into<String>, advice: &str) -> Vec<Finding> {
    found(check, Verdict::Fail, text, Some(advice))
}

fn found(check: &'static str, verdict: Verdict, found: impl Into<String>, advice: Option<&str>) -> Vec<Finding> {
    vec![Finding { check, verdict, found: found.into(), advice: advice.map(str::to_owned) }]
}
