//! The processor time and the sleeps of processes, as the kernel counts them for each thread.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// The usage of all threads that a process has now. Threads that have ended are not included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// The time on a CPU.
    pub cpu: Duration,
    /// The number of times that a thread gave up its CPU to wait, and so had to be woken.
    pub sleeps: u64,
}

impl Usage {
    /// The usage of these processes together.
    #[must_use]
    pub fn of(pids: &[u32]) -> Usage {
        pids.iter()
            .map(|pid| Usage::over(*pid, |_| true))
            .fold(Usage::default(), |sum, one| Usage { cpu: sum.cpu + one.cpu, sleeps: sum.sleeps + one.sleeps })
    }

    /// The usage of the threads of a process that have this name.
    #[must_use]
    pub fn of_thread(pid: u32, name: &str) -> Usage {
        Usage::over(pid, |thread| fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim_end() == name))
    }

    fn over(pid: u32, is_wanted: impl Fn(&Path) -> bool) -> Usage {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        threads.map(|thread| thread.path()).filter(|path| is_wanted(path)).fold(Usage::default(), |sum, thread| {
            let read = |name: &str| fs::read_to_string(thread.join(name)).unwrap_or_default();
            let (cpu, sleeps) = (cpu_ns(&read("schedstat")), sleeps(&read("status")));
            Usage { cpu: sum.cpu + Duration::from_nanos(cpu), sleeps: sum.sleeps + sleeps }
        })
    }

    /// The usage since an earlier sample.
    #[must_use]
    pub fn since(self, before: Usage) -> Usage {
        Usage { cpu: self.cpu.saturating_sub(before.cpu), sleeps: self.sleeps.saturating_sub(before.sleeps) }
    }
}

fn cpu_ns(schedstat: &str) -> u64 {
    schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn sleeps(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    #[test]
    fn proc_files_are_parsed() {
        assert_eq!(cpu_ns("123456 789 12\n"), 123_456);
        assert_eq!(sleeps("Name:\tx\nvoluntary_ctxt_switches:\t42\nnonvoluntary_ctxt_switches:\t7\n"), 42);
        assert_eq!((cpu_ns(""), sleeps("")), (0, 0), "a thread that has ended meanwhile");
    }

    /// A child process is measured, because the threads of this one come and go with the other tests.
    #[test]
    fn usage_counts_sleeps_and_processor_time() {
        let mut shell = Command::new("sh");
        let mut child = shell.args(["-c", "read line; while :; do :; done"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = [child.id()];
        until("the child sleeps", || Usage::of(&pid).sleeps > 0);
        drop(child.stdin.take());
        let before = Usage::of(&pid);
        until("the child works", || Usage::of(&pid).since(before).cpu > Duration::from_millis(5));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < Duration::from_secs(60), "not counted: {what}");
            std::thread::yield_now();
        }
    }
}
