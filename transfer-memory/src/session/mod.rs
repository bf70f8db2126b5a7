//! The session between a worker and its sidecar: how it begins, and what each side holds then.
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
//! A worker whose sidecar was restarted comes back with its arena: Return(incarnation, arena bytes, name) + 1
//! descriptor takes the place of Hello, and Welcome comes with the rings alone. The seals let nobody map an arena for
//! writing a second time, so the sidecar maps it to read, which is all that it does with one. It looks at size and
//! seals again: it knows nothing of who offers it.
//!
//! Afterwards the socket carries doorbells in both directions, and from the sidecar [`SidecarSocket::pass_segment`],
//! one descriptor each. The sidecar makes all memory, so that it bounds, pins and registers it. It checks every byte
//! of a worker's; a silent or hostile worker costs it one thread for [`SidecarPolicy::timeout`].
//!
//! A segment is passed **before** the ring record that first names it is published. A worker that reads of a segment
//! it does not know finds it among the messages that wait in its socket.

mod error;
mod message;
mod segments;
mod sidecar;
mod worker;

pub use error::{MessageError, Refusal, RefusalCode, SessionError};
pub use message::PROTOCOL_VERSION;
pub use segments::{PassedSegment, Segments};
pub use sidecar::{Admission, Applicant, SidecarEnd, SidecarPolicy, SidecarSocket};
pub use worker::{FromSidecar, Returning, WorkerEnd, WorkerOptions, WorkerSocket};

#[cfg(test)]
mod returning_tests;
#[cfg(test)]
mod tests;
