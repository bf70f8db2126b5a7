//! What a process has now: memory, threads and descriptors.

use std::fs;

/// What a process has. Memory is resident memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// Heap and stacks (RssAnon).
    pub anonymous: u64,
    /// Program and libraries (RssFile).
    pub files: u64,
    /// Pools, arenas, rings and headers (RssShmem).
    pub shared: u64,
    /// Threads.
    pub threads: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl Resident {
    /// Looks at a process. What cannot be read counts as 0.
    #[must_use]
    pub fn of(pid: u32) -> Resident {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let entries = |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).map_or(0, Iterator::count) as u64;
        Resident {
            anonymous: kib(&status, "RssAnon") << 10,
            files: kib(&status, "RssFile") << 10,
            shared: kib(&status, "RssShmem") << 10,
            threads: entries("task"),
            descriptors: entries("fd"),
        }
    }
}

fn kib(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|text| text.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_a_thread_and_descriptors() {
        let status = "Name:\tx\nRssAnon:\t    1234 kB\nRssFile:\t 7 kB\n";
        assert_eq!((kib(status, "RssAnon"), kib(status, "RssFile"), kib(status, "RssShmem")), (1234, 7, 0));
        let ours = Resident::of(std::process::id());
        assert!(ours.anonymous > 0 && ours.threads > 0 && ours.descriptors > 2, "{ours:?}");
        assert_eq!(Resident::of(u32::MAX), Resident::default());
    }
}
