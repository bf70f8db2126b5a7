//! `transferctl`, as a person or a script runs it.

use crate::{Sidecar, poll, programs};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};

/// A command of `transferctl` to be run.
#[derive(Debug)]
pub struct Ctl(Command);

/// How one ended.
#[derive(Debug)]
pub struct Said {
    /// The exit code; 128 and the signal's number where a signal ended it.
    pub code: i32,
    /// Its standard output.
    pub out: Vec<u8>,
    /// Its standard error.
    pub err: String,
}

/// One that publishes until it is ended. Interrupted when dropped.
#[derive(Debug)]
pub struct Holder {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// What it has said.
    pub said: Vec<String>,
    /// What it has complained of.
    complaints: Arc<Mutex<String>>,
}

impl Ctl {
    /// What `words` say, asked of this sidecar.
    #[must_use]
    pub fn of(sidecar: &Sidecar, words: &[&str]) -> Ctl {
        let mut ctl = Ctl::new(words);
        ctl.0.env("TRANSFER_SOCKET", sidecar.socket()).env("TRANSFER_ADMIN", sidecar.admin_socket());
        ctl
    }

    /// What `words` say.
    #[must_use]
    pub fn new(words: &[&str]) -> Ctl {
        let mut command = Command::new(programs::transferctl());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRANSFER_")) {
            command.env_remove(name);
        }
        command.args(words);
        Ctl(command)
    }

    /// One more word.
    #[must_use]
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Ctl {
        self.0.arg(word);
        self
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// Where it cannot be started.
    #[must_use]
    pub fn run(self) -> Said {
        self.run_with(&[])
    }

    /// Runs it to its end, with this for its standard input.
    ///
    /// # Panics
    /// Where it cannot be started.
    #[must_use]
    pub fn run_with(mut self, input: &[u8]) -> Said {
        use std::os::unix::process::ExitStatusExt;
        self.0.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.0.spawn().expect("transferctl can be started");
        let mut stdin = child.stdin.take().expect("it is piped");
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || {
            // It may end before it has read all.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().expect("it can be waited for");
        feeder.join().expect("the input is written");
        let code = output.status.code().or_else(|| Some(128 + output.status.signal()?)).unwrap_or(-1);
        Said { code, out: output.stdout, err: String::from_utf8_lossy(&output.stderr).into_owned() }
    }

    /// Runs it to its end, which has to be this.
    ///
    /// # Panics
    /// Where it ends otherwise, or does not say these words.
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
    /// Where that does not happen.
    #[must_use]
    pub fn hold(self) -> Holder {
        self.hold_until("published until this ends")
    }

    /// Starts it, and waits until it says this.
    ///
    /// # Panics
    /// Where that does not happen.
    #[must_use]
    pub fn hold_until(mut self, words: &str) -> Holder {
        self.0.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.0.spawn().expect("transferctl can be started");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let (told, lines) = mpsc::channel();
        // All that it says is read, also when nobody asks any more: it would wait for that.
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
    /// All that it said.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}{}", String::from_utf8_lossy(&self.out), self.err)
    }

    /// Its lines of JSON.
    ///
    /// # Panics
    /// Where a line is none.
    #[must_use]
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        let out = String::from_utf8_lossy(&self.out);
        out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
    }
}

impl Holder {
    /// Waits until it says this.
    ///
    /// # Panics
    /// Where it ends without that.
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

    /// Waits until it complains of this.
    ///
    /// # Panics
    /// Where it never does.
    #[track_caller]
    pub fn complains(&self, words: &str) {
        let heard = poll(|| {
            let complaints = self.complaints.lock().expect("a lock");
            if complaints.contains(words) { Ok(()) } else { Err(complaints.clone()) }
        });
        heard.unwrap_or_else(|heard| panic!("it never complains of {words:?}: {heard}"));
    }

    /// Interrupts it, as Ctrl-C does, and says how it ended.
    ///
    /// # Panics
    /// Where it does not end.
    pub fn interrupt(&mut self) -> Option<i32> {
        crate::process::signal(self.child.id(), rustix::process::Signal::INT);
        self.ended()
    }

    /// Waits until it has ended by itself, and says how.
    ///
    /// # Panics
    /// Where it does not end.
    pub fn ended(&mut self) -> Option<i32> {
        poll(|| self.child.try_wait().ok().flatten().ok_or(())).expect("it ends").code()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
