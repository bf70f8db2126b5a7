//! `transferctl copy`: files go to the folder of another sidecar, completely or not at all, and nowhere else.

mod certificates;

use crate::other_user::{UID, can_be_others};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use transfer_proto::v1;
use transfer_tests::process;
use transfer_tests::status::Seen;
use transfer_tests::{Carrier, Ctl, Scene, Spec, poll, programs};
use v1::admin_client::AdminClient;

/// A file that is copied for longer than any test needs: so many pieces of 4 KiB. It takes no room on the disk.
const LONG_BYTES: u64 = 64 << 20;

/// Two sidecars; `b` has a folder for copies.
struct World {
    scene: Scene,
    folder: tempfile::TempDir,
    files: tempfile::TempDir,
}

impl World {
    /// Starts the sidecars, for readers; `more` are arguments of b.
    fn new(more: &[&str]) -> World {
        World::at(tempfile::tempdir().expect("a folder"), &[&["--copy-role", "reader"], more].concat())
    }

    fn at(folder: tempfile::TempDir, more: &[&str]) -> World {
        let path = folder.path().to_str().expect("a path").to_owned();
        let common = ["--pool-bytes", "8MiB", "--listen", "127.0.0.1:0", "--socket-mode", "666"];
        let b = [&common[..], &["--copy-folder", &path], more].concat();
        let scene = Scene::over(Carrier::chosen(), &[&common, &b]);
        World { scene, folder, files: tempfile::tempdir().expect("a folder") }
    }

    /// Makes a file with bytes that differ from place to place.
    fn file(&self, name: &str, len: usize) -> PathBuf {
        let bytes: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let path = self.files.path().join(name);
        fs::write(&path, bytes).expect("it can be written");
        path
    }

    /// Makes a file of [`LONG_BYTES`] zeros.
    fn long(&self) -> PathBuf {
        let path = self.files.path().join("long");
        fs::File::create(&path).and_then(|file| file.set_len(LONG_BYTES)).expect("it can be made");
        path
    }

    /// A command that copies a file from node a.
    fn copy(&self, file: &Path, to: &str) -> Ctl {
        Ctl::of(self.scene.a(), &["copy"]).arg(file).arg(to)
    }

    /// Starts a copy of a long file to `b:long`, and returns once bytes are under way.
    fn start_long(&self, file: &Path, to: &str) -> Copying {
        let (before, a) = (self.under_way(), self.scene.a());
        let mut command = Command::new(programs::transferctl());
        command.arg("copy").arg(file).arg(to).args(["--message-size", "4KiB"]);
        command.env("TRANSFER_SOCKET", a.socket()).env("TRANSFER_ADMIN", a.admin_socket());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let child = Copying(Some(child));
        let b = self.scene.b();
        b.until("the copy is under way", |s| {
            s.sessions.iter().filter(|s| s.worker.starts_with("copy-")).count() > before
                && s.status.counters.as_ref().is_some_and(|c| c.finished.iter().any(|path| path.transfers > 0))
        });
        child
    }

    fn under_way(&self) -> usize {
        self.scene.b().status().sessions.iter().filter(|s| s.worker.starts_with("copy-")).count()
    }

    /// The names of all files in the folder, also hidden ones.
    fn names(&self) -> Vec<String> {
        names(self.folder.path())
    }

    #[track_caller]
    fn same(&self, file: &Path, name: &str) {
        let (sent, got) = (fs::read(file).expect("it is there"), fs::read(self.folder.path().join(name)));
        assert!(sent == got.expect("it came"), "{name} differs");
    }

    /// Counts the landing pools of other users, which stay after their workers, as there from the start.
    fn forget_pools(&mut self) {
        for node in 0..2 {
            self.scene.nodes[node].until("nobody is connected", |s| s.sessions.is_empty());
            self.scene.note_idle_of(node);
        }
    }

    /// Checks that no copy and nothing of one is left, in the folder and in the sidecars.
    #[track_caller]
    fn ends_with(self, names: &[&str]) {
        self.scene.b().until("no copy is under way", |s| s.sessions.is_empty());
        assert_eq!(self.names(), names);
        self.scene.end();
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().expect("it can be read").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = entries.map(|name| name.into_string().expect("a name")).collect();
    names.sort();
    names
}

/// A copy that runs. It is killed when dropped.
struct Copying(Option<Child>);

impl Copying {
    fn id(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    fn signal(&self, signal: Signal) {
        process::signal(self.id(), signal);
    }

    /// Waits until it has ended. Returns its exit code and its standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let output = self.0.take().expect("it runs").wait_with_output().expect("it can be waited for");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

// Promise: copied-files
#[test]
fn files_arrive_as_they_were() {
    let world = World::new(&[]);
    fs::create_dir_all(world.folder.path().join("deep/er")).expect("folders");
    let fabric = Carrier::chosen().name();
    for (len, size) in
        [(0, "4KiB"), (1, "4KiB"), (4096, "4KiB"), (100_001, "4KiB"), (3 << 20, "1MiB"), (70_000, "64MiB")]
    {
        let file = world.file("f", len);
        let to = format!("b:deep/er/{len}");
        let said = world.copy(&file, &to).arg("--message-size").arg(size).arg("--json").ends(0, &[]);
        let told = &said.json_lines()[0];
        assert_eq!((&told["node"], &told["bytes"], &told["fabric"]), (&"b".into(), &len.into(), &fabric.into()));
        world.same(&file, &format!("deep/er/{len}"));
    }
    // By the address; a name that looks like no name; and a copy within one node.
    let file = world.file("g", 5000);
    let to = format!("{}:deep/..name", world.scene.b().address());
    world.copy(&file, &to).ends(0, &["b:deep/..name", "digests are equal"]);
    world.same(&file, "deep/..name");
    Ctl::of(world.scene.b(), &["copy"]).arg(&file).arg("b:own").ends(0, &["fabric=local"]);
    world.same(&file, "own");
    world.ends_with(&["deep", "own"]);
}

// Promise: replaced-files, seen to fail
// Promise: copy-folder
#[test]
fn nothing_is_overwritten_unasked() {
    let world = World::new(&[]);
    let (first, second) = (world.file("first", 9000), world.file("second", 5000));
    world.copy(&first, "b:f").ends(0, &[]);
    world.copy(&second, "b:f").ends(1, &["\"f\" exists already", "--overwrite"]);
    world.same(&first, "f");
    // What was private stays so.
    let place = world.folder.path().join("f");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).expect("it is ours");
    world.copy(&second, "b:f").arg("--overwrite").ends(0, &[]);
    world.same(&second, "f");
    assert_eq!(fs::metadata(&place).expect("it is there").mode() & 0o7777, 0o600);
    // A file that comes while another one is copied to its place.
    let long = world.long();
    let copying = world.start_long(&long, "b:long");
    copying.signal(Signal::STOP);
    fs::write(world.folder.path().join("long"), "theirs").expect("it can be written");
    copying.signal(Signal::CONT);
    let (code, said) = copying.end();
    assert!(code == Some(1) && said.contains("\"long\" exists already"), "{code:?} {said}");
    assert_eq!(fs::read_to_string(world.folder.path().join("long")).expect("it is there"), "theirs");
    world.ends_with(&["f", "long"]);
}

// Promise: copy-folder, seen to fail
// Promise: attacker-as-copier
#[test]
fn no_path_leads_out_of_the_folder() {
    let world = World::new(&[]);
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("f"), "theirs").expect("it can be written");
    let at = |name: &str| world.folder.path().join(name);
    fs::create_dir(at("plain")).expect("a folder");
    symlink(outside.path(), at("link")).expect("a link");
    symlink(outside.path().join("f"), at("f")).expect("a link");
    assert!(Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo").success());
    let file = world.file("x", 100);
    let absolute = format!("b:{}", outside.path().join("f").display());
    for (to, code, word) in [
        ("b:../x", 2, "has .. in it"),
        ("b:plain/../../x", 2, "has .. in it"),
        (absolute.as_str(), 2, "begins with /"),
        ("b:plain/", 2, "empty name"),
        ("b:link/f", 1, "behind a symbolic link"),
        ("b:link/new", 1, "behind a symbolic link"),
        ("b:f", 1, "a symbolic link"),
        ("b:pipe", 1, "a named pipe"),
        ("b:plain", 1, "a folder"),
        ("b:none/x", 6, "there is no folder \"none\""),
    ] {
        world.copy(&file, to).arg("--overwrite").ends(code, &[word]);
    }
    // What is copied is a regular file, too.
    let pipe = world.files.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    world.copy(&pipe, "b:x").ends(1, &["is a pipe, and not a regular file"]);
    assert_eq!(fs::read_to_string(outside.path().join("f")).expect("it is there"), "theirs");
    assert_eq!(names(outside.path()), ["f"]);
    world.ends_with(&["f", "link", "pipe", "plain"]);
}

// Promise: copied-files
#[test]
fn a_file_that_changes_is_not_copied() {
    for change in [LONG_BYTES + 1, LONG_BYTES - 1, 0] {
        let world = World::new(&[]);
        let long = world.long();
        let copying = world.start_long(&long, "b:long");
        copying.signal(Signal::STOP);
        fs::File::options().write(true).open(&long).and_then(|file| file.set_len(change)).expect("it can be changed");
        copying.signal(Signal::CONT);
        let (code, said) = copying.end();
        assert!(code == Some(1) && said.contains("has changed while it was read"), "{change}: {code:?} {said}");
        world.ends_with(&[]);
    }
    // Also if its length stays.
    let world = World::new(&[]);
    let long = world.long();
    let copying = world.start_long(&long, "b:long");
    copying.signal(Signal::STOP);
    fs::File::options().write(true).open(&long).and_then(|file| file.write_all_at(b"x", 0)).expect("it can be changed");
    copying.signal(Signal::CONT);
    let (code, said) = copying.end();
    assert!(code == Some(1) && said.contains("has changed while it was read"), "{code:?} {said}");
    world.ends_with(&[]);
}

// Promise: copied-files, seen to fail
#[test]
fn a_killed_sender_leaves_nothing() {
    let world = World::new(&[]);
    let long = world.long();
    let copying = world.start_long(&long, "b:long");
    assert_eq!(world.names(), [""; 0], "a file has no name before it is complete");
    copying.signal(Signal::KILL);
    assert_eq!(copying.end().0, None);
    // An interruption ends it in order.
    world.scene.b().until("the first copy is over", |s| s.sessions.is_empty());
    let copying = world.start_long(&long, "b:long");
    copying.signal(Signal::INT);
    assert_eq!(copying.end().0, Some(130));
    world.ends_with(&[]);
}

// Promise: copied-files
#[test]
fn a_killed_receiver_leaves_nothing() {
    let mut world = World::new(&[]);
    let long = world.long();
    let copying = world.start_long(&long, "b:long");
    world.scene.nodes[1].kill();
    let (code, said) = copying.end();
    assert!(code == Some(3), "{code:?} {said}");
    assert_eq!(world.names(), [""; 0]);
    world.scene.nodes[1].restart();
    world.scene.note_idle_of(1);
    let file = world.file("f", 5000);
    world.copy(&file, "b:f").ends(0, &[]);
    world.same(&file, "f");
    world.ends_with(&["f"]);
}

// Promise: copy-folder
// Promise: attacker-as-copier
#[test]
fn limits_are_kept_and_named() {
    let world = World::new(&["--copy-max-bytes", "32MiB", "--copy-total-bytes", "48MiB", "--copy-at-once", "4"]);
    let long = world.long();
    world.copy(&long, "b:long").ends(1, &["67108864 bytes", "--copy-max-bytes is 32MiB"]);
    fs::File::options().write(true).open(&long).and_then(|file| file.set_len(32 << 20)).expect("it can be shorter");
    let first = world.start_long(&long, "b:first");
    first.signal(Signal::STOP);
    world.copy(&long, "b:first").ends(1, &["another copy to \"first\" is under way"]);
    world
        .copy(&long, "b:second")
        .ends(1, &["--copy-total-bytes 48MiB", "0 bytes of files, and 33554432 of copies under way"]);
    fs::File::options().write(true).open(&long).and_then(|file| file.set_len(16 << 20)).expect("it can be shorter");
    let second = world.start_long(&long, "b:second");
    second.signal(Signal::STOP);
    let small = world.file("small", 10);
    // All callers without a certificate are one caller, which leaves slots to others.
    world
        .copy(&small, "b:small")
        .ends(1, &["a caller without a certificate has 2 copies under way here", "half of --copy-at-once 4"]);
    // Another caller gets one, and finds the folder full.
    let admin = world.scene.b().admin_socket();
    world.copy(&small, "b:admins").arg("--to-admin").arg(admin).ends(1, &["--copy-total-bytes 48MiB"]);
    drop(first);
    // The file was cut meanwhile, so this one still is whole.
    second.signal(Signal::CONT);
    assert_eq!(second.end().0, Some(0));
    world.scene.b().until("no copy is under way", |s| s.sessions.is_empty());
    fs::File::options().write(true).open(&long).and_then(|file| file.set_len(32 << 20)).expect("it can be longer");
    fs::write(world.folder.path().join("other"), [0; 1]).expect("it can be written");
    world.copy(&long, "b:third").ends(1, &["16777217 bytes of files, and 0 of copies"]);
    world.copy(&small, "b:small").ends(0, &[]);
    world.ends_with(&["other", "second", "small"]);
}

// Promise: copied-files
#[test]
fn a_full_disk_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(folder.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return transfer_tests::not_run("only root can mount a small file system");
    }
    let mount = folder.path().to_owned();
    let world = World::at(folder, &["--copy-role", "reader"]);
    let file = world.file("f", 2 << 20);
    world.copy(&file, "b:f").ends(1, &["cannot write \"f\"", "No space left on device"]);
    assert_eq!(world.names(), [""; 0]);
    let small = world.file("small", 900 << 10);
    world.copy(&small, "b:small").ends(0, &[]);
    world.copy(&small, "b:again").ends(1, &["No space left on device"]);
    world.same(&small, "small");
    world.scene.b().until("no copy is under way", |s| s.sessions.is_empty());
    assert_eq!(world.names(), ["small"]);
    // The sidecar has the folder open until it ends.
    world.scene.end();
    assert!(Command::new("umount").arg(mount).status().expect("umount").success());
}

// Promise: copy-folder
// Promise: copy-callers
// Promise: item-copy
#[test]
fn without_a_folder_or_a_role_nothing_is_copied() {
    let scene = Scene::two();
    let file = scene.folder().join("file.log");
    fs::write(&file, "bytes").expect("it can be written");
    Ctl::of(scene.a(), &["copy"]).arg(&file).arg("b:f").ends(1, &["takes no files", "--copy-folder"]);
    Ctl::of(scene.a(), &["copy"]).arg(&file).arg("c:f").ends(2, &["\"c\"", "there are: a, b"]);
    scene.end();

    // The default role is that of an administrator, who comes by the admin socket if there are no certificates.
    let mut world = World::at(tempfile::tempdir().expect("a folder"), &[]);
    let file = world.file("f", 5000);
    world.copy(&file, "b:f").ends(1, &["without TLS nobody may administer over TCP"]);
    let admin = world.scene.b().admin_socket();
    world.copy(&file, "b:f").arg("--to-admin").arg(&admin).ends(0, &[]);
    world.same(&file, "f");
    if can_be_others() {
        let (code, said) = as_another(&world, &file, &["b:g", "--to-admin", admin.to_str().expect("a path")]);
        assert!(code == Some(1) && said.contains("user id 54321 may read here and nothing else"), "{code:?} {said}");
    }
    world.forget_pools();
    world.ends_with(&["f"]);
}

/// Runs a copy from node a as another user. Returns its exit code and its output.
fn as_another(world: &World, file: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let program = programs::for_all(&programs::transferctl(), world.scene.folder(), "transferctl.log");
    let copy = world.scene.folder().join("copied.log");
    fs::copy(file, &copy).expect("it can be copied");
    let (a, mut command) = (world.scene.a(), Command::new(program));
    command.arg("copy").arg(copy).args(arguments).uid(UID).gid(UID);
    let output = command.env("TRANSFER_SOCKET", a.socket()).env("TRANSFER_ADMIN", a.admin_socket()).output();
    let output = output.expect("it starts");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), said)
}

/// The sender's worker has to be of the tenant of copies. The caller's tenant does not matter.
// Promise: copy-callers
// Promise: attacker-as-copier
// Promise: item-copy
#[test]
fn tensors_of_another_tenant_become_no_file() {
    if !can_be_others() {
        return;
    }
    let mut world = World::new(&[]);
    let file = world.file("f", 50_000);
    let (code, said) = as_another(&world, &file, &["b:f"]);
    assert!(code == Some(1) && said.contains("piece 1 of 1 did not come"), "{code:?} {said}");
    assert!(said.contains("54321"), "{said}");
    world.forget_pools();
    assert_eq!(world.names(), [""; 0]);
    world.ends_with(&[]);

    // With that user as the tenant, it is a file, and those of others are none.
    let mut world = World::new(&["--copy-tenant", "54321"]);
    let file = world.file("f", 50_000);
    let (code, said) = as_another(&world, &file, &["b:f"]);
    assert_eq!(code, Some(0), "{said}");
    world.same(&file, "f");
    world.copy(&file, "b:g").ends(1, &["piece 1 of 1 did not come", "54321"]);
    world.forget_pools();
    world.ends_with(&["f"]);
}

/// Makes a call by hand. Returns its failure.
fn refused(world: &World, request: v1::CopyRequest) -> tonic::Status {
    let answer = world.scene.b().admin().call(|channel| async move {
        let mut reports = AdminClient::new(channel).copy(request).await?.into_inner();
        while let Some(report) = reports.message().await? {
            if let Some(done) = report.done {
                return Ok(done);
            }
        }
        Err(tonic::Status::unknown("it ended without a word"))
    });
    answer.expect_err("it is refused")
}

// Promise: copied-files
// Promise: attacker-as-copier
#[test]
fn a_sender_that_lies_leaves_nothing() {
    let world = World::new(&[]);
    let mut liar = world.scene.a().worker("liar");
    let request = |key: &str| v1::CopyRequest {
        path: "f".into(),
        bytes: 8192,
        message_bytes: 4096,
        key: key.into(),
        from: "a".into(),
        ..v1::CopyRequest::default()
    };
    // A piece of another length, and another type.
    liar.push("short", Spec::bytes(4095, 1)).version(1).get();
    let why = refused(&world, request("short"));
    assert_eq!(why.code(), tonic::Code::InvalidArgument, "{why}");
    assert!(why.message().contains("piece 1 of 2 has 4095 bytes and has to have 4096"), "{why}");
    // A digest that is another one.
    liar.push("k", Spec::bytes(4096, 1)).version(1).keep(transfer_tests::order::Until::Deleted).get();
    liar.push("k", Spec::bytes(4096, 2)).version(2).keep(transfer_tests::order::Until::Deleted).get();
    liar.push("k", Spec::bytes(32, 3)).version(3).keep(transfer_tests::order::Until::Deleted).get();
    let why = refused(&world, request("k"));
    assert_eq!(why.code(), tonic::Code::DataLoss, "{why}");
    for (request, word) in [
        (v1::CopyRequest { message_bytes: 4095, ..request("k") }, "message_bytes is 4095"),
        (v1::CopyRequest { message_bytes: u64::MAX, ..request("k") }, "message_bytes is"),
        (v1::CopyRequest { key: String::new(), ..request("k") }, "key: "),
        (v1::CopyRequest { from: String::new(), ..request("k") }, "from: "),
        (v1::CopyRequest { path: "a\0b".into(), ..request("k") }, "zero byte"),
        (v1::CopyRequest { path: "x".repeat(5000), ..request("k") }, "4095 bytes"),
    ] {
        let why = refused(&world, request);
        assert!(why.code() == tonic::Code::InvalidArgument && why.message().contains(word), "{why}");
    }
    let why = refused(&world, v1::CopyRequest { bytes: u64::MAX, ..request("k") });
    assert!(why.code() == tonic::Code::ResourceExhausted && why.message().contains("--copy-max-bytes"), "{why}");
    let why = refused(&world, v1::CopyRequest { from: "nobody".into(), ..request("k") });
    assert!(why.code() == tonic::Code::Unavailable && why.message().contains("no link to node nobody"), "{why}");
    assert_eq!(world.names(), [""; 0]);
    drop(liar);
    world.ends_with(&[]);
}

/// The reports of a copy wait for a caller that reads none, and the copy and its slot do not.
// Promise: copy-folder
#[test]
fn a_caller_that_reads_nothing_keeps_no_slot() {
    let world = World::new(&["--copy-at-once", "1"]);
    let mut sender = world.scene.a().worker("sender");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", world.scene.b().address()));
    // The sidecar may send headers and no message.
    let endpoint = endpoint.expect("an address").initial_stream_window_size(0);
    // As many as are reported one by one, and as many as are fetched ahead of them.
    let (reported, ahead) = (8, 4);
    let pieces = reported + ahead;
    let request = v1::CopyRequest {
        path: "f".into(),
        bytes: pieces * 4096,
        message_bytes: 4096,
        key: "k".into(),
        from: "a".into(),
        ..v1::CopyRequest::default()
    };
    let call = async { AdminClient::new(endpoint.connect().await.expect("it listens")).copy(request).await };
    let reports = runtime.block_on(call).expect("it begins");
    let fetched = |s: &Seen| s.counters.iter().flat_map(|c| &c.finished).map(|path| path.transfers).sum::<u64>();
    for version in 1..=pieces + 1 {
        if version <= reported {
            // The piece before was written, since another one is asked for. Its report was due before that.
            world.scene.b().until("it asks for the next pieces", |s| {
                fetched(s) == version - 1
                    && s.sessions.iter().any(|s| s.worker.starts_with("copy-") && s.operations == ahead)
            });
            // The interval of reports: that of the next piece is due, too. They are more than may wait.
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let bytes = if version > pieces { 32 } else { 4096 };
        sender.push("k", Spec::bytes(bytes, 1)).version(version).keep(transfer_tests::order::Until::Deleted).get();
    }
    world.scene.b().until("the copy is over", |s| s.sessions.iter().all(|s| !s.worker.starts_with("copy-")));
    let small = world.file("small", 10);
    let copied = poll(|| match world.copy(&small, "b:small").run() {
        said if said.code == 0 => Ok(()),
        said => Err(said.text()),
    });
    assert_eq!(copied, Ok(()));
    drop(reports);
    drop(sender);
    world.ends_with(&["small"]);
}

/// A folder that is none is an error of the start.
#[test]
fn a_folder_that_cannot_be_opened_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    let socket = folder.path().join("w.sock");
    for check in [&["--check"][..], &[]] {
        let mut command = Command::new(programs::transferd());
        command.args(check).arg("--socket").arg(&socket).arg("--copy-folder").arg(&missing);
        let output = command.output().expect("it can be started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("--copy-folder") && said.contains("missing"), "{said}");
    }
    let left = poll(|| if names(folder.path()).is_empty() { Ok(()) } else { Err(names(folder.path())) });
    assert!(left.is_ok(), "{left:?}");
}
