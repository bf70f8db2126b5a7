//! A request for a bundle into the caller's tensors.

use super::reason;
use super::scatter::{Run, Scatter};
use crate::bundle::BundleMut;
use crate::error::{BundleError, Error, SessionEnd, TornDestination};
use crate::fetch::{FetchOptions, Landing, Tensor};
use crate::memory::TensorMut;
use crate::session::{Answered, Ended, Held, Lease, OneCall, Session};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use transfer_core::op::{Answer, Command, Destination, FetchInto, FetchedTensor, Otherwise, Report};
use transfer_core::tensor::{DType, Key, TensorMeta, Version};
use transfer_core::wire::bundle::{BundleEntry, BundleTable};
use transfer_memory::arena::Block;

/// A request for a bundle with a known table, some of whose tensors land in place. Those are lent to the sidecar meanwhile, with
/// the memory for what lands beside.
#[derive(Debug)]
pub(super) struct Asked {
    key: Key,
    call: OneCall,
    table: Arc<BundleTable>,
    /// What the version has to be.
    meta: TensorMeta,
    scatter: Scatter,
    tensors: Vec<CallerTensor>,
    /// Whether the other tensors of the bundle are wanted.
    keeps_rest: bool,
}

/// A tensor of the caller, in the order in which they were given.
#[derive(Debug)]
struct CallerTensor {
    name: String,
    meta: TensorMeta,
    /// Where it begins in the version.
    at: u64,
    /// `None` while it is lent.
    tensor: Option<TensorMut>,
    landing: Landing,
}

/// The outcome of a fetch into the tensors.
pub(super) enum LandingOutcome {
    /// It has landed.
    InPlace {
        tensors: BundleMut,
        landings: Vec<Landing>,
        rest: Vec<(String, Tensor)>,
        version: Version,
        report: Report,
    },
    /// The version lies elsewhere, and has to be copied. It may have another table than the known one.
    Elsewhere { tensors: BundleMut, lease: Arc<Lease>, found: FetchedTensor, table: Arc<BundleTable> },
    /// The version has another table, and has landed where the known one says.
    OtherLayout { tensors: BundleMut, torn: Vec<(String, TensorMeta)> },
    /// It has failed. Without tensors if they are not the caller's again.
    Failed { tensors: Option<BundleMut>, error: Error },
}

/// Why a bundle does not land in place, if that is the same for all tensors, and the tensors.
type Refused = (Option<Landing>, BundleMut);

impl Asked {
    /// Asks for a bundle with this table, in which all of the tensors are.
    pub(super) fn new(
        session: &Arc<Session>,
        (key, options): (&Key, &FetchOptions),
        table: Arc<BundleTable>,
        tensors: BundleMut,
        keeps_rest: bool,
    ) -> Result<Asked, Refused> {
        let Some((meta, scatter)) = landing_of(session, &table, &tensors) else { return Err((None, tensors)) };
        let Ok(beside) = session.allocate(scatter.beside_bytes) else {
            return Err((Some(Landing::ArenaFull), tensors));
        };
        let ranges = scatter.ranges(beside.slice().offset);
        let (mut slots, mut lent) = (Vec::with_capacity(tensors.len()), vec![beside]);
        for (name, tensor) in tensors {
            // It is in the table.
            let at = place_of(&table, &meta, &name).unwrap_or(u64::MAX);
            let in_place = reason(session, &tensor).is_none() && scatter.is_in_place(at);
            let landing = match in_place {
                true => Landing::InPlace,
                false => reason(session, &tensor).unwrap_or(Landing::TooManyRuns),
            };
            slots.push(match in_place {
                true => {
                    let (block, meta) = tensor.into_parts();
                    lent.push(block);
                    CallerTensor { name, meta, at, tensor: None, landing }
                }
                false => CallerTensor { name, meta: tensor.meta().clone(), at, tensor: Some(tensor), landing },
            });
        }
        let fetch = options.fetch(key.clone(), None);
        let to = Destination { ranges, meta: meta.clone(), otherwise: Otherwise::LandBeside };
        let command = Command::FetchInto(FetchInto { fetch, to });
        let call = OneCall::begin(session.clone(), command, options.timeout).lending(Held::Landing(lent));
        Ok(Asked { key: key.clone(), call, table, meta, scatter, tensors: slots, keeps_rest })
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    pub(super) fn step(&mut self, waker: &Waker) -> ControlFlow<Ended, Instant> {
        self.call.step(waker)
    }

    pub(super) fn cancel(&mut self) {
        self.call.cancel();
    }

    pub(super) fn needs_timer(&self) -> bool {
        self.call.needs_timer()
    }

    /// Makes what has come of the sidecar's answer.
    pub(super) fn conclude(self, session: &Arc<Session>, ended: Ended) -> LandingOutcome {
        let Asked { key, mut call, table, meta, scatter, tensors: slots, keeps_rest } = self;
        let Answered { answer, destination, op, .. } = match ended {
            Ok(answered) => answered,
            Err(error) => {
                // A request that was not sent has lent nothing.
                let held = call.take_held();
                let blocks = if let Some(Held::Landing(blocks)) = held { blocks } else { Vec::new() };
                return LandingOutcome::Failed {
                    tensors: put_together(slots, blocks).map(|(_, tensors)| tensors),
                    error,
                };
            }
        };
        let lent = slots.iter().filter(|slot| slot.tensor.is_none());
        let torn: Vec<_> = lent.map(|slot| (slot.name.clone(), slot.meta.clone())).collect();
        let places: Vec<_> = slots.iter().map(|slot| (slot.at, slot.landing)).collect();
        let blocks = destination.into_iter().map(|lent| session.take_back(lent)).collect::<Option<_>>();
        let unasked = || SessionEnd::Unasked { op: op.0 }.into();
        // The sidecar gives back what it was lent, or violates the protocol.
        let Some((beside, mut tensors)) = blocks.and_then(|blocks| put_together(slots, blocks)) else {
            return LandingOutcome::Failed { tensors: None, error: unasked() };
        };
        let is_torn = |error| torn_by(&key, torn.clone(), error);
        match answer {
            Answer::Landed { version, mut report } => {
                if !has_table(&beside, &meta, &table) {
                    return LandingOutcome::OtherLayout { tensors, torn };
                }
                match copy_beside(&beside, &scatter, &places, &mut tensors) {
                    Ok(copied) => report.copied += copied,
                    Err(e) => return LandingOutcome::Failed { tensors: Some(tensors), error: is_torn(e.into()) },
                }
                let named = keeps_rest.then(|| tensors.iter().map(|(name, _)| name).collect::<HashSet<_>>());
                let rest = named.map(|named| rest_of(beside, &scatter, (&table, &meta), &named, (version, report)));
                let landings = places.into_iter().map(|(_, landing)| landing).collect();
                match rest.unwrap_or_else(|| Ok(Vec::new())) {
                    Ok(rest) => LandingOutcome::InPlace { tensors, landings, rest, version, report },
                    Err(e) => LandingOutcome::Failed { tensors: Some(tensors), error: is_torn(e.into()) },
                }
            }
            Answer::Fetched { lease, tensor: found } => {
                LandingOutcome::Elsewhere { tensors, lease: Lease::handed_out(session, lease), found, table }
            }
            Answer::Torn { failure } => {
                let error = is_torn(failure.into());
                LandingOutcome::Failed { tensors: Some(tensors), error }
            }
            Answer::Failed { failure, .. } => LandingOutcome::Failed { tensors: Some(tensors), error: failure.into() },
            _ => LandingOutcome::Failed { tensors: Some(tensors), error: unasked() },
        }
    }
}

/// The error of a fetch that has failed when these tensors may have been written.
pub(super) fn torn_by(key: &Key, tensors: Vec<(String, TensorMeta)>, error: Error) -> Error {
    Error::DestinationTorn(Box::new(TornDestination { key: key.as_str().to_owned(), tensors, error }))
}

/// Where a bundle with this table lands that is fetched into these tensors: its description, and its ranges. `None` if nothing lands
/// in place.
fn landing_of(session: &Session, table: &BundleTable, tensors: &BundleMut) -> Option<(TensorMeta, Scatter)> {
    let metadata_bytes = u32::try_from(table.len_bytes()).ok()?;
    let meta = TensorMeta::of(DType::U8, &[table.body_len()]).ok()?.with_metadata(metadata_bytes).ok()?;
    let long = tensors.iter().filter(|(_, tensor)| reason(session, tensor).is_none());
    let run = |(name, tensor): (&str, &TensorMut)| {
        let (at, to) = (place_of(table, &meta, name)?, tensor.slice().offset);
        Some(Run { at, len: tensor.meta().len_bytes(), to })
    };
    let runs: Vec<_> = long.map(run).collect::<Option<_>>()?;
    let scatter = Scatter::new(meta.len_bytes(), &runs)?;
    Some((meta, scatter))
}

/// Where a tensor begins in a version.
fn place_of(table: &BundleTable, meta: &TensorMeta, name: &str) -> Option<u64> {
    let entry: &BundleEntry = table.entries().get(table.find(name)?)?;
    Some(meta.body_offset() + entry.offset)
}

/// Whether the version that has landed has this table. What lies in front of its body has landed beside, first of all.
fn has_table(beside: &Block, meta: &TensorMeta, table: &BundleTable) -> bool {
    let metadata = beside.as_bytes().get(..meta.metadata_bytes() as usize);
    metadata.and_then(|bytes| BundleTable::read(bytes).ok()).is_some_and(|found| found == *table)
}

/// Copies what has landed beside into its tensors. Returns the number of bytes.
fn copy_beside(
    beside: &Block,
    scatter: &Scatter,
    places: &[(u64, Landing)],
    tensors: &mut BundleMut,
) -> Result<u64, BundleError> {
    let mut copied = 0;
    for ((_, tensor), (at, landing)) in tensors.iter_mut().zip(places) {
        let to = tensor.as_mut_bytes();
        let len = to.len() as u64;
        if *landing == Landing::InPlace || len == 0 {
            continue;
        }
        let from = scatter.beside(*at, len).and_then(|from| {
            let from = usize::try_from(from).ok()?;
            beside.as_bytes().get(from..from.checked_add(to.len())?)
        });
        to.copy_from_slice(from.ok_or(BundleError::OutOfBody { offset: *at, len, body_len: scatter.beside_bytes })?);
        copied += len;
    }
    Ok(copied)
}

/// The tensors of the bundle without those of these names, as they have landed beside.
fn rest_of(
    beside: Block,
    scatter: &Scatter,
    (table, meta): (&BundleTable, &TensorMeta),
    named: &HashSet<&str>,
    (version, report): (Version, Report),
) -> Result<Vec<(String, Tensor)>, BundleError> {
    let bytes = beside.freeze();
    let others = table.entries().iter().filter(|entry| !named.contains(entry.name.as_str()));
    let tensor = |entry: &BundleEntry| {
        let (at, len) = (meta.body_offset() + entry.offset, entry.meta.len_bytes());
        let from = if len == 0 { Some(0) } else { scatter.beside(at, len) };
        let part = from.and_then(|from| bytes.slice(usize::try_from(from).ok()?..usize::try_from(from + len).ok()?));
        let part = part.ok_or(BundleError::OutOfBody { offset: at, len, body_len: scatter.beside_bytes })?;
        Ok((entry.name.as_str().to_owned(), Tensor::of_bundle(part, entry.meta.clone(), version, report)))
    };
    others.map(tensor).collect()
}

/// Makes the tensors of what was lent: the memory for what lands beside, and then those that land in place.
fn put_together(slots: Vec<CallerTensor>, blocks: Vec<Block>) -> Option<(Block, BundleMut)> {
    let mut blocks = blocks.into_iter();
    let beside = blocks.next()?;
    let tensor = |slot: CallerTensor| {
        let tensor = match slot.tensor {
            Some(tensor) => tensor,
            None => TensorMut::new(blocks.next()?, slot.meta),
        };
        Some((slot.name, tensor))
    };
    let tensors = slots.into_iter().map(tensor).collect::<Option<_>>()?;
    Some((beside, tensors))
}
