//! `certs`: the certificates of a job, made by an authority of its own.
//!
//! # Layout
//! - `node`: the nodes of `--node`. `authority`: the authority, and the certificates that it signs. `error`: the
//!   errors.

mod authority;
mod error;
mod node;

pub use error::CertsError;
pub use node::{Node, NotANode};

use authority::Authority;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use transfer_core::text::printable;
use transfer_terminal::outln;
use transfer_terminal::units::counted;

/// Options of `certs`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The directory of the files; it is made if it is missing
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// A node: its name, as transferd's --node has it, and the DNS names and IP addresses at which others reach it. The
    /// node that hosts the directory needs the one in the others' --directory
    #[arg(long = "node", required = true, value_name = "NAME[=HOST,...]")]
    pub nodes: Vec<Node>,

    /// The number of days for which the nodes' certificates are valid, 1 to 3650
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
}

/// Makes the files. Existing files are not changed.
///
/// # Errors
/// [`CertsError`]. If a file cannot be written, the files before it stay.
pub fn run(options: &Options) -> Result<(), CertsError> {
    let Options { out, nodes, days } = options;
    let files = nodes.iter().map(|node| Files::of(out, node)).collect::<Vec<_>>();
    for (at, node) in nodes.iter().enumerate() {
        if nodes[..at].iter().any(|other| other.name == node.name) {
            return Err(CertsError::Twice { name: node.name.clone() });
        }
        // This is checked before any file is made.
        let Files { certificate, key } = &files[at];
        if let Some(path) = [certificate, key].into_iter().find(|path| path.symlink_metadata().is_ok()) {
            return Err(CertsError::Exists { path: path.clone() });
        }
    }
    std::fs::create_dir_all(out).map_err(failed("make", out))?;
    let (authority, is_new) = Authority::in_folder(out)?;
    if is_new {
        outln!("{}: a new authority; its key {} signs further nodes", path(out, "ca.pem"), path(out, "ca.key"));
    } else {
        outln!("{}: the authority, which was there", path(out, "ca.pem"));
    }
    for (node, Files { certificate, key }) in nodes.iter().zip(&files) {
        let (pem, key_pem) = authority.sign(node, *days)?;
        // The key is written first, so that a sidecar that watches the certificate finds both.
        write_new(key, &key_pem, 0o600)?;
        write_new(certificate, &pem, 0o644)?;
        let hosts = if node.hosts.is_empty() { String::new() } else { format!(" at {}", node.hosts.join(", ")) };
        let valid = counted((*days).into(), "day", "days");
        outln!("{}, {}: {}{hosts}, for {valid}", shown(certificate), shown(key), node.name);
    }
    Ok(())
}

/// The two files of a node.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn of(folder: &Path, node: &Node) -> Files {
        let path = |extension| folder.join(format!("{}.{extension}", node.name));
        Files { certificate: path("pem"), key: path("key") }
    }
}

fn shown(path: &Path) -> String {
    printable(path.display().to_string())
}

fn path(folder: &Path, name: &str) -> String {
    shown(&folder.join(name))
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl Fn(std::io::Error) -> CertsError + 'a {
    move |source| CertsError::File { what, path: path.to_owned(), source }
}

/// Writes a new file with these permissions. If that fails, the file is removed.
fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), CertsError> {
    let mut file = match std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(CertsError::Exists { path: path.to_owned() });
        }
        opened => opened.map_err(failed("make", path))?,
    };
    file.write_all(text.as_bytes()).map_err(|e| {
        // This call has made the file.
        let _ = std::fs::remove_file(path);
        failed("write", path)(e)
    })
}
