//! The plan of a push: each tensor with its key and the source of its elements. All errors of files and names are found
//! here, before anything is published.

use super::error::FilesError;
use super::input::Input;
use super::pieces;
use super::push_options::{Format, Options};
use super::safetensors::{self, METADATA};
use super::walk::walk;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use transfer_client::{DType, Digest, Key, TensorMeta};
use transfer_core::memory::padded;
use transfer_core::wire::digests::Digests;

/// A tensor to publish.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) key: Key,
    pub(super) meta: TensorMeta,
    pub(super) from: From,
    /// Its role.
    pub(super) role: Role,
}

/// The role of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A tensor of its own.
    Whole,
    /// A piece of another one.
    Piece,
    /// The list of its pieces.
    List,
}

/// The source of elements.
#[derive(Debug, Clone)]
pub(super) enum From {
    /// A range of a file.
    File { input: Input, offset: u64 },
    /// The standard input: this many bytes, to its end.
    Stdin,
    /// The list of the pieces of a tensor, when they are published.
    Pieces { of: Box<TensorMeta>, count: u64 },
    /// Memory: the standard input of unknown length, or data that was made here.
    Memory(Vec<u8>),
}

/// All tensors that will be published.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) items: Vec<Item>,
    /// The skipped files, and their kinds.
    pub(super) left_out: Vec<(PathBuf, &'static str)>,
}

impl Plan {
    /// Examines everything that the command line names.
    pub(super) fn of(options: &Options) -> Result<Plan, FilesError> {
        let (prefix, paths) = names(options)?;
        let several = paths.len() > 1;
        let mut plan = Plan::default();
        for path in paths {
            plan.add(options, prefix.as_deref(), path, several)?;
        }
        let mut seen = HashSet::new();
        match plan.items.iter().find(|item| !seen.insert(item.key.as_str())) {
            Some(twice) => Err(FilesError::Twice { name: twice.key.to_string() }),
            None if plan.items.is_empty() => Err(FilesError::Nothing("there is nothing to publish there".to_owned())),
            None if plan.items.len() > 1 && (options.shape.is_some() || options.dtype.is_some()) => {
                let why = "--dtype and --shape describe one file, and there are several tensors to publish";
                Err(FilesError::Use(why.to_owned()))
            }
            None => Ok(plan),
        }
    }

    /// The size of an arena for all of it at once, in bytes.
    pub(super) fn arena_bytes(&self, digest: Option<Digest>) -> u64 {
        arena_for(&self.items, digest)
    }

    fn add(&mut self, options: &Options, prefix: Option<&str>, path: &Path, several: bool) -> Result<(), FilesError> {
        if path == Path::new("-") {
            let Some(key) = prefix.filter(|_| !several) else {
                return Err(FilesError::Use("the standard input needs a key, and goes alone: push KEY -".to_owned()));
            };
            return self.add_stdin(options, key);
        }
        let about =
            path.metadata().map_err(|source| FilesError::File { what: "read", path: path.to_owned(), source })?;
        let is_safetensors = || path.extension() == Some(OsStr::new("safetensors"));
        match (about.is_dir(), options.format) {
            (true, Some(Format::Safetensors)) => {
                Err(FilesError::NotRegular { path: path.to_owned(), what: "a directory" })
            }
            (true, _) => {
                // Several directories are below their own names.
                let folder = match several || prefix.is_none() {
                    true => join(prefix, last_name(path)?),
                    false => prefix.unwrap_or_default().to_owned(),
                };
                let below = walk(path, options.skip_special)?;
                self.left_out.extend(below.left_out);
                { below.files }.into_iter().try_for_each(|name| {
                    let input = Input::below(&below.root, &name)?;
                    self.add_raw(options, join(Some(&folder), &name), input)
                })
            }
            (false, None) if is_safetensors() => self.add_safetensors(options, prefix, path, several),
            (false, Some(Format::Safetensors)) => self.add_safetensors(options, prefix, path, several),
            (false, _) => {
                // One file with a given key; or, below a prefix, with its own name.
                let key = match prefix {
                    Some(key) if !several && options.prefix.is_none() => key.to_owned(),
                    prefix => join(prefix, last_name(path)?),
                };
                self.add_raw(options, key, Input::at(path)?)
            }
        }
    }

    fn add_raw(&mut self, options: &Options, key: String, input: Input) -> Result<(), FilesError> {
        let path = input.path().to_owned();
        let meta = describe(options, &path, input.len_bytes())?;
        self.push(&path, key, meta, From::File { input, offset: 0 })
    }

    fn add_stdin(&mut self, options: &Options, key: &str) -> Result<(), FilesError> {
        let path = Path::new("-");
        let known = options.shape.as_ref().map(|shape| shaped(options, path, shape)).transpose()?;
        let (meta, from) = match known {
            // With --verify the input is read twice, so it is kept.
            Some(meta) if !options.verify => (meta, From::Stdin),
            _ => {
                let mut bytes = Vec::new();
                let read = io::stdin().lock().read_to_end(&mut bytes);
                read.map_err(|source| FilesError::File { what: "read", path: path.to_owned(), source })?;
                (describe(options, path, bytes.len() as u64)?, From::Memory(bytes))
            }
        };
        self.push(path, key.to_owned(), meta, from)
    }

    fn add_safetensors(
        &mut self,
        options: &Options,
        prefix: Option<&str>,
        path: &Path,
        several: bool,
    ) -> Result<(), FilesError> {
        if options.dtype.is_some() || options.shape.is_some() {
            let why = format!(
                "{} says itself what its tensors are; --dtype and --shape are for raw files (--format raw)",
                path.display()
            );
            return Err(FilesError::Use(why));
        }
        let input = Input::at(path)?;
        let header = input.with(|file| {
            safetensors::read(file, input.len_bytes())
                .map_err(|source| FilesError::Header { path: path.to_owned(), source: Box::new(source) })
        })?;
        let own = match (prefix, several) {
            (Some(prefix), false) => prefix.to_owned(),
            (prefix, _) => join(prefix, stem(path)?),
        };
        for entry in header.tensors {
            let from = From::File { input: input.clone(), offset: entry.offset };
            self.push(path, join(Some(&own), &entry.name), entry.meta, from)?;
        }
        let Some(metadata) = header.metadata else { return Ok(()) };
        let text = serde_json::json!(metadata).to_string().into_bytes();
        let meta = TensorMeta::of(DType::U8, &[text.len() as u64]);
        let meta = meta.map_err(|why| FilesError::Name { path: path.to_owned(), why: why.to_string() })?;
        self.push(path, join(Some(&own), METADATA), meta, From::Memory(text))
    }

    fn push(&mut self, path: &Path, key: String, meta: TensorMeta, from: From) -> Result<(), FilesError> {
        let key = Key::new(&key).map_err(|source| match path == Path::new("-") {
            true => FilesError::Use(source.to_string()),
            false => FilesError::Key { path: path.to_owned(), source },
        })?;
        if pieces::is_piece(key.as_str()) {
            let why = format!("a key with {:?} in it is that of a piece of a larger file", pieces::FOLDER);
            return Err(FilesError::Name { path: path.to_owned(), why });
        }
        self.items.push(Item { key, meta, from, role: Role::Whole });
        Ok(())
    }
}

/// The size of an arena for these tensors at once, in bytes.
pub(super) fn arena_for(items: &[Item], digest: Option<Digest>) -> u64 {
    let bytes = items.iter().map(|item| room_for(item.meta.len_bytes(), digest));
    // Arenas consist of whole pages.
    let bytes = bytes.fold(0u64, u64::saturating_add).max(1);
    bytes.checked_next_multiple_of(4096).unwrap_or(bytes)
}

/// The room that a tensor of this length takes in an arena, with its digests, in bytes.
pub(super) fn room_for(len: u64, digest: Option<Digest>) -> u64 {
    let beside = digest.map_or(0, |digest| Digests::room_beside(digest, len));
    padded(len.max(1)).and_then(|len| len.checked_add(beside)).unwrap_or(u64::MAX)
}

/// The positional arguments: a key or prefix, if there is one, and paths.
fn names(options: &Options) -> Result<(Option<String>, Vec<&Path>), FilesError> {
    let words: Vec<&Path> = options.words.iter().map(PathBuf::as_path).collect();
    match (&options.prefix, &words[..]) {
        (Some(prefix), paths) => Ok((Some(prefix.trim_end_matches('/').to_owned()), paths.to_vec())),
        (None, [path]) => Ok((None, vec![path])),
        (None, [key, ..]) if key.extension() == Some(OsStr::new("safetensors")) && key.is_file() => {
            let why = format!(
                "{} stands where the key does, and is a file; with --prefix PREFIX all words are files",
                key.display()
            );
            Err(FilesError::Use(why))
        }
        (None, [key, paths @ ..]) => {
            let key = key.to_str().ok_or_else(|| FilesError::Use("a key is UTF-8".to_owned()))?;
            Ok((Some(key.to_owned()), paths.to_vec()))
        }
        (None, []) => Err(FilesError::Use("there is no file to publish".to_owned())),
    }
}

fn join(prefix: Option<&str>, name: &str) -> String {
    match prefix {
        None | Some("") => name.to_owned(),
        Some(prefix) => format!("{prefix}/{name}"),
    }
}

fn last_name(path: &Path) -> Result<&str, FilesError> {
    text(path, path.file_name(), "it has no name; give one with --prefix")
}

fn stem(path: &Path) -> Result<&str, FilesError> {
    text(path, path.file_stem(), "it has no name; give one with --prefix")
}

fn text<'a>(path: &Path, name: Option<&'a OsStr>, none: &str) -> Result<&'a str, FilesError> {
    let wrong = |why: &str| FilesError::Name { path: path.to_owned(), why: why.to_owned() };
    name.ok_or_else(|| wrong(none))?.to_str().ok_or_else(|| wrong("it is not UTF-8"))
}

fn shaped(options: &Options, path: &Path, shape: &[u64]) -> Result<TensorMeta, FilesError> {
    let dtype = options.dtype.unwrap_or(DType::U8);
    TensorMeta::of(dtype, shape).map_err(|why| FilesError::Use(format!("{}: {why}", path.display())))
}

fn describe(options: &Options, path: &Path, found_bytes: u64) -> Result<TensorMeta, FilesError> {
    let dtype = options.dtype.unwrap_or(DType::U8);
    match &options.shape {
        Some(shape) => {
            let meta = shaped(options, path, shape)?;
            match meta.len_bytes() == found_bytes {
                true => Ok(meta),
                false => Err(FilesError::FileLength { path: path.to_owned(), meta: Box::new(meta), found_bytes }),
            }
        }
        None if found_bytes.is_multiple_of(dtype.size_bytes()) => {
            shaped(options, path, &[found_bytes / dtype.size_bytes() * dtype.elements_per_unit()])
        }
        None => Err(FilesError::FileElements { path: path.to_owned(), dtype, found_bytes }),
    }
}
