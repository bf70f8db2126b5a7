//! Output files: a file is written without its name first, so no process sees a part of it, and the previous file stays
//! until it is complete.

use super::beneath::Root;
use super::digest::{self, Hash};
use super::error::FilesError;
use super::input::{PART_BYTES, what_it_is};
use rustix::fs::{Advice, AtFlags, FallocateFlags, FileType, fadvise, fallocate, statat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use transfer_terminal::unfinished::{OutputFile, Unfinished};

/// A file that is being written. If it is dropped before [`Target::finish`], nothing is left.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    to: OutputFile,
    force: bool,
}

impl Target {
    /// Begins a file. An existing file is replaced with `force`, and refused without. Opening a pipe blocks until there
    /// is a reader.
    pub(crate) fn begin(path: &Path, force: bool) -> Result<Target, FilesError> {
        let failed = |source| FilesError::File { what: "write", path: path.to_owned(), source };
        // Through a symbolic link: its target is replaced, not the link.
        let path = match path.canonicalize() {
            Ok(path) => path,
            Err(e) if e.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(e) => return Err(failed(e)),
        };
        match path.metadata() {
            Ok(about) if about.is_dir() => {
                return Err(FilesError::NotRegular { path, what: what_it_is(FileType::from_raw_mode(about.mode())) });
            }
            Ok(about) if about.is_file() && !force => return Err(FilesError::Exists { path }),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        let to = OutputFile::begin(&path).map_err(failed)?;
        Ok(Target { path, to, force })
    }

    /// The standard output.
    pub(super) fn stdout() -> Result<Target, FilesError> {
        let path = PathBuf::from("-");
        match io::stdout().as_fd().try_clone_to_owned() {
            Ok(stdout) => Ok(Target { path, to: OutputFile::Stream(stdout.into()), force: false }),
            Err(source) => Err(FilesError::File { what: "write", path, source }),
        }
    }

    /// Begins a file of that name below a directory, with `/` between names. Directories on the path are made; no
    /// symbolic link is followed, and only a regular file is replaced.
    pub(super) fn below(root: &Root, name: &str, force: bool) -> Result<Target, FilesError> {
        let path = root.path_of(name);
        let failed = |source| FilesError::File { what: "write", path: path.clone(), source };
        let (folder, name) = root.folder_of(name)?;
        match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map(|about| FileType::from_raw_mode(about.st_mode)) {
            Ok(FileType::RegularFile) if !force => return Err(FilesError::Exists { path }),
            Ok(FileType::RegularFile) | Err(Errno::NOENT) => {}
            Ok(kind) => return Err(FilesError::InTheWay { path, what: what_it_is(kind) }),
            Err(e) => return Err(failed(e.into())),
        }
        let file = Unfinished::begin(folder, name.as_ref()).map_err(failed)?;
        Ok(Target { path, to: OutputFile::New(file), force })
    }

    /// A handle for writing on a thread that may block. The file stays with this object.
    ///
    /// Its clones share the descriptor, because there may be thousands.
    pub(crate) fn handle(&self) -> Result<Handle, FilesError> {
        let (path, is_stream) = (self.path.clone(), matches!(self.to, OutputFile::Stream(_)));
        match self.to.file().try_clone() {
            Ok(file) => Ok(Handle { file: Arc::new(file), path, is_stream }),
            Err(source) => Err(FilesError::File { what: "write", path, source }),
        }
    }

    /// Gives the file its name, and returns its path. Call [`Handle::store`] first.
    pub(crate) fn finish(self) -> Result<PathBuf, FilesError> {
        let Target { path, to, force } = self;
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => FilesError::Exists { path: path.clone() },
            _ => FilesError::File { what: "write", path: path.clone(), source },
        };
        to.finish(force).map_err(failed)?;
        Ok(path)
    }
}

/// Writes a [`Target`].
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    file: Arc<File>,
    path: PathBuf,
    is_stream: bool,
}

impl Handle {
    /// Writes bytes at an offset. A pipe or device has none: there bytes are written one after the other.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), FilesError> {
        self.write_and_tell(bytes, offset, &|_| ())
    }

    /// Writes bytes at an offset like [`Handle::write`], and reports the length of each part.
    pub(super) fn write_and_tell(&self, bytes: &[u8], offset: u64, progress: &dyn Fn(u64)) -> Result<(), FilesError> {
        let mut at = offset;
        for part in bytes.chunks(PART_BYTES) {
            let written = match self.is_stream {
                true => (&*self.file).write_all(part),
                false => self.file.write_all_at(part, at),
            };
            written.map_err(|source| self.failed("write", source))?;
            at += part.len() as u64;
            progress(part.len() as u64);
        }
        Ok(())
    }

    /// Allocates that many bytes at once, if the file system can: a disk that is too full is found now, not at the end.
    pub(super) fn reserve(&self, len: u64) -> Result<(), FilesError> {
        let failed = |source| self.failed("write", source);
        if self.is_stream {
            return Err(failed(self.has_no_places()));
        }
        match fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.file.set_len(len).map_err(failed),
            reserved => reserved.map_err(|errno| failed(errno.into())),
        }
    }

    /// The digest of a range of the file, read from storage.
    pub(super) fn digest(&self, offset: u64, len: u64) -> Result<Hash, FilesError> {
        if self.is_stream {
            return Err(self.failed("read back", self.has_no_places()));
        }
        let digest = self
            .file
            .sync_data()
            // Bypasses the page cache as far as possible.
            .and_then(|()| Ok(fadvise(&self.file, 0, None, Advice::DontNeed)?))
            .and_then(|()| digest::of_range(&self.file, offset, len));
        digest.map_err(|source| self.failed("read back", source))
    }

    /// Waits until it is stored durably.
    pub(crate) fn store(&self) -> Result<(), FilesError> {
        match self.is_stream {
            true => Ok(()),
            false => self.file.sync_all().map_err(|source| self.failed("write", source)),
        }
    }

    fn has_no_places(&self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file, so it has no parts")
    }

    fn failed(&self, what: &'static str, source: io::Error) -> FilesError {
        FilesError::File { what, path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            folder.read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let target = Target::begin(&path, false).unwrap();
        let handle = target.handle().unwrap();
        handle.reserve(3).unwrap();
        handle.write(b"ew", 1).unwrap();
        handle.write(b"n", 0).unwrap();
        assert!(!path.exists());
        assert_eq!(handle.digest(0, 3).unwrap(), digest::of_bytes(b"new"));
        handle.store().unwrap();
        target.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names(folder.path())), (b"new".to_vec(), vec!["f".to_owned()]));
        // The mode is that of any other new file of this process.
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain));
    }

    // Promise: fetched-files, seen to fail
    #[test]
    fn abandoned_target_leaves_the_old_file_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, b"old").unwrap();
        assert!(matches!(Target::begin(&path, false), Err(FilesError::Exists { .. })));
        let target = Target::begin(&path, true).unwrap();
        target.handle().unwrap().write(b"new", 0).unwrap();
        drop(target);
        assert_eq!((std::fs::read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec!["f".to_owned()]));
        // A file that another process has made meanwhile is not overwritten either.
        let other = folder.path().join("g");
        let target = Target::begin(&other, false).unwrap();
        std::fs::write(&other, b"theirs").unwrap();
        assert!(matches!(target.finish(), Err(FilesError::Exists { .. })));
        assert_eq!(std::fs::read(&other).unwrap(), b"theirs");
        assert_eq!(names(folder.path()), ["f", "g"]);
    }

    #[test]
    fn link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("f"), folder.path().join("link"));
        std::fs::write(&path, b"old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let target = Target::begin(&link, true).unwrap();
        target.handle().unwrap().write(b"new", 0).unwrap();
        target.finish().unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn links_below_a_directory_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("out/plain")).unwrap();
        std::fs::create_dir(at("elsewhere")).unwrap();
        std::fs::write(at("elsewhere/f"), b"theirs").unwrap();
        std::os::unix::fs::symlink(at("elsewhere"), at("out/link")).unwrap();
        std::os::unix::fs::symlink(at("elsewhere/f"), at("out/f")).unwrap();
        let root = Root::open(&at("out")).unwrap();
        for name in ["link/f", "link/deep/f", "link", "f", "plain"] {
            let said = Target::below(&root, name, true).unwrap_err();
            assert!(matches!(said, FilesError::InTheWay { .. }), "{name}: {said}");
        }
        assert_eq!(
            (std::fs::read(at("elsewhere/f")).unwrap(), names(&at("elsewhere"))),
            (b"theirs".to_vec(), vec!["f".into()])
        );
        for _ in 0..2 {
            let target = Target::below(&root, "plain/made/here", true).unwrap();
            target.handle().unwrap().write(b"new", 0).unwrap();
            target.finish().unwrap();
        }
        assert_eq!(std::fs::read(at("out/plain/made/here")).unwrap(), b"new");
        assert!(matches!(Target::below(&root, "plain/made/here", false), Err(FilesError::Exists { .. })));
    }

    #[test]
    fn a_device_is_written_to_and_a_full_disk_is_an_error() {
        let null = Target::begin("/dev/null".as_ref(), true).unwrap();
        let handle = null.handle().unwrap();
        handle.write(b"x", 0).unwrap();
        handle.write(b"x", 1).unwrap();
        assert!(handle.reserve(1).is_err() && handle.digest(0, 1).is_err());
        handle.store().unwrap();
        null.finish().unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
        let folder = tempfile::tempdir().unwrap();
        let huge = Target::begin(&folder.path().join("huge"), false).unwrap();
        // No file can be that long.
        assert!(matches!(huge.handle().unwrap().reserve(u64::MAX / 4), Err(FilesError::File { .. })));
        let full = Target::begin("/dev/full".as_ref(), false).unwrap();
        let full = full.handle().unwrap().write(b"x", 0).unwrap_err();
        assert!(matches!(&full, FilesError::File { source, .. } if source.kind() == io::ErrorKind::StorageFull));
        assert!(matches!(Target::begin("/".as_ref(), true), Err(FilesError::NotRegular { .. })));
        assert!(matches!(Target::begin("/nowhere/x".as_ref(), true), Err(FilesError::File { .. })));
    }
}
