//! Connections by librdmacm, for queue pairs that this crate makes.
//!
//! The library finds the device for an address, carries both sides' numbers and private data, and reports when the peer
//! goes. The queue pair stays with the caller: the connecting side gives its number with [`Id::connect`], the accepting
//! side with [`Id::accept`], and both take it from RESET to RTS with the attributes that the connection requires.
//!
//! | connecting side | accepting side |
//! |---|---|
//! | [`Id::resolve_address`], [`Id::resolve_route`] | [`Id::listen`] |
//! | queue pair to INIT, [`Id::connect`] | [`EventKind::ConnectRequest`]: queue pair to RTS, [`Id::accept`] |
//! | [`EventKind::ConnectResponse`]: queue pair to RTS, [`Id::establish`] | [`EventKind::Established`] |
//! | [`Id::disconnect`] | [`EventKind::Disconnected`], [`Id::disconnect`] |
//! | [`EventKind::Disconnected`] | |

use std::io;

use crate::sys::rdmacm;
use crate::{Unavailable, VerbsError};

mod address;
mod attributes;
mod channel;
mod event;
mod id;

pub use attributes::Attributes;
pub use channel::EventChannel;
pub use event::{ConnectRequest, Event, EventKind, PeerParameters};
pub use id::{ConnectParameters, Id, IdNumber};

/// The name in place of a device in errors: the library finds the device later, or never.
const NAME: &str = "librdmacm";

/// Returns an error with the reason if there is no librdmacm.
pub fn available() -> Result<(), Unavailable> {
    rdmacm().map(|_| ())
}

/// Returns the result of a call that leaves its error in `errno`.
fn done(call: &'static str, code: libc::c_int) -> Result<(), VerbsError> {
    if code == 0 { Ok(()) } else { Err(VerbsError::because(NAME, call, io::Error::last_os_error())) }
}
