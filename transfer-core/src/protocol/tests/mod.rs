//! Tests of single flows of the protocol, and of the number of messages that each costs. The schedules in
//! [`crate::sim`] combine all flows.

mod alone;
mod board;
mod counters;
mod deltas;
mod exchanges;
mod gathered;
mod hostile;
mod into_memory;
mod limits;
mod machines;
mod notices;
mod pair;
mod picture;
mod pings;
mod published_again;
mod pulls;
mod pushes;
mod quotas;
mod ranges;
mod references;
mod retention;
mod shared_pulls;
mod shown;
mod slices;
mod solo;
mod spill;
mod spreading;
mod steps;
mod tables;
mod take_back;
mod takeover;
mod tenants;
mod traces;
mod unreadable;
mod visible;
