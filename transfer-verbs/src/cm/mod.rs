//! Connections by librdmacm, for queue pairs of our own.
//!
//! The library finds the device for an address, carries both sides' numbers and private data, and says when the peer
//! goes. The queue pair stays ours: the side that asks says its number with [`Id::connect`], the side that is asked with
//! [`Id::accept`], and both take it from RESET to RTS with the attributes that the connection wants.
//!
//! | asking | asked |
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

/// What stands for the device in errors: the library finds it later, or never.
const NAME: &str = "librdmacm";

/// Whether there is a librdmacm, and otherwise why not.
pub fn available() -> Result<(), Unavailable> {
    rdmacm().map(|_| ())
}

/// The result of a call that leaves its error in `errno`.
fn done(call: &'static str, code: libc::c_int) -> Result<(), VerbsError> {
    if code == 0 { Ok(()) } else { Err(VerbsError::because(NAME, call, io::Error::last_os_error())) }
}
