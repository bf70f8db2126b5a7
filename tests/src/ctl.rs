//! `transferctl`, as a person or a script runs it.

use crate::{Sidecar, poll, programs};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};

/// A command line of `transferctl`.
#[derive(Debug)]
pub struct Ctl(Command);

/// The result of a command.
#[derive(Debug)]
pub struct Said {
    /// The exit code; 128 plus the signal's number if a signal ended the command.
    pub code: i32,
    /// Its standard output.
    pub out: Vec<u8>,
    /// Its standard error.
    pub err: String,
}

/// A running command. Killed when dropped.
#[derive(Debug)]
pub struct Holder {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// The lines of its standard output that have been read so far.
    pub said: Vec<String>,
    /// Its standard error so far.
    complaints: Arc<Mutex<String>>,
}

impl Ctl {
    /// A command with these arguments, for this sidecar.
    #[must_use]
    pub fn of(sidecar: &Sidecar, words: &[&str]) -> Ctl {
        let mut ctl = Ctl::new(words);
        ctl.0.env("TRANSFER_SOCKET", sidecar.socket()).env("TRANSFER_ADMIN", sidecar.admin_socket());
        ctl
    }

    /// A command with these arguments, for no particular sidecar.
    #[must_use]
    pub fn new(words: &[&str]) -> Ctl {
        let mut command = Command::new(programs::transferctl());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRANSFER_")) {
            command.env_remove(name);
        }
        command.args(words);
        Ctl(command)
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Ctl {
        self.0.arg(word);
        self
    }

    /// Runs the command to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn run(self) -> Said {
        self.run_with(&[])
    }

    /// Runs the command to its end, with `input` as its standard input.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn run_with(mut self, input: &[u8]) -> Said {
        use std::os::unix::process::ExitStatusExt;
        self.0.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.0.spawn().expect("transferctl can be started");
        let mut stdin = child.stdin.take().expect("it is piped");
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || {
            // The command may end before it has read all of it.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().expect("it can be waited for");
        feeder.join().expect("the input is written");
        let code = output.status.code().or_else(|| Some(128 + output.status.signal()?)).unwrap_or(-1);
        Said { code, out: output.stdout, err: String::from_utf8_lossy(&output.stderr).into_owned() }
    }

    /// Runs the command to its end, and checks its exit code and its output.
    ///
    /// # Panics
    /// If the exit code is another one, or the output lacks one of these words.
    #[track_caller]
    pub fn ends(self, code: i32, words: &[&str]) -> Said {
        let shown = format!("{:?}", self.0);
        let said = self.run();
        let text = said.text();
        assert_eq!(said.code, code, "{shown}: {text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{shown} says nothing of {word:?}: {text}"));
        said
    }

    /// Starts a push, and waits until everything is published.
    ///
    /// # Panics
    /// If that does not happen.
    #[must_use]
    pub fn hold(self) -> Holder {
        self.hold_until("published until this ends")
    }

    /// Starts the command, and waits until a line of its standard output contains `words`.
    ///
    /// # Panics
    /// If that does not happen.
    #[must_use]
    pub fn hold_until(mut self, words: &str) -> Holder {
        self.0.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.0.spawn().expect("transferctl can be started");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let (told, lines) = mpsc::channel();
        // All output is read, also after the test has stopped reading lines: otherwise the command would block on a
        // full pipe.
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).for_each(|line| {
                let _ = told.send(line);
            });
        });
        let complaints = Arc::new(Mutex::new(String::new()));
        let (heard, err) = (complaints.clone(), BufReader::new(child.stderr.take().expect("it is piped")));
        std::thread::spawn(move || {
            err.lines().map_while(Result::ok).for_each(|line| {
                *heard.lock().expect("a lock") += &format!("{line}\n");
            });
        });
        let mut holder = Holder { child, lines, said: Vec::new(), complaints };
        holder.until(words);
        holder
    }
}

impl Said {
    /// Returns the standard output, followed by the standard error.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}{}", String::from_utf8_lossy(&self.out), self.err)
    }

    /// Returns the lines of its standard output, parsed as JSON.
    ///
    /// # Panics
    /// If a line is not JSON.
    #[must_use]
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        let out = String::from_utf8_lossy(&self.out);
        out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
    }
}

impl Holder {
    /// Waits until a line of the standard output contains `words`.
    ///
    /// # Panics
    /// If the command ends without that.
    pub fn until(&mut self, words: &str) {
        while let Ok(line) = self.lines.recv() {
            let found = line.contains(words);
            self.said.push(line);
            if found {
                return;
            }
        }
        panic!("it never says {words:?}: {:?}\n{}", self.said, self.complaints.lock().expect("a lock"));
    }

    /// Waits until the standard error contains `words`.
    ///
    /// # Panics
    /// If it never does.
    #[track_caller]
    pub fn complains(&self, words: &str) {
        let heard = poll(|| {
            let complaints = self.complaints.lock().expect("a lock");
            if complaints.contains(words) { Ok(()) } else { Err(complaints.clone()) }
        });
        heard.unwrap_or_else(|heard| panic!("it never complains of {words:?}: {heard}"));
    }

    /// Interrupts the command, as Ctrl-C does, and returns its exit code.
    ///
    /// # Panics
    /// If it does not end.
    pub fn interrupt(&mut self) -> Option<i32> {
        crate::process::signal(self.child.id(), rustix::process::Signal::INT);
        self.ended()
    }

    /// Waits until the command has ended by itself, and returns its exit code.
    ///
    /// # Panics
    /// If it does not end.
    pub fn ended(&mut self) -> Option<i32> {
        poll(|| self.child.try_wait().ok().flatten().ok_or(())).expect("it ends").code()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The command may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
