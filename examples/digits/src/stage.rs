//! The demo's processes: started, followed, and ended in every case.

use crate::error::Error;
use crate::event::Event;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The time for which all processes may be silent before the demo gives up.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// The time that a process has to end by itself after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// The time in which a process ends after it has closed its sockets.
const MOMENT: Duration = Duration::from_millis(200);
/// The number of lines that are shown of a failed process's log.
const LOG_LINES: usize = 12;

/// A temporary directory, and the processes that work in it. Their sockets and logs have short names there, and are
/// removed with it.
#[derive(Debug)]
pub struct Stage {
    directory: TempDir,
    this_program: PathBuf,
    /// All processes that were ever started. The index identifies a process, so none is removed.
    actors: Vec<Actor>,
    /// The number of dismissed processes at the front of the list. Their further lines are ignored.
    dismissed: usize,
    said: mpsc::UnboundedSender<(usize, Line)>,
    heard: mpsc::UnboundedReceiver<(usize, Line)>,
}

#[derive(Debug)]
struct Actor {
    name: String,
    kind: Kind,
    child: Child,
    log: PathBuf,
}

/// The expected behaviour of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Writes events, and leaves when its work is done.
    Role,
    /// Writes lines of text, and does not leave by itself.
    Daemon,
}

/// The contents of a process's standard output.
#[derive(Debug)]
enum Line {
    Text(String),
    End,
}

/// An event of a process, as the stage sees it.
#[derive(Debug, PartialEq)]
pub enum Happening {
    /// A role wrote an event.
    Said(Event),
    /// A daemon wrote a line.
    Wrote(String),
    /// The process ended, with success.
    Left,
}

impl Stage {
    /// Makes an empty stage.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new() -> Result<Stage, Error> {
        let directory = tempfile::Builder::new().prefix("digits-").tempdir().map_err(Error::io("make a directory"))?;
        let this_program = std::env::current_exe().map_err(Error::io("find this program"))?;
        let (said, heard) = mpsc::unbounded_channel();
        Ok(Stage { directory, this_program, actors: Vec::new(), dismissed: 0, said, heard })
    }

    /// Starts a role of this program. `line` has its command line, without the program's name; no word of it may
    /// contain a space.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start_role(&mut self, name: &str, line: &str) -> Result<(), Error> {
        let program = self.this_program.clone();
        self.start(name, Kind::Role, &program, line)
    }

    /// Starts a program that stays until it is told to end. Waits until it writes a line that begins with `ready`, and
    /// returns that line.
    ///
    /// # Errors
    /// [`Error::Io`], those of [`Stage::next`], and [`Error::Unexpected`] if it writes anything else.
    pub async fn start_daemon(&mut self, name: &str, program: &Path, line: &str, ready: &str) -> Result<String, Error> {
        self.start(name, Kind::Daemon, program, line)?;
        match self.next().await? {
            (who, Happening::Wrote(line)) if who == name && line.starts_with(ready) => Ok(line),
            _ => Err(Error::Unexpected { what: "start of a daemon" }),
        }
    }

    /// Starts a program in the stage's directory. Its standard error goes to a log there.
    fn start(&mut self, name: &str, kind: Kind, program: &Path, line: &str) -> Result<(), Error> {
        let log = self.directory.path().join(format!("{name}.log"));
        let stderr = File::create(&log).map_err(Error::io("create a log"))?;
        let mut child = Command::new(&self.this_program)
            .args(["tied", "--parent", &std::process::id().to_string(), "--"])
            .arg(program)
            .args(line.split_whitespace())
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::io("start a process"))?;

        let index = self.actors.len();
        let said = self.said.clone();
        if let Some(stdout) = child.stdout.take() {
            // The task ends with the process. After the stage is dropped, the lines have no reader, and are not needed.
            tokio::spawn(async move {
                let mut lines = BufReader::new(stdout).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let _ = said.send((index, Line::Text(line)));
                }
                let _ = said.send((index, Line::End));
            });
        }
        self.actors.push(Actor { name: name.to_owned(), kind, child, log });
        Ok(())
    }

    /// Waits for the next event of any process, and returns it with the name of the process.
    ///
    /// # Errors
    /// [`Error::ChildFailed`] if a process failed or a daemon left, [`Error::NotAnEvent`], and [`Error::Silent`] if
    /// nothing happens for a minute.
    pub async fn next(&mut self) -> Result<(String, Happening), Error> {
        loop {
            let heard = timeout(SILENCE_LIMIT, self.heard.recv())
                .await
                .map_err(|_| Error::Silent { patience: SILENCE_LIMIT })?;
            // The stage itself holds a sender, so the channel cannot be closed.
            let (index, line) = heard.ok_or(Error::Interrupted)?;
            if index >= self.dismissed {
                let happening = self.actors[index].happening(line).await;
                return match happening {
                    Err(error @ Error::ChildFailed { .. }) => Err(self.cause_of(error).await),
                    happening => happening,
                };
            }
        }
    }

    /// Returns the error of a daemon that has ended, if there is one: it is the cause, even if another process failed
    /// visibly before.
    async fn cause_of(&mut self, error: Error) -> Error {
        for daemon in self.actors[self.dismissed..].iter_mut().filter(|actor| actor.kind == Kind::Daemon) {
            // A daemon's sockets close a moment before it ends.
            if let Ok(Ok(status)) = timeout(MOMENT, daemon.child.wait()).await {
                return daemon.failed(status);
            }
        }
        error
    }

    /// Tells a process to end, with SIGTERM. [`Stage::next`] reports its end.
    pub fn tell_to_end(&self, name: &str) {
        // Later processes may have the name of earlier ones.
        if let Some(actor) = self.actors.iter().rfind(|actor| actor.name == name) {
            actor.terminate();
        }
    }

    /// Ends every process that still runs, the last one first, and waits for their ends.
    pub async fn clear(&mut self) {
        for actor in self.actors[self.dismissed..].iter_mut().rev() {
            actor.dismiss().await;
        }
        self.dismissed = self.actors.len();
    }
}

impl Actor {
    async fn happening(&mut self, line: Line) -> Result<(String, Happening), Error> {
        let name = self.name.clone();
        match line {
            Line::Text(line) if self.kind == Kind::Daemon => Ok((name, Happening::Wrote(line))),
            Line::Text(line) => match serde_json::from_str(&line) {
                Ok(event) => Ok((name, Happening::Said(event))),
                Err(_) => Err(Error::NotAnEvent { name, line }),
            },
            Line::End => {
                let status = self.child.wait().await.map_err(Error::io("wait for a process"))?;
                // A daemon that leaves has failed, even with status 0.
                if !status.success() || self.kind == Kind::Daemon {
                    return Err(self.failed(status));
                }
                Ok((name, Happening::Left))
            }
        }
    }

    fn failed(&self, status: ExitStatus) -> Error {
        Error::ChildFailed { name: self.name.clone(), status, log: last_lines(&self.log) }
    }

    fn terminate(&self) {
        // Without an id, it has ended and was waited for.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            // It may end at this moment; then it needs no signal.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    async fn dismiss(&mut self) {
        self.terminate();
        if timeout(GRACE, self.child.wait()).await.is_err() {
            // Kills, and waits for the end.
            let _ = self.child.kill().await;
        }
    }
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}
