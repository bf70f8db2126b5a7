//! A directory whose files are opened and made without following symbolic links.
//!
//! A process that may write in a directory can replace a file or a directory by a symbolic link at any moment. Checking
//! first and opening by the path afterwards would follow the link, to any file that this process may read. So the
//! kernel opens each name from the directory's descriptor and refuses a link anywhere on the path: `openat2` with
//! `RESOLVE_NO_SYMLINKS`.

use super::error::FilesError;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// An open directory.
#[derive(Debug)]
pub(super) struct Root {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens the directory at that path, which may be a link because the caller has named it.
    pub(super) fn open(path: &Path) -> Result<Root, FilesError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(CWD, path, flags, Mode::empty()) {
            Ok(descriptor) => Ok(Root { descriptor, path: path.to_owned() }),
            Err(e) => Err(FilesError::File { what: "read", path: path.to_owned(), source: e.into() }),
        }
    }

    /// Makes the directory at that path if it is missing, and opens it.
    pub(super) fn make(path: &Path) -> Result<Root, FilesError> {
        let failed = |source| FilesError::File { what: "make the directory", path: path.to_owned(), source };
        std::fs::create_dir_all(path).map_err(failed)?;
        Root::open(path)
    }

    /// The path of a name below it, for messages: this opens nothing.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens the file of that name below it, with `/` between names; `flags` in addition to reading.
    pub(super) fn read(&self, name: &str, flags: OFlags) -> Result<File, FilesError> {
        let path = || self.path_of(name);
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
        match openat2(&self.descriptor, name, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Ok(file) => Ok(File::from(file)),
            Err(Errno::LOOP) => Err(FilesError::NotRegular { path: path(), what: "a symbolic link" }),
            Err(e) => Err(FilesError::File { what: "read", path: path(), source: io::Error::from(e) }),
        }
    }

    /// The directory that contains a name below it, with `/` between names, and the last of these. Missing directories
    /// are made.
    pub(super) fn folder_of<'a>(&self, name: &'a str) -> Result<(OwnedFd, &'a str), FilesError> {
        let (folders, last) = name.rsplit_once('/').map_or((".", name), |(folders, last)| (folders, last));
        let open = |folder: &str| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat2(&self.descriptor, folder, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        };
        let mut found = open(folders);
        if matches!(found, Err(Errno::NOENT)) {
            for (end, _) in folders.match_indices('/').chain([(folders.len(), "")]) {
                let folder = &folders[..end];
                let path = || self.path_of(folder);
                // Each is opened from the one above it, so that no link is followed here either.
                let (above, own) = folder.rsplit_once('/').unwrap_or((".", folder));
                let made = open(above).and_then(|above| mkdirat(above, own, Mode::from_raw_mode(0o777)));
                match made {
                    Ok(()) | Err(Errno::EXIST | Errno::LOOP) => {}
                    Err(e) => {
                        return Err(FilesError::File { what: "make the directory", path: path(), source: e.into() });
                    }
                }
            }
            found = open(folders);
        }
        match found {
            Ok(folder) => Ok((folder, last)),
            Err(Errno::LOOP) => {
                Err(FilesError::InTheWay { path: self.path_of(folders), what: "behind a symbolic link" })
            }
            Err(e) => {
                Err(FilesError::File { what: "make the directory", path: self.path_of(folders), source: e.into() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn symbolic_links_are_followed_nowhere_on_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("root/deep")).unwrap();
        fs::create_dir(at("secret")).unwrap();
        fs::write(at("secret/f"), "secret").unwrap();
        fs::write(at("root/deep/f"), "plain").unwrap();
        symlink(at("secret/f"), at("root/file")).unwrap();
        symlink(at("secret"), at("root/folder")).unwrap();
        symlink("deep/f", at("root/inside")).unwrap();
        // The named directory itself may be a link.
        symlink(at("root"), at("link")).unwrap();
        for root in [Root::open(&at("root")).unwrap(), Root::open(&at("link")).unwrap()] {
            let read = |name| root.read(name, OFlags::empty());
            assert_eq!(io::read_to_string(read("deep/f").unwrap()).unwrap(), "plain");
            for name in ["file", "folder", "folder/f", "inside"] {
                let said = read(name).unwrap_err();
                assert!(said.to_string().ends_with("is a symbolic link, and not a regular file"), "{name}: {said}");
            }
            assert!(matches!(read("nothing"), Err(FilesError::File { .. })));
        }
        assert!(matches!(Root::open(&at("secret/f")), Err(FilesError::File { .. })));
    }
}
