//! A directory whose files are opened and made below it, on ways without symbolic links.
//!
//! Whoever may write in a directory can put a symbolic link where a file or a directory was a moment ago. To look first and to open by the
//! path afterwards would follow it, to whatever this process may read. So the kernel opens each name from the directory's descriptor
//! and refuses a link anywhere on the way: `openat2` with `RESOLVE_NO_SYMLINKS`.

use super::error::FilesError;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A directory that is open.
#[derive(Debug)]
pub(super) struct Root {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens the directory of that path, which may be a link: it is what the caller named.
    pub(super) fn open(path: &Path) -> Result<Root, FilesError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(CWD, path, flags, Mode::empty()) {
            Ok(descriptor) => Ok(Root { descriptor, path: path.to_owned() }),
            Err(e) => Err(FilesError::File { what: "read", path: path.to_owned(), source: e.into() }),
        }
    }

    /// Where a name below it is, for people: nothing is opened by this.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens what has that name below it, with `/` between names; `flags` besides reading.
    pub(super) fn read(&self, name: &str, flags: OFlags) -> Result<File, FilesError> {
        let path = || self.path_of(name);
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
        match openat2(&self.descriptor, name, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Ok(file) => Ok(File::from(file)),
            Err(Errno::LOOP) => Err(FilesError::NotRegular { path: path(), what: "a symbolic link" }),
            Err(e) => Err(FilesError::File { what: "read", path: path(), source: io::Error::from(e) }),
        }
    }

    /// The directory that a name below it lies in, with `/` between names, and the last of these. Directories that are missing are made.
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
                // Each from the one above it, so that no link is followed here either.
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
    fn no_symbolic_link_is_followed_anywhere_on_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("root/deep")).unwrap();
        fs::create_dir(at("secret")).unwrap();
        fs::write(at("secret/f"), "secret").unwrap();
        fs::write(at("root/deep/f"), "plain").unwrap();
        symlink(at("secret/f"), at("root/file")).unwrap();
        symlink(at("secret"), at("root/folder")).unwrap();
        symlink("deep/f", at("root/inside")).unwrap();
        // The one that was named may be a link itself.
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
