//! A file that is read: what it was when it was first looked at, and whether it still is that.

use super::beneath::Root;
use super::digest::{self, Hash};
use super::error::FilesError;
use rustix::fs::{FileType, OFlags};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How much is read or written before it is told: enough for the system calls not to count.
pub(super) const PART_BYTES: usize = 8 << 20;

/// What changes when somebody writes a file, or puts another one in its place.
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

/// A regular file to be read. It is open only while it is: there may be more of them than a process may have open.
#[derive(Debug, Clone)]
pub(super) struct Input {
    path: PathBuf,
    /// For one that was found below a directory: that, and its name there.
    below: Option<(Arc<Root>, String)>,
    stamp: Stamp,
}

impl Input {
    /// Looks at a file that was named.
    pub(super) fn at(path: &Path) -> Result<Input, FilesError> {
        Input::first(path.to_owned(), None)
    }

    /// Looks at a file that was found below a directory. A symbolic link has come to its place since then, and is not followed.
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

    /// Does something with the open file, and sees to it that the file is what it was at first, before and after.
    pub(super) fn with<T>(&self, read: impl FnOnce(&mut File) -> Result<T, FilesError>) -> Result<T, FilesError> {
        let (mut file, stamp) = open(&self.path, self.below.as_ref())?;
        self.unchanged(stamp)?;
        let result = read(&mut file);
        let after = file.metadata().map_err(|source| self.failed(source))?;
        self.unchanged(Stamp::of(&after))?;
        result
    }

    /// Reads a range right to where it shall be, and tells of each part how long it was.
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

    /// The digest of a range, read anew.
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
    // A pipe that nobody writes to must not hold this up; for a regular file the flag means nothing.
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

/// What something in the file system is, in a word.
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
    fn a_file_is_read_where_it_is_asked_for() {
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
        // Before it is read, and another one in its place.
        let input = fresh();
        grow();
        changed(input.read_into(0, &mut [0; 4], &|_| ()));
        let input = fresh();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"0123456789").unwrap();
        changed(input.read_into(0, &mut [0; 4], &|_| ()));
        // While it is read; also when nothing was to be read any more.
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

    /// What a walk has found is swapped for a link before it is looked at, or before it is read: never followed.
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
        // The directory on the way to it.
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
