//! Damage by a worker that has gone mad. It needs no unsafe code, so any worker can do it.

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// Overwrites all memory that this process shares with others and may write.
pub(crate) fn scribble(seed: u64) -> io::Result<()> {
    let mut random = SmallRng::seed_from_u64(seed);
    let memory = File::options().write(true).open("/proc/self/mem")?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut nonsense = vec![0; 1 << 20];
    for line in maps.lines().filter(|line| line.contains("rw-s") && line.contains("memfd:")) {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let address = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
        let (start, end) = range.ok_or_else(|| io::Error::other(line.to_owned()))?;
        let (mut at, end) = (address(start)?, address(end)?);
        while at < end {
            random.fill_bytes(&mut nonsense);
            let len = nonsense.len().min((end - at) as usize);
            memory.write_all_at(&nonsense[..len], at)?;
            at += len as u64;
        }
    }
    Ok(())
}

/// Starts a process that has copies of this one's sockets, as a forked child has, and does not use them.
pub(super) fn leave_child() -> io::Result<u32> {
    let me = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut inherited = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_socket = std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        if let (true, Some(Ok(number))) = (is_socket, entry.file_name().to_str().map(str::parse)) {
            let copy = pidfd_getfd(&me, number, PidfdGetfdFlags::empty())?;
            fcntl_setfd(&copy, FdFlags::empty())?;
            inherited.push(copy);
        }
    }
    // The test ends the child. If the test fails, the child ends by itself.
    let child =
        Command::new("sleep").arg("300").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok(child.id())
}
