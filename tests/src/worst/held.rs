//! Half a core, for processes that would take all of one.
//!
//! A control group does that where one can be made: version 2 (`cpu.max`) or 1 (`cpu.cfs_quota_us`). Elsewhere, as in a container whose control
//! groups cannot be written, the processes are nice and stopped half of the time.

use rustix::process::{Pid, Signal, kill_process, setpriority_process};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Out of so many microseconds half may be used. Short, so that nobody runs for long on end.
const PERIOD_US: u64 = 20_000;

/// How long processes run, and how long they are stopped, where there is no control group.
const TURN: Duration = Duration::from_millis(10);

/// Processes that have half a core together.
#[derive(Debug)]
pub struct HalfCore(How);

#[derive(Debug)]
enum How {
    Group(PathBuf),
    Turns { processes: Arc<Mutex<Vec<Pid>>>, end: Option<mpsc::Sender<()>>, thread: Option<JoinHandle<()>> },
}

/// A control group with that limit.
fn group() -> io::Result<PathBuf> {
    let name = format!("transfer-worst-{}", std::process::id());
    let make = |parent: &Path, limits: &[(&str, String)]| {
        let group = parent.join(&name);
        std::fs::create_dir(&group)?;
        for (file, value) in limits {
            // Only where the kernel has made it: in a control group no file can be created.
            let written = std::fs::metadata(group.join(file)).and_then(|_| std::fs::write(group.join(file), value));
            if let Err(e) = written {
                let _ = std::fs::remove_dir(&group);
                return Err(e);
            }
        }
        Ok(group)
    };
    let half = PERIOD_US / 2;
    let first = [("cpu.cfs_period_us", PERIOD_US.to_string()), ("cpu.cfs_quota_us", half.to_string())];
    make(Path::new("/sys/fs/cgroup/cpu"), &first)
        .or_else(|_| make(Path::new("/sys/fs/cgroup"), &[("cpu.max", format!("{half} {PERIOD_US}"))]))
}

impl HalfCore {
    /// For nobody yet. Says so where there is no control group for it.
    ///
    /// # Panics
    /// Where no thread can be started.
    #[must_use]
    pub fn new() -> HalfCore {
        match group() {
            Ok(group) => HalfCore(How::Group(group)),
            Err(error) => {
                eprintln!("no control group can be made ({error}): attackers are nice and stopped half of the time");
                HalfCore::of_turns()
            }
        }
    }

    fn of_turns() -> HalfCore {
        let processes = Arc::new(Mutex::new(Vec::<Pid>::new()));
        let (end, ended) = mpsc::channel();
        let all = processes.clone();
        let run = move || {
            for signal in [Signal::STOP, Signal::CONT].into_iter().cycle() {
                for process in all.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    // It may have ended.
                    let _ = kill_process(*process, signal);
                }
                let waits = ended.recv_timeout(TURN) == Err(mpsc::RecvTimeoutError::Timeout);
                if !waits && signal == Signal::CONT {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("turns".into()).spawn(run).expect("a thread can be started");
        HalfCore(How::Turns { processes, end: Some(end), thread: Some(thread) })
    }

    /// This one belongs to them from now on.
    ///
    /// # Panics
    /// Where it has ended already.
    pub fn take(&self, process: u32) {
        match &self.0 {
            How::Group(group) => {
                std::fs::write(group.join("cgroup.procs"), process.to_string()).expect("it can be put into the group");
            }
            How::Turns { processes, .. } => {
                let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process has an id");
                let _ = setpriority_process(Some(process), 19);
                processes.lock().unwrap_or_else(PoisonError::into_inner).push(process);
            }
        }
    }

    /// This one has ended, and is about to be waited for: its number may be another's then.
    pub fn let_go(&self, process: u32) {
        if let How::Turns { processes, .. } = &self.0 {
            let is_other = |other: &Pid| other.as_raw_nonzero().get().unsigned_abs() != process;
            processes.lock().unwrap_or_else(PoisonError::into_inner).retain(is_other);
        }
    }

    /// What holds them, in words.
    #[must_use]
    pub fn in_words(&self) -> &'static str {
        match self.0 {
            How::Group(_) => "held to half a core by a control group",
            How::Turns { .. } => "nice, and stopped half of the time",
        }
    }
}

impl Default for HalfCore {
    fn default() -> HalfCore {
        HalfCore::new()
    }
}

impl Drop for HalfCore {
    fn drop(&mut self) {
        match &mut self.0 {
            // It can be removed when all of them have ended.
            How::Group(group) => {
                let _ = std::fs::remove_dir(group);
            }
            How::Turns { end, thread, .. } => {
                drop(end.take());
                let _ = thread.take().map(JoinHandle::join);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever there is of control groups: a process goes on in turns, and can be ended.
    #[test]
    fn processes_that_take_turns_go_on() {
        let half = HalfCore::of_turns();
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", "read word; exit 3"]).stdin(std::process::Stdio::piped());
        let mut child = shell.spawn().expect("there is a shell");
        half.take(child.id());
        drop(child.stdin.take());
        let ended = child.wait().expect("it can be waited for");
        half.let_go(child.id());
        assert_eq!(ended.code(), Some(3));
    }
}
