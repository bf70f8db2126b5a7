//! The folder of an embedded sidecar: its sockets are there, and only its user can enter it.
//!
//! A process that is killed leaves its folder behind. So each embedded sidecar, before it makes its own, removes those of
//! its user that nobody uses any more.
//!
//! A folder is in use while a process holds the lock on the file [`LOCK`] in it. That is a record lock (`fcntl`): the
//! kernel ends it with its process, however that ends, a forked child does not get it, as it would get one of `flock`, and a
//! process that is stopped keeps it. The file is locked before it has its name, so a folder has no file [`LOCK`] that is not
//! locked yet, and a folder without the file is left alone: it is another program's, or it was made a moment ago.

use super::StartError;
use parking_lot::Mutex;
use rustix::fs::{self, AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The beginning of the folders' names. [`RANDOM`] letters and digits follow.
const PREFIX: &str = "transfer-";
const RANDOM: usize = 6;

/// The file that is locked while a process uses the folder.
const LOCK: &str = "lock";

/// The name of that file before it is locked.
const UNLOCKED: &str = "lock.new";

/// The folders of this process, by device and inode number. Each is there before its lock has a name, and for as long as
/// the lock is held: a process that opens and closes a file loses its own record locks on it, so these are not looked at.
/// The process id tells a forked child that its parent's folders are not its own.
static OURS: Mutex<Vec<(u32, Identity)>> = Mutex::new(Vec::new());

type Identity = (u64, u64);

fn identity(of: &Stat) -> Identity {
    // The types differ between architectures.
    #[allow(clippy::useless_conversion)]
    (u64::from(of.st_dev), u64::from(of.st_ino))
}

/// A folder that only this user can enter. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct PrivateFolder {
    /// Dropped first: the folder is locked until it is removed.
    directory: TempDir,
    _lock: Option<Lock>,
}

/// The lock of a folder of this process.
#[derive(Debug)]
struct Lock {
    /// Dropped first.
    _file: OwnedFd,
    _ours: Ours,
}

impl PrivateFolder {
    /// Makes a folder among the temporary files, and removes those that killed processes of this user have left there.
    ///
    /// # Errors
    /// [`StartError::System`].
    pub(super) fn make() -> Result<PrivateFolder, StartError> {
        PrivateFolder::make_in(&std::env::temp_dir())
    }

    fn make_in(place: &Path) -> Result<PrivateFolder, StartError> {
        remove_abandoned(place);
        // Without this others could enter it, as the umask allows.
        let own = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix(PREFIX).rand_bytes(RANDOM).permissions(own).tempdir_in(place);
        let directory =
            directory.map_err(|source| StartError::System { what: "making a temporary directory", source })?;
        // There are file systems without locks. On them nobody removes the folder of a killed process.
        let lock = Lock::of(directory.path())
            .inspect_err(|why| tracing::debug!(?directory, %why, "the temporary directory cannot be locked"));
        Ok(PrivateFolder { directory, _lock: lock.ok() })
    }

    /// Returns the path of the workers' socket in the folder.
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("worker.sock")
    }
}

/// An entry of [`OURS`], until it is dropped.
#[derive(Debug)]
struct Ours(Identity);

impl Drop for Ours {
    fn drop(&mut self) {
        let me = (std::process::id(), self.0);
        OURS.lock().retain(|folder| *folder != me);
    }
}

impl Lock {
    /// Locks a new folder.
    fn of(folder: &Path) -> Result<Lock, Errno> {
        let folder = fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let me = identity(&fs::fstat(&folder)?);
        OURS.lock().push((std::process::id(), me));
        let ours = Ours(me);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = fs::openat(&folder, UNLOCKED, flags, Mode::RUSR | Mode::WUSR)?;
        fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        fs::renameat(&folder, UNLOCKED, &folder, LOCK)?;
        Ok(Lock { _file: file, _ours: ours })
    }
}

/// Removes the folders of this user in `place` that no process uses.
fn remove_abandoned(place: &Path) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let (Ok(entries), Ok(place)) = (std::fs::read_dir(place), fs::open(place, flags, Mode::empty())) else { return };
    for name in entries.flatten().map(|entry| entry.file_name()).filter(|name| is_name_of_one(name)) {
        // What cannot be removed stays for the next one. Another process may be removing it.
        if let Ok(true) = remove(&place, &name) {
            tracing::info!(?name, "removed the temporary directory of a sidecar whose process is gone");
        }
    }
}

fn is_name_of_one(name: &OsStr) -> bool {
    let random = name.as_bytes().strip_prefix(PREFIX.as_bytes());
    random.is_some_and(|random| random.len() == RANDOM && random.iter().all(u8::is_ascii_alphanumeric))
}

/// Removes a folder if it is one of this user that no process uses. Returns whether it was. No symbolic link is followed.
fn remove(place: &OwnedFd, name: &OsStr) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = fs::openat(place, name, flags | OFlags::DIRECTORY, Mode::empty())?;
    let found = fs::fstat(&folder)?;
    let user = rustix::process::geteuid().as_raw();
    if found.st_uid != user || Mode::from_raw_mode(found.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
        return Ok(false);
    }
    // Held to the end, so that no other thread closes the same lock meanwhile.
    let ours = OURS.lock();
    if ours.contains(&(std::process::id(), identity(&found))) {
        return Ok(false);
    }
    let lock =
        fs::openat(&folder, LOCK, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let file = fs::fstat(&lock)?;
    if FileType::from_raw_mode(file.st_mode) != FileType::RegularFile || file.st_uid != user {
        return Ok(false);
    }
    fs::fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    // Another process may have removed the folder before this one had the lock.
    let still = fs::statat(&folder, LOCK, AtFlags::SYMLINK_NOFOLLOW)?;
    if identity(&still) != identity(&file) {
        return Ok(false);
    }
    let mut sockets = Vec::new();
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if [&b"."[..], b"..", LOCK.as_bytes()].contains(&name.to_bytes()) {
            continue;
        }
        let found = fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            // Somebody has put something there that no sidecar has made.
            return Ok(false);
        }
        sockets.push(name.to_owned());
    }
    for socket in sockets {
        fs::unlinkat(&folder, &socket, AtFlags::empty())?;
    }
    fs::unlinkat(&folder, LOCK, AtFlags::empty())?;
    // Only an empty directory can be removed this way.
    fs::unlinkat(place, name, AtFlags::REMOVEDIR)?;
    Ok(true)
}

/// Makes a directory, and those that it lies in.
pub(super) fn make_directory(path: &Path) -> Result<(), StartError> {
    std::fs::create_dir_all(path).map_err(|source| StartError::MakeDirectory { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    /// Makes a folder as a killed process leaves it.
    fn abandoned(place: &Path, name: &str) -> PathBuf {
        let folder = place.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        std::fs::write(folder.join(LOCK), "").unwrap();
        drop(UnixListener::bind(folder.join("worker.sock")).unwrap());
        folder
    }

    // Promise: process-with-sidecar
    #[test]
    fn only_folders_that_sidecars_have_made_and_nobody_locks_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let left = [abandoned(place, "transfer-abcDE1"), abandoned(place, "transfer-000000")];
        let elsewhere = abandoned(place, "elsewhere");
        let linked = place.join("transfer-linked");
        symlink(&elsewhere, &linked).unwrap();
        let with_link = abandoned(place, "transfer-inLink");
        symlink(elsewhere.join(LOCK), with_link.join("more.sock")).unwrap();
        let lock_is_link = abandoned(place, "transfer-lkLink");
        std::fs::remove_file(lock_is_link.join(LOCK)).unwrap();
        symlink(elsewhere.join(LOCK), lock_is_link.join(LOCK)).unwrap();
        let with_file = abandoned(place, "transfer-inFile");
        std::fs::write(with_file.join("notes"), "mine").unwrap();
        let open_to_others = abandoned(place, "transfer-modeXX");
        std::fs::set_permissions(&open_to_others, Permissions::from_mode(0o755)).unwrap();
        let without_lock = abandoned(place, "transfer-noLock");
        std::fs::remove_file(without_lock.join(LOCK)).unwrap();
        let file = place.join("transfer-aaFile");
        std::fs::write(&file, "mine").unwrap();
        let others: Vec<_> =
            ["transfer-1000", "transfer-bench-abcdef", "transfer-test-abcdef", "transfer-abc_ef", "transfer-"]
                .map(|name| abandoned(place, name))
                .into();

        let first = PrivateFolder::make_in(place).unwrap();
        let second = PrivateFolder::make_in(place).unwrap();
        assert!(left.iter().all(|folder| !folder.exists()), "{left:?}");
        let stay = [&elsewhere, &with_link, &lock_is_link, &with_file, &open_to_others, &without_lock];
        for folder in stay.into_iter().chain(&others) {
            assert!(folder.join("worker.sock").exists(), "{folder:?}");
        }
        assert!(linked.is_symlink() && file.is_file() && elsewhere.join(LOCK).is_file());
        let mode = std::fs::metadata(first.directory.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "only its user can enter it: {mode:o}");
        // Those of this process are not taken for abandoned ones.
        assert!(first.directory.path().join(LOCK).exists() && second.directory.path().join(LOCK).exists());
        let paths = [first.directory.path().to_owned(), second.directory.path().to_owned()];
        drop((first, second));
        assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
    }

    // Promise: process-with-sidecar
    #[test]
    fn processes_that_start_at_the_same_time_remove_each_folder_once() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        for round in 0..20 {
            let left: Vec<_> = (0..10).map(|i| abandoned(place, &format!("transfer-r{round:02}n{i:02}"))).collect();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let folder = PrivateFolder::make_in(place).unwrap();
                        assert!(folder.directory.path().join(LOCK).exists());
                    });
                }
            });
            assert!(left.iter().all(|folder| !folder.exists()), "{left:?}");
            assert_eq!(std::fs::read_dir(place).unwrap().count(), 0);
        }
    }
}
