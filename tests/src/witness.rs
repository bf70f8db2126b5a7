//! Prints the state of a test's sidecars when the test fails, before they end.
//!
//! A test that waits in vain reports what it waits for. Only the sidecars know why, and when the test's logs are shown
//! its workers have ended, with everything that was under way. So the panic hook asks the sidecars first.

use crate::programs;
use std::cell::RefCell;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// The commands of `transferctl` that each sidecar is asked.
const QUESTIONS: [&str; 4] = ["transfers", "links", "peers", "status"];

thread_local! {
    /// The admin sockets of the sidecars that this test has started.
    static SIDECARS: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
}

/// A sidecar that is asked if this thread panics, until this is dropped.
#[derive(Debug)]
pub struct Witness(PathBuf);

impl Witness {
    /// Registers the sidecar with this admin socket.
    #[must_use]
    pub fn at(socket: PathBuf) -> Witness {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let (usual, transferctl) = (panic::take_hook(), programs::transferctl());
            panic::set_hook(Box::new(move |info| {
                usual(info);
                // A panic in the hook would abort the process, so nothing below panics.
                let sockets = SIDECARS.try_with(|all| all.try_borrow().map(|all| all.clone()).unwrap_or_default());
                sockets.unwrap_or_default().iter().for_each(|socket| ask(&transferctl, socket));
            }));
        });
        SIDECARS.with_borrow_mut(|all| all.push(socket.clone()));
        Witness(socket)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // The thread may be about to end, with its list already destroyed.
        let _ = SIDECARS.try_with(|all| all.try_borrow_mut().map(|mut all| all.retain(|socket| *socket != self.0)));
    }
}

fn ask(transferctl: &Path, socket: &Path) {
    // A sidecar that has ended cannot answer.
    if !socket.exists() {
        return;
    }
    for question in QUESTIONS {
        let mut command = Command::new("timeout");
        // A stopped sidecar does not answer.
        command.args(["-s", "KILL", "10"]).arg(transferctl).args([question, "--admin"]).arg(socket);
        let said = match command.output() {
            Ok(said) => format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr)),
            Err(error) => format!("transferctl cannot be run: {error}\n"),
        };
        eprint!("---- {question} at {} ----\n{said}", socket.display());
    }
}
