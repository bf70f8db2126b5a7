//! What the end-to-end tests stand on: real sidecars, real workers, each in a process of its own, over real sockets.
//!
//! A test builds a [`Scene`], starts workers, gives them orders, kills some of them, and looks at the sidecars through their admin service.
//! At its end [`Scene::end`] holds the counters against those from before: whatever a test did, nothing of it may be left.
//!
//! Nothing here waits for a fixed time, and nothing asserts that something was fast: every wait polls for what it waits for, and gives up
//! after a minute with all that it knows.
//!
//! # Layout
//! - [`scene`]: one or two sidecars, bystanders that exchange tensors all the while, and the check at the end.
//! - [`carrier`]: what carries tensors between the sidecars.
//! - [`sidecar`], [`status`]: a `transferd`, and what it shows of itself.
//! - [`stranger`]: a sidecar of the tests' own making, which says to a real one whatever it likes.
//! - [`worker`], [`calls`]: a worker, as a test commands it, and its orders.
//! - [`agent`]: the same worker from inside: the program `transfer-test-worker`.
//! - [`soak`]: everything at once: the program `transfer-test-soak`.
//! - [`worst`]: what attackers do, and an honest job beside them: the program `transfer-test-worst`.
//! - [`authority`]: certificates, made as an operator would make them.
//! - [`container`]: either of them in namespaces of its own.
//! - [`ctl`]: `transferctl`, as a person or a script runs it.
//! - [`order`]: the lines between the two.
//! - [`pattern`]: what tensors are filled with. [`batches`]: record batches by chance.
//! - [`http`], [`browser`], [`collector`]: who watches a sidecar. [`tools`]: what that takes.
//! - [`process`], [`programs`]: processes that end with the test, and where their programs are.
//! - [`witness`]: what the sidecars knew when a test failed.
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
pub mod http;
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
pub use not_run::not_run;
pub use order::{Change, Fetched, Pushed, Spec, Trouble, Way};
pub use scene::Scene;
pub use sidecar::Sidecar;
pub use worker::Worker;

use std::time::{Duration, Instant};

/// How long any wait may take before the test is given up. Far more than it ever should, for machines that are busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Looks again and again until there is a value. The error is what was seen last.
///
/// # Errors
/// The last error of `look`, after [`PATIENCE`].
pub fn poll<T, E>(mut look: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let until = Instant::now() + PATIENCE;
    loop {
        match look() {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            end => return end,
        }
    }
}
