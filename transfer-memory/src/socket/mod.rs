//! Unix sockets between a worker and its sidecar.
//!
//! They are `SOCK_SEQPACKET` at a path in the file system: messages keep their bounds, descriptors travel along
//! (`SCM_RIGHTS`), the kernel vouches for the peer's user, and two containers that share nothing but one directory can
//! use them. Every wait has a deadline, and no send to a peer that does not read ever blocks for longer.
//!
//! A message of one byte is a **doorbell**: it asks the receiver to look at the ring, and says nothing else. All
//! others are messages of [`crate::session`].

mod address;
mod credentials;
mod error;
mod listener;
mod stream;

pub use address::MAX_PATH_BYTES;
pub use credentials::Credentials;
pub use error::{AddressError, SocketError};
pub use listener::{Listener, lock_directory_of};
pub use stream::{Message, Socket};

/// The longest message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests;
