//! A file that gets its name when it is complete.
//!
//! A file that replaces another one keeps its mode, its owner and group where that is allowed, and its extended attributes with
//! its access control list, and lets no one read or write more at any moment. Like a program that writes into the old file, it
//! keeps no set-user-id bit and no file capability. A new file has the mode that the umask and the folder give.
//!
//! If the file system supports it (`O_TMPFILE`), it has no name until then, and the kernel removes it with the process,
//! also after `kill -9`. Otherwise it has another one, `.NAME….part`, which a killed process leaves behind.

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags, fchmod, fchown, fremovexattr, fsetxattr,
    fstat, getxattr, linkat, listxattr, openat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The mode of any new file, before the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// The mode of an unfinished file that has a name.
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// The access control list of a file, as an extended attribute.
const ACL: &CStr = c"system.posix_acl_access";

/// The longest value of an extended attribute, and the longest list of their names, in bytes.
const MAX_XATTR_BYTES: usize = 64 << 10;

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
        let (file, part) = under_free_name(name, |part| openat(&folder, part, flags, PRIVATE))?;
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
        let before = if replace { before(folder, name)? } else { None };
        let is_file = |before: &OwnedFd| {
            fstat(before).map(|about| FileType::from_raw_mode(about.st_mode) == FileType::RegularFile)
        };
        match &before {
            Some(before) if is_file(before).map_err(io::Error::from)? => take_after(file, before)?,
            _ if part.is_some() => fchmod(&*file, mode_of_new(folder, name)?)?,
            _ => {}
        }
        let Some(part_name) = part.as_ref() else {
            let open = format!("{OPEN_FILES}/{}", file.as_raw_fd());
            let link = |name: &OsStr| linkat(CWD, &open, &*folder, name, AtFlags::SYMLINK_FOLLOW);
            match link(name) {
                // Only a rename can replace a file.
                Err(Errno::EXIST) if before.is_some() => *part = Some(under_free_name(name, link)?.1),
                // One that has come meanwhile.
                Err(Errno::EXIST) if replace => {}
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

/// A file that a user has named for output.
#[derive(Debug)]
pub enum OutputFile {
    /// A file that gets its name when it is complete. An existing one stays until then.
    New(Unfinished),
    /// A pipe, a device or the standard output, which cannot be replaced.
    Stream(File),
}

impl OutputFile {
    /// Makes sure that it can be written. Through a symbolic link: its target is replaced, not the link. Opening a pipe blocks
    /// until there is a reader.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(path: &Path) -> io::Result<OutputFile> {
        let path = match path.canonicalize() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => path.to_owned(),
            found => found?,
        };
        if path.exists() && !path.is_file() {
            return Ok(OutputFile::Stream(File::options().write(true).open(&path)?));
        }
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let name = path.file_name().unwrap_or_default();
        Ok(OutputFile::New(Unfinished::begin(File::open(folder)?.into(), name)?))
    }

    /// The file, for writing.
    #[must_use]
    pub fn file(&self) -> &File {
        match self {
            OutputFile::New(file) => file.file(),
            OutputFile::Stream(file) => file,
        }
    }

    /// Gives it its name, as [`Unfinished::finish`] does.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(self, replace: bool) -> io::Result<()> {
        match self {
            OutputFile::New(file) => file.finish(replace),
            OutputFile::Stream(_) => Ok(()),
        }
    }

    /// Writes all of it. An existing file is replaced.
    ///
    /// # Errors
    /// The system's.
    pub fn finish_with(self, text: &str) -> io::Result<()> {
        self.file().write_all(text.as_bytes())?;
        if let OutputFile::New(file) = &self {
            file.file().sync_all()?;
        }
        self.finish(true)
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

/// Opens what has the name now, but not for reading or writing.
fn before(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<OwnedFd>> {
    match openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(before) => Ok(Some(before)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Returns the mode of a new file here, as umask and folder give it.
fn mode_of_new(folder: &OwnedFd, name: &OsStr) -> io::Result<Mode> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let (empty, part) = under_free_name(name, |part| openat(folder, part, flags, MODE))?;
    let about = fstat(&empty);
    unlinkat(folder, &part, AtFlags::empty())?;
    Ok(permissions(about?.st_mode))
}

fn permissions(st_mode: u32) -> Mode {
    Mode::from_raw_mode(st_mode) & (Mode::RWXU | Mode::RWXG | Mode::RWXO)
}

/// Gives a file the owner, the extended attributes and the mode of the one that it will replace.
fn take_after(file: &File, before: &OwnedFd) -> io::Result<()> {
    let (old, new) = (fstat(before)?, fstat(file)?);
    fchmod(file, PRIVATE)?;
    let (owner, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
    // Only root may give a file away. It is this user's file then.
    let _ = fchown(file, Some(owner), None);
    let is_group = old.st_gid == new.st_gid || fchown(file, None, Some(group)).is_ok();
    let mut mode = permissions(old.st_mode);
    if !take_xattrs(file, before) || !is_group {
        // Another group than before gets no more than everybody.
        mode &= Mode::RWXU | Mode::RWXO | Mode::from_raw_mode((old.st_mode & 0o7) << 3);
    }
    fchmod(file, mode)?;
    Ok(())
}

/// Copies extended attributes, as far as that is allowed. Returns `false` if the access control list may be another one than
/// before.
fn take_xattrs(file: &File, before: &OwnedFd) -> bool {
    let before = format!("{OPEN_FILES}/{}", before.as_raw_fd());
    // A list that comes from the folder lets others in.
    let removed = matches!(fremovexattr(file, ACL), Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP));
    let mut names = vec![0; MAX_XATTR_BYTES];
    let listed = match listxattr(&before, &mut names[..]) {
        Ok(len) => len,
        Err(e) => return removed && e == Errno::OPNOTSUPP,
    };
    let mut same = removed;
    for name in
        names[..listed].split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok())
    {
        // All others belong to the old contents, or are the file system's own.
        let is_kept = name == ACL || name == c"security.selinux" || name.to_bytes().starts_with(b"user.");
        let mut value = vec![0; MAX_XATTR_BYTES];
        let copied = is_kept
            && getxattr(&before, name, &mut value[..])
                .and_then(|len| fsetxattr(file, name, &value[..len], XattrFlags::empty()))
                .is_ok();
        same &= copied || name != ACL;
    }
    same
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

    // Promise: replaced-files
    #[test]
    fn replaced_file_keeps_mode_attributes_and_owner() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        for begin in [Unfinished::begin as Begin, Unfinished::begin_named] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("f");
            let write = |replace| {
                let unfinished = begin(File::open(folder.path()).unwrap().into(), OsStr::new("f")).unwrap();
                let mode = unfinished.file().metadata().unwrap().mode() & 0o777;
                assert!(unfinished.part.is_none() || mode == 0o600, "{mode:o}");
                unfinished.finish(replace).unwrap();
                path.metadata().unwrap().mode() & 0o7777
            };
            let usual = File::create(folder.path().join("usual")).unwrap().metadata().unwrap().mode() & 0o7777;
            assert_eq!(write(false), usual, "of a new file");
            std::fs::remove_file(&path).unwrap();
            assert_eq!(write(true), usual, "of a new file that may replace one");
            for (mode, kept) in [(0o600, 0o600), (0o640, 0o640), (0o777, 0o777), (0o4755, 0o755), (0o000, 0o000)] {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
                let marked = rustix::fs::setxattr(&path, c"user.test", b"kept", XattrFlags::empty());
                assert_eq!(write(true), kept, "{mode:o}");
                let mut value = [0; 8];
                match marked {
                    Ok(()) => assert_eq!(getxattr(&path, c"user.test", &mut value[..]), Ok(4)),
                    Err(e) => assert!([Errno::OPNOTSUPP, Errno::ACCESS].contains(&e), "{e}"),
                }
                assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no other name stays");
            }
            // Only root can give it to somebody else.
            if std::os::unix::fs::chown(&path, Some(1), Some(2)).is_ok() {
                write(true);
                let about = path.metadata().unwrap();
                assert_eq!((about.uid(), about.gid()), (1, 2));
            }
        }
    }

    /// Lists as `setfacl -m u:1:r` makes them, in the form of the kernel: a named user keeps what it had, and what the folder
    /// gives to new files opens no old one.
    // Promise: replaced-files
    #[test]
    fn replaced_file_keeps_its_access_control_list() {
        let entry =
            |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
        let none = u32::MAX;
        let list = |of_user: u16| {
            let entries =
                [entry(1, 6, none), entry(2, of_user, 1), entry(4, 0, none), entry(16, 7, none), entry(32, 0, none)];
            [vec![2, 0, 0, 0], entries.concat()].concat()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "old").unwrap();
        let given = rustix::fs::setxattr(folder.path(), c"system.posix_acl_default", &list(7), XattrFlags::empty());
        // Without lists on this file system there is none to keep, and files are replaced all the same.
        let has_lists = given != Err(Errno::OPNOTSUPP);
        let replace = |begin: Begin| {
            begin(File::open(folder.path()).unwrap().into(), OsStr::new("f")).unwrap().finish(true).unwrap();
            let mut value = [0; 128];
            getxattr(&path, ACL, &mut value[..]).map(|len| value[..len].to_vec())
        };
        for begin in [Unfinished::begin as Begin, Unfinished::begin_named] {
            std::fs::write(&path, "old").unwrap();
            let none = replace(begin);
            assert_eq!(none, Err(if has_lists { Errno::NODATA } else { Errno::OPNOTSUPP }));
            if !has_lists {
                continue;
            }
            rustix::fs::setxattr(&path, ACL, &list(4), XattrFlags::empty()).unwrap();
            assert_eq!(replace(begin), Ok(list(4)));
            rustix::fs::removexattr(&path, ACL).unwrap();
        }
    }

    #[test]
    fn unwritable_file_is_an_error_at_the_start_and_an_old_one_stays_until_the_end() {
        let folder = tempfile::tempdir().unwrap();
        assert!(OutputFile::begin(&folder.path().join("nowhere/chart.svg")).is_err());
        assert!(OutputFile::begin(folder.path()).is_err(), "a folder");
        let path = folder.path().join("chart.svg");
        std::fs::write(&path, "old").unwrap();
        let file = OutputFile::begin(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        file.finish_with("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }
}
