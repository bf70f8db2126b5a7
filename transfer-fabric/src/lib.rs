//! The data plane: the engine's threads, and the fabrics that move bytes.
//!
//! # Layout
//! - [`engine`]: the data-plane thread.
//! - `disk`: versions on disk, and the thread that writes and reads them.
//! - [`tcp`]: the fabric over TCP sockets.
//! - [`shm`]: the fabric through shared memory, between two sidecars of one host.
//! - [`verbs`]: the fabric over RDMA.
//! - `conformance`: the tests that every fabric must pass; with the feature of that name.
//! - `epoll`: an epoll descriptor.
//! - `poller`: the epoll descriptor and the timer of a fabric with sockets.
//! - `links`: the bookkeeping of links that is the same in every fabric.
//! - `timer`: a descriptor that becomes readable at a given time.
//! - `token`: the proof that a connection was announced by `Connect`.
//! - `regions`: registered segments and grants, for the fabrics that place bytes themselves.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod disk;
pub mod engine;
mod epoll;
mod links;
mod poller;
mod random;
mod regions;
pub mod shm;
pub mod tcp;
mod timer;
mod token;
pub mod verbs;

/// Returns the number of threads that copy beside the data plane. More of them do not copy faster: a few fill the memory's bandwidth.
pub(crate) fn helping_threads() -> usize {
    (std::thread::available_parallelism().map_or(1, usize::from) / 2).clamp(1, 4)
}

/// Converts the error of a system call into a [`FabricError`](transfer_core::fabric::FabricError).
pub(crate) fn device<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> transfer_core::fabric::FabricError {
    move |error| transfer_core::fabric::FabricError::Device { what, why: error.to_string() }
}
