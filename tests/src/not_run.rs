//! Reports tests that cannot be run on this machine.

use std::io::Write;

/// Reports that the calling test is not run, and why. Appends a line to the file that `TRANSFER_NOT_RUN` names, by
/// which `scripts/host-tests.sh` counts these tests.
///
/// # Panics
/// If the line cannot be written: the test would not be counted.
pub fn not_run(why: &str) {
    eprintln!("not run: {why}");
    if let Some(path) = std::env::var_os("TRANSFER_NOT_RUN") {
        let file = std::fs::File::options().append(true).open(path);
        // A single write, because other tests may append at the same time.
        let line = format!("{}\n", why.trim().replace('\n', " "));
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("what is not run can be counted");
    }
}
