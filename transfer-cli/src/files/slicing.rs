//! `transferctl fetch --slice`: a slice of a tensor, or slices of tensors of a state, become files.

use super::beneath::Root;
use super::digest::{self, Hash};
use super::error::FilesError;
use super::fetch_options::{Options, Shape};
use super::safetensors::Layout;
use super::story::{Failed, FileLine, Story};
use super::target::{Handle, Target};
use super::{blocking, names, pieces};
use crate::error::Error;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;
use transfer_client::{Client, DType, FetchedSlice, ParseSliceError, Slice, s};

/// One `--slice` of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceOption {
    /// The name of a tensor of a state. `None`: the key has one tensor.
    name: Option<String>,
    /// `None`: all of it.
    slice: Option<Slice>,
}

impl FromStr for SliceOption {
    type Err = ParseSliceError;

    fn from_str(text: &str) -> Result<SliceOption, ParseSliceError> {
        // No slice has a `=`, and a name may have one.
        let (name, slice) = match text.rsplit_once('=') {
            Some((name, slice)) => (Some(name.to_owned()), slice),
            None => (None, text),
        };
        let slice = if name.is_some() && slice.is_empty() { None } else { Some(slice.parse()?) };
        Ok(SliceOption { name, slice })
    }
}

/// What the options ask for.
enum Wanted {
    /// A slice of the key's tensor.
    Tensor(Slice),
    /// Slices of tensors of the key's state, by their names.
    State(Vec<(String, Option<Slice>)>),
}

impl Wanted {
    fn of(options: &[SliceOption]) -> Result<Wanted, FilesError> {
        if let [SliceOption { name: None, slice: Some(slice) }] = options {
            return Ok(Wanted::Tensor(slice.clone()));
        }
        let named = options.iter().map(|one| Some((one.name.clone()?, one.slice.clone())));
        named.collect::<Option<_>>().map(Wanted::State).ok_or_else(|| {
            let why = "a tensor has one --slice; of a state give --slice NAME=SLICE for each of its tensors";
            FilesError::Use(why.to_owned())
        })
    }

    fn count(&self) -> usize {
        match self {
            Wanted::Tensor(_) => 1,
            Wanted::State(slices) => slices.len(),
        }
    }
}

/// A fetched slice, under the name of its file, or of its tensor in a file.
type Named = (String, FetchedSlice);

/// A written slice: its digest if it was read again, and its file.
type Written = (Option<Hash>, Option<PathBuf>);

/// Fetches the slices, writes them, and reports each.
pub(super) async fn run(options: &Options, shape: Shape) -> Result<(), Error> {
    let (wanted, key) = (Wanted::of(&options.slices)?, options.key.as_deref().unwrap_or_default());
    let shape = match (shape, wanted.count()) {
        (Shape::Stdout, 2..) => {
            return Err(FilesError::Use("the standard output takes one slice".to_owned()).into());
        }
        (Shape::File, 2..) => Shape::Directory,
        (shape, _) => shape,
    };
    let mut story = Story::new("fetched", wanted.count(), None, &options.verbosity, shape == Shape::Stdout);
    let began = Instant::now();
    match fetch_and_write(options, key, &wanted, shape).await {
        Ok(all) => {
            for ((name, slice), (digest, file)) in &all {
                story.done(&FileLine {
                    key: name,
                    version: slice.version(),
                    meta: slice.meta(),
                    report: slice.report(),
                    copied_here: if slice.is_contiguous() { 0 } else { slice.meta().len_bytes() },
                    took: began.elapsed(),
                    digest: digest.as_ref(),
                    verified: options.verify,
                    file: file.as_deref().and_then(Path::to_str).filter(|_| shape != Shape::Stdout),
                });
            }
        }
        Err(error) => story.failed(Failed::of(key, error)),
    }
    story.end(true)
}

async fn fetch_and_write(
    options: &Options,
    key: &str,
    wanted: &Wanted,
    shape: Shape,
) -> Result<Vec<(Named, Written)>, Error> {
    // The file is begun before the fetch, so that no fetch waits for a file that must not be written.
    let target = match shape {
        Shape::File | Shape::Safetensors => {
            let (out, force) = (options.out.clone(), options.force);
            Some(blocking(move || Target::begin(&out, force)).await?)
        }
        Shape::Stdout => Some(Target::stdout()?),
        Shape::Directory => None,
    };
    // It only reads, so it needs no arena.
    let client = options.worker.connect(0).await?;
    let slices = fetch(&client, options, key, wanted).await?;
    let options = options.clone();
    let write = move || {
        let written = match target {
            Some(target) => write_file(&options, target, &slices, shape)?,
            None => write_directory(&options, &slices)?,
        };
        Ok(slices.into_iter().zip(written).collect())
    };
    Ok(blocking(write).await?)
}

async fn fetch(client: &Client, options: &Options, key: &str, wanted: &Wanted) -> Result<Vec<Named>, Error> {
    let failed = |source| Error::Call { what: "fetch", key: key.to_owned(), source };
    match wanted {
        Wanted::Tensor(slice) => {
            let fetched = options.of_version(client.fetch(key)).slice(slice.clone()).await.map_err(failed)?;
            not_in_pieces(client, options, key, &fetched).await?;
            Ok(vec![(key.to_owned(), fetched)])
        }
        Wanted::State(slices) => {
            let fetched = options.of_version(client.fetch_bundle(key)).slices(slices.iter().cloned());
            let fetched = fetched.await.map_err(failed)?;
            Ok(fetched.iter().map(|(name, slice)| (name.to_owned(), slice.clone())).collect())
        }
    }
}

/// Refuses a slice of a list of pieces. The owner cuts what lies under the key, so only the list's own beginning tells it
/// from a tensor.
async fn not_in_pieces(client: &Client, options: &Options, key: &str, slice: &FetchedSlice) -> Result<(), FilesError> {
    if slice.dtype() != DType::U8 || slice.shape().len() > 2 {
        return Ok(());
    }
    let begin =
        client.fetch(key).exactly(slice.version()).timeout(options.timeout).slice(s![0..pieces::LIST_MAGIC.len()]);
    match begin.await {
        Ok(begin) if begin.to_contiguous() == pieces::LIST_MAGIC => {
            Err(FilesError::SliceOfPieces { key: key.to_owned() })
        }
        // A tensor that is shorter than this is no list. Nor counts one as a list whose version was replaced meanwhile: a busy
        // publisher of bytes would fail its readers.
        _ => Ok(()),
    }
}

fn elements(slice: &FetchedSlice) -> Cow<'_, [u8]> {
    if slice.is_contiguous() { Cow::Borrowed(slice.as_bytes()) } else { Cow::Owned(slice.to_contiguous()) }
}

/// Writes one file: the elements of one slice, or a file of safetensors.
fn write_file(options: &Options, target: Target, slices: &[Named], shape: Shape) -> Result<Vec<Written>, FilesError> {
    let handle = target.handle()?;
    let offsets = match shape {
        Shape::Safetensors => {
            let metas: Vec<_> = slices.iter().map(|(name, slice)| (name.clone(), slice.meta().clone())).collect();
            let cannot = |source| FilesError::File { what: "write", path: options.out.clone(), source };
            let layout = Layout::of(&metas, None).map_err(cannot)?;
            handle.reserve(layout.file_bytes)?;
            handle.write(&layout.head, 0)?;
            layout.offsets
        }
        _ => vec![0],
    };
    let written = slices.iter().zip(offsets).map(|(slice, offset)| write_at(options, &handle, slice, offset));
    let digests = written.collect::<Result<Vec<_>, _>>()?;
    handle.store()?;
    let file = target.finish()?;
    Ok(digests.into_iter().map(|digest| (digest, Some(file.clone()))).collect())
}

/// Writes a file for each slice. The name of a tensor may be none of a file below the directory.
fn write_directory(options: &Options, slices: &[Named]) -> Result<Vec<Written>, FilesError> {
    slices.iter().try_for_each(|(name, _)| names::safe(name, name).map(drop))?;
    names::distinct(slices.iter().map(|(name, _)| name.as_str()))?;
    let root = Root::make(&options.out)?;
    let write = |slice: &Named| {
        let target = Target::below(&root, &slice.0, options.force)?;
        let handle = target.handle()?;
        let digest = write_at(options, &handle, slice, 0)?;
        handle.store()?;
        Ok((digest, Some(target.finish()?)))
    };
    slices.iter().map(write).collect()
}

/// Writes the elements of a slice, and with --verify reads them again.
fn write_at(
    options: &Options,
    handle: &Handle,
    (name, slice): &Named,
    offset: u64,
) -> Result<Option<Hash>, FilesError> {
    let bytes = elements(slice);
    handle.write(&bytes, offset)?;
    if !options.verify {
        return Ok(None);
    }
    let wanted = digest::of_bytes(&bytes);
    digest::same(name, &wanted, &handle.digest(offset, bytes.len() as u64)?)?;
    Ok(Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_may_name_a_tensor_of_a_state() {
        let parse = |text: &str| text.parse::<SliceOption>().unwrap();
        let named = |name: &str, slice| SliceOption { name: Some(name.to_owned()), slice };
        assert_eq!(parse("0:2,1"), SliceOption { name: None, slice: Some(s![0..2, 1]) });
        assert_eq!(parse("layer.0/w=:,3:"), named("layer.0/w", Some(s![.., 3..])));
        assert_eq!(parse("a=b=::2"), named("a=b", Some(s![..; 2])));
        assert_eq!(parse("bias="), named("bias", None));
        assert!("".parse::<SliceOption>().is_err());
        assert!("w=x".parse::<SliceOption>().is_err());
    }

    #[test]
    fn a_tensor_has_one_slice_and_a_state_only_named_ones() {
        let wanted = |texts: &[&str]| Wanted::of(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>());
        assert!(matches!(wanted(&["0:2"]), Ok(Wanted::Tensor(_))));
        assert!(matches!(wanted(&["w=0:2", "b="]), Ok(Wanted::State(all)) if all.len() == 2));
        for wrong in [&["0:2", "1:3"], &["0:2", "w=1:3"]] {
            let error = wanted(wrong).err().unwrap().to_string();
            assert!(error.contains("NAME=SLICE"), "{error}");
        }
    }
}
