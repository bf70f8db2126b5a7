//! What surrounds a sidecar does not end it: limits of its memory and of its files.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use transfer_core::tensor::Name;
use transfer_memory::session::{SessionError, WorkerEnd, WorkerOptions};
use transfer_tests::{not_run, programs};

const MIB: u64 = 1 << 20;

/// A `transferd` that a shell starts after `before`.
struct Started {
    child: Child,
    folder: tempfile::TempDir,
}

impl Started {
    fn after(before: &str, arguments: &[&str]) -> Started {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{before} && exec \"$0\" \"$@\"")]).arg(programs::transferd());
        command.args(["--node", "a", "--socket", "worker.sock"]).args(arguments).current_dir(folder.path());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a shell");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("it says something");
        assert!(line.starts_with("transferd ready"), "{line}");
        Started { child, folder }
    }

    fn worker(&self, name: &str, arena_bytes: u64) -> Result<WorkerEnd, SessionError> {
        let options =
            WorkerOptions { name: Name::new(name).expect("a name"), arena_bytes, timeout: Duration::from_secs(60) };
        WorkerEnd::connect(&self.folder.path().join("worker.sock"), &options)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn is_told(refused: Result<WorkerEnd, SessionError>, words: &[&str]) {
    let text = refused.expect_err("there is no room").to_string();
    words.iter().for_each(|word| assert!(text.contains(word), "{word} is missing in {text}"));
}

/// The kernel would end the sidecar by SIGXFSZ.
// Promise: limits-of-the-process, seen to fail
#[test]
fn arena_that_is_longer_than_files_may_be_is_refused() {
    // In blocks of 512 bytes: 8 MiB.
    let sidecar = Started::after("ulimit -f 16384", &["--pool-bytes", "1MiB"]);
    is_told(sidecar.worker("large", 64 * MIB), &["67108864 bytes", "8388608 bytes", "ulimit -f"]);
    sidecar.worker("small", MIB).expect("the sidecar lives");
}

/// A disk that is full, a pipe without a reader: the exit code is that of the error.
#[test]
fn errors_that_cannot_be_written_cause_no_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("file"), "").expect("it can be written");
    let cases: [(PathBuf, &[&str], i32); 4] = [
        (programs::transferctl(), &["status", "--admin", "/nowhere"], 3),
        (programs::transferctl(), &["watch", "--times", "1", "status", "--admin", "/nowhere"], 3),
        (programs::transferd(), &["--node", "a", "--socket", "file"], 1),
        (programs::transferd(), &["--node", "a", "--pool-bytes", "9GiB"], 2),
    ];
    for (program, arguments, code) in cases {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("every Linux has it");
        let status = Command::new(&program).args(arguments).current_dir(folder.path()).stderr(full).status();
        assert_eq!(status.expect("it can be started").code(), Some(code), "{arguments:?}");
    }
}

/// A memory control group, removed when dropped.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Makes a group below another one that has the limit, so that the limit is not its own.
    fn below_a_limit(bytes: u64) -> std::io::Result<MemoryGroup> {
        let name = format!("transfer-limit-{}", std::process::id());
        let make = |root: &Path, file: &str| {
            let group = root.join(&name);
            std::fs::create_dir(&group)?;
            let made = MemoryGroup(group.join("inner"));
            // Writes only a file that the kernel has made.
            std::fs::metadata(group.join(file))?;
            std::fs::write(group.join(file), bytes.to_string())?;
            std::fs::create_dir(&made.0)?;
            Ok(made)
        };
        let v1 = make(Path::new("/sys/fs/cgroup/memory"), "memory.limit_in_bytes");
        v1.or_else(|_: std::io::Error| make(Path::new("/sys/fs/cgroup"), "memory.max"))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let outer = self.0.parent().expect("a group");
        // An ended process leaves its group a moment later. What cannot be made has nothing to remove.
        let _ = transfer_tests::poll(|| match std::fs::remove_dir(&self.0) {
            Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => Err(()),
            _ => Ok(()),
        });
        let _ = std::fs::remove_dir(outer);
    }
}

/// The kernel would kill the sidecar, and with it the session of every worker of the node.
// Promise: limits-of-the-process, seen to fail
#[test]
fn arena_beyond_the_memory_cgroup_is_refused() {
    let group = match MemoryGroup::below_a_limit(100 * MIB) {
        Ok(group) => group,
        Err(e) => return not_run(&format!("no memory control group can be made: {e}")),
    };
    let enter = format!("echo $$ > {}/cgroup.procs", group.0.display());
    let sidecar = Started::after(&enter, &[]);
    is_told(sidecar.worker("large", 400 * MIB), &["400 MiB", "75 MiB at most", "cgroup allows 104857600 bytes"]);
    let small = sidecar.worker("small", 16 * MIB).expect("there is room, for the landing pool too");
    is_told(sidecar.worker("medium", 64 * MIB), &["67108864 bytes", "cgroup allows 104857600 bytes"]);
    drop((small, sidecar));

    let folder = tempfile::tempdir().expect("a folder");
    let mut more = Command::new("sh");
    more.args(["-c", &format!("{enter} && exec \"$0\" \"$@\"")]).arg(programs::transferd());
    more.args(["--node", "a", "--socket", "worker.sock", "--pinned-limit", "1GiB"]).current_dir(folder.path());
    let output = more.output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--pinned-limit 1GiB") && said.contains("104857600 bytes"), "{said}");
}
