//! The flows of the protocol one by one, and how many messages each costs. The schedules in [`crate::sim`] mix them all.

mod counters;
mod hostile;
mod pair;
mod pulls;
mod pushes;
mod retention;
mod take_back;
mod takeover;
