//! `transferctl top` in a real pseudo-terminal: its screen, and the state of the terminal, which is restored however
//! the program ends.

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use transfer_tests::{Scene, Sidecar, Spec, poll, programs};

/// Makes a pseudo-terminal of 100 x 40. Returns its two ends: the one that shows, and the one that a program has.
fn terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pseudo-terminal");
    grantpt(&ours).expect("its other end is ours");
    unlockpt(&ours).expect("its other end can be opened");
    let path = ptsname(&ours, Vec::new()).expect("it has a name");
    let path = std::ffi::OsStr::from_bytes(path.as_bytes());
    let theirs = OpenOptions::new().read(true).write(true).open(path).expect("its other end");
    let size = Winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).expect("a terminal has a size");
    (File::from(ours), theirs)
}

/// A terminal of 100 x 40 with `transferctl top` in it.
struct Screen {
    ours: File,
    theirs: File,
    before: Termios,
    child: Child,
    drawn: Arc<Mutex<Vec<u8>>>,
}

impl Screen {
    fn start(sidecar: &Sidecar) -> Screen {
        let (ours, theirs) = terminal();
        let before = tcgetattr(&theirs).expect("a terminal has modes");
        let end = || theirs.try_clone().expect("a descriptor");
        let mut command = Command::new(programs::transferctl());
        command.args(["top", "--every", "50ms", "--admin"]).arg(sidecar.admin_socket()).env("TERM", "xterm");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("transferctl can be started");
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, seen) = (ours.try_clone().expect("a descriptor"), drawn.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails once no process has the other end open.
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                seen.lock().expect("a lock").extend_from_slice(&bytes[..n]);
            }
        });
        Screen { ours, theirs, before, child, drawn }
    }

    /// Returns everything that was drawn so far.
    fn raw(&self) -> String {
        String::from_utf8_lossy(&self.drawn.lock().expect("a lock")).into_owned()
    }

    /// Returns the drawn words, separated by one space each: the program moves the cursor instead of drawing spaces.
    fn text(&self) -> String {
        let raw = self.raw();
        let parts = raw.split("\x1b[").map(|part| part.trim_start_matches(|c: char| "0123456789;?".contains(c)));
        let words: Vec<_> = parts.map(|part| part.strip_prefix(['H', 'm', 'h', 'l']).unwrap_or(part)).collect();
        words.join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn until(&self, words: &[&str], text: impl Fn(&Screen) -> String) {
        let seen = poll(|| {
            let text = text(self);
            if words.iter().all(|word| text.contains(word)) { Ok(()) } else { Err(text) }
        });
        seen.unwrap_or_else(|text| {
            panic!("{words:?} are never there: {:?}", text.chars().take(3000).collect::<String>())
        });
    }

    #[track_caller]
    fn shows(&self, words: &[&str]) {
        self.until(words, Screen::text);
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.theirs).expect("a terminal has modes").local_modes.contains(LocalModes::ICANON)
    }

    /// Waits for the end of the program, and checks that the terminal has its previous modes, cursor and screen.
    #[track_caller]
    fn ends(mut self) -> ExitStatus {
        let ended = poll(|| self.child.try_wait().expect("a child can be waited for").ok_or(()));
        let Ok(status) = ended else { panic!("it does not end: {:?}", self.text()) };
        let after = tcgetattr(&self.theirs).expect("a terminal has modes");
        assert_eq!(format!("{after:?}"), format!("{:?}", self.before));
        self.until(&["\x1b[?1049l", "\x1b[?25h"], Screen::raw);
        status
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The program has ended already, unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn top_draws_live_and_restores_the_terminal() {
    let mut scene = Scene::two();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("w", Spec::bytes(4096, 1)).get();
    taker.fetch("w").get();
    let waiting = taker.fetch("w").at_least(9).start();
    scene.b().until("it waits", |s| s.links.iter().any(|l| l.pulls == 1));

    // Typed keys and signals end the program.
    let by_key = |keys: &[u8]| {
        let mut screen = Screen::start(scene.b());
        screen.shows(&[
            "node b",
            "serving",
            "links",
            "landing pools",
            "taker",
            "slowest waits",
            "node \"a\" to send",
            "q quits",
        ]);
        assert!(screen.is_raw());
        screen.ours.write_all(keys).expect("it can be typed");
        screen.ends()
    };
    for keys in [b"q", b"\x03"] {
        assert_eq!(by_key(keys).code(), Some(0));
    }
    for signal in [Signal::TERM, Signal::HUP] {
        let screen = Screen::start(scene.b());
        screen.shows(&["q quits"]);
        transfer_tests::process::signal(screen.child.id(), signal);
        assert_eq!(screen.ends().code(), Some(0));
    }
    // `--once` prints plain text, for programs.
    let mut once = Command::new(programs::transferctl());
    once.args(["top", "--once", "--every", "50ms", "--admin"]).arg(scene.b().admin_socket());
    let output = once.output().expect("transferctl can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("node b") && text.contains("taker"), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    let mut live = Command::new(programs::transferctl());
    let nowhere = live.args(["top", "--admin"]).arg(scene.b().admin_socket()).output().expect("it can be started");
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(nowhere.status.code() == Some(2) && said.contains("--once"), "{said}");

    // The screen shows that the sidecar is gone, and then its successor.
    let mut screen = Screen::start(scene.b());
    screen.shows(&["q quits"]);
    scene.nodes[1].kill();
    screen.shows(&["NO ANSWER", "is gone"]);
    scene.nodes[1].restart();
    let newcomer = scene.b().worker("newcomer");
    screen.shows(&["newcomer"]);
    screen.ours.write_all(b"q").expect("it can be typed");
    assert_eq!(screen.ends().code(), Some(0));
    drop((waiting, giver, taker, newcomer));
}

/// A window that is closed, or a connection that is lost: the program ends by itself, whether or not the kernel tells it
/// by SIGHUP.
// Promise: closed-terminal, seen to fail
#[test]
fn closed_terminal_ends_it_without_a_signal() {
    let scene = Scene::one();
    for controls in [true, false] {
        let (mut ours, theirs) = terminal();
        let mut command = Command::new("setsid");
        command.args(if controls { &["--ctty"][..] } else { &[] }).arg(programs::transferctl());
        command.args(["top", "--every", "50ms", "--admin"]).arg(scene.a().admin_socket()).env("TERM", "xterm");
        let end = || theirs.try_clone().expect("a descriptor");
        let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("setsid is in util-linux");
        drop(theirs);
        // It has drawn.
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("quits") {
            let mut bytes = [0; 4096];
            let n = ours.read(&mut bytes).expect("it draws");
            seen.extend_from_slice(&bytes[..n]);
        }
        drop(ours);
        let status = poll(|| child.try_wait().expect("a child").ok_or(())).expect("it ends");
        assert!(status.code().is_some(), "controls: {controls}: {status}");
    }
    scene.end();
}
