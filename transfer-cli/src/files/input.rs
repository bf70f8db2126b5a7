//! A file to read: its state when it was first examined, and whether it has changed.

use super::beneath::Root;
use super::digest::{self, Hash};
use super::error::FilesError;
use rustix::fs::{FileType, OFlags};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of bytes between two reports of progress: enough to make the system calls negligible.
pub(super) const PART_BYTES: usize = 8 << 20;

/// The identity of a file's state, which changes with every write or replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(about: &Metadata) -> Stamp {
        Stamp {
            device: about.dev(),
            inode: about.ino(),
            bytes: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }
}

/// A regular file to read. It is open only while it is read, because there may be more files than a process may open.
#[derive(Debug, Clone)]
pub(super) struct Input {
    path: PathBuf,
    /// Its directory and its name there, if it was found below a directory.
    below: Option<(Arc<Root>, String)>,
    stamp: Stamp,
}

impl Input {
    /// Examines a file. A file that was found below a directory may have been replaced by a symbolic link, which is not
    /// followed.
    pub(super) fn at(path: &Path) -> Result<Input, FilesError> {
        Input::first(path.to_owned(), None)
    }

    /// Examines a file that was found below a directory. If a symbolic link has replaced it, the link is not followed.
    pub(super) fn below(root: &Arc<Root>, name: &str) -> Result<Input, FilesError> {
        Input::first(root.path_of(name), Some((root.clone(), name.to_owned())))
    }

    fn first(path: PathBuf, below: Option<(Arc<Root>, String)>) -> Result<Input, FilesError> {
        let (_, stamp) = open(&path, below.as_ref())?;
        Ok(Input { path, below, stamp })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Runs `read` with the open file, and checks before and after that the file has not changed.
    pub(super) fn with<T>(&self, read: impl FnOnce(&mut File) -> Result<T, FilesError>) -> Result<T, FilesError> {
        let (mut file, stamp) = open(&self.path, self.below.as_ref())?;
        self.unchanged(stamp)?;
        let result = read(&mut file);
        let after = file.metadata().map_err(|source| self.failed(source))?;
        self.unchanged(Stamp::of(&after))?;
        result
    }

    /// Reads a range straight into `to`, and reports the length of each part.
    pub(super) fn read_into(&self, offset: u64, to: &mut [u8], progress: &dyn Fn(u64)) -> Result<(), FilesError> {
        self.with(|file| {
            let mut at = offset;
            for part in to.chunks_mut(PART_BYTES) {
                file.read_exact_at(part, at).map_err(|source| self.failed(source))?;
                at += part.len() as u64;
                progress(part.len() as u64);
            }
            Ok(())
        })
    }

    /// Computes the digest of a range, which is read again.
    pub(super) fn digest(&self, offset: u64, len: u64) -> Result<Hash, FilesError> {
        self.with(|file| digest::of_range(file, offset, len).map_err(|source| self.failed(source)))
    }

    fn unchanged(&self, now: Stamp) -> Result<(), FilesError> {
        match now == self.stamp {
            true => Ok(()),
            false => Err(FilesError::Changed { path: self.path.clone(), before: self.stamp.bytes, now: now.bytes }),
        }
    }

    fn failed(&self, source: io::Error) -> FilesError {
        FilesError::File { what: "read", path: self.path.clone(), source }
    }
}

fn open(path: &Path, below: Option<&(Arc<Root>, String)>) -> Result<(File, Stamp), FilesError> {
    let failed = |source| FilesError::File { what: "read", path: path.to_owned(), source };
    // Opening a pipe without a writer must not block; for a regular file the flag means nothing.
    let flags = OFlags::NONBLOCK;
    let file = match below {
        Some((root, name)) => root.read(name, flags)?,
        None => {
            let flags = i32::try_from(flags.bits()).unwrap_or(0);
            OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?
        }
    };
    let about = file.metadata().map_err(failed)?;
    match FileType::from_raw_mode(about.mode()) {
        FileType::RegularFile => Ok((file, Stamp::of(&about))),
        kind => Err(FilesError::NotRegular { path: path.to_owned(), what: what_it_is(kind) }),
    }
}

/// The kind of a file, in words.
pub(super) fn what_it_is(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        _ => "no regular file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn ranges_of_a_file_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, b"0123456789").unwrap();
        let input = Input::at(&path).unwrap();
        let mut four = [0; 4];
        input.read_into(3, &mut four, &|_| ()).unwrap();
        assert_eq!((&four, input.len_bytes()), (b"3456", 10));
        assert_eq!(input.digest(3, 4).unwrap(), digest::of_bytes(b"3456"));
        let beyond = input.read_into(8, &mut four, &|_| ()).unwrap_err();
        assert!(matches!(&beyond, FilesError::File { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof));
    }

    // Promise: fetched-files, seen to fail
    #[test]
    fn a_file_that_changes_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let fresh = || {
            std::fs::write(&path, b"0123456789").unwrap();
            Input::at(&path).unwrap()
        };
        let changed = |result: Result<(), FilesError>| {
            assert!(matches!(result, Err(FilesError::Changed { .. })), "{result:?}");
        };
        let grow = || File::options().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        // Changed before it is read, and replaced by another one.
        let input = fresh();
        grow();
        changed(input.read_into(0, &mut [0; 4], &|_| ()));
        let input = fresh();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"0123456789").unwrap();
        changed(input.read_into(0, &mut [0; 4], &|_| ()));
        // Changed while it is read, also after the last byte.
        let input = fresh();
        changed(input.with(|_| {
            grow();
            Ok(())
        }));
        let input = fresh();
        changed(input.with(|_| {
            File::options().write(true).open(&path).unwrap().set_len(2).unwrap();
            input.read_into(0, &mut [0; 4], &|_| ())
        }));
    }

    /// A file that a walk has found is replaced by a link before it is examined, or before it is read: the link is not
    /// followed.
    #[test]
    fn a_file_that_becomes_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("root/deep")).unwrap();
        std::fs::write(at("secret"), b"secret").unwrap();
        let fresh = || {
            let _ = std::fs::remove_file(at("root/deep/f"));
            std::fs::write(at("root/deep/f"), b"plain!").unwrap();
            super::super::walk::walk(&at("root"), false).unwrap()
        };
        let swap = || {
            std::fs::remove_file(at("root/deep/f")).unwrap();
            std::os::unix::fs::symlink(at("secret"), at("root/deep/f")).unwrap();
        };
        let refused = |result: Result<(), FilesError>| {
            assert!(matches!(&result, Err(FilesError::NotRegular { what: "a symbolic link", .. })), "{result:?}");
        };
        let below = fresh();
        assert_eq!(below.files, ["deep/f"]);
        swap();
        refused(Input::below(&below.root, "deep/f").map(|_| ()));
        let below = fresh();
        let input = Input::below(&below.root, "deep/f").unwrap();
        swap();
        refused(input.read_into(0, &mut [0; 6], &|_| ()));
        // The directory that contains it.
        let below = fresh();
        std::fs::rename(at("root/deep"), at("moved")).unwrap();
        std::os::unix::fs::symlink(at("moved"), at("root/deep")).unwrap();
        refused(Input::below(&below.root, "deep/f").map(|_| ()));
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        for (path, what) in
            [(path.as_path(), "a pipe"), (folder.path(), "a directory"), ("/dev/null".as_ref(), "a device")]
        {
            let said = Input::at(path).unwrap_err().to_string();
            assert!(said.contains(what), "{said}");
        }
    }
}
