//! A file without its name: it gets it when it is whole.
//!
//! Where the file system can (`O_TMPFILE`), it has no name until then, and the kernel removes it with the process, also after `kill -9`.
//! Elsewhere it has another one, `.NAME….part`, which a process that is killed leaves behind.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// As any new file: what the umask leaves of these.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// Where the kernel shows what this process has open: a file without a name is given one by this.
const OPEN_FILES: &str = "/proc/self/fd";

/// See the module. Dropped before [`Unfinished::finish`], it leaves nothing behind.
#[derive(Debug)]
pub struct Unfinished {
    file: File,
    folder: OwnedFd,
    /// The name that it shall have.
    name: OsString,
    /// The name that it has meanwhile, where it needs one.
    part: Option<OsString>,
}

impl Unfinished {
    /// Begins a file that shall have that name in a folder.
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
            // What file systems and kernels say that cannot do it.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Unfinished::begin_named(folder, name),
            Err(e) => Err(e.into()),
        }
    }

    fn begin_named(folder: OwnedFd, name: &OsStr) -> io::Result<Unfinished> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let (file, part) = under_free_name(name, |part| openat(&folder, part, flags, MODE))?;
        Ok(Unfinished { file: File::from(file), folder, name: name.to_owned(), part: Some(part) })
    }

    /// The file, to be written.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name. What has that name already is replaced with `replace`, else [`io::ErrorKind::AlreadyExists`].
    ///
    /// # Errors
    /// The system's.
    pub fn finish(mut self, replace: bool) -> io::Result<()> {
        let Unfinished { file, folder, name, part } = &mut self;
        let Some(part_name) = part.as_ref() else {
            let open = format!("{OPEN_FILES}/{}", file.as_raw_fd());
            let link = |name: &OsStr| linkat(CWD, &open, &*folder, name, AtFlags::SYMLINK_FOLLOW);
            match link(name) {
                // Only a rename replaces.
                Err(Errno::EXIST) if replace => *part = Some(under_free_name(name, link)?.1),
                linked => return linked.map_err(io::Error::from),
            }
            return self.finish(replace);
        };
        let renamed = match replace {
            true => renameat(&*folder, part_name, &*folder, &*name),
            false => match renameat_with(&*folder, part_name, &*folder, &*name, RenameFlags::NOREPLACE) {
                // A file system that does not know the flag; the second name goes with the drop.
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

/// Does something with a name beside `name` that nothing has yet.
fn under_free_name<T>(name: &OsStr, make: impl Fn(&OsStr) -> rustix::io::Result<T>) -> io::Result<(T, OsString)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // It has to fit a file system too.
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

    /// With both ways, whatever the file system of the tests can.
    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_no_other_name_stays() {
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
