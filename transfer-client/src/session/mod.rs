//! A session with a sidecar: the common base of both clients. It uses no async runtime.
//!
//! # Readers
//! The completion ring and the socket have one reader at a time: the thread that holds the lock of [`Reader`](reader::Reader). A thread
//! that waits for its operation and finds no reader becomes the reader, and sleeps on the socket itself. So a blocking
//! call in a worker of one thread costs one wake-up and no hand-over to another thread. Other threads that wait
//! meanwhile are *followers*; when the reader is done, it hands over to one of them. An async client has a *driver*, a
//! task that reads whenever no thread does. See [`lead`].
//!
//! # Forks
//! A forked child shares its parent's rings, hazard pointers and socket. All code that would touch those checks first
//! whether it runs in a child ([`Session::is_forked`]): calls fail with [`crate::Error::Forked`], and drops do nothing.
//! It takes no lock before, because a thread of the parent may have held it, and the child does not have that thread.
//!
//! # Locks
//! The order of locks, outer first: `reader`, `submission`, `table`; the lists of waiters, and the notices, are leaves.
//! User code (wakers) runs under `reader` only.
//!
//! # Layout
//! - `state`: [`Session`], its beginning and its end. `operations`: commands and their answers; `requests`: what has no answer;
//!   `rings`: doorbells that are put off.
//!   `one_call`, `calls`: one command, or many, as far as they have come; `deadline`: their deadlines.
//! - `submission`, `reader`: the two halves; `table`: the operations without an answer; `loans`: what the sidecar holds of the arena;
//!   `wait`, `lead`: how threads wait, and which of them reads; `driver`: the task that reads for an async client.
//! - `look_up`, `watch`, `notices`: versions that are found, and announced, in shared memory. `lease`: the right to read one.
//! - `background`: long work of calls, on other threads.
//! - `bases`: published versions that are read as the bases of deltas.
//! - `memory`, `home`, `held`: allocations, the arena, and ranges of it that are about to be lent. `known_tables`: the tables of
//!   bundles of which parts were fetched.
//! - `registered`: memory of the program that is named like the arena.
//! - `connection`: the sessions of a client, one after the other. `embedded`, `inside`: a
//!   sidecar in this process.

mod background;
mod bases;
mod calls;
mod connection;
mod deadline;
mod driver;
#[cfg(feature = "embedded")]
mod embedded;
mod held;
mod home;
mod inside;
mod known_tables;
mod lead;
mod lease;
mod loans;
mod look_up;
mod memory;
mod notices;
mod one_call;
mod operations;
mod reader;
mod registered;
mod requests;
mod rings;
mod state;
mod submission;
mod table;
mod wait;
mod watch;

pub(crate) use background::{Background, BackgroundCall, TrySend};
pub(crate) use bases::{Base, LentDeltas, PushedBytes};
pub(crate) use calls::{Calls, Ended, merge};
pub(crate) use connection::{Connection, Reconnect};
pub(crate) use deadline::{ANSWER_GRACE, deadline};
pub(crate) use driver::spawn as spawn_driver;
#[cfg(feature = "embedded")]
pub(crate) use embedded::sidecar as embedded_sidecar;
#[cfg(feature = "embedded")]
pub use embedded::{NodeConfig, SidecarAddresses, embedded_addresses, embedded_socket};
pub(crate) use held::{Held, Lent, SharedRange};
pub(crate) use home::Former;
pub(crate) use inside::Inside;
pub(crate) use lease::Lease;
pub(crate) use loans::Loan;
pub(crate) use one_call::{OneCall, cancelled_unsent};
pub(crate) use registered::RELEASE_TIMEOUT;
pub(crate) use state::Session;
pub(crate) use submission::Submitting;
pub(crate) use table::Answered;
pub(crate) use watch::WaitEnd;
