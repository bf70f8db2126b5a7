//! The memory that a process's control groups allow.

use std::fs::read_to_string;
use std::path::Path;

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// The least limit that stands for none in version 1 of control groups. There the kernel reports the largest number of
/// whole pages, so the exact value depends on the page size. No host has that much memory.
const NO_LIMIT_V1: u64 = 1 << 62;

/// Returns the lowest memory limit of the control groups of a process, in bytes, since each on the path from its group to the
/// root applies. `process` is its directory in `/proc`. `None` if nothing limits it.
#[must_use]
pub fn memory_limit(process: &Path) -> Option<u64> {
    limit_of(&read_to_string(process.join("cgroup")).ok()?, Path::new(ROOT))
}

/// The same for the lines of a process's groups. Both versions of control groups may exist.
fn limit_of(groups: &str, root: &Path) -> Option<u64> {
    let lowest = |own: &str, root: &Path, file: &str| {
        // A container sees its own group as the root, and a path that does not exist there.
        let own = root.join(own);
        let groups = own.ancestors().take_while(|group| group.starts_with(root));
        groups.filter_map(|group| read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok()).min()
    };
    let limits = groups.lines().filter_map(|line| {
        // `0::/path` of version 2, `7:cpu,memory:/path` of version 1.
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(":/")?;
        match controllers {
            "" => lowest(path, root, "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                lowest(path, &root.join("memory"), "memory.limit_in_bytes").filter(|limit| *limit < NO_LIMIT_V1)
            }
            _ => None,
        }
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: limits-of-the-process
    #[test]
    fn the_lowest_limit_of_all_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("pod/sidecar")).unwrap();
        let limit = || limit_of("0::/pod/sidecar\n", root.path());
        assert_eq!(limit(), None);
        std::fs::write(at("pod/sidecar/memory.max"), "max\n").unwrap();
        std::fs::write(at("pod/memory.max"), "4096\n").unwrap();
        assert_eq!(limit(), Some(4096));
        std::fs::write(at("pod/sidecar/memory.max"), "8192\n").unwrap();
        assert_eq!(limit(), Some(4096));
        assert_eq!(limit_of("1:cpu:/x\n", root.path()), None);
        // Version 1, alone or beside version 2. The value of the root stands for no limit.
        std::fs::create_dir_all(at("memory/docker/7")).unwrap();
        std::fs::write(at("memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        let v1 = |text: &str| limit_of(text, root.path());
        assert_eq!(v1("4:memory:/docker/7\n"), None);
        std::fs::write(at("memory/docker/memory.limit_in_bytes"), "629145600\n").unwrap();
        assert_eq!(v1("4:memory:/docker/7\n"), Some(600 << 20));
        assert_eq!(v1("4:cpu,memory:/docker/7\n0::/pod\n"), Some(4096));
        assert_eq!(v1("4:memory:/docker/7\n0::/other\n"), Some(600 << 20));
        assert_eq!(v1("4:memory:/docker\n1:cpu:/\n"), Some(600 << 20));
        assert_eq!(v1("4:memory_numa:/docker\n"), None);
    }
}
