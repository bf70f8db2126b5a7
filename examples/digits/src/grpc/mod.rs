//! The baseline: the same job with its exchange over plain gRPC messages, as one would write it without transfer.
//!
//! It is meant to be a fair one: one connection per worker that stays open, TCP_NODELAY, payloads as `bytes` that are not
//! decoded element by element, and a `GetWeights` that waits on the server for its version instead of polling.

use prost::bytes::Bytes;

mod server;
mod worker;

pub use server::serve;
pub use worker::work;

/// What tonic makes of `proto/digits.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used)]
mod proto {
    tonic::include_proto!("digits.v1");
}

/// Floats into a message: copied, because a message owns its bytes.
fn encode(floats: &[f32]) -> Bytes {
    Bytes::copy_from_slice(bytemuck::cast_slice(floats))
}

/// Floats out of a message: copied again, because a payload may begin at any address and a `f32` may not.
fn decode(bytes: &[u8]) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(bytes)
}
