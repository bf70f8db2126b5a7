//! The system resources of a process, which must not grow with its work.

use crate::{Sidecar, poll};
use std::fmt;

/// How much more memory a sidecar may have than at its start: buffers that have grown once, and pages that an
/// allocator keeps.
const MORE_BYTES: u64 = 32 << 20;

/// The resources of a process at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holdings {
    descriptors: usize,
    /// Memory of its own, without the memory that it shares with its workers.
    anonymous_bytes: u64,
}

impl Holdings {
    /// Returns the present resources of a sidecar.
    pub(crate) fn of(sidecar: &Sidecar) -> Holdings {
        let process = format!("/proc/{}", sidecar.process_id());
        let descriptors = std::fs::read_dir(format!("{process}/fd")).expect("the sidecar runs").count();
        let status = std::fs::read_to_string(format!("{process}/status")).expect("the sidecar runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel says so");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        Holdings { descriptors, anonymous_bytes: kib << 10 }
    }

    /// Returns the same descriptors, with the larger memory of the two.
    pub(crate) fn or_more_memory(self, other: Holdings) -> Holdings {
        Holdings { anonymous_bytes: self.anonymous_bytes.max(other.anonymous_bytes), ..self }
    }

    /// Waits until the sidecar has no more than this again, and returns its present resources. Memory may be larger by
    /// `MORE_BYTES`.
    ///
    /// # Panics
    /// If it keeps more.
    pub(crate) fn until_again(self, sidecar: &Sidecar) -> Holdings {
        let seen = poll(|| {
            let now = Holdings::of(sidecar);
            let fits = now.descriptors <= self.descriptors && now.anonymous_bytes <= self.anonymous_bytes + MORE_BYTES;
            if fits { Ok(now) } else { Err(now) }
        });
        seen.unwrap_or_else(|now| panic!("sidecar {} LEAKS: it had {self}, and has {now}", sidecar.name()))
    }
}

impl fmt::Display for Holdings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} descriptors, {} KiB of its own", self.descriptors, self.anonymous_bytes >> 10)
    }
}
