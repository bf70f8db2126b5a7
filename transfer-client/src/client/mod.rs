//! The clients, and what can be asked of them.
//!
//! # Layout
//! - `connect`: connecting. `sessions`: what a client says of its session, and its end. `doorbell`: for programs that wait on
//!   descriptors.
//! - `registered`: memory of the program.
//! - `tensors`, `bundles`, `batches`, `counters`, `sharded`: the calls. `publisher`: the pushes of one key; `two_buffers`: of two buffers that
//!   take turns.

mod batches;
mod bundles;
mod connect;
mod counters;
mod doorbell;
mod publisher;
mod registered;
mod sessions;
mod sharded;
mod tensors;
mod two_buffers;

pub use connect::Connect;
pub use doorbell::Doorbell;
pub use publisher::Publisher;
pub use two_buffers::TwoBuffers;

/// Gives both clients these methods. `Self` is the client in the types of the requests, which says how they are made.
macro_rules! both_clients {
    ($($methods:tt)*) => {
        impl $crate::request::Client {
            $($methods)*
        }

        impl $crate::request::BlockingClient {
            $($methods)*
        }
    };
}
pub(crate) use both_clients;
