//! Tests that cannot be run where they are.

use std::io::Write;

/// Says that the test that calls this is not run, and why; and counts it, where `scripts/host-tests.sh` wants to know.
///
/// # Panics
/// Where that cannot be written down: then it would not be counted.
pub fn not_run(why: &str) {
    eprintln!("not run: {why}");
    if let Some(path) = std::env::var_os("TRANSFER_NOT_RUN") {
        let file = std::fs::File::options().append(true).open(path);
        // One write, for others may do the same.
        let line = format!("{}\n", why.trim().replace('\n', " "));
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("what is not run can be counted");
    }
}
