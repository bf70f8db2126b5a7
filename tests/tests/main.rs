//! End-to-end tests with real processes, which are killed and restarted. All of them are one program, so that it is
//! linked once, with one module for each subject.
//!
//! `cargo test --workspace --test e2e -- retention::` runs the tests of one module.
//! [`Carrier::chosen`](transfer_tests::Carrier::chosen) selects the fabric between nodes.

mod admin;
mod batches;
mod bundles;
mod bundles_in_place;
mod by_reference;
mod cluster_lists;
mod come_back;
mod configuration;
mod containers;
mod copy;
mod counters;
mod deadlines;
mod descriptors;
mod doctor;
mod documents;
mod embedded;
mod exchange;
mod exchange_disk;
mod exchange_faults;
mod exchange_lists;
mod exchange_merged;
mod files;
mod forked;
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
mod node_names;
mod other_language;
mod other_user;
mod perf;
mod pieces;
mod ping;
mod prepared;
mod program_pages;
mod pyarrow;
mod readme;
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
mod tenants;
mod three_nodes;
mod top;
mod traces;
mod verbs;
mod watch;
mod without_directory;
mod worst;
