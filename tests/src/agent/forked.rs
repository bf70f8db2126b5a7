//! A forked child, which has all that its parent has and must not touch it.

use super::{Agent, lock};
use crate::poll;
use fork::Fork;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::path::Path;
use transfer_client::{BlockingClient, DType, Error};

impl Agent {
    /// Forks a child that tries to use its parent's client. Returns the number of the check that failed in the child,
    /// or 0.
    pub(super) fn fork(&self, socket: &Path, key: &str) -> u8 {
        let connect =
            |name: &str| BlockingClient::connect(socket).name(name).arena_bytes(1 << 20).reconnect(false).call();
        // The child drops the last handle that it has of this client. The parent's session must not end by that.
        let other = connect("other client").expect("a second client of the same process");
        other.push_slice("of the other", [3], &[1.0_f32, 2.0, 3.0]).call().expect("it works");
        match fork::fork().expect("a child can be made") {
            Fork::Child => {
                let failed = self.in_child(other, || connect("child"), key);
                std::process::exit(failed.into());
            }
            Fork::Parent(child) => {
                let child = Pid::from_raw(child).expect("a process has an id");
                let ended = poll(|| match waitpid(Some(child), WaitOptions::NOHANG) {
                    Ok(Some((_, status))) => Ok(status.exit_status()),
                    _ => Err(()),
                });
                let Ok(Some(code)) = ended else {
                    let _ = kill_process(child, Signal::KILL);
                    return 254;
                };
                match other.fetch("of the other").call() {
                    Ok(tensor) if tensor.as_slice() == Ok(&[1.0_f32, 2.0, 3.0][..]) => code as u8,
                    other => panic!("the parent's other client: {other:?}"),
                }
            }
        }
    }

    fn in_child(&self, other: BlockingClient, connect: impl Fn() -> Result<BlockingClient, Error>, key: &str) -> u8 {
        drop(other);
        lock(&self.held).clear();
        lock(&self.counters).clear();
        let client = &self.client;
        let results = [
            client.fetch(key).call().map(drop),
            client.push_slice("from a child", [1], &[1_u8]).call().map(drop).map_err(Error::from),
            client.allocate(DType::U8, [10]).map(drop),
            client.delete(key).call(),
            client.counter("of a child").call().map(drop),
        ];
        if let Some(wrong) = results.iter().position(|result| *result != Err(Error::Forked)) {
            eprintln!("in the child: {results:?}");
            return 1 + wrong as u8;
        }
        if client.gone().is_none() {
            return 10;
        }
        let own = match connect() {
            Ok(own) => own,
            Err(error) => {
                eprintln!("the child cannot connect: {error}");
                return 11;
            }
        };
        match own.fetch(key).call() {
            Ok(tensor) if !tensor.as_bytes().is_empty() => 0,
            other => {
                eprintln!("the child fetches: {other:?}");
                12
            }
        }
    }
}
