//! The caller's tensors, and where in them what is fetched belongs.

use super::MemoryView;
use crate::bundle::BundleMut;
use crate::error::Error;
use crate::fetch::FetchedSlice;
use crate::gathered::{LONG_BYTES, copy_threads, on_threads};
use crate::memory::TensorMut;
use crate::session::Session;
use std::collections::{BTreeMap, HashMap};
use transfer_core::op::{Failure, FailureCode};
use transfer_core::tensor::{BodyBox, PackedRun, Packing, Slice, TensorMeta};
use transfer_memory::arena::OpenBlock;
use transfer_memory::segment::STREAM_FROM;

/// The shortest run that is written past the cache.
const MIN_STREAMED_RUN: usize = 64 << 10;

/// A part of one of the caller's tensors, for something of this name.
#[derive(Debug, Clone)]
pub(crate) struct ViewOf {
    pub(crate) name: String,
    pub(crate) tensor: String,
    pub(crate) view: Viewed,
}

/// What part of a tensor it is.
#[derive(Debug, Clone)]
pub(crate) enum Viewed {
    Slice(Slice),
    Memory(MemoryView),
}

/// Where something of this name belongs: in this one of the caller's tensors.
#[derive(Debug)]
pub(crate) struct LandingPlace {
    pub(crate) name: String,
    pub(crate) tensor: usize,
    pub(crate) view: MemoryView,
}

/// The tensors of the caller while something is fetched into them, in the order in which they were given, and all places in them.
#[derive(Debug)]
pub(crate) struct Targets {
    tensors: Vec<Target>,
    places: Vec<LandingPlace>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Target {
    name: String,
    block: OpenBlock,
    meta: TensorMeta,
    /// Whether it lies in the arena of the session, so that a fetch can land there.
    is_own: bool,
}

fn invalid(text: String) -> Error {
    Failure::new(FailureCode::Invalid, text).into()
}

impl Targets {
    /// Opens these tensors. Those that are named by a view are for what their views name, and the others for what has their name.
    pub(crate) fn new(session: &Session, tensors: BundleMut, views: &[ViewOf]) -> Result<Targets, (Error, BundleMut)> {
        let places = match places(&tensors, views) {
            Ok(places) => places,
            Err(e) => return Err((e, tensors)),
        };
        let target = |(name, tensor): (String, TensorMut)| {
            let is_own = session.check_arena(&tensor).is_ok();
            let (block, meta) = tensor.into_parts();
            Target { name, block: OpenBlock::new(block), meta, is_own }
        };
        let by_name = places.iter().enumerate().map(|(at, place)| (place.name.clone(), at)).collect();
        Ok(Targets { tensors: tensors.into_iter().map(target).collect(), places, by_name })
    }

    /// All places, in an order that does not change.
    pub(crate) fn places(&self) -> &[LandingPlace] {
        &self.places
    }

    /// The place of what has this name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(super) fn block(&self, place: usize) -> &OpenBlock {
        &self.tensors[self.places[place].tensor].block
    }

    /// Whether a place lies in the arena of the session.
    pub(crate) fn is_own(&self, place: usize) -> bool {
        self.tensors[self.places[place].tensor].is_own
    }

    /// The names and descriptions of the tensors of these places, for errors.
    pub(crate) fn describe(&self, places: impl IntoIterator<Item = usize>) -> Vec<(String, TensorMeta)> {
        let describe = |place: usize| (self.places[place].name.clone(), self.places[place].view.meta().clone());
        places.into_iter().map(describe).collect()
    }

    /// Copies bytes that lie one behind the other to their place.
    pub(super) fn copy_bytes(&self, place: usize, to: &BodyBox, bytes: &[u8]) {
        let mut writer = Writer::new(self.block(place), to, false);
        writer.write(bytes);
    }

    /// Copies what was fetched to a part of a place that is as long.
    pub(crate) fn copy(&self, place: usize, to: &BodyBox, from: &FetchedSlice) {
        Writer::new(self.block(place), to, false).write_all(from);
    }

    /// Copies what was fetched to the places of these numbers, each of which it fits. Long ones are copied by all threads, and each of the others by
    /// one, past the cache if it does not hold all of them.
    pub(crate) fn copy_all(&self, slices: &[(usize, FetchedSlice)]) {
        let len_of = |from: &FetchedSlice| from.meta().len_bytes();
        // The C library does it by itself only from the length of one copy on.
        let streams = slices.iter().map(|(_, from)| len_of(from)).sum::<u64>() >= STREAM_FROM;
        let copy = |(place, from): &(usize, FetchedSlice)| {
            if let Some(to) = self.places[*place].view.bytes() {
                let streams = streams && len_of(from) < LONG_BYTES;
                Writer::new(self.block(*place), to, streams).write_all(from);
            }
        };
        let (long, short): (Vec<_>, Vec<_>) = slices.iter().partition(|(_, from)| len_of(from) >= LONG_BYTES);
        long.into_iter().for_each(copy);
        let bytes: u64 = short.iter().map(|(_, from)| len_of(from)).sum();
        // Each thread takes about a MiB at a time.
        let at_once = (short.len() << 20).checked_div(bytes as usize).unwrap_or(1).max(1);
        on_threads(bytes, short.chunks(at_once), |some| some.iter().copied().for_each(copy));
    }

    /// The tensors, if the sidecar holds none of them.
    pub(crate) fn close(self) -> Option<BundleMut> {
        let close = |Target { name, block, meta, .. }| Some((name, TensorMut::new(block.close().ok()?, meta)));
        self.tensors.into_iter().map(close).collect()
    }
}

/// Writes bytes to the runs of a box, one after the other.
struct Writer<'a> {
    block: &'a OpenBlock,
    runs: Packing,
    now: Option<PackedRun>,
    /// Whether long runs are written past the cache.
    streams: bool,
}

impl<'a> Writer<'a> {
    fn new(block: &'a OpenBlock, to: &BodyBox, streams: bool) -> Writer<'a> {
        let mut runs = Packing::dense(std::iter::once(to.clone()).collect());
        let now = runs.next();
        Writer { block, runs, now, streams }
    }

    fn write_all(mut self, from: &FetchedSlice) {
        from.each_run(|bytes| self.write(bytes));
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while let (Some(run), false) = (&mut self.now, bytes.is_empty()) {
            let len = usize::try_from(run.len).unwrap_or(usize::MAX).min(bytes.len());
            let (first, rest) = bytes.split_at(len);
            // Cannot fail: the box lies in its tensor, as was checked when the place was made.
            let _ = match self.streams && len >= MIN_STREAMED_RUN {
                true => self.block.stream_in(run.from, first),
                false => self.block.copy_in(run.from, first, copy_threads()),
            };
            (run.from, run.len, bytes) = (run.from + len as u64, run.len - len as u64, rest);
            if run.len == 0 {
                self.now = self.runs.next();
            }
        }
    }
}

/// The places in these tensors.
fn places(tensors: &BundleMut, views: &[ViewOf]) -> Result<Vec<LandingPlace>, Error> {
    let mut by_name = HashMap::with_capacity(tensors.len());
    for (at, (name, _)) in tensors.iter().enumerate() {
        if by_name.insert(name, at).is_some() {
            let text = format!("the tensors to fetch into have the name {name:?} twice; give one tensor for each name");
            return Err(invalid(text));
        }
    }
    let mut viewed = BTreeMap::<usize, Vec<&ViewOf>>::new();
    for view in views {
        let ViewOf { name, tensor, .. } = view;
        let at = by_name.get(tensor.as_str()).ok_or_else(|| {
            let text = format!(
                "{name:?} is fetched into a part of a tensor {tensor:?}, which is none of those that are fetched into"
            );
            invalid(text)
        })?;
        viewed.entry(*at).or_default().push(view);
    }
    let mut places = Vec::with_capacity(tensors.len());
    for (at, (name, tensor)) in tensors.iter().enumerate() {
        let first = places.len();
        match viewed.get(&at) {
            None => {
                places.push(LandingPlace { name: name.to_owned(), tensor: at, view: MemoryView::whole(tensor.meta()) })
            }
            Some(views) => {
                for ViewOf { name, view, .. } in views {
                    places.push(LandingPlace {
                        name: name.clone(),
                        tensor: at,
                        view: resolve(view, name, tensor.meta())?,
                    });
                }
            }
        }
        check_apart(&places[first..])?;
    }
    let mut named = HashMap::with_capacity(places.len());
    match places.iter().find(|place| named.insert(place.name.as_str(), ()).is_some()) {
        Some(LandingPlace { name, .. }) => {
            Err(invalid(format!("{name:?} is fetched into two parts of tensors; name one")))
        }
        None => Ok(places),
    }
}

fn resolve(view: &Viewed, name: &str, of: &TensorMeta) -> Result<MemoryView, Error> {
    match view {
        Viewed::Slice(slice) => MemoryView::slice(of, slice),
        Viewed::Memory(view) if view.bytes().is_none_or(|bytes| bytes.end() <= of.len_bytes()) => Ok(view.clone()),
        Viewed::Memory(view) => {
            let (meta, end) = (view.meta(), view.bytes().map_or(0, BodyBox::end));
            Err(invalid(format!("{name:?}, {meta}, is fetched into bytes up to {end} of a tensor that is {of}")))
        }
    }
}

/// Checks that no byte belongs to two of these parts of one tensor.
fn check_apart(places: &[LandingPlace]) -> Result<(), Error> {
    let mut spans: Vec<_> = places.iter().filter_map(|place| Some((place.view.bytes()?, &place.name))).collect();
    spans.sort_unstable_by_key(|(bytes, _)| bytes.offset());
    // Those before that reach into one.
    let mut near: Vec<(&BodyBox, &String)> = Vec::new();
    for (bytes, name) in spans {
        near.retain(|(before, _)| before.end() > bytes.offset());
        if let Some((_, other)) = near.iter().find(|(before, _)| overlap(before, bytes)) {
            return Err(invalid(format!("{other:?} and {name:?} are fetched into the same bytes of a tensor")));
        }
        near.push((bytes, name));
    }
    Ok(())
}

fn overlap(a: &BodyBox, b: &BodyBox) -> bool {
    let runs = |of: &BodyBox| Packing::dense(std::iter::once(of.clone()).collect());
    let (mut first, mut second) = (runs(a).peekable(), runs(b).peekable());
    // Both rise.
    while let (Some(one), Some(other)) = (first.peek(), second.peek()) {
        match () {
            () if one.from + one.len <= other.from => drop(first.next()),
            () if other.from + other.len <= one.from => drop(second.next()),
            () => return true,
        }
    }
    false
}
