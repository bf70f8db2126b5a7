//! The CPU time of this process, by the kernel's count.

use std::fs;
use std::ops::{Add, Sub};
use std::time::Duration;

/// CPU time in programs, and in the kernel for them. The kernel counts in ticks, usually of 10 ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In the programs.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
}

impl Add for CpuTime {
    type Output = CpuTime;

    fn add(self, other: CpuTime) -> CpuTime {
        CpuTime { user: self.user + other.user, system: self.system + other.system }
    }
}

impl Sub for CpuTime {
    type Output = CpuTime;

    fn sub(self, before: CpuTime) -> CpuTime {
        let less = |now: Duration, before: Duration| now.saturating_sub(before);
        CpuTime { user: less(self.user, before.user), system: less(self.system, before.system) }
    }
}

/// Returns the time of this process, and of its children that it has waited for. Zero if the kernel does not show it.
#[must_use]
pub fn of_process_and_children() -> [CpuTime; 2] {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    of_stat(&stat, rustix::param::clock_ticks_per_second()).unwrap_or_default()
}

/// Reads utime, stime, cutime and cstime of proc_pid_stat(5).
fn of_stat(stat: &str, ticks_per_second: u64) -> Option<[CpuTime; 2]> {
    // The name before the bracket may have spaces and brackets. The state is the third field.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    let mut next = || {
        let millis = ticks.next()?.saturating_mul(1000) / ticks_per_second.max(1);
        Some(Duration::from_millis(millis))
    };
    let mut time = || Some(CpuTime { user: next()?, system: next()? });
    Some([time()?, time()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_behind_the_name() {
        let stat = "7 (a) b) (c) R 1 2 3 4 5 6 7 8 9 10 150 20 3 4 20 0 1 0 100";
        let [own, children] = of_stat(stat, 100).unwrap();
        assert_eq!((own.user, own.system), (Duration::from_millis(1500), Duration::from_millis(200)));
        assert_eq!((children.user, children.system), (Duration::from_millis(30), Duration::from_millis(40)));
        assert_eq!(of_stat("", 100), None);
        assert_eq!(of_stat("7 (a) R 1 2", 100), None);
    }

    #[test]
    fn this_process_has_a_time() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(of_stat(&stat, rustix::param::clock_ticks_per_second()).is_some(), "{stat}");
    }
}
