//! The folder for copies, and paths below it.
//!
//! A path is resolved by the kernel, from the folder's descriptor on: `openat2` refuses a symbolic link anywhere on it,
//! and whatever would lead out of the folder. So another process that changes the folder meanwhile changes nothing about that.

use super::error::CopyError;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use transfer_terminal::unfinished::Unfinished;

/// The longest path, in bytes, as the kernel has it.
const LONGEST_PATH: usize = 4095;

/// The longest name of a file, in bytes.
const LONGEST_NAME: usize = 255;

/// The most entries whose sizes are added up.
const MAX_ENTRIES: usize = 100_000;

/// The folder for copies. It stays the same one if its path gets another folder.
#[derive(Debug)]
pub(crate) struct Folder {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// The place of a file below the folder.
#[derive(Debug)]
pub(super) struct Destination {
    folder: OwnedFd,
    name: String,
    path: String,
    overwrite: bool,
    /// Tells places apart, whatever the paths that lead to them: the device and the number of the file's own folder,
    /// and the file's name.
    pub(super) id: (u64, u64, String),
}

fn to_read() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

/// The kind of a file, in words.
fn in_words(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "of an unknown kind",
    }
}

/// Splits a path into its folders and its name.
fn split(path: &str) -> Result<(&str, &str), CopyError> {
    let wrong = |why| Err(CopyError::Path { path: path.chars().take(200).collect(), why });
    if path.is_empty() {
        return wrong("is empty: give HOST:PATH");
    }
    if path.len() > LONGEST_PATH {
        return wrong("is longer than 4095 bytes, and no file has such a path");
    }
    if path.contains('\0') {
        return wrong("has a zero byte, and no file has one");
    }
    if path.starts_with('/') {
        return wrong("begins with /, and it is taken from the receiver's folder for copies on: leave the / out");
    }
    if path.split('/').any(|part| part == "..") {
        return wrong("has .. in it, and it may not lead upwards");
    }
    if path.split('/').any(|part| part.is_empty() || part == ".") {
        return wrong(
            "has an empty name or a . in it: it is names with one / between them, and the last is the file's",
        );
    }
    if path.split('/').any(|part| part.len() > LONGEST_NAME) {
        return wrong("has a name of more than 255 bytes, and no file has one");
    }
    Ok(path.rsplit_once('/').unwrap_or((".", path)))
}

impl Folder {
    /// Opens the folder. The operator has named it, so it may be a link.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        let descriptor = openat(CWD, path, to_read(), Mode::empty())?;
        Ok(Folder { descriptor, path: path.to_owned() })
    }

    /// Finds the place of a path, and checks what is there.
    pub(super) fn place(&self, path: &str, overwrite: bool) -> Result<Destination, CopyError> {
        let (folders, name) = split(path)?;
        let failed = |e: Errno| CopyError::Disk { what: "open the folder of", path: path.to_owned(), source: e.into() };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let folder = match openat2(&self.descriptor, folders, to_read(), Mode::empty(), resolve) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Err(CopyError::NoFolder { folder: folders.to_owned() }),
            Err(Errno::LOOP) => {
                return Err(CopyError::InTheWay { path: folders.to_owned(), what: "behind a symbolic link" });
            }
            Err(Errno::NOTDIR) => return Err(CopyError::InTheWay { path: folders.to_owned(), what: "no folder" }),
            Err(e) => return Err(failed(e)),
        };
        let about = fstat(&folder).map_err(failed)?;
        let id = (about.st_dev, about.st_ino, name.to_owned());
        let place = Destination { folder, name: name.to_owned(), path: path.to_owned(), overwrite, id };
        place.check()?;
        Ok(place)
    }

    /// Returns the bytes of all regular files in the folder and below it.
    pub(super) fn used_bytes(&self) -> Result<u64, CopyError> {
        let failed = |e: Errno| CopyError::Disk {
            what: "look up the size of",
            path: self.path.display().to_string(),
            source: e.into(),
        };
        let flags = to_read() | OFlags::NOFOLLOW;
        let mut folders = vec![openat(&self.descriptor, ".", flags, Mode::empty()).map_err(failed)?];
        let (mut used, mut entries) = (0u64, 0);
        while let Some(folder) = folders.pop() {
            for entry in Dir::read_from(&folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                entries += 1;
                if entries > MAX_ENTRIES {
                    return Err(CopyError::ManyEntries { most: MAX_ENTRIES });
                }
                // What is gone by now takes no room.
                let about = match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(about) => about,
                    Err(Errno::NOENT) => continue,
                    Err(e) => return Err(failed(e)),
                };
                match FileType::from_raw_mode(about.st_mode) {
                    FileType::RegularFile => used = used.saturating_add(u64::try_from(about.st_size).unwrap_or(0)),
                    FileType::Directory => match openat(&folder, name, flags, Mode::empty()) {
                        Ok(below) => folders.push(below),
                        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                        Err(e) => return Err(failed(e)),
                    },
                    _ => {}
                }
            }
        }
        Ok(used)
    }
}

impl Destination {
    /// Checks whether the file may come to lie here.
    fn check(&self) -> Result<(), CopyError> {
        let path = || self.path.clone();
        match statat(&self.folder, self.name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(CopyError::Disk { what: "look at", path: path(), source: e.into() }),
            Ok(about) => match FileType::from_raw_mode(about.st_mode) {
                FileType::RegularFile if self.overwrite => Ok(()),
                FileType::RegularFile => Err(CopyError::Exists { path: path() }),
                kind => Err(CopyError::InTheWay { path: path(), what: in_words(kind) }),
            },
        }
    }

    /// Begins the file. It has no name until [`Destination::finish`].
    pub(super) fn begin(&self) -> Result<Unfinished, CopyError> {
        let begun = self.folder.try_clone().and_then(|folder| Unfinished::begin(folder, OsStr::new(&self.name)));
        begun.map_err(|source| CopyError::Disk { what: "write", path: self.path.clone(), source })
    }

    /// Gives the complete file its name.
    pub(super) fn finish(&self, file: Unfinished) -> Result<(), CopyError> {
        // A rename would replace a link or a pipe that has come meanwhile.
        self.check()?;
        file.finish(self.overwrite).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => CopyError::Exists { path: self.path.clone() },
            _ => CopyError::Disk { what: "write", path: self.path.clone(), source },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn paths_that_are_none_are_named() {
        for (path, word) in [
            ("", "empty"),
            ("/etc/passwd", "begins with /"),
            ("../x", ".."),
            ("a/../../x", ".."),
            ("a/..", ".."),
            ("a//b", "empty name"),
            ("a/", "empty name"),
            (".", "empty name or a ."),
            ("./a", "empty name or a ."),
            ("a\0b", "zero byte"),
            (&"x".repeat(256), "255"),
            (&"x/".repeat(3000), "4095"),
        ] {
            let why = split(path).unwrap_err();
            assert!(matches!(&why, CopyError::Path { .. }) && why.to_string().contains(word), "{path:?}: {why}");
        }
        assert_eq!((split("a").unwrap(), split("a/b/c").unwrap()), ((".", "a"), ("a/b", "c")));
        assert_eq!(split("..a/...").unwrap(), ("..a", "..."));
    }

    // Promise: copy-folder
    #[test]
    fn nothing_is_written_outside_the_folder_or_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("in/plain")).unwrap();
        fs::create_dir(at("out")).unwrap();
        fs::write(at("out/f"), "theirs").unwrap();
        fs::write(at("in/plain/f"), "old").unwrap();
        symlink(at("out"), at("in/link")).unwrap();
        symlink("plain", at("in/near")).unwrap();
        symlink(at("out/f"), at("in/f")).unwrap();
        let opened = Folder::open(&at("in")).unwrap();
        for (path, what) in [
            ("link/f", "behind a symbolic link"),
            ("near/f", "behind a symbolic link"),
            ("f", "a symbolic link"),
            ("plain", "a folder"),
            ("plain/f/g", "no folder"),
        ] {
            let why = opened.place(path, true).unwrap_err();
            assert!(matches!(&why, CopyError::InTheWay { what: found, .. } if *found == what), "{path}: {why}");
        }
        assert!(matches!(opened.place("plain/f", false), Err(CopyError::Exists { .. })));
        assert!(matches!(opened.place("none/f", false), Err(CopyError::NoFolder { .. })));
        assert_eq!(opened.used_bytes().unwrap(), 3, "links count for nothing");

        // What comes to lie there while the file is written is not replaced.
        let place = opened.place("new", true).unwrap();
        let begun = place.begin().unwrap();
        symlink(at("out/f"), at("in/new")).unwrap();
        assert!(matches!(place.finish(begun), Err(CopyError::InTheWay { .. })));
        let place = opened.place("newer", false).unwrap();
        let begun = place.begin().unwrap();
        fs::write(at("in/newer"), "first").unwrap();
        assert!(matches!(place.finish(begun), Err(CopyError::Exists { .. })));
        assert_eq!(fs::read_to_string(at("out/f")).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(at("in/newer")).unwrap(), "first");

        // Another folder in its place changes nothing.
        fs::rename(at("in"), at("moved")).unwrap();
        symlink(at("out"), at("in")).unwrap();
        let place = opened.place("here", false).unwrap();
        place.finish(place.begin().unwrap()).unwrap();
        assert!(at("moved/here").exists() && !at("out/here").exists());
    }
}
