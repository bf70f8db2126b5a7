//! A file that gets its name when it is complete.
//!
//! If the file system supports it (`O_TMPFILE`), it has no name until then, and the kernel removes it with the process,
//! also after `kill -9`. Otherwise it has another one, `.NAME….part`, which a killed process leaves behind.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The mode of any new file, before the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// The directory of this process's open files, by which a file without a name is linked.
const OPEN_FILES: &str = "/proc/self/fd";

/// An unfinished file. If it is dropped before [`Unfinished::finish`], nothing is left.
#[derive(Debug)]
pub struct Unfinished {
    file: File,
    folder: OwnedFd,
    /// The final name.
    name: OsString,
    /// The temporary name, if it needs one.
    part: Option<OsString>,
}

impl Unfinished {
    /// Begins a file that will have that name in a folder.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(folder: OwnedFd, name: &OsStr) -> io::Result<Unfinished> {
        if !Path::new(OPEN_FILES).exists() {
            return Unfinished::begin_named(folder, name);
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match openat(&folder, ".", flags, MODE) {
            Ok(file) => Ok(Unfinished { file: File::from(file), folder, name: name.to_owned(), part: None }),
            // The errors of file systems and kernels without support.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Unfinished::begin_named(folder, name),
            Err(e) => Err(e.into()),
        }
    }

    fn begin_named(folder: OwnedFd, name: &OsStr) -> io::Result<Unfinished> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let (file, part) = under_free_name(name, |part| openat(&folder, part, flags, MODE))?;
        Ok(Unfinished { file: File::from(file), folder, name: name.to_owned(), part: Some(part) })
    }

    /// The file, for writing.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name. An existing file of that name is replaced with `replace`, else the error is
    /// [`io::ErrorKind::AlreadyExists`].
    ///
    /// # Errors
    /// The system's.
    pub fn finish(mut self, replace: bool) -> io::Result<()> {
        let Unfinished { file, folder, name, part } = &mut self;
        let Some(part_name) = part.as_ref() else {
            let open = format!("{OPEN_FILES}/{}", file.as_raw_fd());
            let link = |name: &OsStr| linkat(CWD, &open, &*folder, name, AtFlags::SYMLINK_FOLLOW);
            match link(name) {
                // Only a rename can replace a file.
                Err(Errno::EXIST) if replace => *part = Some(under_free_name(name, link)?.1),
                linked => return linked.map_err(io::Error::from),
            }
            return self.finish(replace);
        };
        let renamed = match replace {
            true => renameat(&*folder, part_name, &*folder, &*name),
            false => match renameat_with(&*folder, part_name, &*folder, &*name, RenameFlags::NOREPLACE) {
                // The file system does not know the flag; the temporary name is removed on drop.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    return linkat(&*folder, part_name, &*folder, &*name, AtFlags::empty()).map_err(io::Error::from);
                }
                renamed => renamed,
            },
        };
        renamed?;
        *part = None;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // It may be gone already.
            let _ = unlinkat(&self.folder, part, AtFlags::empty());
        }
    }
}

/// Calls `make` with a free name similar to `name`.
fn under_free_name<T>(name: &OsStr, make: impl Fn(&OsStr) -> rustix::io::Result<T>) -> io::Result<(T, OsString)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // It must also fit a file system.
    let name: String = name.to_string_lossy().chars().take(50).collect();
    loop {
        let part = format!(".{name}{}-{}.part", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        match make(OsStr::new(&part)) {
            Ok(made) => return Ok((made, part.into())),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    type Begin = fn(OwnedFd, &OsStr) -> io::Result<Unfinished>;

    /// Tests both ways of beginning a file, with and without `O_TMPFILE`, if the file system supports it.
    #[test]
    fn file_gets_its_name_when_it_is_complete_and_no_other_name_stays() {
        for (begin, hidden) in [(Unfinished::begin as Begin, 0), (Unfinished::begin_named, 1)] {
            let folder = tempfile::tempdir().unwrap();
            let names = || folder.path().read_dir().unwrap().count();
            let begin = || begin(File::open(folder.path()).unwrap().into(), OsStr::new("f")).unwrap();
            let written = |text: &str| {
                let unfinished = begin();
                unfinished.file().write_all(text.as_bytes()).unwrap();
                unfinished
            };
            let read = || std::fs::read_to_string(folder.path().join("f")).unwrap();

            let unfinished = written("first");
            assert_eq!(names(), hidden);
            unfinished.finish(false).unwrap();
            assert_eq!((read().as_str(), names()), ("first", 1));

            assert_eq!(written("second").finish(false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!((read().as_str(), names()), ("first", 1));
            written("third").finish(true).unwrap();
            assert_eq!((read().as_str(), names()), ("third", 1));
            drop(written("fourth"));
            assert_eq!((read().as_str(), names()), ("third", 1));
        }
    }
}
