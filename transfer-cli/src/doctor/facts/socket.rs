//! The socket for workers, and the process behind it.

use rustix::io::Errno;
use std::fs::read_to_string;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use transfer_memory::socket::{AddressError, Socket as Connection};

/// The time-out of connecting. A stopped sidecar accepts no more connections when its queue is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The findings at the path.
#[derive(Debug, Clone)]
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    /// Whether the path was given; else it is the default.
    pub(crate) named: bool,
    pub(crate) state: State,
}

/// The state of the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// There is no file.
    Missing,
    /// The file is no socket.
    NoSocket,
    /// The socket cannot be used.
    Closed { mode: u32, why: String, denied: bool },
    /// Another sidecar listens there. With its node.
    Another { node: String },
    /// A process listens there.
    Open { mode: u32, uid: u32, sidecar: Option<Process> },
}

/// The sidecar's process, as far as it is visible.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// The memory limit of its control group, in bytes.
    pub(crate) group_limit_bytes: Option<u64>,
    /// Its limit of descriptors.
    pub(crate) open_files: Option<u64>,
}

impl Socket {
    pub(crate) fn look(path: &Path, named: bool) -> Socket {
        Socket { path: path.to_owned(), named, state: state(path) }
    }

    /// Whether a worker could connect.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    pub(crate) fn process(&self) -> Option<&Process> {
        match &self.state {
            State::Open { sidecar, .. } => sidecar.as_ref(),
            _ => None,
        }
    }
}

fn state(path: &Path) -> State {
    let about = match path.metadata() {
        Ok(about) => about,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return State::Missing,
        Err(e) => {
            let denied = e.kind() == io::ErrorKind::PermissionDenied;
            return State::Closed { mode: 0, why: e.to_string(), denied };
        }
    };
    if !about.file_type().is_socket() {
        return State::NoSocket;
    }
    let mode = about.mode() & 0o777;
    match Connection::connect(path, Instant::now() + CONNECT_TIMEOUT) {
        Err(e) => {
            let denied = matches!(&e, AddressError::System { source: Errno::ACCESS | Errno::PERM, .. });
            State::Closed { mode, why: e.to_string(), denied }
        }
        Ok(socket) => {
            // A process of another pid namespace has no number here.
            let pid = socket.peer().ok().and_then(|peer| peer.pid);
            State::Open { mode, uid: about.uid(), sidecar: pid.map(process) }
        }
    }
}

fn process(pid: i32) -> Process {
    let process = PathBuf::from(format!("/proc/{pid}"));
    Process {
        group_limit_bytes: transfer_memory::cgroup::memory_limit(&process),
        open_files: open_files(&read_to_string(process.join("limits")).unwrap_or_default()),
    }
}

/// `Max open files            1024                 524288               files`
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_memory::socket::Listener;

    #[test]
    fn states_of_a_socket_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let seen = || Socket::look(&path, true).state;
        assert_eq!(seen(), State::Missing);
        std::fs::write(&path, "").unwrap();
        assert_eq!(seen(), State::NoSocket);
        std::fs::remove_file(&path).unwrap();
        let listener = Listener::bind(&path, 0o600).unwrap();
        let State::Open { sidecar: Some(process), .. } = seen() else { panic!("{:?}", seen()) };
        assert!(process.open_files.is_some(), "this process listens, and sees its own limits");
        drop(listener);
        // A socket without a listener, and a socket of another kind.
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(seen(), State::Closed { denied: false, .. }), "{:?}", seen());
        drop(other);
        assert!(matches!(seen(), State::Closed { denied: false, .. }), "{:?}", seen());
    }

    #[test]
    fn limit_of_open_files_is_the_soft_one() {
        let limits = "Max processes   7 8 processes\nMax open files            1024                 524288               files\n";
        assert_eq!((open_files(limits), open_files("")), (Some(1024), None));
    }
}
