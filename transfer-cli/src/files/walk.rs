//! The files below a directory.

use super::beneath::Root;
use super::error::FilesError;
use super::input::what_it_is;
use rustix::fs::{AtFlags, Dir, FileType, OFlags, statat};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The contents of a directory.
#[derive(Debug)]
pub(super) struct Below {
    /// The directory.
    pub(super) root: Arc<Root>,
    /// The regular files: their paths from the directory, with `/` between names.
    pub(super) files: Vec<String>,
    /// The skipped files, and their kinds.
    pub(super) left_out: Vec<(PathBuf, &'static str)>,
}

/// Lists a directory, in the order of names. A symbolic link is not followed, because it may lead anywhere, and back.
/// It is refused, as are pipes, sockets and devices, or skipped with `skip_special`.
pub(super) fn walk(directory: &Path, skip_special: bool) -> Result<Below, FilesError> {
    let root = Arc::new(Root::open(directory)?);
    let (mut files, mut left_out) = (Vec::new(), Vec::new());
    // The directories that are still to be listed: their names, with `/` at the end.
    let mut open = vec![String::new()];
    while let Some(prefix) = open.pop() {
        let folder = root.read(if prefix.is_empty() { "." } else { &prefix }, OFlags::DIRECTORY)?;
        let failed = |name: &str, e: rustix::io::Errno| FilesError::File {
            what: "read",
            path: root.path_of(name),
            source: e.into(),
        };
        let mut entries = Dir::new(folder).map_err(|e| failed(&prefix, e))?;
        while let Some(entry) = entries.read() {
            let entry = entry.map_err(|e| failed(&prefix, e))?;
            if [c".", c".."].contains(&entry.file_name()) {
                continue;
            }
            let Ok(name) = entry.file_name().to_str() else {
                let path = root.path_of(&format!("{prefix}{}", entry.file_name().to_string_lossy()));
                return Err(FilesError::Name { path, why: "it is not UTF-8".to_owned() });
            };
            let name = format!("{prefix}{name}");
            let about = entries.fd().and_then(|folder| statat(folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW));
            match FileType::from_raw_mode(about.map_err(|e| failed(&name, e))?.st_mode) {
                FileType::Directory => open.push(format!("{name}/")),
                FileType::RegularFile => files.push(name),
                kind if skip_special => left_out.push((root.path_of(&name), what_it_is(kind))),
                kind => return Err(FilesError::NotRegular { path: root.path_of(&name), what: what_it_is(kind) }),
            }
        }
    }
    files.sort();
    left_out.sort();
    Ok(Below { root, files, left_out })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn files_are_found_and_others_refused_or_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("b/c")).unwrap();
        fs::create_dir_all(at("empty")).unwrap();
        for name in ["b/c/2", "b/1", "a"] {
            fs::write(at(name), name).unwrap();
        }
        let names = |below: &Below| below.files.clone();
        assert_eq!(names(&walk(folder.path(), false).unwrap()), ["a", "b/1", "b/c/2"]);

        // A walk that followed this link would never end.
        std::os::unix::fs::symlink(folder.path(), at("b/loop")).unwrap();
        let said = walk(folder.path(), false).unwrap_err();
        assert!(said.to_string().contains("b/loop is a symbolic link"), "{said}");
        assert!(said.advice().unwrap().contains("--skip-special"));
        let below = walk(folder.path(), true).unwrap();
        assert_eq!((names(&below).len(), &below.left_out[..]), (3, &[(at("b/loop"), "a symbolic link")][..]));

        fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"not\xff")), "").unwrap();
        assert!(matches!(walk(folder.path(), true), Err(FilesError::Name { .. })));
        assert!(matches!(walk(&at("nowhere"), true), Err(FilesError::File { .. })));
    }
}
