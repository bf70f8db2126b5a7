//! Links to other sidecars: who calls whom, and when that has failed.
//!
//! [`state`] decides, without I/O; [`links`] does what it decided; [`service`] is the side that is called.

mod buffers;
mod choice;
mod links;
mod service;
mod state;

pub(crate) use choice::Identity;
pub(crate) use links::{Kind, Links};
pub(crate) use service::PeeringService;
pub(crate) use state::FORM_DEADLINE;
