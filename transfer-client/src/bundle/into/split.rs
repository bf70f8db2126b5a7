//! Several requests for one version of a bundle, where its tensors lie apart in more pieces than one landing has ranges for.
//!
//! The table alone is fetched first. It names the version, and has the stamp of its push. Each request is for exactly that version, brings
//! the table along, and lands a part of the tensors. Another stamp is another push: a version that is replaced meanwhile is never mixed
//! with the next one under its number.

use super::whole::Whole;
use crate::bundle::parts::{Part, PartsRequest, Wanted, fetched, landed, parts, table_of};
use crate::bundle::slices::FetchedSlices;
use crate::error::{BundleError, Error};
use crate::fetch::{FetchOptions, FetchedSlice, Tensor, is_by_reference};
use crate::gathered::Body;
use crate::landing::{Asking, Landing, LandingCall, MIN_RUN_BYTES, Outcome, Targets};
use crate::session::{ANSWER_GRACE, Ended, OneCall, Session};
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use transfer_core::memory::{ALIGNMENT, padded};
use transfer_core::op::{FailureCode, FetchedTensor, MAX_LANDING_RANGES, Otherwise, Report};
use transfer_core::tensor::{BodyBox, Key, MAX_EXCERPT_BYTES, Select, Version};
use transfer_core::wire::bundle::BundleTable;
use transfer_memory::view::OwnMemory;

/// The number of requests under way at the same time.
const IN_FLIGHT: usize = 16;

/// How many of them are of what does not land in place: each takes up to a bucket of the pool.
const BESIDE_IN_FLIGHT: usize = 2;

/// The most requests for one version: with more, a version that is published often would never be fetched.
const MAX_REQUESTS: usize = 256;

/// The tables that come along are at most this part of what is asked for.
const TABLE_FRACTION: u64 = 8;

/// The requests for a version under way.
#[derive(Debug)]
pub(super) struct Split {
    table: Arc<BundleTable>,
    options: FetchOptions,
    planned: VecDeque<Planned>,
    in_flight: Vec<Going>,
    /// The places in which something may have been written.
    pub(super) written: BTreeSet<usize>,
    /// How each place was filled.
    pub(super) landings: Vec<Landing>,
    /// The tensors without a place.
    pub(super) rest: Vec<(String, Tensor)>,
    pub(super) version: Version,
    pub(super) report: Report,
    failed: Option<SplitEnd>,
}

/// How it ends, when nothing is under way any more.
#[derive(Debug)]
pub(super) enum SplitEnd {
    Landed,
    /// The version was replaced, or is another push under its number.
    Replaced,
    /// It does not fit the landing pool where it has to.
    TooLarge,
    Failed(Error),
    /// A request has ended without an answer, and may still write into the memory.
    Lost(Error),
}

/// A request that has not begun.
#[derive(Debug)]
struct Planned {
    wanted: Vec<Wanted>,
    request: PartsRequest,
    /// Whether something of it lands in place. Else it may have tensors without a place.
    lands: bool,
    /// Why nothing of it does, although it could have.
    why: Option<Landing>,
}

#[derive(Debug)]
struct Going {
    wanted: Vec<Wanted>,
    boxes: Vec<BodyBox>,
    call: GoingCall,
}

#[derive(Debug)]
enum GoingCall {
    Lands(LandingCall),
    /// Nothing of it can land in place. If it is not for each tensor's own reason, then for this one.
    Beside(OneCall, Option<Landing>),
}

/// Parts that are asked for together.
#[derive(Default)]
struct Group<'a, 'b> {
    parts: Vec<(&'b Part<'a>, Option<(usize, BodyBox)>)>,
    ranges: usize,
    excerpt_bytes: usize,
    bytes: u64,
}

impl<'a, 'b> Group<'a, 'b> {
    /// The bytes that a part takes in the request. Whole tensors beside each other are one box.
    fn excerpt_bytes_of(&self, part: &Part<'a>) -> usize {
        let end = |last: &Part<'a>| padded(last.entry.meta.len_bytes()).map(|len| last.entry.offset + len);
        let is_next = |last: &Part<'a>| last.found.is_none() && end(last) == Some(part.entry.offset);
        match &part.found {
            None if self.parts.last().is_some_and(|(last, _)| is_next(last)) => 0,
            None => BodyBox::wire_bytes_with(0),
            Some(found) => BodyBox::wire_bytes_with(found.dims().len()),
        }
    }

    /// The ranges that a part needs of its own, if it lies behind what is there.
    fn ranges_of(&self, part: &Part<'a>, to: &BodyBox) -> usize {
        let joins = self.parts.last().is_some_and(|(last, place)| {
            let (last_bytes, is_whole) = (last.entry.meta.len_bytes(), last.found.is_none() && part.found.is_none());
            let is_next = is_whole && last.entry.offset + last_bytes == part.entry.offset;
            is_next && place.as_ref().is_some_and(|(_, place)| place.repeats().is_empty() && place.end() == to.offset())
        });
        // What lies between two of them, up to the next multiple of the alignment, is a range, too.
        let gap = u64::from(!to.len_bytes().is_multiple_of(ALIGNMENT));
        usize::try_from(to.runs() - u64::from(joins && to.repeats().is_empty()) + gap).unwrap_or(usize::MAX)
    }
}

/// Groups parts, which are in the order of the table, by requests. `None` if these are too many, or a part that does not land in place is
/// longer than a bucket.
fn groups<'a, 'b>(
    table: &BundleTable,
    parts: &'b [Part<'a>],
    targets: &Targets,
    bucket_bytes: u64,
) -> Option<Vec<Group<'a, 'b>>> {
    let (mut groups, mut long, mut beside) = (Vec::new(), Group::default(), Group::default());
    let place_of = |part: &Part<'_>| {
        let place = targets.find(part.entry.name.as_str())?;
        Some((place, targets.places()[place].view.bytes()?.clone()))
    };
    for part in parts {
        let place = place_of(part);
        let len = part.meta().len_bytes();
        let (group, lands) = loop {
            let lands = place.as_ref().filter(|(at, _)| targets.is_own(*at)).and_then(|(_, to)| {
                let ranges = long.ranges_of(part, to);
                (to.run() >= MIN_RUN_BYTES || ranges == 0).then_some(ranges)
            });
            let group = if lands.is_some() { &mut long } else { &mut beside };
            let is_full = match lands {
                // The table is one.
                Some(ranges) => 1 + group.ranges.saturating_add(ranges) > MAX_LANDING_RANGES,
                None => group.bytes.saturating_add(len) > bucket_bytes,
            };
            let is_full = is_full || group.excerpt_bytes + group.excerpt_bytes_of(part) > MAX_EXCERPT_BYTES;
            if !is_full || group.parts.is_empty() {
                break (group, lands);
            }
            // What joins the last part of a request begins runs of its own in the next one.
            groups.push(std::mem::take(group));
        };
        if lands.is_none() && len > bucket_bytes {
            return None;
        }
        group.ranges = group.ranges.saturating_add(lands.unwrap_or(0));
        group.excerpt_bytes += group.excerpt_bytes_of(part);
        group.bytes = group.bytes.saturating_add(len);
        group.parts.push((part, place));
    }
    groups.extend([long, beside].into_iter().filter(|group| !group.parts.is_empty()));
    let tables = table.len_bytes().saturating_mul(groups.len() as u64);
    let asked = groups.iter().fold(0, |sum: u64, group| sum.saturating_add(group.bytes));
    (groups.len() <= MAX_REQUESTS && tables <= asked / TABLE_FRACTION).then_some(groups)
}

impl Split {
    /// Whether several requests can bring these parts, which are in the order of the table.
    pub(super) fn is_possible(table: &BundleTable, parts: &[Part<'_>], targets: &Targets, bucket_bytes: u64) -> bool {
        groups(table, parts, targets, bucket_bytes).is_some()
    }

    /// Plans the requests for these parts, which are in the order of the table. `None` if several requests cannot bring them.
    pub(super) fn plan(
        (table, version): (Arc<BundleTable>, Version),
        (parts, slices): (&[Part<'_>], Option<&[Wanted]>),
        targets: &Targets,
        (options, report): (FetchOptions, Report),
    ) -> Result<Option<Split>, Error> {
        let Some(groups) = groups(&table, parts, targets, options.bucket_bytes) else { return Ok(None) };
        let mut planned = VecDeque::with_capacity(groups.len());
        for Group { parts, ranges, .. } in groups {
            let slice = |name: &str| slices?.iter().find(|wanted| wanted.name == name)?.slice.clone();
            let wanted = |name: &str| Wanted { name: name.to_owned(), slice: slice(name) };
            let wanted = parts.iter().map(|(part, _)| wanted(part.entry.name.as_str())).collect();
            let Some(request) = PartsRequest::of_parts(&table, parts)? else { return Ok(None) };
            planned.push_back(Planned { wanted, request, lands: ranges > 0, why: None });
        }
        let options = FetchOptions { select: Select::Exactly(version), ..options };
        let landings = vec![Landing::Short; targets.places().len()];
        let report = Report { bytes: 0, copied: 0, ..report };
        Ok(Some(Split {
            table,
            options,
            planned,
            in_flight: Vec::new(),
            written: BTreeSet::new(),
            landings,
            rest: Vec::new(),
            version,
            report,
            failed: None,
        }))
    }

    /// Lets it end with this. What is under way is cancelled, and waited for.
    pub(super) fn end(&mut self, end: SplitEnd) {
        self.planned.clear();
        if self.failed.is_none() || matches!(end, SplitEnd::Lost(_)) {
            self.failed = Some(end);
        }
        for Going { call, .. } in &mut self.in_flight {
            match call {
                GoingCall::Lands(call) => call.cancel(),
                GoingCall::Beside(call, _) => call.cancel(),
            }
        }
    }

    pub(super) fn needs_timer(&self) -> bool {
        self.in_flight.iter().any(|going| match &going.call {
            GoingCall::Lands(call) => call.needs_timer(),
            GoingCall::Beside(call, _) => call.needs_timer(),
        })
    }

    /// Takes the next request that may begin.
    fn next(&mut self) -> Option<Planned> {
        let is_beside = |going: &&Going| matches!(going.call, GoingCall::Beside(..));
        let is_room = self.in_flight.iter().filter(is_beside).count() < BESIDE_IN_FLIGHT;
        let at = self.planned.iter().position(|planned| planned.lands || is_room)?;
        self.planned.remove(at)
    }

    /// Begins a request. Where nothing of it can land in place, it is planned as one of those.
    fn begin(
        &self,
        (session, key): (&Arc<Session>, &Key),
        targets: &Targets,
        limit: Instant,
        planned: Planned,
    ) -> Result<Going, Planned> {
        let Planned { wanted, request, lands, why } = planned;
        let boxes = request.boxes();
        let PartsRequest { excerpt, meta, pieces } = request;
        let options = FetchOptions { timeout: limit.saturating_duration_since(Instant::now()), ..self.options };
        if !lands {
            let command = options.command(key.clone(), excerpt.map(Box::new));
            let call = GoingCall::Beside(OneCall::begin(session.clone(), command, options.timeout), why);
            return Ok(Going { wanted, boxes, call });
        }
        let (excerpt_of, meta_of, otherwise) = (excerpt.clone(), meta.clone(), Otherwise::LandBeside);
        let asking = Asking { key, options: &options, excerpt: excerpt_of, meta: meta_of, pieces, otherwise };
        match LandingCall::begin(session, targets, asking) {
            Ok(call) => Ok(Going { wanted, boxes, call: GoingCall::Lands(call) }),
            Err(why) => {
                let request = PartsRequest { excerpt, meta, pieces: Vec::new() };
                Err(Planned { wanted, request, lands: false, why })
            }
        }
    }

    /// Goes on. `limit` is the deadline.
    pub(super) fn step(
        &mut self,
        (session, key): (&Arc<Session>, &Key),
        (targets, whole): (&Targets, &Whole),
        limit: Instant,
        waker: &Waker,
    ) -> ControlFlow<SplitEnd, Instant> {
        loop {
            while self.in_flight.len() < IN_FLIGHT
                && let Some(planned) = self.next()
            {
                match self.begin((session, key), targets, limit, planned) {
                    Ok(going) => self.in_flight.push(going),
                    Err(planned) => self.planned.push_front(planned),
                }
            }
            if self.in_flight.is_empty() {
                return ControlFlow::Break(self.failed.take().unwrap_or(SplitEnd::Landed));
            }
            let (mut until, mut ended) = (limit + ANSWER_GRACE, None);
            for (at, going) in self.in_flight.iter_mut().enumerate() {
                let stepped = match &mut going.call {
                    GoingCall::Lands(call) => call.step(waker),
                    GoingCall::Beside(call, _) => call.step(waker),
                };
                match stepped {
                    ControlFlow::Continue(next) => until = until.min(next),
                    ControlFlow::Break(end) => {
                        ended = Some((at, end));
                        break;
                    }
                }
            }
            let Some((at, end)) = ended else { return ControlFlow::Continue(until) };
            let going = self.in_flight.swap_remove(at);
            let Err(end) = self.take((session, key), targets, going, end) else { continue };
            let is_exact = matches!(whole.options().select, Select::Exactly(_));
            self.end(match end {
                SplitEnd::Failed(Error::Failed(failure)) if failure.code == FailureCode::TooLarge => SplitEnd::TooLarge,
                SplitEnd::Failed(Error::Failed(failure)) if failure.code == FailureCode::VersionGone && !is_exact => {
                    SplitEnd::Replaced
                }
                end => end,
            });
        }
    }

    /// Takes what a request has brought.
    fn take(
        &mut self,
        (session, key): (&Arc<Session>, &Key),
        targets: &Targets,
        going: Going,
        ended: Ended,
    ) -> Result<(), SplitEnd> {
        let Going { wanted, boxes, call } = going;
        match call {
            GoingCall::Beside(_, why) => {
                let (body, tensor) = fetched(session, ended).map_err(SplitEnd::Failed)?;
                self.copy(key, targets, (&wanted, boxes), (body, tensor), why)
            }
            GoingCall::Lands(call) => {
                let opened: Vec<_> = call.opened().collect();
                match call.conclude(session, ended) {
                    Outcome::Landed { beside, report, .. } => {
                        self.written.extend(opened);
                        let now = beside.metadata().and_then(|bytes| BundleTable::read(&bytes).ok());
                        if !now.is_some_and(|now| self.is_same(&now)) {
                            return Err(SplitEnd::Replaced);
                        }
                        let copied = beside.copy(targets).map_err(|e| SplitEnd::Failed(e.into()))?;
                        for (place, landing) in beside.landings() {
                            self.written.insert(place);
                            self.landings[place] = landing;
                        }
                        self.note(Report { copied: report.copied + copied, ..report });
                        Ok(())
                    }
                    Outcome::Elsewhere { lease, found } => {
                        let body = Body::new::<BundleError>(lease, &found).map_err(SplitEnd::Failed)?;
                        self.copy(key, targets, (&wanted, boxes), (body, found), Some(Landing::NotOpened))
                    }
                    Outcome::Failed { error, is_torn } => {
                        if is_torn {
                            self.written.extend(opened);
                        }
                        Err(SplitEnd::Failed(error))
                    }
                    Outcome::Lost { error } => Err(SplitEnd::Lost(error)),
                }
            }
        }
    }

    /// Whether a table is that of the same push.
    fn is_same(&self, table: &BundleTable) -> bool {
        *table == *self.table && table.stamp() == self.table.stamp()
    }

    /// Copies what has landed in the pool, or lies on this host.
    fn copy(
        &mut self,
        key: &Key,
        targets: &Targets,
        (wanted, boxes): (&[Wanted], Vec<BodyBox>),
        (body, found): (Body, FetchedTensor),
        why: Option<Landing>,
    ) -> Result<(), SplitEnd> {
        let now = table_of(&body, &found).map_err(SplitEnd::Failed)?;
        if !self.is_same(&now) {
            return Err(SplitEnd::Replaced);
        }
        let slices = match found.is_part {
            true => parts(key, &self.table, wanted)
                .and_then(|parts| FetchedSlices::of_landed(&parts, &landed(body, boxes)?, found.version, found.report)),
            false => FetchedSlices::of_whole(key, wanted, body, &found),
        };
        let slices = slices.map_err(SplitEnd::Failed)?;
        let (mut report, version) = (*slices.report(), found.version);
        let (mut kept, by_reference) = (Vec::new(), is_by_reference(&report));
        for Wanted { name, .. } in wanted {
            let Some(slice) = slices.get(name) else { continue };
            match targets.find(name) {
                None => kept.push((name.clone(), slice)),
                Some(place) => {
                    let Some(to) = targets.places()[place].view.bytes() else { continue };
                    self.written.insert(place);
                    targets.copy(place, to, slice);
                    report.copied += to.len_bytes();
                    self.landings[place] = match () {
                        () if by_reference => Landing::OnThisHost,
                        () if !targets.is_own(place) => Landing::OtherArena,
                        () if to.run() < MIN_RUN_BYTES => Landing::Short,
                        () => why.unwrap_or(Landing::TooManyRuns),
                    };
                }
            }
        }
        let kept = keep(kept, by_reference, version, &mut report).map_err(SplitEnd::Failed)?;
        self.rest.extend(kept);
        self.note(report);
        Ok(())
    }

    fn note(&mut self, Report { bytes, copied, fabric, .. }: Report) {
        self.report.bytes += bytes;
        self.report.copied += copied;
        self.report.fabric = fabric;
    }
}

/// Makes the tensors that are returned of those without a place. They do not stay in the landing pool, where the next requests may need
/// their room.
fn keep(
    slices: Vec<(String, &FetchedSlice)>,
    by_reference: bool,
    version: Version,
    report: &mut Report,
) -> Result<Vec<(String, Tensor)>, Error> {
    let tensor = |bytes, slice: &FetchedSlice, report| Tensor::of_bytes(bytes, slice.meta().clone(), version, report);
    if by_reference || slices.is_empty() {
        let tensors =
            slices.into_iter().map(|(name, slice)| (name, tensor(slice.clone().into_bytes(), slice, *report)));
        return Ok(tensors.collect());
    }
    let padded_len = |slice: &FetchedSlice| padded(slice.meta().len_bytes()).unwrap_or(u64::MAX);
    let wanted_bytes = slices.iter().fold(0_u64, |sum, (_, slice)| sum.saturating_add(padded_len(slice)));
    let no_memory = |e: std::io::Error| Error::NoMemory { wanted_bytes, reason: e.to_string() };
    let mut memory = OwnMemory::new(wanted_bytes).map_err(no_memory)?;
    let mut places = Vec::with_capacity(slices.len());
    let mut at = 0;
    for (_, slice) in &slices {
        let bytes = slice.as_bytes();
        memory.as_mut_bytes()[at..at + bytes.len()].copy_from_slice(bytes);
        report.copied += bytes.len() as u64;
        places.push(at..at + bytes.len());
        at += padded_len(slice) as usize;
    }
    let memory = memory.freeze();
    let mut tensors = Vec::with_capacity(slices.len());
    for ((name, slice), place) in slices.into_iter().zip(places) {
        let (offset, len) = (place.start as u64, place.len() as u64);
        let bytes = memory.slice(place).ok_or(BundleError::OutOfBody { offset, len, body_len: wanted_bytes })?;
        tensors.push((name, tensor(bytes, slice, *report)));
    }
    Ok(tensors)
}
