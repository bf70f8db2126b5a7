//! The processes of a suite: started, given tasks, and ended in every case.

use crate::actor::Task;
use crate::actor::answer::Answer;
use crate::error::BenchError;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use transfer_proto::v1::admin_client::AdminClient;

/// Whether the user has interrupted the benchmark.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The time-out of a sidecar's start, in which it prepares its memory.
const START: Duration = Duration::from_secs(60);
/// The time-out of a call of a sidecar, which usually answers in milliseconds.
const CALL: Duration = Duration::from_secs(15);
/// The time-out of a task.
const TASK: Duration = Duration::from_secs(180);
/// The time that a process has to end by itself.
const GRACE: Duration = Duration::from_secs(3);
/// The interval at which a wait checks for an interruption.
const INTERRUPTION_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The number of lines that are shown of a failed process's log.
const LOG_LINES: usize = 8;

/// Waits, or fails when the user interrupts.
///
/// # Errors
/// [`BenchError::Interrupted`].
pub fn pause(span: Duration) -> Result<(), BenchError> {
    let until = Instant::now() + span;
    while Instant::now() < until {
        if INTERRUPTED.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        std::thread::sleep(INTERRUPTION_CHECK_INTERVAL.min(until.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

/// A temporary directory, and the programs that are started in it.
#[derive(Debug)]
pub struct Stage {
    directory: TempDir,
    this_program: PathBuf,
    transferd: PathBuf,
    poll: String,
    names: AtomicU64,
}

impl Stage {
    /// Makes an empty stage. The default for the sidecar's program is `transferd` beside this program.
    ///
    /// # Errors
    /// [`BenchError::NoTransferd`], [`BenchError::System`].
    pub fn new(transferd: Option<PathBuf>, poll: &str) -> Result<Stage, BenchError> {
        let this_program = std::env::current_exe().map_err(BenchError::system("find this program"))?;
        let path = transferd.unwrap_or_else(|| this_program.with_file_name("transferd"));
        if !path.is_file() {
            return Err(BenchError::NoTransferd { path });
        }
        let directory = tempfile::Builder::new().prefix("transfer-bench-").tempdir();
        let directory = directory.map_err(BenchError::system("make a temporary directory"))?;
        Ok(Stage { directory, this_program, transferd: path, poll: poll.to_owned(), names: AtomicU64::new(0) })
    }

    /// A path in the stage's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A new path in the stage's directory, for a socket, which can be bound only once.
    #[must_use]
    pub fn new_path(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}-{}", self.names.fetch_add(1, Ordering::Relaxed)))
    }

    /// Starts a sidecar called `node` and waits until it is ready. With `directory`, it joins the cluster of that URL.
    ///
    /// # Errors
    /// Any [`BenchError`].
    pub fn sidecar(&self, node: &str, directory: Option<&str>, flags: &[&str]) -> Result<Sidecar, BenchError> {
        self.sidecar_that_polls(&self.poll, node, directory, flags)
    }

    /// Starts a sidecar with its own poll strategy; see [`Stage::sidecar`].
    ///
    /// # Errors
    /// Any [`BenchError`].
    pub fn sidecar_that_polls(
        &self,
        poll: &str,
        node: &str,
        directory: Option<&str>,
        flags: &[&str],
    ) -> Result<Sidecar, BenchError> {
        let socket = self.path(&format!("{node}.sock"));
        let mut command = self.tied(&self.transferd);
        command.args(["--node", node, "--listen", "127.0.0.1:0", "--poll", poll, "--socket"]).arg(&socket);
        command.args(["--directory", directory.unwrap_or("embedded")]).args(flags).env("TRANSFER_LOG", "warn");
        let process = Process::start(command, node, &self.path(&format!("{node}.log")))?;
        let line = process.line(START)?;
        let said = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name));
        let Some(grpc) = said("grpc=").filter(|_| line.starts_with("transferd ready ")) else {
            return Err(BenchError::Unexpected { name: node.to_owned(), said: line });
        };
        let (url, http) = (format!("http://{grpc}"), said("http=").map(str::to_owned));
        Ok(Sidecar { url, http, socket, process })
    }

    /// Starts a process that does tasks.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub fn actor(&self, name: &str) -> Result<Actor, BenchError> {
        let mut command = self.tied(&self.this_program);
        command.arg("actor").stdin(Stdio::piped());
        let mut process = Process::start(command, name, &self.path(&format!("{name}.log")))?;
        let tasks = process.child.stdin.take();
        process.needs_signal = false;
        Ok(Actor { tasks, process })
    }

    /// Makes a command for a program that ends with this one.
    fn tied(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.this_program);
        command.args(["tied", "--parent", &std::process::id().to_string(), "--"]).arg(program);
        command.stdin(Stdio::null());
        command
    }
}

/// A sidecar that is ready.
#[derive(Debug)]
pub struct Sidecar {
    /// The URL of its gRPC services.
    pub url: String,
    /// The address of its metrics, if it has some.
    pub http: Option<String>,
    /// The path of its workers' socket.
    pub socket: PathBuf,
    process: Process,
}

impl Sidecar {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Connects to its Admin service, without certificates, because the sidecar is this program's own, on this host.
    ///
    /// # Errors
    /// [`BenchError::Status`].
    pub async fn admin(&self) -> Result<AdminClient<Channel>, BenchError> {
        let unreachable = |_| BenchError::Status { why: format!("cannot reach a sidecar at {}", self.url) };
        let endpoint = Endpoint::from_shared(self.url.clone()).map_err(unreachable)?;
        let channel = endpoint.connect_timeout(CALL).timeout(CALL).connect().await.map_err(unreachable)?;
        Ok(AdminClient::new(channel))
    }
}

/// A process that does tasks, one after the other.
#[derive(Debug)]
pub struct Actor {
    tasks: Option<ChildStdin>,
    process: Process,
}

impl Actor {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Gives it a task. The answer is taken with [`Actor::answer`].
    ///
    /// # Errors
    /// [`BenchError::System`] if the process is gone.
    pub fn tell(&mut self, task: impl Into<Task>) -> Result<(), BenchError> {
        let what = "give a process its task";
        let mut line = serde_json::to_string(&task.into()).map_err(BenchError::system(what))?;
        line.push('\n');
        let Some(tasks) = &mut self.tasks else { return Ok(()) };
        tasks.write_all(line.as_bytes()).map_err(BenchError::system(what))
    }

    /// Waits for the answer to its task.
    ///
    /// # Errors
    /// Any [`BenchError`].
    pub fn answer(&mut self) -> Result<Answer, BenchError> {
        let line = self.process.line(TASK)?;
        let name = || self.process.name.clone();
        match serde_json::from_str(&line) {
            Ok(Answer::Failed(why)) => Err(BenchError::Task { name: name(), why }),
            Ok(answer) => Ok(answer),
            Err(_) => Err(BenchError::Unexpected { name: name(), said: line }),
        }
    }

    /// Gives it a task, and waits for the answer.
    ///
    /// # Errors
    /// Any [`BenchError`].
    pub fn ask(&mut self, task: impl Into<Task>) -> Result<Answer, BenchError> {
        self.tell(task)?;
        self.answer()
    }
}

#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    said: Receiver<String>,
    /// Whether a signal ends it.
    needs_signal: bool,
}

impl Process {
    fn start(mut command: Command, name: &str, log: &Path) -> Result<Process, BenchError> {
        let stderr = File::create(log).map_err(BenchError::system("create a log"))?;
        command.stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().map_err(BenchError::system("start a process"))?;
        let (say, said) = channel();
        if let Some(stdout) = child.stdout.take() {
            // The thread ends with the process.
            std::thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.take_while(|line| say.send(line.clone()).is_ok()).for_each(drop);
            });
        }
        Ok(Process { name: name.to_owned(), child, log: log.to_owned(), said, needs_signal: true })
    }

    /// Waits for the next line of its standard output.
    fn line(&self, patience: Duration) -> Result<String, BenchError> {
        let until = Instant::now() + patience;
        let name = self.name.clone();
        loop {
            match self.said.recv_timeout(INTERRUPTION_CHECK_INTERVAL) {
                Ok(line) => return Ok(line),
                Err(_) if INTERRUPTED.load(Ordering::Relaxed) => return Err(BenchError::Interrupted),
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(BenchError::Silent { name, waited: patience, log: self.last_words() });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(BenchError::Ended { name, how: "by itself".to_owned(), log: self.last_words() });
                }
            }
        }
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| format!("\n    {line}")).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An actor ends when its standard input is closed; a sidecar needs a signal.
        if self.needs_signal
            && let Some(pid) = Pid::from_raw(self.child.id().cast_signed())
            && matches!(self.child.try_wait(), Ok(None))
        {
            // The process has not been waited for, so the id still belongs to it.
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
