//! Limits processes that would take all of a core to half of it.
//!
//! A control group sets the limit where one can be made: version 2 (`cpu.max`) or 1 (`cpu.cfs_quota_us`). Elsewhere,
//! as in a container whose control groups cannot be written, the processes are nice and stopped half of the time.

use rustix::process::{Pid, Signal, kill_process, setpriority_process};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// The period of the limit in microseconds, of which the processes may use half. It is short, so that no process runs
/// for long without a pause.
const PERIOD_US: u64 = 20_000;

/// How long processes run, and how long they are stopped, if there is no control group.
const TURN: Duration = Duration::from_millis(10);

/// A set of processes that share half a core.
#[derive(Debug)]
pub struct HalfCore(How);

#[derive(Debug)]
enum How {
    Group(PathBuf),
    Turns { processes: Arc<Mutex<Vec<Pid>>>, end: Option<mpsc::Sender<()>>, thread: Option<JoinHandle<()>> },
}

/// Makes a control group with that limit.
fn group() -> io::Result<PathBuf> {
    let name = format!("transfer-worst-{}", std::process::id());
    let make = |parent: &Path, limits: &[(&str, String)]| {
        let group = parent.join(&name);
        std::fs::create_dir(&group)?;
        for (file, value) in limits {
            // Writes only a file that the kernel has made: in a control group no file can be created.
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
    /// Returns a limit without any process. Prints the reason if no control group can be made.
    ///
    /// # Panics
    /// If no thread can be started.
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
                    // The process may have ended.
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

    /// Adds a process to the set.
    ///
    /// # Panics
    /// If the process has ended already.
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

    /// Removes a process that has ended and is about to be waited for: its id may belong to another process then.
    pub fn let_go(&self, process: u32) {
        if let How::Turns { processes, .. } = &self.0 {
            let is_other = |other: &Pid| other.as_raw_nonzero().get().unsigned_abs() != process;
            processes.lock().unwrap_or_else(PoisonError::into_inner).retain(is_other);
        }
    }

    /// Describes how the processes are limited.
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
            // The group can be removed once all its processes have ended.
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

    /// Takes turns even where control groups exist: a process that is stopped in turns still runs, and can end.
    #[test]
    fn processes_stopped_in_turns_still_run() {
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
