//! The records in a worker's rings.
//!
//! A record is one [`Request`] (submission ring, worker to sidecar) or one [`Reply`] (completion ring, sidecar to worker). The first byte is its
//! kind. In a command and in an answer, the operation's number follows. No record is longer than [`MAX_RECORD_BYTES`].

use super::message::{read_atomic, write_atomic};
use super::ranges::{ArenaRange, MAX_RANGES};
use super::select::{select, select_parts};
use super::{Reader, WireError, Writer, deltas, excerpt, gathered, roster};
use crate::fabric::FabricKind;
use crate::memory::{LocalSlice, SegmentId};
use crate::op::{
    Announced, Answer, Command, CounterAsk, CounterCommand, CounterPath, CounterReport, Destination, Failure,
    FailureCode, Fetch, FetchInto, FetchedTensor, Gather, LeaseId, MAX_LANDING_RANGES, MAX_NOTICES, MAX_READERS,
    MAX_WRONG_DIGEST_BYTES, OpId, Otherwise, Push, Reply, Report, Request, Reserve, TakeBack,
};
use crate::tensor::{Gathered, Key, Name, Retention, Version};
use crate::trace::TraceContext;
use std::time::Duration;

/// The largest length of a record, in bytes.
pub const MAX_RECORD_BYTES: usize = 2048;

const PUSH: u8 = 1;
const FETCH: u8 = 2;
const RELEASE: u8 = 3;
const CANCEL: u8 = 4;
const DELETE: u8 = 5;
const RESERVE: u8 = 6;
const COUNTER: u8 = 7;
const TAKE_BACK: u8 = 8;
const UNMARKED: u8 = 9;
const UNANNOUNCE: u8 = 10;
const GATHER: u8 = 11;
const COUNT_UNFETCHED: u8 = 12;
const FETCH_INTO: u8 = 13;
const WRONG_DIGEST: u8 = 14;

/// The kinds of requests.
const REQUEST_KINDS: &str = "1 to 14";

const PUSHED: u8 = 65;
const FETCHED: u8 = 66;
const DELETED: u8 = 67;
const FAILED: u8 = 68;
const RETURNED: u8 = 69;
const RESERVED: u8 = 70;
const COUNTER_OPENED: u8 = 71;
const COUNTED: u8 = 72;
const RELEASED: u8 = 73;
const TAKEN_BACK: u8 = 74;
const WATCHED: u8 = 75;
const UNFETCHED: u8 = 76;
const LANDED: u8 = 77;
const TORN: u8 = 78;
const ROSTER: u8 = 79;

/// In place of a number of versions: the key is not the worker's.
const NOT_OWNED: u32 = u32::MAX;

/// The kinds of replies.
const REPLY_KINDS: &str = "65 to 79";

const OPEN: u8 = 0;
const OPERATE: u8 = 1;
const WAIT: u8 = 2;
const ASK_ROSTER: u8 = 3;

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn write_require(w: &mut Writer, require: Option<FabricKind>) {
    w.u8(require.map_or(0, |k| k as u8));
}

fn read_require(r: &mut Reader<'_>) -> Result<Option<FabricKind>, WireError> {
    match r.u8()? {
        0 => Ok(None),
        n => Ok(Some(read_kind(n)?)),
    }
}

/// The bytes of a retention in records and in landing headers.
pub(super) fn retention_bytes(retention: Retention) -> [u8; 6] {
    let (until, life, fetches) = retention.to_wire();
    let [a, b, c, d] = fetches.to_le_bytes();
    [until, life, a, b, c, d]
}

pub(super) fn read_retention(r: &mut Reader<'_>) -> Result<Retention, WireError> {
    let (until, life, fetches) = (r.u8()?, r.u8()?, r.u32()?);
    let value = u64::from(until) << 40 | u64::from(life) << 32 | u64::from(fetches);
    let expected = "0 or 2 and no fetches, or 1 and some; then 0 to 2, and 16 times 0 to 2";
    Retention::from_wire(until, life, fetches).ok_or(WireError::Value { what: "retention", value, expected })
}

fn read_ranges(r: &mut Reader<'_>) -> Result<u32, WireError> {
    match r.u32()? {
        n if n <= MAX_RANGES => Ok(n),
        n => Err(WireError::Value { what: "number of ranges", value: u64::from(n), expected: "at most 131072" }),
    }
}

/// The bytes of a push that was not announced.
const NOT_ANNOUNCED: Announced = Announced { notice: 0, count: 0 };

fn read_readers(r: &mut Reader<'_>) -> Result<Vec<Name>, WireError> {
    let n = usize::from(r.u8()?);
    if n > MAX_READERS {
        return Err(WireError::Value {
            what: "number of tenants that may read what is pushed",
            value: n as u64,
            expected: "at most 8",
        });
    }
    (0..n).map(|_| Ok(Name::from_bytes(r.text()?)?)).collect()
}

fn read_announced(r: &mut Reader<'_>) -> Result<Option<Announced>, WireError> {
    let announced = Announced { notice: r.u16()?, count: r.u64()? };
    match announced {
        NOT_ANNOUNCED => Ok(None),
        Announced { notice, .. } if notice >= MAX_NOTICES => {
            Err(WireError::Value { what: "notice", value: u64::from(notice), expected: "below 4096" })
        }
        announced => Ok(Some(announced)),
    }
}

fn read_kind(n: u8) -> Result<FabricKind, WireError> {
    FabricKind::from_wire(n).ok_or(WireError::Value { what: "fabric", value: u64::from(n), expected: "1 to 5" })
}

/// Writes a report. It must be the last field of its record, because it ends with an optional trace context.
fn write_report(w: &mut Writer, r: &Report) {
    w.u8(r.fabric as u8).u64(r.bytes).u64(r.copied).u64(r.delta).u64(r.relayed);
    w.u64(nanos(r.queued)).u64(nanos(r.waited)).u64(nanos(r.in_flight));
    TraceContext::write_last(r.origin, w);
}

fn read_report(r: &mut Reader<'_>) -> Result<Report, WireError> {
    let n = r.u8()?;
    Ok(Report {
        fabric: read_kind(n)?,
        bytes: r.u64()?,
        copied: r.u64()?,
        delta: r.u64()?,
        relayed: r.u64()?,
        verified: 0,
        queued: Duration::from_nanos(r.u64()?),
        waited: Duration::from_nanos(r.u64()?),
        in_flight: Duration::from_nanos(r.u64()?),
        origin: TraceContext::read_last(r)?,
    })
}

fn write_counter_report(w: &mut Writer, r: &CounterReport) {
    w.u8(r.path as u8).u8(r.fabric as u8).u64(nanos(r.queued)).u64(nanos(r.in_flight));
}

fn read_counter_report(r: &mut Reader<'_>) -> Result<CounterReport, WireError> {
    let (path, fabric) = (r.u8()?, r.u8()?);
    let wrong = WireError::Value { what: "path to a counter", value: u64::from(path), expected: "1 to 4" };
    Ok(CounterReport {
        path: CounterPath::from_wire(path).ok_or(wrong)?,
        fabric: read_kind(fabric)?,
        queued: Duration::from_nanos(r.u64()?),
        in_flight: Duration::from_nanos(r.u64()?),
    })
}

/// Appends a request's bytes.
pub fn write_request(w: &mut Writer, request: &Request) {
    match request {
        Request::Command { op, command } => write_command(w, *op, command),
        Request::Unmarked { ticket } => {
            w.u8(UNMARKED).u64(*ticket);
        }
        Request::Unannounce { key } => {
            w.u8(UNANNOUNCE).text(key.as_str());
        }
        Request::CountUnfetched { number, key } => {
            w.u8(COUNT_UNFETCHED).u64(*number).text(key.as_str());
        }
        Request::WrongDigest { text } => {
            w.u8(WRONG_DIGEST).text(text);
        }
        Request::Release { lease } => {
            w.u8(RELEASE).u64(lease.0);
        }
        Request::Cancel { op } => {
            w.u8(CANCEL).u64(op.0);
        }
    }
}

/// Appends the bytes of the request that begins the operation `op`.
pub fn write_command(w: &mut Writer, op: OpId, command: &Command) {
    match command {
        Command::Push(p) => {
            w.u8(PUSH).u64(op.0).text(p.key.as_str());
            w.u8(u8::from(p.version.is_some())).u64(p.version.map_or(0, |v| v.0));
            w.meta(&p.meta).u64(p.offset).text(p.to.as_ref().map_or("", Name::as_str)).u64(nanos(p.timeout));
            write_require(w, p.require);
            w.raw(&retention_bytes(p.retention));
            w.u8(u8::from(p.takeover)).u8(u8::from(p.more_follow)).u32(p.ranges);
            let Announced { notice, count } = p.announced.unwrap_or(NOT_ANNOUNCED);
            w.u16(notice).u64(count);
            deltas::write(w, &p.deltas);
            deltas::write_content(w, p.content);
            w.u8(u8::try_from(p.readable_by.len()).unwrap_or(u8::MAX));
            for tenant in &p.readable_by {
                w.text(tenant.as_str());
            }
            TraceContext::write_last(p.trace, w);
        }
        Command::Fetch(fetch) => {
            w.u8(FETCH).u64(op.0);
            write_fetch(w, fetch);
        }
        Command::FetchInto(FetchInto { fetch, to }) => {
            w.u8(FETCH_INTO).u64(op.0);
            write_destination(w, to);
            write_fetch(w, fetch);
        }
        Command::Gather(g) => {
            w.u8(GATHER).u64(op.0).text(g.gathered.stem().as_str()).u64(nanos(g.timeout));
            write_require(w, g.require);
            gathered::write_parts(w, g.gathered.parts());
            TraceContext::write_last(g.trace, w);
        }
        Command::Reserve(p) => {
            w.u8(RESERVE).u64(op.0).text(p.key.as_str()).meta(&p.meta).text(p.to.as_str()).u64(nanos(p.timeout));
        }
        Command::TakeBack(t) => {
            w.u8(TAKE_BACK).u64(op.0).text(t.key.as_str());
            w.u8(u8::from(t.version.is_some())).u64(t.version.map_or(0, |v| v.0)).u64(nanos(t.timeout));
        }
        Command::Delete { key } => {
            w.u8(DELETE).u64(op.0).text(key.as_str());
        }
        Command::Counter(c) => {
            w.u8(COUNTER).u64(op.0).text(c.name.as_str()).u64(nanos(c.timeout));
            match &c.ask {
                CounterAsk::Open => {
                    w.u8(OPEN);
                }
                CounterAsk::Operate { home, identity, op } => {
                    w.u8(OPERATE).text(home.as_str()).u64(*identity);
                    write_atomic(w, *op);
                }
                CounterAsk::Wait { members } => {
                    w.u8(WAIT).u32(*members);
                }
                CounterAsk::Roster(ask) => {
                    w.u8(ASK_ROSTER);
                    roster::write_ask(w, ask);
                }
            }
        }
    }
}

/// Writes a fetch. It must be the last field of its record, because it ends with an optional trace context.
fn write_fetch(w: &mut Writer, f: &Fetch) {
    w.text(f.key.as_str());
    let (kind, version) = select_parts(f.select);
    w.u8(kind).u64(version).u64(nanos(f.timeout));
    write_require(w, f.require);
    w.u8(u8::from(f.watches));
    deltas::write_base(w, f.base);
    excerpt::write_head(w, f.excerpt.as_deref());
    excerpt::write_part(w, f.excerpt.as_deref());
    TraceContext::write_last(f.trace, w);
}

fn read_fetch(r: &mut Reader<'_>) -> Result<Fetch, WireError> {
    let key = Key::from_bytes(r.text()?)?;
    let (kind, version) = (r.u8()?, r.u64()?);
    Ok(Fetch {
        key,
        select: select(kind, version)?,
        timeout: Duration::from_nanos(r.u64()?),
        require: read_require(r)?,
        watches: r.flag("whether the worker watches notices")?,
        base: deltas::read_base(r)?,
        excerpt: excerpt::read_part(excerpt::read_head(r)?, r)?,
        trace: TraceContext::read_last(r)?,
    })
}

fn write_destination(w: &mut Writer, to: &Destination) {
    w.u8(u8::try_from(to.ranges.len()).unwrap_or(u8::MAX));
    for range in &to.ranges {
        w.u64(range.offset).u64(range.len);
    }
    w.u8(u8::from(to.otherwise == Otherwise::LandBeside)).meta(&to.meta);
}

fn read_destination(r: &mut Reader<'_>) -> Result<Destination, WireError> {
    let count = r.u8()?;
    if count == 0 || usize::from(count) > MAX_LANDING_RANGES {
        let (what, value) = ("number of ranges in which a version lands", u64::from(count));
        return Err(WireError::Value { what, value, expected: "1 to 24" });
    }
    let range = |_| Ok(ArenaRange { offset: r.u64()?, len: r.u64()? });
    let ranges = (0..count).map(range).collect::<Result<_, WireError>>()?;
    let otherwise = match r.flag("whether another version lands beside")? {
        true => Otherwise::LandBeside,
        false => Otherwise::Fail,
    };
    Ok(Destination { ranges, otherwise, meta: r.meta()? })
}

/// Reads a request that a worker wrote.
///
/// # Errors
/// [`WireError`] for bytes that [`write_request`] cannot have written.
pub fn read_request(bytes: &[u8]) -> Result<Request, WireError> {
    let mut r = Reader::new("a submission record", bytes);
    let kind = r.u8()?;
    let request = match kind {
        RELEASE => Request::Release { lease: LeaseId(r.u64()?) },
        UNMARKED => Request::Unmarked { ticket: r.u64()? },
        UNANNOUNCE => Request::Unannounce { key: Key::from_bytes(r.text()?)? },
        COUNT_UNFETCHED => Request::CountUnfetched { number: r.u64()?, key: Key::from_bytes(r.text()?)? },
        WRONG_DIGEST => Request::WrongDigest { text: read_wrong_digest(&mut r)? },
        CANCEL => Request::Cancel { op: OpId(r.u64()?) },
        PUSH | FETCH | FETCH_INTO | DELETE | RESERVE | COUNTER | TAKE_BACK | GATHER => {
            Request::Command { op: OpId(r.u64()?), command: read_command(kind, &mut r)? }
        }
        n => return Err(unknown_request(n)),
    };
    r.end()?;
    Ok(request)
}

fn read_wrong_digest(r: &mut Reader<'_>) -> Result<String, WireError> {
    let text = r.text()?;
    match std::str::from_utf8(text) {
        Ok(text) if text.len() <= MAX_WRONG_DIGEST_BYTES => Ok(text.to_owned()),
        _ => Err(WireError::Value {
            what: "length of what a worker says of wrong bytes",
            value: text.len() as u64,
            expected: "at most 1024 bytes of UTF-8",
        }),
    }
}

fn unknown_request(kind: u8) -> WireError {
    WireError::Value { what: "kind of submission record", value: u64::from(kind), expected: REQUEST_KINDS }
}

/// Reads a command of this kind. The kind and the operation's number were read before.
fn read_command(kind: u8, r: &mut Reader<'_>) -> Result<Command, WireError> {
    Ok(match kind {
        PUSH => {
            let key = Key::from_bytes(r.text()?)?;
            let has_version = r.flag("whether a version is given")?;
            let version = r.u64()?;
            if !has_version {
                Reader::zero("version that is not given", version)?;
            }
            let meta = r.meta()?;
            let offset = r.u64()?;
            let to = match r.text()? {
                b"" => None,
                name => Some(Name::from_bytes(name)?),
            };
            Command::Push(Push {
                key,
                version: has_version.then_some(Version(version)),
                meta,
                offset,
                to,
                timeout: Duration::from_nanos(r.u64()?),
                require: read_require(r)?,
                retention: read_retention(r)?,
                takeover: r.flag("whether the key is taken over")?,
                more_follow: r.flag("whether higher versions follow")?,
                ranges: read_ranges(r)?,
                announced: read_announced(r)?,
                deltas: deltas::read(r)?,
                content: deltas::read_content(r)?,
                readable_by: read_readers(r)?,
                trace: TraceContext::read_last(r)?,
            })
        }
        FETCH => Command::Fetch(read_fetch(r)?),
        FETCH_INTO => {
            let to = read_destination(r)?;
            Command::FetchInto(FetchInto { fetch: read_fetch(r)?, to })
        }
        GATHER => {
            let (stem, timeout) = (Name::from_bytes(r.text()?)?, Duration::from_nanos(r.u64()?));
            let require = read_require(r)?;
            let gathered = Gathered::new(stem, gathered::read_parts(r)?)?;
            Command::Gather(Gather { gathered, timeout, require, trace: TraceContext::read_last(r)? })
        }
        RESERVE => Command::Reserve(Reserve {
            key: Key::from_bytes(r.text()?)?,
            meta: r.meta()?,
            to: Name::from_bytes(r.text()?)?,
            timeout: Duration::from_nanos(r.u64()?),
        }),
        TAKE_BACK => {
            let key = Key::from_bytes(r.text()?)?;
            let (has_version, version) = (r.flag("whether a version is given")?, Version(r.u64()?));
            if !has_version {
                Reader::zero("version that is not given", version.0)?;
            }
            let timeout = Duration::from_nanos(r.u64()?);
            Command::TakeBack(TakeBack { key, version: has_version.then_some(version), timeout })
        }
        COUNTER => {
            let name = Name::from_bytes(r.text()?)?;
            let timeout = Duration::from_nanos(r.u64()?);
            let ask = match r.u8()? {
                OPEN => CounterAsk::Open,
                OPERATE => {
                    let (home, identity) = (Name::from_bytes(r.text()?)?, r.u64()?);
                    CounterAsk::Operate { home, identity, op: read_atomic(r)? }
                }
                WAIT => CounterAsk::Wait { members: r.u32()? },
                ASK_ROSTER => CounterAsk::Roster(roster::read_ask(r)?),
                n => {
                    let (what, value) = ("what is asked of a counter", u64::from(n));
                    return Err(WireError::Value { what, value, expected: "0 to 3" });
                }
            };
            Command::Counter(CounterCommand { name, ask, timeout })
        }
        DELETE => Command::Delete { key: Key::from_bytes(r.text()?)? },
        n => return Err(unknown_request(n)),
    })
}

/// Appends a reply's bytes.
pub fn write_reply(w: &mut Writer, reply: &Reply) {
    match reply {
        Reply::Answer { op, answer } => write_answer(w, *op, answer),
        Reply::Watched { pushed } => {
            w.u8(WATCHED).u64(pushed.0);
        }
        Reply::Unfetched { number, left } => {
            w.u8(UNFETCHED).u64(*number).u32(left.unwrap_or(NOT_OWNED));
        }
        Reply::Returned { pushed, offset } => {
            w.u8(RETURNED).u64(pushed.0).u64(*offset);
        }
    }
}

fn write_answer(w: &mut Writer, op: OpId, answer: &Answer) {
    match answer {
        Answer::Pushed { version, link_rate, report } => {
            w.u8(PUSHED).u64(op.0).u64(version.0).u64(*link_rate);
            write_report(w, report);
        }
        Answer::Fetched { lease, tensor } => {
            let FetchedTensor { version, meta, slice, ranges, is_part, publication, report } = tensor;
            w.u8(FETCHED).u64(op.0).u64(lease.0).u64(version.0).meta(meta);
            w.u32(slice.segment.0)
                .u64(slice.offset)
                .u64(slice.len)
                .u32(*ranges)
                .u8(u8::from(*is_part))
                .u64(*publication);
            write_report(w, report);
        }
        Answer::Landed { version, report } => {
            w.u8(LANDED).u64(op.0).u64(version.0);
            write_report(w, report);
        }
        Answer::Torn { failure } => {
            w.u8(TORN).u64(op.0).u16(failure.code as u16).text(cut(&failure.text));
        }
        Answer::Reserved => {
            w.u8(RESERVED).u64(op.0);
        }
        Answer::TakenBack { version, pushed, offset } => {
            w.u8(TAKEN_BACK).u64(op.0).u64(version.0).u64(pushed.0).u64(*offset);
        }
        Answer::Deleted => {
            w.u8(DELETED).u64(op.0);
        }
        Answer::Failed { failure, kept } => {
            w.u8(FAILED).u64(op.0).u16(failure.code as u16).u8(u8::from(*kept)).text(cut(&failure.text));
        }
        Answer::CounterOpened { home, identity } => {
            w.u8(COUNTER_OPENED).u64(op.0).text(home.as_str()).u64(*identity);
        }
        Answer::Counted { old, report } => {
            w.u8(COUNTED).u64(op.0).u64(*old);
            write_counter_report(w, report);
        }
        Answer::Released { round, leader, report } => {
            w.u8(RELEASED).u64(op.0).u64(*round).u8(u8::from(*leader));
            write_counter_report(w, report);
        }
        Answer::Roster(answer) => {
            w.u8(ROSTER).u64(op.0);
            roster::write_answer(w, answer);
        }
    }
}

/// Returns the part of a text that fits in a record or message.
pub(super) fn cut(text: &str) -> &str {
    let mut end = text.len().min(Failure::MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Reads a reply that a sidecar wrote.
///
/// # Errors
/// [`WireError`] for bytes that [`write_reply`] cannot have written.
pub fn read_reply(bytes: &[u8]) -> Result<Reply, WireError> {
    let mut r = Reader::new("a completion record", bytes);
    let kind = r.u8()?;
    let reply = match kind {
        RETURNED => Reply::Returned { pushed: OpId(r.u64()?), offset: r.u64()? },
        UNFETCHED => Reply::Unfetched { number: r.u64()?, left: Some(r.u32()?).filter(|left| *left != NOT_OWNED) },
        WATCHED => Reply::Watched { pushed: OpId(r.u64()?) },
        PUSHED | FETCHED | LANDED | TORN | DELETED | FAILED | RESERVED | COUNTER_OPENED | COUNTED | RELEASED
        | TAKEN_BACK | ROSTER => Reply::Answer { op: OpId(r.u64()?), answer: read_answer(kind, &mut r)? },
        n => return Err(unknown_reply(n)),
    };
    r.end()?;
    Ok(reply)
}

fn unknown_reply(kind: u8) -> WireError {
    WireError::Value { what: "kind of completion record", value: u64::from(kind), expected: REPLY_KINDS }
}

/// Reads an answer of this kind. The kind and the operation's number were read before.
fn read_answer(kind: u8, r: &mut Reader<'_>) -> Result<Answer, WireError> {
    Ok(match kind {
        PUSHED => Answer::Pushed { version: Version(r.u64()?), link_rate: r.u64()?, report: read_report(r)? },
        FETCHED => Answer::Fetched {
            lease: LeaseId(r.u64()?),
            tensor: FetchedTensor {
                version: Version(r.u64()?),
                meta: r.meta()?,
                slice: LocalSlice { segment: SegmentId(r.u32()?), offset: r.u64()?, len: r.u64()? },
                ranges: read_ranges(r)?,
                is_part: r.flag("whether a part is answered")?,
                publication: r.u64()?,
                report: read_report(r)?,
            },
        },
        LANDED => Answer::Landed { version: Version(r.u64()?), report: read_report(r)? },
        TORN => {
            let code = FailureCode::from_wire(r.u16()?);
            Answer::Torn { failure: Failure { code, text: String::from_utf8_lossy(r.text()?).into_owned() } }
        }
        RESERVED => Answer::Reserved,
        TAKEN_BACK => Answer::TakenBack { version: Version(r.u64()?), pushed: OpId(r.u64()?), offset: r.u64()? },
        DELETED => Answer::Deleted,
        FAILED => {
            let code = FailureCode::from_wire(r.u16()?);
            let kept = r.flag("whether the range is still being read")?;
            Answer::Failed { failure: Failure { code, text: String::from_utf8_lossy(r.text()?).into_owned() }, kept }
        }
        COUNTER_OPENED => Answer::CounterOpened { home: Name::from_bytes(r.text()?)?, identity: r.u64()? },
        COUNTED => Answer::Counted { old: r.u64()?, report: read_counter_report(r)? },
        RELEASED => {
            let (round, leader) = (r.u64()?, r.flag("whether it was the last to arrive")?);
            Answer::Released { round, leader, report: read_counter_report(r)? }
        }
        ROSTER => Answer::Roster(roster::read_answer(r)?),
        n => return Err(unknown_reply(n)),
    })
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
