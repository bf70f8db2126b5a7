//! The checks.
//!
//! # Layout
//! - `host`, `memory`: this host, and what the sidecar may have of it.
//! - `service`: the sidecar and where it is reached; `rdma`: devices, and what the sidecar makes of them.
//! - `certificates`: how long they are good.
//! - `moved`: real bytes; `peer`: another node.

mod certificates;
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

/// All of them, in the order in which they are printed. Each finds nothing, one thing or several.
pub(super) const ALL: [fn(&Facts) -> Vec<Finding>; 21] = [
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
    service::links,
    certificates::all,
    moved::here,
    peer::all,
];

fn found(check: &'static str, verdict: Verdict, found: impl Into<String>, advice: Option<&str>) -> Vec<Finding> {
    vec![Finding { check, verdict, found: found.into(), advice: advice.map(str::to_owned) }]
}
