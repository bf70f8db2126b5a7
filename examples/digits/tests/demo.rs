//! The demo as a user runs it: its processes, its exit code, and the files that it leaves behind.
#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail as a test does")]

use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;
use std::time::Duration;
use tempfile::TempDir;

/// A small bulk load, which still exceeds its contents and the landing pool's slots.
const SMALL_BULK: [&str; 4] = ["--bulk-tensors", "12", "--bulk-mib", "1"];

/// The command of the demo, with its own directory for temporary files.
fn demo(temporary: &TempDir, arguments: &[&str]) -> Command {
    build_transferd();
    let mut command = Command::new(env!("CARGO_BIN_EXE_digits"));
    command.arg("demo").args(SMALL_BULK).args(arguments).env("TMPDIR", temporary.path()).stdin(Stdio::null());
    command
}

/// Builds the sidecar beside the demo, where the demo looks for it, unless it exists and is up to date. A test of this
/// package does not make cargo build the programs of others, and the test must not use an outdated one.
fn build_transferd() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_digits")).parent().unwrap();
        if is_up_to_date(&folder.join("transferd")).is_some_and(|is| is) {
            return;
        }
        let profile = folder.file_name().and_then(|name| name.to_str()).unwrap();
        let profile = if profile == "debug" { "dev" } else { profile };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "transfer-server", "--bin", "transferd", "--profile", profile]);
        build.arg("--target-dir").arg(folder.parent().unwrap());
        let output = build.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(output.status.success(), "{build:?}:\n{}", text(&output));
    });
}

/// Whether a program is newer than all its sources, which cargo lists beside it: `program: source source ...`. Asking
/// cargo would be more exact, but for one package it may choose other features than for all, and rebuild most of them.
fn is_up_to_date(program: &Path) -> Option<bool> {
    let modified = |path: &Path| std::fs::metadata(path).ok()?.modified().ok();
    let built = modified(program)?;
    let list = std::fs::read_to_string(program.with_extension("d")).ok()?;
    let (_, sources) = list.split_once(": ")?;
    // A missing source makes a program outdated, too.
    Some(sources.split_whitespace().all(|source| modified(Path::new(source)).is_some_and(|then| then <= built)))
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_full_run_is_good() {
    let temporary = TempDir::new().unwrap();
    let output = demo(&temporary, &["--steps", "600", "--rounds", "1"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("yes, bit for bit"), "{}", text(&output));
    // 600 weights and 600 gradients on A, with no byte copied; 600 of each between the nodes, over the required
    // network.
    let rows = ["A to A 1200 46.1 MB local 0 B", "A to B 600 23.1 MB tcp", "B to A 600 23.1 MB tcp"];
    // The bulk load.
    let bulk = ["A to A 12 12.6 MB local 0 B", "A to B 12 12.6 MB tcp"];
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in rows.iter().chain(&bulk) {
        assert!(text(&output).lines().any(|line| words(line).starts_with(row)), "{row}\n{}", text(&output));
    }
    assert!(is_empty(temporary.path()));
}

#[test]
fn exit_code_reports_too_little_training() {
    let temporary = TempDir::new().unwrap();
    let output = demo(&temporary, &["--steps", "3", "--rounds", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    // The weights are bad, but equal to the reference's.
    assert!(text(&output).contains("yes, bit for bit"), "{}", text(&output));
    assert!(is_empty(temporary.path()));
}

#[test]
fn sigterm_leaves_nothing_behind() {
    let temporary = TempDir::new().unwrap();
    let (mut running, children) = demo_in_the_middle(&temporary);
    signal(&running, Signal::TERM);
    assert_eq!(running.wait().unwrap().code(), Some(1));
    // The processes must be gone at once, because the demo has waited for each of them.
    assert!(children.iter().all(|child| !child.is_alive()));
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_killed_demo_takes_its_processes_with_it() {
    let temporary = TempDir::new().unwrap();
    let (mut running, children) = demo_in_the_middle(&temporary);
    signal(&running, Signal::KILL);
    running.wait().unwrap();
    while children.iter().any(ChildProcess::is_alive) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_death_of_a_worker_ends_the_demo() {
    let output = killed_in_the_middle("worker");
    assert!(text(&output).contains("worker-"), "{}", text(&output));
}

#[test]
fn the_death_of_a_sidecar_ends_the_demo() {
    let output = killed_in_the_middle("transferd");
    // Other processes fail as well, perhaps earlier, but the demo names the cause.
    assert!(text(&output).contains("transferd-"), "{}", text(&output));
}

#[test]
fn missing_sidecar_is_reported_with_advice() {
    let temporary = TempDir::new().unwrap();
    let output = demo(&temporary, &["--transferd", "no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("no/such/program; build it with `cargo build"), "{}", text(&output));
    assert!(is_empty(temporary.path()));
}

/// Kills a process of this role, and returns the output of the demo. Asserts that no process and no file is left.
fn killed_in_the_middle(role: &str) -> Output {
    let temporary = TempDir::new().unwrap();
    let (running, children) = demo_in_the_middle(&temporary);
    let victim = children.iter().find(|child| child.role == role).unwrap();
    kill_process(Pid::from_raw(victim.pid).unwrap(), Signal::KILL).unwrap();
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(children.iter().all(|child| !child.is_alive()));
    assert!(is_empty(temporary.path()));
    output
}

/// A process that the demo has started.
struct ChildProcess {
    pid: i32,
    role: String,
}

impl ChildProcess {
    fn is_alive(&self) -> bool {
        // A zombie, which only the init process has to wait for, counts as dead.
        state_and_parent(self.pid).is_some_and(|(state, _)| state != "Z")
    }
}

/// A demo whose job would take hours, after all its processes have started.
fn demo_in_the_middle(temporary: &TempDir) -> (Child, Vec<ChildProcess>) {
    let long = ["--steps", "100000000"];
    let running = demo(temporary, &long).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut children = Vec::new();
    let everybody = ["ps", "transferd", "transferd", "worker", "worker"];
    // A child is first `digits tied`, and then executes its own program.
    while roles(&children) != everybody {
        std::thread::sleep(Duration::from_millis(5));
        children = children_of(running.id().cast_signed());
    }
    (running, children)
}

fn roles(children: &[ChildProcess]) -> Vec<&str> {
    let mut roles: Vec<&str> = children.iter().map(|child| child.role.as_str()).collect();
    roles.sort_unstable();
    roles
}

fn children_of(parent: i32) -> Vec<ChildProcess> {
    let processes = std::fs::read_dir("/proc").unwrap();
    let pids = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
    let children = pids.filter(|&pid| state_and_parent(pid).is_some_and(|(_, its_parent)| its_parent == parent));
    children.filter_map(|pid| Some(ChildProcess { pid, role: role(pid)? })).collect()
}

/// The role of a process: the first argument of the example, or the name of another program.
fn role(pid: i32) -> Option<String> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = line.split('\0');
    let program = Path::new(words.next()?).file_name()?.to_str()?;
    if program == "digits" { words.next().map(str::to_owned) } else { Some(program.to_owned()) }
}

/// Parses `/proc/PID/stat`: `pid (name) state parent ...`. The name may contain any character, including parentheses.
fn state_and_parent(pid: i32) -> Option<(String, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn signal(process: &Child, signal: Signal) {
    kill_process(Pid::from_child(process), signal).unwrap();
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}
