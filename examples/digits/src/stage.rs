//! The demo's processes: started, listened to, and ended on every way out.

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

/// How long all processes may be silent before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a process has to end by itself after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// How long it may take until a process whose sockets are closed is gone.
const MOMENT: Duration = Duration::from_millis(200);
/// How many lines of a failed process's log are shown.
const LOG_LINES: usize = 12;

/// A temporary directory and the processes that work in it: their sockets and logs have short names there, and go when it does.
#[derive(Debug)]
pub struct Stage {
    directory: TempDir,
    this_program: PathBuf,
    /// Everyone who was ever started. A process is known by its place in this list, so nobody is removed from it.
    actors: Vec<Actor>,
    /// How many of them are history: what they still have to say reaches nobody.
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

/// What to expect of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Tells events, and leaves when its work is done.
    Role,
    /// Tells lines of text, and does not leave by itself.
    Daemon,
}

/// What comes out of a process's standard output.
#[derive(Debug)]
enum Line {
    Text(String),
    End,
}

/// What a process did.
#[derive(Debug, PartialEq)]
pub enum Happening {
    /// A role told something.
    Said(Event),
    /// A daemon wrote a line.
    Wrote(String),
    /// It ended, with success.
    Left,
}

impl Stage {
    /// An empty stage.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new() -> Result<Stage, Error> {
        let directory = tempfile::Builder::new().prefix("digits-").tempdir().map_err(Error::io("make a directory"))?;
        let this_program = std::env::current_exe().map_err(Error::io("find this program"))?;
        let (said, heard) = mpsc::unbounded_channel();
        Ok(Stage { directory, this_program, actors: Vec::new(), dismissed: 0, said, heard })
    }

    /// Starts a role of this program. `line` is what one would type behind the program's name; no word of it may have a space in it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start_role(&mut self, name: &str, line: &str) -> Result<(), Error> {
        let program = self.this_program.clone();
        self.start(name, Kind::Role, &program, line)
    }

    /// Starts a program that stays until it is told to end, and waits until it writes a line that begins with `ready`. Returns that line.
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
            // Ends with the process. Nobody listens any more when the stage is gone, and then nothing is lost.
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

    /// Waits for the next thing that any process does, and says which one did it.
    ///
    /// # Errors
    /// [`Error::ChildFailed`] if a process failed or a daemon left, [`Error::NotAnEvent`], and [`Error::Silent`] if nothing happens for a minute.
    pub async fn next(&mut self) -> Result<(String, Happening), Error> {
        loop {
            let heard = timeout(PATIENCE, self.heard.recv()).await.map_err(|_| Error::Silent { patience: PATIENCE })?;
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

    /// A process that fails because a daemon has ended may be heard of first, but it is not the one to look at.
    async fn cause_of(&mut self, error: Error) -> Error {
        for daemon in self.actors[self.dismissed..].iter_mut().filter(|actor| actor.kind == Kind::Daemon) {
            // Its sockets close a moment before it is gone.
            if let Ok(Ok(status)) = timeout(MOMENT, daemon.child.wait()).await {
                return daemon.failed(status);
            }
        }
        error
    }

    /// Tells a process to end, with SIGTERM. That it has done so is then told by [`Stage::next`].
    pub fn tell_to_end(&self, name: &str) {
        // Names are used again by later processes.
        if let Some(actor) = self.actors.iter().rfind(|actor| actor.name == name) {
            actor.terminate();
        }
    }

    /// Ends every process that is still there, the last one first, and waits until it is gone.
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
                // A daemon that leaves has failed, even if it does not think so.
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
        // No id: it has ended and been waited for.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            // It may end in this very moment; then it needs no signal.
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
