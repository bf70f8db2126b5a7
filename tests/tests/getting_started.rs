//! Runs the commands of docs/getting-started.md in their order, as a plain user. Only root can become one. Without root, the test
//! reports that it did not run.

use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use transfer_tests::{poll, programs};

/// The id of a user without privileges.
const UID: &str = "54321";

/// Returns the shell commands of a page, without their comments.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("\n```"));
    let lines = blocks.flat_map(|(block, _)| block.lines());
    let commands = lines.map(|line| line.split(" #").next().unwrap_or(line).trim().to_owned());
    commands.filter(|command| !command.is_empty()).collect()
}

/// A command that runs until it is interrupted.
struct Held {
    child: Child,
    command: String,
}

/// A reader of the page, with a folder that takes the place of /tmp/transfer.
struct Reader {
    folder: tempfile::TempDir,
    exports: Vec<(String, String)>,
    held: Vec<Held>,
}

impl Reader {
    fn new() -> Reader {
        let folder = tempfile::Builder::new().prefix("transfer-readme-").tempdir().expect("a folder");
        for program in [programs::transferd(), programs::transferctl()] {
            let name = program.file_name().and_then(|name| name.to_str()).expect("a program has a name").to_owned();
            let _ = programs::for_all(&program, folder.path(), &name);
        }
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        std::fs::copy(readme, folder.path().join("README.md")).expect("the page can be copied");
        let owned = Command::new("chown").args(["-R", UID]).arg(folder.path()).status().expect("chown can be started");
        assert!(owned.success());
        Reader { folder, exports: Vec::new(), held: Vec::new() }
    }

    /// Replaces the page's folder and ports in a command by this reader's folder and by free ports, so that it does
    /// not collide with other tests.
    fn adapted(&self, command: &str, ports: &[(&str, String)]) -> String {
        let mut adapted = command.replace("/tmp/transfer/", &format!("{}/run/", self.folder.path().display()));
        for (port, free) in ports {
            adapted = adapted.replace(port, free);
        }
        adapted
    }

    /// Returns a shell that runs this command as the plain user and writes its output to `log`.
    fn shell(&self, command: &str, log: &File) -> Command {
        let mut shell = Command::new("setpriv");
        shell.args(["--reuid", UID, "--regid", UID, "--clear-groups", "bash", "-c", command]);
        shell.current_dir(self.folder.path()).env_clear().envs(self.exports.iter().cloned());
        shell.env("PATH", format!("{}:/usr/bin:/bin", self.folder.path().display())).env("TERM", "xterm");
        shell.stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor"));
        shell.stderr(log.try_clone().expect("a descriptor"));
        shell
    }

    fn log(&self) -> (File, std::path::PathBuf) {
        let path = self.folder.path().join(format!("{}.log", self.held.len()));
        (File::create(&path).expect("a file"), path)
    }

    /// Runs a command to its end, and checks that its exit code is one of `codes`.
    fn run(&self, command: &str, codes: &[i32]) {
        let (log, path) = self.log();
        let status = self.shell(command, &log).status().expect("setpriv can be started");
        assert!(status.code().is_some_and(|code| codes.contains(&code)), "{command}: {status}: {}", text(&path));
    }

    /// Starts a command that keeps running, and waits until its output contains `words`.
    fn hold(&mut self, command: &str, words: &str) {
        let (log, path) = self.log();
        let child = self.shell(&format!("exec {command}"), &log).spawn().expect("setpriv can be started");
        self.held.push(Held { child, command: command.to_owned() });
        let seen = poll(|| {
            let said = text(&path);
            if said.contains(words) { Ok(()) } else { Err(said) }
        });
        seen.unwrap_or_else(|said| panic!("{command} does not say {words:?}: {said}"));
    }

    /// Interrupts the commands that still run, the last one first.
    fn interrupt_all(&mut self) {
        for mut held in self.held.drain(..).rev() {
            // A sidecar that was drained has ended already.
            if held.child.try_wait().expect("it is a child").is_none() {
                transfer_tests::process::signal(held.child.id(), rustix::process::Signal::INT);
            }
            let status = held.child.wait().expect("it ends");
            // 130: interrupted. 3: its sidecar was drained, so its tensors are no longer published.
            assert!(matches!(status.code(), Some(0 | 3 | 130)), "{}: {status}", held.command);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for held in &mut self.held {
            let _ = held.child.kill();
            let _ = held.child.wait();
        }
    }
}

/// Returns a loopback port that is free at this moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("a log can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn commands_of_getting_started_run_as_a_plain_user() {
    if !rustix::process::geteuid().is_root() {
        transfer_tests::not_run("only root can start a command as another user");
        return;
    }
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/getting-started.md"))
        .expect("it is there");
    let commands = commands(&page);
    assert!(commands.len() >= 15, "{commands:#?}");
    let ports: Vec<_> = ["7471", "7472"].into_iter().map(|port| (port, free_port().to_string())).collect();
    let mut reader = Reader::new();
    for command in &commands {
        let adapted = reader.adapted(command, &ports);
        let mut words = adapted.split(' ');
        match (words.next().unwrap_or_default(), words.next().unwrap_or_default()) {
            // These commands build and test the project, which has happened before this test.
            ("cargo", "build") | ("make", "demo" | "test") => {}
            ("export", path) if path.starts_with("PATH=") => {}
            ("export", setting) => {
                let (name, value) = setting.split_once('=').expect("a variable has a value");
                reader.exports.push((name.to_owned(), value.to_owned()));
            }
            ("transferd", _) => reader.hold(&adapted, "transferd ready"),
            ("transferctl", "push") => reader.hold(&adapted, "published until this ends"),
            // `top` draws only on a terminal, which `script` provides.
            ("transferctl", "top") => {
                reader.hold(&format!("script -qfec 'stty cols 100 rows 40; {adapted}' /dev/null"), "node")
            }
            // 4: there is no RDMA on this host.
            ("transferctl", "devices") => reader.run(&adapted, &[0, 4]),
            ("transferctl", _) => reader.run(&adapted, &[0]),
            _ => panic!("{command}: the page has a command that this test does not know"),
        }
    }
    reader.interrupt_all();
}
