//! The baseline: the same job with an exchange by plain gRPC messages, as a program without transfer would do it.
//!
//! The baseline is meant to be fair: each worker has one connection that stays open, with TCP_NODELAY. Payloads are
//! `bytes` that are not decoded element by element. `GetWeights` waits on the server for its version instead of
//! polling.

use prost::bytes::Bytes;

mod server;
mod worker;

pub use server::serve;
pub use worker::work;

/// The code that tonic generates from `proto/digits.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used)]
mod proto {
    tonic::include_proto!("digits.v1");
}

/// Copies floats into a message, which owns its bytes.
fn encode(floats: &[f32]) -> Bytes {
    Bytes::copy_from_slice(bytemuck::cast_slice(floats))
}

/// Copies floats out of a message, because a payload may be unaligned for `f32`.
fn decode(bytes: &[u8]) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(bytes)
}
