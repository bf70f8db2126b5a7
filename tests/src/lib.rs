//! The library of the end-to-end tests: real sidecars and real workers, each in a process of its own, over real
//! sockets.
//!
//! A test builds a [`Scene`], starts workers, gives them orders, kills some of them, and looks at the sidecars through
//! their admin service. At its end [`Scene::end`] compares the sidecars' counters with those from before: nothing of
//! the test may be left.
//!
//! Nothing here waits for a fixed time, and nothing asserts a maximum time: every wait polls for its condition, and
//! gives up after [`WAIT_LIMIT`] with the state that it saw last.
//!
//! # Layout
//! - [`scene`]: one or more sidecars, bystanders that exchange tensors during the test, and the check at the end.
//! - [`carrier`]: the fabric that carries tensors between the sidecars.
//! - [`sidecar`], [`status`]: a `transferd`, and its status.
//! - [`stranger`]: a fake sidecar that sends arbitrary frames to a real one.
//! - [`worker`], [`calls`]: a worker and its orders, from the test's side.
//! - [`agent`]: the worker from inside: the program `transfer-test-worker`.
//! - [`soak`]: all features at the same time: the program `transfer-test-soak`.
//! - [`worst`]: attackers, and an honest job beside them: the program `transfer-test-worst`.
//! - [`authority`]: certificates, made as an operator would make them.
//! - [`container`]: sidecars and workers in namespaces of their own.
//! - [`ctl`]: `transferctl`, as a person or a script runs it.
//! - [`order`]: the messages between a test and its workers.
//! - [`pattern`]: the contents of tensors. [`batches`]: random record batches.
//! - [`http`], [`browser`], [`collector`]: clients that observe a sidecar. [`tools`]: the programs that they need.
//! - [`process`], [`programs`]: processes that end with the test, and the paths of their programs.
//! - [`witness`]: the sidecars' state when a test fails.
#![forbid(unsafe_code)]

pub mod agent;
pub mod authority;
pub mod batches;
pub mod browser;
pub mod calls;
pub mod carrier;
pub mod collector;
pub mod container;
pub mod ctl;
pub mod etcd;
pub mod http;
pub mod kubernetes;
pub mod not_run;
pub mod order;
pub mod pattern;
pub mod port;
pub mod process;
pub mod programs;
pub mod scene;
pub mod sidecar;
pub mod soak;
pub mod status;
pub mod stranger;
pub mod tools;
pub mod witness;
pub mod worker;
pub mod worst;

pub use authority::{Authority, Identity, Validity};
pub use browser::Browser;
pub use carrier::Carrier;
pub use collector::{Collector, SeenSpan};
pub use ctl::Ctl;
pub use etcd::Etcd;
pub use not_run::not_run;
pub use order::{Change, Fetched, PushMode, Pushed, Spec, Trouble};
pub use scene::Scene;
pub use sidecar::Sidecar;
pub use worker::Worker;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Waits until no other test of this process uses the sidecar inside it, which has one configuration and one set of keys.
pub fn sidecar_of_this_process() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The longest that any wait may take before the test fails. Far more than a wait should need, for machines that are
/// busy with other things.
pub const WAIT_LIMIT: Duration = Duration::from_secs(180);

/// Calls `look` until it returns a value.
///
/// # Errors
/// The last error of `look`, after [`WAIT_LIMIT`].
pub fn poll<T, E>(mut look: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let until = Instant::now() + WAIT_LIMIT;
    loop {
        match look() {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            end => return end,
        }
    }
}
