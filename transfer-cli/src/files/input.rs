//! A file that is read: what it was when it was first looked at, and whether it still is that.

use super::digest::{self, Hash};
use super::error::FilesError;
use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

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
    stamp: Stamp,
}

impl Input {
    /// Looks at a file.
    pub(super) fn at(path: &Path) -> Result<Input, FilesError> {
        let (_, stamp) = open(path)?;
        Ok(Input { path: path.to_owned(), stamp })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Does something with the open file, and sees to it that the file is what it was at first, before and after.
    pub(super) fn with<T>(&self, read: impl FnOnce(&mut File) -> Result<T, FilesError>) -> Result<T, FilesError> {
        let (mut file, stamp) = open(&self.path)?;
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

fn open(path: &Path) -> Result<(File, Stamp), FilesError> {
    let failed = |source| FilesError::File { what: "read", path: path.to_owned(), source };
    // A pipe that nobody writes to must not hold this up; for a regular file the flag means nothing.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    match about.is_file() {
        true => Ok((file, Stamp::of(&about))),
        false => Err(FilesError::NotRegular { path: path.to_owned(), what: what_it_is(&about) }),
    }
}

/// What something in the file system is, in a word.
pub(super) fn what_it_is(about: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let kind = about.file_type();
    match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_symlink() => "a symbolic link",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_block_device() || kind.is_char_device() => "a device",
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
