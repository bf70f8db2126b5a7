//! Facts about this host.

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::system::uname;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// A kind of huge page, and the host's pool of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HugePool {
    pub(crate) page_bytes: u64,
    pub(crate) pages: u64,
    pub(crate) free: u64,
}

/// The facts about this host.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// The kernel's release: `6.8.0-45-generic`.
    pub(crate) kernel: String,
    /// The required features of the kernel: their names, and why they are missing.
    pub(crate) needed: Vec<(&'static str, Result<(), String>)>,
    /// Whether pidfd works, which reports the end of a worker at once.
    pub(crate) pidfd: Result<(), String>,
    pub(crate) huge_pages: Vec<HugePool>,
    /// The memory of the host in bytes: all of it, and the available part.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) available_bytes: Option<u64>,
}

impl Host {
    pub(crate) fn look() -> Host {
        let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
        let needed = vec![
            ("memfd with seals", sealed_memory().map_err(|e| e.to_string())),
            ("epoll", epoll::create(epoll::CreateFlags::CLOEXEC).map(drop).map_err(|e| e.to_string())),
            ("eventfd", eventfd(0, EventfdFlags::CLOEXEC).map(drop).map_err(|e| e.to_string())),
        ];
        Host {
            kernel: uname().release().to_string_lossy().into_owned(),
            needed,
            pidfd: pidfd_open(getpid(), PidfdFlags::empty()).map(drop).map_err(|e| e.to_string()),
            huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
            memory_bytes: meminfo_bytes(&meminfo, "MemTotal"),
            available_bytes: meminfo_bytes(&meminfo, "MemAvailable"),
        }
    }
}

/// Makes a segment as the sidecar does: no process can shrink it, or map it for writing.
fn sealed_memory() -> rustix::io::Result<()> {
    let memory = memfd_create("transferctl-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, 4096)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
    fcntl_add_seals(&memory, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
}

/// `MemTotal:       16384 kB`
fn meminfo_bytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// `hugepages-2048kB/{nr_hugepages,free_hugepages}`
fn huge_pages(folder: &Path) -> Vec<HugePool> {
    let number = |path: PathBuf| read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let pool = |path: PathBuf| {
        let kib: u64 = path.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let (pages, free) = (number(path.join("nr_hugepages"))?, number(path.join("free_hugepages"))?);
        Some(HugePool { page_bytes: kib.checked_mul(1024)?, pages, free })
    };
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut pools: Vec<_> = entries.filter_map(|entry| pool(entry.path())).collect();
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_parsed() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    1 kB\nHugePages_Total:       0\n";
        assert_eq!(meminfo_bytes(text, "MemTotal"), Some(16 << 20));
        assert_eq!(meminfo_bytes(text, "MemAvailable"), Some(1024));
        assert_eq!((meminfo_bytes(text, "Mem"), meminfo_bytes(text, "HugePages_Total")), (None, None));
        let folder = tempfile::tempdir().unwrap();
        for (name, pages) in [("hugepages-1048576kB", "0"), ("hugepages-2048kB", "12"), ("other", "1")] {
            let pool = folder.path().join(name);
            std::fs::create_dir(&pool).unwrap();
            std::fs::write(pool.join("nr_hugepages"), format!("{pages}\n")).unwrap();
            std::fs::write(pool.join("free_hugepages"), "0\n").unwrap();
        }
        let two = HugePool { page_bytes: 2 << 20, pages: 12, free: 0 };
        assert_eq!(huge_pages(folder.path()), [two, HugePool { page_bytes: 1 << 30, pages: 0, free: 0 }]);
        assert_eq!(huge_pages(Path::new("/nowhere")), []);
    }

    /// A sidecar can run where the tests run.
    #[test]
    fn required_features_exist_on_this_host() {
        let host = Host::look();
        assert!(host.needed.iter().all(|(_, there)| there.is_ok()), "{host:?}");
        assert!(host.memory_bytes.is_some_and(|n| n > 0) && !host.kernel.is_empty());
    }
}
