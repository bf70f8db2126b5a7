//! The data plane: the engine's threads, and the fabrics that move bytes.
//!
//! # Layout
//! - [`engine`]: the data-plane thread.
//! - [`tcp`]: the fabric over TCP sockets.
//! - [`verbs`]: the fabric over RDMA.
//! - `conformance`: the tests that every fabric has to pass; with the feature of that name.
//! - `token`: what proves that whoever connects was told to.
//! - `regions`: registered segments and grants, for the fabrics that place bytes themselves.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod engine;
mod regions;
pub mod tcp;
mod token;
pub mod verbs;
