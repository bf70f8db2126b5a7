//! The job: two sidecars, four workers, and the check of what they have seen.

use crate::Error;
use crate::worker::{EPOCHS, Start, WORKERS, rows};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The worker that is killed, the epoch, and the number of rows that it has seen of that epoch then.
const KILLED: (u32, u32, u64) = (2, 1, 100);

/// The rows that a worker has seen in each epoch.
type Seen = Vec<Vec<u32>>;

/// A process that is killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the job twice, the second time with a worker that is killed, and checks it.
pub(crate) fn run() -> Result<(), Error> {
    let undisturbed = train(false)?;
    let disturbed = train(true)?;
    let rows = rows()?;
    for (epoch, workers) in undisturbed.iter().enumerate() {
        let mut all: Vec<_> = workers.iter().flatten().copied().collect();
        all.sort_unstable();
        check(all == (0..rows as u32).collect::<Vec<_>>(), &format!("epoch {epoch} has each digit once"))?;
    }
    let differ = (1..undisturbed.len()).all(|epoch| undisturbed[epoch] != undisturbed[epoch - 1]);
    check(differ, "no epoch has the order of the one before")?;
    let (worker, epoch, row) = KILLED;
    let text = format!("the orders are the same with worker {worker} killed after row {row} of epoch {epoch}");
    check(undisturbed == disturbed, &text)
}

fn check(is_so: bool, what: &str) -> Result<(), Error> {
    writeln!(std::io::stdout(), "{}: {what}", if is_so { "yes" } else { "NO" })?;
    if is_so { Ok(()) } else { Err(format!("it is not so that {what}").into()) }
}

/// Runs the job. Returns the rows of each epoch, of each worker.
fn train(kill: bool) -> Result<Vec<Seen>, Error> {
    let folder = tempfile::Builder::new().prefix("epoch-shuffle-").tempdir()?;
    let (a, address) = sidecar(folder.path(), "a", None)?;
    let (b, _) = sidecar(folder.path(), "b", Some(&address))?;
    let seen = std::thread::scope(|scope| {
        let follow = |rank: u32| {
            let socket = folder.path().join(format!("{}.sock", if rank < WORKERS / 2 { "a" } else { "b" }));
            let killed = (kill && rank == KILLED.0).then_some((KILLED.1, KILLED.2));
            scope.spawn(move || worker(&socket, rank, killed))
        };
        let workers: Vec<_> = (0..WORKERS).map(follow).collect();
        let seen = workers.into_iter().map(|worker| worker.join().map_err(|_| Error::from("a thread has panicked"))?);
        seen.collect::<Result<Vec<Seen>, Error>>()
    })?;
    drop((b, a));
    Ok((0..EPOCHS as usize).map(|epoch| seen.iter().map(|worker| worker[epoch].clone()).collect()).collect())
}

/// Starts a sidecar beside this program. Returns it with the address of its directory.
fn sidecar(folder: &Path, name: &str, directory: Option<&str>) -> Result<(Process, String), Error> {
    let program = std::env::current_exe()?.with_file_name("transferd");
    let mut command = Command::new(&program);
    command.args(["--node", name, "--listen", "127.0.0.1:0", "--socket"]).arg(folder.join(format!("{name}.sock")));
    command.arg("--admin-socket").arg(folder.join(format!("{name}-admin.sock")));
    if let Some(directory) = directory {
        command.args(["--directory", &format!("http://{directory}")]);
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = Process(child.map_err(|e| format!("{} does not start: {e}; build it first", program.display()))?);
    let mut ready = String::new();
    reader(&mut child.0)?.read_line(&mut ready)?;
    let address = ready.split_whitespace().find_map(|word| word.strip_prefix("grpc=")).unwrap_or_default();
    match ready.starts_with("transferd ready") {
        true => Ok((child, address.to_owned())),
        false => Err(format!("sidecar {name} is not ready: {ready}").into()),
    }
}

/// Runs a worker to its end, and starts it again when it was killed. Returns its rows of each epoch.
fn worker(socket: &PathBuf, rank: u32, mut killed: Option<(u32, u64)>) -> Result<Seen, Error> {
    let mut seen: Seen = vec![Vec::new(); EPOCHS as usize];
    let mut start = Start { rank, attempt: 0, epoch: 0, position: 0 };
    loop {
        let Start { rank, attempt, epoch, position } = start;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker").arg(socket).args([rank, attempt, epoch].map(|n| n.to_string()));
        let mut child =
            Process(command.arg(position.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let mut steps = child.0.stdin.take().ok_or("a process without input")?;
        for line in reader(&mut child.0)?.lines() {
            let line = line?;
            let numbers = line.split_once(' ').and_then(|(epoch, row)| Some((epoch.parse().ok()?, row.parse().ok()?)));
            let (epoch, row): (u32, u32) = numbers.ok_or_else(|| format!("worker {rank} said {line:?}"))?;
            seen[epoch as usize].push(row);
            start = Start { epoch, position: seen[epoch as usize].len() as u64, ..start };
            if killed.is_some_and(|at| at == (epoch, start.position)) {
                child.0.kill()?;
            } else {
                writeln!(steps)?;
            }
        }
        let status = child.0.wait()?;
        match (status.success(), killed.take()) {
            (true, None) => return Ok(seen),
            // What it has said before it was killed was seen. Its next process goes on from there.
            (false, Some(_)) => start.attempt += 1,
            (_, killed) => return Err(format!("worker {rank} ended with {status}, to be killed: {killed:?}").into()),
        }
    }
}

fn reader(child: &mut Child) -> Result<BufReader<ChildStdout>, Error> {
    Ok(BufReader::new(child.stdout.take().ok_or("a process without output")?))
}
