//! Containers as far as they matter to shared memory: a process with user, pid, ipc, net and mount namespaces of its
//! own. It shares one directory with others, at another path, and neither `/tmp` nor `/dev/shm`.

use crate::{poll, programs};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The path of the shared directory inside the container.
pub const SHARED: &str = "/mnt/shared";

/// The namespaces of which each container has its own.
const OWN: [&str; 5] = ["user", "pid", "ipc", "net", "mnt"];

/// The script of the container's first process. $1: the shared directory, $2: the program, followed by its arguments.
const SCRIPT: &str = "set -e
mount -t tmpfs none /mnt
mkdir /mnt/shared /mnt/programs
mount --bind \"$1\" /mnt/shared
mount --bind \"$(dirname \"$2\")\" /mnt/programs
mount -t tmpfs none /tmp
mount -t tmpfs none /dev/shm
mount -t proc proc /proc
program=/mnt/programs/$(basename \"$2\")
shift 2
exec \"$program\" \"$@\"
";

/// The parameters of a container.
#[derive(Debug, Clone, Copy, Default)]
pub struct Container {
    uid: Option<u32>,
    host_network: bool,
}

impl Container {
    /// A container that this test's user makes: root inside is that user outside.
    #[must_use]
    pub fn new() -> Container {
        Container::default()
    }

    /// A container that another user makes: root inside is that user outside.
    #[must_use]
    pub fn of_user(uid: u32) -> Container {
        Container { uid: Some(uid), host_network: false }
    }

    /// Gives the container the network of the host, over which sidecars talk to each other.
    #[must_use]
    pub fn with_the_host_s_network(self) -> Container {
        Container { host_network: true, ..self }
    }

    /// Returns the workers' program at a path where this container's user can run it: a copy in `shared` if it is
    /// another user.
    #[must_use]
    pub fn worker(&self, shared: &Path) -> PathBuf {
        if self.uid.is_some() { programs::worker_for_all(shared) } else { programs::worker() }
    }

    /// Returns the command line that starts a program in the container.
    #[must_use]
    pub fn words(&self, shared: &Path, program: &Path, arguments: &[&OsStr]) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(uid) = self.uid {
            let uid = uid.to_string();
            words.extend(["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"].map(OsString::from));
        }
        words.extend(
            ["unshare", "--user", "--map-root-user", "--pid", "--ipc", "--mount", "--fork"].map(OsString::from),
        );
        words.extend((!self.host_network).then(|| "--net".into()));
        words.extend(["--kill-child", "sh", "-c", SCRIPT, "sh"].map(OsString::from));
        words.extend([shared.as_os_str(), program.as_os_str()].map(OsString::from));
        words.extend(arguments.iter().map(OsString::from));
        words
    }
}

/// Returns the process id of a container's first process, as seen from outside. `made_by` is the process that made the
/// container.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn first_process(made_by: u32) -> u32 {
    let path = format!("/proc/{made_by}/task/{made_by}/children");
    let child = poll(|| {
        let children = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
        children.split_whitespace().next().and_then(|n| n.parse().ok()).ok_or_else(|| "it has no child".to_owned())
    });
    child.unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// Returns the namespaces of a process, of those kinds that each container has for itself.
///
/// # Panics
/// If the process is gone.
#[must_use]
pub fn namespaces(process: u32) -> Vec<PathBuf> {
    let read = |kind| {
        let path = format!("/proc/{process}/ns/{kind}");
        std::fs::read_link(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    OWN.map(read).into()
}
