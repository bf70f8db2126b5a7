//! The measurements.
//!
//! | suite | the system | its baseline |
//! |---|---|---|
//! | [`handover`] | push until fetch returns, one sidecar; workers sleep, then poll | a futex, or a polled word |
//! | [`lookup`] | fetch of a tensor that is published at the same sidecar | none: a goal in microseconds |
//! | [`copyin`] | a push of memory that lies outside the arena | memcpy with as many threads |
//! | [`tcp`] | 64 MiB tensors from sidecar to sidecar | a bare socket copy between two processes |
//! | [`shm`] | 64 MiB tensors between sidecars by shared memory | memcpy; by reference: the hand-over at one sidecar |
//! | [`latency`] | 4 KiB from sidecar to sidecar, one in flight | two bare relay processes and a TCP connection |
//! | [`batch`] | many 4 KiB tensors at once | none: a goal in tensors per second |
//! | [`columns`] | a record batch of 40 columns and 64 MiB | a dense tensor of that size |
//! | [`bundles`] | a bundle of 100,000 tensors of 1 KiB | one tensor of as many bytes |
//! | [`slices`] | a block of a matrix, in 4,096 runs, over TCP | a MiB of whole rows |
//! | [`reshard`] | a sharded state of eight ranks to two readers in another layout, over TCP | the same bytes as they lie |
//! | [`exchange`] | 2 GB of records, partitioned and read by four workers | the partitioning alone; a bare socket |
//! | [`verbs`] | 1 MiB tensors between sidecars over RDMA, and the device's requests | perftest's `ib_write_bw` |
//! | [`gpu`] | a fetched tensor to a GPU and back | pinned memory of the driver |
//! | [`watching`] | listings and metrics with a million tensors; batches with metrics | goals in time; plain batches |
//! | [`sweep`] | tensors of all lengths at every place | a bare relay; a bare socket; memcpy |
//! | [`scale`] | tensors among more and more workers, keys, links and waiting fetches | the same among few |
//! | [`idle`] | a sidecar with nothing to do, and with a million tensors | none: goals in CPU and bytes |

pub mod batch;
pub mod bundles;
mod chart_file;
pub mod columns;
pub mod copyin;
pub mod exchange;
pub mod gpu;
pub mod handover;
pub mod idle;
pub mod latency;
pub mod lookup;
mod reference;
pub mod reshard;
pub mod scale;
pub mod shm;
pub mod slices;
mod states;
pub mod sweep;
pub mod tcp;
pub mod verbs;
pub mod watching;

use crate::actor::worker::WorkerTask;
use crate::error::BenchError;
use crate::stage::{Actor, Sidecar, Stage};
use std::time::Duration;
use transfer_proto::v1::LinksRequest;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Starts a worker with a session.
fn worker(stage: &Stage, sidecar: &Sidecar, name: &str, arena_bytes: u64) -> Result<Actor, BenchError> {
    worker_that_spins(stage, sidecar, name, arena_bytes, None)
}

/// Starts a worker with a session whose calls poll for `spin` before they sleep.
fn worker_that_spins(
    stage: &Stage,
    sidecar: &Sidecar,
    name: &str,
    arena_bytes: u64,
    spin: Option<Duration>,
) -> Result<Actor, BenchError> {
    let mut actor = stage.actor(name)?;
    let (socket, name) = (sidecar.socket.clone(), name.to_owned());
    actor.ask(WorkerTask::Connect { socket, name, arena_bytes, spin })?;
    Ok(actor)
}

/// Starts two sidecars that reach each other over TCP only. The first one hosts the directory.
fn pair(stage: &Stage, flags: &[&str]) -> Result<(Sidecar, Sidecar), BenchError> {
    pair_over(stage, "tcp", flags)
}

/// Starts two sidecars that reach each other over `fabric` only. The first one hosts the directory.
fn pair_over(stage: &Stage, fabric: &str, flags: &[&str]) -> Result<(Sidecar, Sidecar), BenchError> {
    let flags = [&["--require", fabric], flags].concat();
    let a = stage.sidecar("a", None, &flags)?;
    let b = stage.sidecar("b", Some(&a.url), &flags)?;
    Ok((a, b))
}

/// The time from each moment to its partner, in microseconds.
fn latencies_us(from: &[u64], to: &[u64]) -> Vec<f64> {
    from.iter().zip(to).map(|(from, to)| to.saturating_sub(*from) as f64 / 1e3).collect()
}

/// The rate, in 10^9 bytes per second.
fn gigabytes_per_second(bytes: u64, ns: u64) -> f64 {
    bytes as f64 / ns.max(1) as f64
}

/// The bytes that have come over all links of a sidecar.
fn bytes_in(sidecar: &Sidecar) -> Result<u64, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(BenchError::system("make a runtime"))?;
    runtime.block_on(async {
        let answer = sidecar.admin().await?.links(LinksRequest { page_size: 1000, ..Default::default() }).await;
        let links = answer.map_err(|e| BenchError::Status { why: e.to_string() })?.into_inner().links;
        Ok(links.iter().map(|link| link.bytes_in).sum())
    })
}
