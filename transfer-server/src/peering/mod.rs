//! Links to other sidecars: the rule that decides which side calls, and whether a call has failed.
//!
//! [`state`] decides, without I/O. [`links`] carries the decisions out. [`service`] answers calls. [`reaching`] wakes
//! callers that wait for a link. [`echo`] exchanges datagrams beside links.

mod buffers;
mod choice;
mod echo;
mod links;
mod reaching;
mod service;
mod state;

pub(crate) use choice::Identity;
pub(crate) use echo::Echo;
pub(crate) use links::{Kind, Links};
pub(crate) use service::PeeringService;
pub(crate) use state::FORM_DEADLINE;
