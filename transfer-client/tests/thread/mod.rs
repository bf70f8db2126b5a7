//! A thread of this process, as the kernel describes it.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "shared by several test programs")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A thread that looked every 10 ms would do so 40 times. One that never slept would have most of 40 ticks, or its share where there are
/// more threads than processors.
const WATCHED: Duration = Duration::from_millis(400);

/// A wait that has to end takes less, on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits for something of another thread. Returns whether it has come.
pub fn becomes(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    is_so()
}

/// Whether a thread of this name runs in this process.
pub fn is_running(name: &str) -> bool {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    threads.flatten().any(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name))
}

#[derive(Debug, Clone)]
pub struct Thread(PathBuf);

impl Thread {
    pub fn current() -> Thread {
        Thread(Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap()))
    }

    /// Its state, and what follows that.
    fn stat(&self) -> Vec<String> {
        let stat = fs::read_to_string(self.0.join("stat")).unwrap();
        // The name of the thread may have spaces.
        stat.rsplit_once(") ").unwrap().1.split(' ').map(str::to_owned).collect()
    }

    /// How often it has gone to sleep.
    pub fn sleeps(&self) -> u64 {
        let status = fs::read_to_string(self.0.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    }

    /// The processor time that it has had, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        self.stat()[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    /// Waits until it has slept for a moment without a break. Returns how often it has gone to sleep.
    pub fn wait_until_asleep(&self) -> u64 {
        let mut last = None;
        let sleeps = becomes(|| {
            let (before, now) = (last, self.sleeps());
            last = (self.stat()[0] == "S").then_some(now);
            std::thread::sleep(Duration::from_millis(10));
            last.is_some() && before == last
        });
        assert!(sleeps, "it has not slept without a break within {LIMIT:?}");
        self.sleeps()
    }

    /// Watches it for a while, in which it sleeps, and does nothing else.
    pub fn assert_asleep(&self) {
        let before = (self.sleeps(), self.ticks());
        std::thread::sleep(WATCHED);
        let (looked, ticks) = (self.sleeps() - before.0, self.ticks() - before.1);
        assert!(looked < 10, "it has looked {looked} times in {WATCHED:?}, and nothing has come");
        assert!(ticks < 4, "it has computed for {ticks} ticks of 10 ms in {WATCHED:?}, and nothing has come");
    }
}
