//! One request for something that lands in the caller's memory, as far as it can.

use super::how::Landing;
use super::scatter::{MIN_RUN_BYTES, Run, Scatter};
use super::targets::Targets;
use crate::error::{BundleError, Error, SessionEnd};
use crate::fetch::FetchOptions;
use crate::session::{Answered, Ended, Held, Lease, OneCall, Session, SharedRange};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, Command, Destination, FetchInto, FetchedTensor, Otherwise, Report};
use transfer_core::tensor::{BodyBox, Excerpt, Key, PackedRun, Packing, TensorMeta, Version};
use transfer_memory::arena::OpenBlock;
use transfer_memory::view::Bytes;

/// What is asked for.
pub(crate) struct Asking<'a> {
    pub(crate) key: &'a Key,
    pub(crate) options: &'a FetchOptions,
    pub(crate) excerpt: Option<Excerpt>,
    /// What comes has to be.
    pub(crate) meta: TensorMeta,
    /// Those that have bytes.
    pub(crate) pieces: Vec<Piece>,
    /// What becomes of what is anything else.
    pub(crate) otherwise: Otherwise,
}

/// A part of what comes, which begins there with its first byte, and where it belongs.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) at: u64,
    /// The number of its place.
    pub(crate) place: usize,
    /// Its bytes in those of the tensor of this place.
    pub(crate) to: BodyBox,
}

/// A request under way. The tensors in which it lands, and the memory for what lands beside, are lent to the sidecar meanwhile.
#[derive(Debug)]
pub(crate) struct LandingCall {
    call: OneCall,
    beside: Beside,
    /// The memory for what lands beside.
    memory: Option<OpenBlock>,
}

/// What has landed beside, and what belongs where.
#[derive(Debug)]
pub(crate) struct Beside {
    meta: TensorMeta,
    scatter: Scatter,
    pieces: Vec<PlacedPiece>,
    bytes: Option<Bytes>,
}

#[derive(Debug)]
struct PlacedPiece {
    piece: Piece,
    landing: Landing,
    /// Whether some of it lands in place.
    is_opened: bool,
}

/// What has come of a request.
pub(crate) enum Outcome {
    /// It has landed. What lies beside is not copied yet.
    Landed { beside: Beside, version: Version, report: Report },
    /// It lies elsewhere, and has to be copied. It may be anything.
    Elsewhere { lease: Arc<Lease>, found: FetchedTensor },
    /// It has failed. If it `is_torn`, what was to land in place may be half new.
    Failed { error: Error, is_torn: bool },
    /// The session has ended, or the sidecar has not answered. What was to land in place may be half new, and be written still.
    Lost { error: Error },
}

impl LandingCall {
    /// Begins a request. If nothing of it can land in place, nothing is asked: then why, if it is the same for all of it.
    pub(crate) fn begin(
        session: &Arc<Session>,
        targets: &Targets,
        Asking { key, options, excerpt, meta, pieces, otherwise }: Asking<'_>,
    ) -> Result<LandingCall, Option<Landing>> {
        let runs = runs_in_arena(targets, &pieces);
        let scatter = Scatter::new(meta.len_bytes(), &runs).ok_or(None)?;
        let memory = match scatter.beside_bytes {
            0 => None,
            len => Some(OpenBlock::new(session.allocate(len).map_err(|_| Some(Landing::ArenaFull))?)),
        };
        let placed = |piece: Piece| {
            let is_own = targets.is_own(piece.place);
            let in_place = |run: PackedRun| scatter.is_in_place(piece.at + run.to);
            let is_opened = is_own && is_tried(&piece) && runs_of(&piece.to).any(in_place);
            let landing = match () {
                () if !is_own => Landing::OtherArena,
                () if is_opened && runs_of(&piece.to).all(in_place) => Landing::InPlace,
                () if piece.to.run() < MIN_RUN_BYTES => Landing::Short,
                () => Landing::TooManyRuns,
            };
            PlacedPiece { piece, landing, is_opened }
        };
        let pieces: Vec<_> = pieces.into_iter().map(placed).collect();
        let beside = Beside { meta, scatter, pieces, bytes: None };
        let opened = beside.opened().map(|place| targets.block(place)).map(|block| (block.slice().offset, block));
        // Several places of one tensor are one loan.
        let opened: BTreeMap<u64, &OpenBlock> = opened.collect();
        let loan = |block: &OpenBlock| SharedRange::of_open(session.arena(), block);
        let held = memory.iter().chain(opened.into_values()).map(loan).collect::<Option<_>>().ok_or(None)?;
        let ranges = beside.scatter.ranges(memory.as_ref().map_or(0, |memory| memory.slice().offset));
        let fetch = options.fetch(key.clone(), excerpt.map(Box::new));
        let to = Destination { ranges, meta: beside.meta.clone(), otherwise };
        let command = Command::FetchInto(FetchInto { fetch, to });
        let call = OneCall::begin(session.clone(), command, options.timeout).lending(Held::Landing(held));
        Ok(LandingCall { call, beside, memory })
    }

    /// Whether one request has ranges for all pieces that are long enough to land in place.
    pub(crate) fn fits(targets: &Targets, meta: &TensorMeta, pieces: &[Piece]) -> bool {
        Scatter::holds_all(meta.len_bytes(), &runs_in_arena(targets, pieces))
    }

    /// The places in which something lands.
    pub(crate) fn opened(&self) -> impl Iterator<Item = usize> {
        self.beside.opened()
    }

    pub(crate) fn step(&mut self, waker: &Waker) -> ControlFlow<Ended, Instant> {
        self.call.step(waker)
    }

    pub(crate) fn cancel(&mut self) {
        self.call.cancel();
    }

    /// The time since it began.
    pub(crate) fn waited(&self) -> Duration {
        self.call.waited()
    }

    pub(crate) fn needs_timer(&self) -> bool {
        self.call.needs_timer()
    }

    /// Makes what has come of the sidecar's answer.
    pub(crate) fn conclude(self, session: &Arc<Session>, ended: Ended) -> Outcome {
        let LandingCall { mut call, mut beside, memory } = self;
        let Answered { answer, destination, op, .. } = match ended {
            Ok(answered) => answered,
            // What was not sent was not lent.
            Err(error) if call.take_held().is_some() => return Outcome::Failed { error, is_torn: false },
            Err(error) => return Outcome::Lost { error },
        };
        destination.into_iter().for_each(|lent| session.free_destination(lent));
        let unasked = |is_torn| Outcome::Failed { error: SessionEnd::Unasked { op: op.0 }.into(), is_torn };
        match answer {
            Answer::Landed { version, report } => {
                // The sidecar gives back what it was lent, or violates the protocol.
                let Ok(block) = memory.map(OpenBlock::close).transpose() else { return unasked(true) };
                beside.bytes = block.map(transfer_memory::arena::Block::freeze);
                Outcome::Landed { beside, version, report }
            }
            Answer::Fetched { lease, tensor: found } => {
                Outcome::Elsewhere { lease: Lease::handed_out(session, lease), found }
            }
            Answer::Torn { failure } => Outcome::Failed { error: failure.into(), is_torn: true },
            Answer::Failed { failure, .. } => Outcome::Failed { error: failure.into(), is_torn: false },
            _ => unasked(false),
        }
    }
}

impl Beside {
    /// The places in which something lands.
    pub(crate) fn opened(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().filter(|placed| placed.is_opened).map(|placed| placed.piece.place)
    }

    /// How each piece has come, by its place.
    pub(crate) fn landings(&self) -> impl Iterator<Item = (usize, Landing)> {
        self.pieces.iter().map(|PlacedPiece { piece, landing, .. }| (piece.place, *landing))
    }

    /// Where the body begins in what has come.
    pub(crate) fn body_offset(&self) -> u64 {
        self.meta.body_offset()
    }

    /// What lies in front of the body.
    pub(crate) fn metadata(&self) -> Option<Bytes> {
        self.bytes(0, u64::from(self.meta.metadata_bytes()))
    }

    /// These bytes of what has come, if all of them lie beside.
    pub(crate) fn bytes(&self, at: u64, len: u64) -> Option<Bytes> {
        let from = if len == 0 { 0 } else { usize::try_from(self.scatter.beside(at, len)?).ok()? };
        self.bytes.as_ref()?.slice(from..from.checked_add(usize::try_from(len).ok()?)?)
    }

    /// Copies what lies beside to its places. Returns the number of bytes.
    pub(crate) fn copy(&self, targets: &Targets) -> Result<u64, BundleError> {
        let mut copied = 0;
        for PlacedPiece { piece: Piece { at, place, to }, landing, .. } in &self.pieces {
            let mut copy = |at: u64, to: &BodyBox| {
                let (len, body_len) = (to.len_bytes(), self.scatter.beside_bytes);
                let bytes = self.bytes(at, len).ok_or(BundleError::OutOfBody { offset: at, len, body_len })?;
                targets.copy_bytes(*place, to, &bytes);
                copied += len;
                Ok::<(), BundleError>(())
            };
            match landing {
                Landing::InPlace => {}
                Landing::TooManyRuns => {
                    for run in runs_of(to).filter(|run| !self.scatter.is_in_place(at + run.to)) {
                        // It was a run of a box.
                        let run_box = BodyBox::new(run.from, run.len, std::iter::empty().collect());
                        copy(at + run.to, &run_box.map_err(BundleError::from)?)?;
                    }
                }
                _ => copy(*at, to)?,
            }
        }
        Ok(copied)
    }
}

/// Whether a piece may land in place. One run may be long with its neighbours.
fn is_tried(piece: &Piece) -> bool {
    piece.to.run() >= MIN_RUN_BYTES || piece.to.repeats().is_empty()
}

/// The runs that may land in place.
fn runs_in_arena(targets: &Targets, pieces: &[Piece]) -> Vec<Run> {
    let mut runs = Vec::new();
    for piece in pieces.iter().filter(|piece| targets.is_own(piece.place) && is_tried(piece)) {
        let base = targets.block(piece.place).slice().offset;
        let run = |run: PackedRun| Run { at: piece.at + run.to, len: run.len, to: base + run.from };
        runs.extend(runs_of(&piece.to).map(run));
    }
    runs
}

fn runs_of(to: &BodyBox) -> Packing {
    Packing::dense(std::iter::once(to.clone()).collect())
}
