//! The files below a directory.

use super::error::FilesError;
use super::input::what_it_is;
use std::path::{Path, PathBuf};

/// What there is below a directory.
#[derive(Debug, Default)]
pub(super) struct Below {
    /// Regular files: where they are, and the names on the way to them from the directory, with `/` between.
    pub(super) files: Vec<(PathBuf, String)>,
    /// What was left out, and what it is.
    pub(super) left_out: Vec<(PathBuf, &'static str)>,
}

/// Lists a directory, in the order of names. A symbolic link is not followed: it may lead anywhere, and back. It is refused, as are pipes,
/// sockets and devices, or left out with `skip_special`.
pub(super) fn walk(directory: &Path, skip_special: bool) -> Result<Below, FilesError> {
    let mut below = Below::default();
    // Directories still to be looked at, with their names' end.
    let mut open = vec![(directory.to_owned(), String::new())];
    while let Some((directory, prefix)) = open.pop() {
        let failed = |source| FilesError::File { what: "read", path: directory.clone(), source };
        for entry in directory.read_dir().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let about =
                entry.metadata().map_err(|source| FilesError::File { what: "read", path: path.clone(), source })?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                return Err(FilesError::Name { path, why: "it is not UTF-8".to_owned() });
            };
            let name = format!("{prefix}{name}");
            match about.file_type() {
                kind if kind.is_dir() => open.push((path, format!("{name}/"))),
                kind if kind.is_file() => below.files.push((path, name)),
                _ if skip_special => below.left_out.push((path, what_it_is(&about))),
                _ => return Err(FilesError::NotRegular { path, what: what_it_is(&about) }),
            }
        }
    }
    below.files.sort_by(|a, b| a.1.cmp(&b.1));
    below.left_out.sort();
    Ok(below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn files_are_found_and_what_is_none_is_refused_or_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("b/c")).unwrap();
        fs::create_dir_all(at("empty")).unwrap();
        for name in ["b/c/2", "b/1", "a"] {
            fs::write(at(name), name).unwrap();
        }
        let names = |below: &Below| below.files.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&walk(folder.path(), false).unwrap()), ["a", "b/1", "b/c/2"]);

        // A link that leads back would never end.
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
