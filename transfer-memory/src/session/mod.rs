//! The session between a worker and its sidecar: the handshake, and the two ends that result from it.
//!
//! ```text
//! worker                                   sidecar
//!   Hello(name, wanted arena bytes)  ->      asks its policy, makes and maps the arena and the rings
//!   <- Welcome(session, incarnation, node, arena, layout of the rings) + 2 descriptors, or Refused(code, text)
//!   maps both, read-write
//!   Mapped(session)  ->                      seals both against further writers
//!   <- doorbell                              the data plane has the session: others can push to this worker
//! ```
//!
//! A worker whose sidecar was restarted comes back with its arena: Return(incarnation, arena bytes, name) with 1
//! descriptor replaces Hello, and Welcome comes with the rings alone. The seals do not allow an arena to be mapped for
//! writing a second time, so the sidecar maps it read-only, which is all that it needs. It checks size and seals again,
//! because it does not trust the worker.
//!
//! Afterwards the socket carries doorbells in both directions, and from the sidecar [`SidecarSocket::pass_segment`],
//! one descriptor each. The sidecar makes all memory, so that it can limit, pin and register it. It checks every byte
//! of a worker's messages; a silent or hostile worker costs it one thread for [`SidecarPolicy::timeout`].
//!
//! A segment is passed **before** the ring record that first names it is published. A worker that finds an unknown
//! segment in a record finds its descriptor among the messages in its socket.

mod error;
mod message;
mod segments;
mod sidecar;
mod worker;

pub use error::{MessageError, Refusal, RefusalCode, SessionError};
pub use message::PROTOCOL_VERSION;
pub use segments::{PassedSegment, Segments};
pub use sidecar::{Admission, Applicant, FromWorker, SidecarEnd, SidecarPolicy, SidecarSocket};
pub use worker::{FromSidecar, Returning, WorkerEnd, WorkerOptions, WorkerSocket};

#[cfg(test)]
mod returning_tests;
#[cfg(test)]
mod tests;
