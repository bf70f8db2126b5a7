//! End-to-end tests: real processes, which are killed and restarted. One program, so that it is linked once; a module for each subject.
//!
//! `cargo test --workspace --test e2e -- retention::` runs those of one module. What carries between nodes is
//! [`Carrier::chosen`](transfer_tests::Carrier::chosen).

mod admin;
mod batches;
mod by_reference;
mod come_back;
mod configuration;
mod containers;
mod counters;
mod deadlines;
mod doctor;
mod documents;
mod embedded;
mod files;
mod full_pools;
mod guarantees;
mod hostile_batches;
mod hostile_peers;
mod hostile_workers;
mod in_place;
mod killed_workers;
mod look_up;
mod lost_peers;
mod metrics;
mod other_language;
mod other_user;
mod prepared;
mod pyarrow;
mod record_batches;
mod refusals;
mod requirements;
mod retention;
mod round_trips;
mod security;
mod shm;
mod shm_reference;
mod start_and_stop;
mod status_page;
mod takeover;
mod three_nodes;
mod top;
mod traces;
mod transferctl_page;
mod verbs;
mod watch;
