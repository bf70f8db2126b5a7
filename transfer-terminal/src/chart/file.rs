//! The output file of a chart.

use crate::unfinished::Unfinished;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A file that can be written. An existing one stays until it is finished.
#[derive(Debug)]
pub struct File {
    to: To,
}

#[derive(Debug)]
enum To {
    /// A file that gets its name when it is complete.
    New(Unfinished),
    /// A pipe or a device, which cannot be replaced.
    Stream(fs::File),
}

impl File {
    /// Makes sure that the file can be written.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(path: &Path) -> io::Result<File> {
        // Through a symbolic link: its target is replaced, not the link.
        let path: PathBuf = match path.canonicalize() {
            Ok(path) => path,
            Err(e) if e.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(e) => return Err(e),
        };
        if path.exists() && !path.is_file() {
            return Ok(File { to: To::Stream(OpenOptions::new().write(true).open(&path)?) });
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let name = path.file_name().unwrap_or_default();
        Ok(File { to: To::New(Unfinished::begin(fs::File::open(folder)?.into(), name)?) })
    }

    /// Writes it. An existing file is replaced.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(self, text: &str) -> io::Result<()> {
        match self.to {
            To::New(file) => {
                file.file().write_all(text.as_bytes())?;
                file.file().sync_all()?;
                file.finish(true)
            }
            To::Stream(mut stream) => stream.write_all(text.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::File;

    #[test]
    fn unwritable_file_is_an_error_at_the_start_and_an_old_one_stays_until_the_end() {
        let folder = tempfile::tempdir().unwrap();
        assert!(File::begin(&folder.path().join("nowhere/chart.svg")).is_err());
        assert!(File::begin(folder.path()).is_err(), "a folder");
        let path = folder.path().join("chart.svg");
        std::fs::write(&path, "old").unwrap();
        let file = File::begin(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        file.finish("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }
}
