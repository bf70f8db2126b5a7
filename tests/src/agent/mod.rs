//! The worker process: it connects, carries out the orders that come on stdin, answers on stdout, and ends when stdin
//! ends.
//!
//! `transfer-test-worker work PARENT SOCKET NAME ARENA_BYTES async|blocking comes-back|ends` runs that worker.
//! `transfer-test-worker embedded PARENT` has a sidecar inside of it: it says the path of its socket, and starts another
//! program, which ends with stdin. The sidecar ends with that program, and the program does not end with the worker.
//! `transfer-test-worker tied PARENT PROGRAM ARGUMENT...` becomes another program, which is tied to the test like the
//! worker: the kernel kills both when the thread that started them ends, however it ends. In a container, where the
//! parent is out of sight, PARENT is 0.

mod exchange;
mod forked;
mod in_place;
mod job;
mod memory;
mod shuffle;
pub(crate) mod vandal;
pub(crate) mod work;

use crate::order::{Answer, Line, Reply, Trouble};
use exchange::Exchange;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Runtime;
use transfer_client::{BlockingClient, Client, Counter, Error, Tensor, embedded_socket};

/// The state that the worker's threads share.
struct Agent {
    client: BlockingClient,
    /// The async client of a worker that uses it. Its exchange runs on it.
    asynchronous: Option<(Runtime, Client)>,
    held: Mutex<HashMap<String, Tensor>>,
    counters: Mutex<HashMap<String, Counter<BlockingClient>>>,
    exchange: Mutex<Option<Arc<Exchange>>>,
    shuffles: Mutex<shuffle::Shuffles>,
}

/// The program's main function.
///
/// # Panics
/// If it is started in another way than the module's documentation says.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, parent, rest @ ..] = &arguments[..] else { panic!("started by hand? {arguments:?}") };
    set_parent_process_death_signal(Some(Signal::KILL)).expect("the kernel ties a process to its parent");
    // A parent that ended before this call sends no signal.
    let now = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    assert_eq!(now.to_string(), *parent, "the test is gone");
    match (what.as_str(), rest) {
        ("tied", [program, arguments @ ..]) => {
            let error = Command::new(program).args(arguments).exec();
            panic!("{program} cannot be started: {error}");
        }
        ("embedded", []) => embedded(),
        ("work", [socket, name, arena, client, after]) => {
            let arena = arena.parse().expect("arena bytes are a number");
            work(connect(socket, name, arena, client == "async", after == "comes-back"))
        }
        _ => panic!("started by hand? {arguments:?}"),
    }
}

fn embedded() -> ExitCode {
    let client = BlockingClient::embedded().name("inside").arena_bytes(1 << 20).call().expect("a session");
    let mut other = Command::new("cat").stdout(std::process::Stdio::null()).spawn().expect("cat can be started");
    println!("{}", embedded_socket().expect("it runs").display());
    other.wait().expect("it is a child");
    drop(client);
    ExitCode::SUCCESS
}

fn connect(socket: &str, name: &str, arena: u64, is_async: bool, reconnects: bool) -> Result<Agent, Error> {
    let (client, asynchronous) = match is_async {
        false => (BlockingClient::connect(socket).name(name).arena_bytes(arena).reconnect(reconnects).call()?, None),
        true => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.expect("a runtime can be made");
            let client = runtime.block_on(async {
                Client::connect(socket).name(name).arena_bytes(arena).reconnect(reconnects).await
            })?;
            (client.blocking(), Some((runtime, client)))
        }
    };
    let (held, counters, exchange) = (Mutex::default(), Mutex::default(), Mutex::default());
    Ok(Agent { client, asynchronous, held, counters, exchange, shuffles: Mutex::default() })
}

fn work(agent: Result<Agent, Error>) -> ExitCode {
    let agent = match agent {
        Ok(agent) => Arc::new(agent),
        Err(error) => {
            say(0, Err(work::trouble(&error)));
            return ExitCode::from(2);
        }
    };
    let (node, incarnation) = (agent.client.node().to_owned(), agent.client.incarnation());
    say(0, Ok(Answer::Connected { node, incarnation }));
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Line { id, order } = serde_json::from_str(&line).expect("a test sends orders");
        let agent = agent.clone();
        std::thread::spawn(move || say(id, agent.carry_out(order)));
    }
    // Orders that still wait end with the process.
    ExitCode::SUCCESS
}

fn say(id: u64, result: Result<Answer, Trouble>) {
    let line = serde_json::to_string(&Reply { id, result }).expect("answers are plain values");
    // A test that does not listen has ended, and this process ends with it.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Locks a mutex. Its values are still there if a holder has panicked.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
