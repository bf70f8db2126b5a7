//! The conformance suite over real sockets and shared memory, and tests of this fabric alone.

use super::*;
use crate::conformance::Rig;
use crate::conformance::segments::{SegmentRig, segment};
use std::time::Instant;
use tempfile::TempDir;

struct ShmRig {
    directory: TempDir,
    made: usize,
    copy_threads: usize,
    references: bool,
}

impl ShmRig {
    fn new() -> ShmRig {
        ShmRig { directory: TempDir::new().unwrap(), made: 0, copy_threads: 2, references: false }
    }

    /// Returns a rig without copy threads: the data-plane thread copies everything.
    fn alone() -> ShmRig {
        ShmRig { copy_threads: 0, ..ShmRig::new() }
    }

    /// Returns a rig whose workers may read each other's memory.
    fn referring() -> ShmRig {
        ShmRig { references: true, ..ShmRig::new() }
    }

    fn config(&mut self) -> ShmConfig {
        self.made += 1;
        let name = format!("fabric-{}.shm", self.made);
        let config = ShmConfig::new(self.directory.path(), &name, self.made as u64);
        ShmConfig { copy_threads: self.copy_threads, references: self.references, ..config }
    }
}

impl SegmentRig for ShmRig {
    type Fabric = ShmFabric;

    fn make(&mut self) -> ShmFabric {
        let config = self.config();
        ShmFabric::new(config).unwrap()
    }
}

crate::conformance_tests!(ShmRig::new());

mod without_threads {
    crate::conformance_tests!(super::ShmRig::alone());
}

mod with_references {
    crate::conformance_tests!(super::ShmRig::referring());
}

mod one_rail_of_many {
    crate::conformance_tests!(crate::conformance::rails::Railed::new(super::ShmRig::new(), &[0]));
}

mod two_rails {
    crate::conformance_tests!(crate::conformance::rails::Railed::new(super::ShmRig::new(), &[0, 0]));
}

mod hostile;
mod own;
mod references;

/// Polls until `answer` returns something.
fn until<T>(fabric: &mut ShmFabric, mut answer: impl FnMut(FabricEvent<'_>) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let mut found = None;
        fabric.poll(&mut |event| found = found.take().or(answer(event)));
        if let Some(found) = found {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "nothing happens");
        std::thread::yield_now();
    }
}

fn down(fabric: &mut ShmFabric) -> DownReason {
    until(fabric, |event| match event {
        FabricEvent::LinkDown { reason, .. } => Some(reason),
        _ => None,
    })
}
