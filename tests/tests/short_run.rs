//! Which of the tests in the guest CI runs: `tests/rdma-vm/tests.py --short-if-tested`, in a repository of its own.

use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A repository with the script in it, and nothing that builds or starts a guest.
struct Repository(TempDir);

impl Repository {
    fn new() -> Repository {
        let repository = Repository(tempfile::tempdir().expect("a folder"));
        repository.git(&["init", "--quiet"]);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("rdma-vm/tests.py");
        repository.write("tests/rdma-vm/tests.py", &fs::read_to_string(script).expect("the script is there"));
        repository
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder can be made");
        fs::write(path, text).expect("it can be written");
    }

    fn git(&self, words: &[&str]) {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgSign=false"]).args(words);
        assert!(git.current_dir(&self.0).status().expect("git can be started").success(), "git {words:?}");
    }

    fn commit(&self, message: &str) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", message]);
    }

    /// Returns the first line of the script. It goes no further: there is no guest here.
    fn says(&self) -> String {
        let script = self.0.path().join("tests/rdma-vm/tests.py");
        let output =
            Command::new("python3").arg(script).arg("--short-if-tested").output().expect("python3 can be started");
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().next().unwrap_or_else(|| panic!("it says nothing: {output:?}")).to_owned()
    }
}

#[test]
fn short_run_needs_a_commit_that_says_that_all_tests_have_passed() {
    let repository = Repository::new();
    repository.commit("Begin\n\nTested-rdma: most");
    let said = repository.says();
    assert!(said.starts_with("rdma-vm: the whole run: ") && said.contains("Tested-rdma: all"), "{said}");
    repository.commit("Say it\n\nTested-rdma: all");
    assert_eq!(repository.says(), "rdma-vm: the short run");
}

#[test]
fn whole_run_is_due_where_something_that_concerns_verbs_has_changed() {
    for concerns in [
        "transfer-verbs/src/lib.rs",
        "transfer-fabric/src/verbs/link.rs",
        "transfer-fabric/src/conformance/mod.rs",
        "transfer-core/src/fabric/mod.rs",
        "tests/rdma-vm/run.sh",
    ] {
        let repository = Repository::new();
        repository.write(concerns, "as tested");
        repository.commit("Say it\n\nTested-rdma: all");
        repository.write("transfer-server/src/lib.rs", "another sidecar");
        repository.commit("Change the sidecar");
        assert_eq!(repository.says(), "rdma-vm: the short run", "{concerns}");
        repository.write(concerns, "changed");
        repository.commit("Change what concerns verbs");
        let said = repository.says();
        assert!(said.starts_with(&format!("rdma-vm: the whole run: {concerns} has changed")), "{said}");
        repository.write(concerns, "as tested");
        repository.commit("Take it back");
        assert_eq!(repository.says(), "rdma-vm: the short run", "{concerns}");
    }
}
