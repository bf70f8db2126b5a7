//! Processes that end with the test.

use crate::poll;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// The parameters of a process.
#[derive(Debug)]
pub struct Start<'a> {
    /// The program of [`crate::programs::worker`], or a copy of it that the user id below can run. It ties the process
    /// to the test.
    pub leash: &'a Path,
    /// The arguments behind the test's process id.
    pub arguments: Vec<&'a OsStr>,
    /// The first argument: what the leash program shall do.
    pub mode: &'a str,
    /// The file for the process's stderr.
    pub log: PathBuf,
    /// The user id of the process, if not the test's.
    pub uid: Option<u32>,
}

/// A running program, killed and reaped when this is dropped. The kernel also kills it when the thread that started it
/// ends, so it has to be started on the test's own thread.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts the process.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(start: Start<'_>) -> Process {
        use std::os::unix::process::CommandExt;
        let log = File::options().create(true).append(true).open(&start.log).expect("a log can be written");
        let mut command = Command::new(start.leash);
        command.arg(start.mode).arg(std::process::id().to_string()).args(start.arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        for (name, _) in std::env::vars_os() {
            // The sidecar would read its configuration from these variables, too.
            if name.to_string_lossy().starts_with("TRANSFER_") {
                command.env_remove(name);
            }
        }
        if let Some(uid) = start.uid {
            command.uid(uid).gid(uid);
        }
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Process { child, log: start.log, ended: None }
    }

    /// Returns the arguments by which the leash program runs `program`.
    #[must_use]
    pub fn tied<'a>(program: &'a Path, arguments: impl IntoIterator<Item = &'a OsStr>) -> Vec<&'a OsStr> {
        std::iter::once(program.as_os_str()).chain(arguments).collect()
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process's stdin and stdout. They can be taken once.
    ///
    /// # Panics
    /// If they have been taken already.
    pub fn pipes(&mut self) -> (ChildStdin, ChildStdout) {
        let stdin = self.child.stdin.take().expect("stdin is taken once");
        (stdin, self.child.stdout.take().expect("stdout is taken once"))
    }

    /// Returns the last 40 lines that the process wrote to stderr.
    #[must_use]
    pub fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Sends the process a signal.
    ///
    /// # Panics
    /// If it has ended already.
    pub fn signal(&self, signal: Signal) {
        // The child is not reaped yet, so the process id is its own.
        assert!(self.ended.is_none(), "process {} has ended already", self.id());
        self::signal(self.id(), signal);
    }

    /// Stops the process with SIGSTOP, and waits until all its threads have stopped: the kernel stops each thread only
    /// when it next runs.
    ///
    /// # Panics
    /// If it does not stop, or has ended.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let running = || match running_threads(self.id()) {
            0 => Ok(()),
            threads => Err(threads),
        };
        if let Err(threads) = crate::poll(running) {
            panic!("process {} does not stop: {threads} threads run", self.id());
        }
    }

    /// Returns how the process has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child can be waited for");
        }
        self.ended
    }

    /// Waits until the process has ended.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait(&mut self) -> ExitStatus {
        match poll(|| self.ended().ok_or(())) {
            Ok(status) => status,
            Err(()) => panic!("process {} does not end:\n{}", self.id(), self.last_words()),
        }
    }

    /// Ends the process with SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::KILL);
            self.wait();
        }
    }
}

/// Sends a signal to a process that cannot have ended.
///
/// # Panics
/// If the process does not exist.
pub fn signal(process: u32, signal: Signal) {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process has an id");
    kill_process(pid, signal).expect("it is there and can be signalled");
}

/// Returns how many threads of a process are not stopped.
fn running_threads(process: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it is there");
    let is_stopped = |task: &Path| {
        // The state follows the name, which is in parentheses. A thread that has ended meanwhile has no state.
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    };
    tasks.flatten().filter(|task| !is_stopped(&task.path())).count()
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- {} ----\n{}", self.log.display(), self.last_words());
        }
        if self.ended.is_none() {
            // No panic here, because the test may be panicking already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
