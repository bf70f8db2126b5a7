//! The machine and the build, on which all figures depend.

use rustix::system::uname;
use serde::Serialize;
use std::fmt;
use std::fs;

/// The machine and the build.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The CPU's name.
    pub cpu: String,
    /// The number of CPUs that this process may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The kernel's setting of huge pages for shared memory.
    pub shmem_huge_pages: String,
    /// The kernel's setting of huge pages for other memory.
    pub huge_pages: String,
    /// The build profile of this program.
    pub build: &'static str,
}

impl Machine {
    /// Reads the description of this machine.
    #[must_use]
    pub fn look() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let cpu = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned());
        let kib =
            field(&read("/proc/meminfo"), "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        // The kernel writes the active choice in brackets.
        let chosen = |path: &str| {
            let text = read(path);
            let choice = text.split(['[', ']']).nth(1).unwrap_or("unknown");
            choice.to_owned()
        };
        Machine {
            cpu,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.unwrap_or(0) << 10,
            kernel: uname().release().to_string_lossy().into_owned(),
            shmem_huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            build: if cfg!(debug_assertions) { "debug: these figures say nothing" } else { "release" },
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = transfer_terminal::units::bytes(self.memory_bytes);
        writeln!(f, "machine  {}, {} cores, {memory}, Linux {}", self.cpu, self.cores, self.kernel)?;
        write!(
            f,
            "         huge pages: {}, for shared memory: {}; build: {}",
            self.huge_pages, self.shmem_huge_pages, self.build
        )
    }
}
