//! Checks of the host: its kernel, and the limits of a process.

use super::{fail, found, ok, warn};
use crate::doctor::facts::Facts;
use crate::doctor::{Finding, Verdict};
use transfer_terminal::units::bytes;

/// The oldest supported kernel.
const OLDEST_KERNEL: (u32, u32) = (5, 14);

/// The advised limit of descriptors: a worker takes a handful, and a segment two.
const OPEN_FILES: u64 = 1024;

pub(super) fn kernel(facts: &Facts) -> Vec<Finding> {
    let release = &facts.host.kernel;
    let mut findings = match version(release) {
        Some(version) if version < OLDEST_KERNEL => {
            let advice = "Take a host with Linux 5.14 or later";
            fail("kernel", format!("Linux {release} is too old"), advice)
        }
        Some(_) => ok("kernel", format!("Linux {release}")),
        None => found("kernel", Verdict::Warn, format!("{release:?} is no release of Linux that this knows"), None),
    };
    for (what, there) in &facts.host.needed {
        findings.extend(match there {
            Ok(()) if *what == "memfd with seals" => ok("kernel", format!("{what}: there, so /dev/shm is not needed")),
            Ok(()) => ok("kernel", format!("{what}: there")),
            Err(why) => {
                let advice = "Nothing goes without it: look whether a container's seccomp profile forbids it";
                fail("kernel", format!("{what}: {why}"), advice)
            }
        });
    }
    findings.extend(match &facts.host.pidfd {
        Ok(()) => ok("kernel", "pidfd: there"),
        Err(why) => {
            let advice = "A worker's end is noticed by its socket instead; look whether a container's seccomp profile forbids it";
            warn("kernel", format!("pidfd: {why}"), advice)
        }
    });
    findings
}

/// `6.8.0-45-generic`: 6, 8
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Checks the pools of huge pages, which only --huge-pages uses.
pub(super) fn huge_pages(facts: &Facts) -> Vec<Finding> {
    let used: Vec<_> = facts.host.huge_pages.iter().filter(|pool| pool.pages > 0).collect();
    if used.is_empty() {
        let text =
            "none are reserved: with --huge-pages the sidecar takes ordinary pages, and asks for transparent huge ones";
        return ok("huge pages", text);
    }
    let one = |pool: &&crate::doctor::facts::host::HugePool| {
        let text = format!("{} of {}, {} free", pool.pages, bytes(pool.page_bytes), pool.free);
        match pool.free {
            0 => {
                let advice = "All are taken, so the next segment of a sidecar with --huge-pages gets ordinary ones; reserve more in \
                              /proc/sys/vm/nr_hugepages";
                warn("huge pages", text, advice)
            }
            _ => ok("huge pages", text),
        }
    };
    used.iter().flat_map(one).collect()
}

pub(super) fn open_files(facts: &Facts) -> Vec<Finding> {
    let Some(limit) = facts.socket.process().and_then(|process| process.open_files) else { return vec![] };
    let text = format!("the sidecar may have {limit}");
    match limit < OPEN_FILES {
        false => ok("open files", text),
        true => {
            let advice = "Raise RLIMIT_NOFILE (LimitNOFILE= in the systemd unit, --ulimit nofile= for a container): each worker and each \
                          segment takes some";
            warn("open files", text, advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        for (text, is) in [("6.8.0-45-generic", Some((6, 8))), ("5.14", Some((5, 14))), ("6.x", None), ("", None)] {
            assert_eq!(version(text), is, "{text}");
        }
    }
}
