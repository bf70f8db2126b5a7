//! The inputs that every run replays: a text file for each target, with one input in hexadecimal digits on each line,
//! and remarks after `#`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

/// Returns the path of a target's file of inputs.
#[must_use]
pub fn path(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "corpus", &format!("{target}.hex")].iter().collect()
}

/// Reads the inputs of a target. Empty if the target has no file.
///
/// # Panics
/// If a line is not an even number of hexadecimal digits.
#[must_use]
pub fn read(target: &str) -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(path(target)).unwrap_or_default();
    let inputs = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    inputs.map(|line| bytes(line.trim()).unwrap_or_else(|| panic!("{target}.hex: {line:?} is no bytes"))).collect()
}

/// Adds inputs to those of a target, and returns the path of the file. Empty inputs are left out: mutations produce
/// them anyway.
///
/// # Panics
/// If the file cannot be written.
pub fn add(target: &str, remark: &str, inputs: &[&[u8]]) -> PathBuf {
    let path = path(target);
    let mut text = format!("# {}\n", remark.lines().next().unwrap_or_default());
    for input in inputs.iter().filter(|input| !input.is_empty()) {
        for byte in *input {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    let file = File::options().create(true).append(true).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    path
}

fn bytes(line: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = line.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let pairs = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(pairs.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
