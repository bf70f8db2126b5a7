//! The bytes of questions to rosters and of their answers, the same in a worker's records and in messages.

use super::codec::{Reader, WireError, Writer};
use crate::op::{CommittedRank, MAX_LISTED_RANKS, RankCommit, RosterAnswer, RosterAsk};
use crate::tensor::{Name, Version};

/// The most bytes that the list of [`RosterAnswer::Ranks`] has, so that it fits the smallest message of a fabric.
pub(crate) const MAX_LIST_BYTES: usize = 896;

/// The bytes of one rank in that list.
pub(crate) fn rank_bytes(rank: &CommittedRank) -> usize {
    4 + 8 + 8 + 2 + rank.node.as_str().len()
}

fn write_commit(w: &mut Writer, c: &RankCommit) {
    w.u64(c.version.0).u32(c.rank).u32(c.world_size).u64(c.restart).u64(c.instance).u64(c.layout);
    w.text(c.worker.as_ref().map_or("", Name::as_str));
}

fn read_commit(r: &mut Reader<'_>) -> Result<RankCommit, WireError> {
    let (version, rank, world_size) = (Version(r.u64()?), r.u32()?, r.u32()?);
    let (restart, instance, layout) = (r.u64()?, r.u64()?, r.u64()?);
    let worker = Some(r.text()?).filter(|text| !text.is_empty()).map(Name::from_bytes).transpose()?;
    Ok(RankCommit { version, rank, world_size, restart, instance, layout, worker })
}

pub(super) fn write_ask(w: &mut Writer, ask: &RosterAsk) {
    match ask {
        RosterAsk::Commit(c) => {
            w.u8(0);
            write_commit(w, c);
        }
        RosterAsk::Recite { restart, whole, commit } => {
            w.u8(9).u64(*restart);
            write_version(w, *whole);
            w.u8(u8::from(commit.is_some()));
            if let Some(commit) = commit {
                write_commit(w, commit);
            }
        }
        RosterAsk::UntilWhole { restart, version, rank } => {
            w.u8(8).u64(*restart).u64(version.0).u32(rank.unwrap_or(u32::MAX));
        }
        RosterAsk::Withdraw { version, rank, instance } => {
            w.u8(1).u64(version.0).u32(*rank).u64(*instance);
        }
        RosterAsk::Published { version, ranks } => {
            w.u8(2).u64(version.0).u64(*ranks);
        }
        RosterAsk::Ranks { version, from } => {
            w.u8(3).u64(version.0).u32(*from);
        }
        RosterAsk::Missing { version } => {
            w.u8(4).u64(version.0);
        }
        RosterAsk::Look => {
            w.u8(5);
        }
        RosterAsk::Forget { restart, version } => {
            w.u8(7).u64(*restart).u64(version.0);
        }
        RosterAsk::Hold { version } => {
            w.u8(6).u64(version.0);
        }
    }
}

pub(super) fn read_ask(r: &mut Reader<'_>) -> Result<RosterAsk, WireError> {
    Ok(match r.u8()? {
        0 => RosterAsk::Commit(read_commit(r)?),
        1 => RosterAsk::Withdraw { version: Version(r.u64()?), rank: r.u32()?, instance: r.u64()? },
        2 => RosterAsk::Published { version: Version(r.u64()?), ranks: r.u64()? },
        3 => RosterAsk::Ranks { version: Version(r.u64()?), from: r.u32()? },
        4 => RosterAsk::Missing { version: Version(r.u64()?) },
        5 => RosterAsk::Look,
        6 => RosterAsk::Hold { version: Version(r.u64()?) },
        7 => RosterAsk::Forget { restart: r.u64()?, version: Version(r.u64()?) },
        8 => {
            let (restart, version) = (r.u64()?, Version(r.u64()?));
            RosterAsk::UntilWhole { restart, version, rank: Some(r.u32()?).filter(|rank| *rank != u32::MAX) }
        }
        9 => {
            let (restart, whole) = (r.u64()?, read_version(r)?);
            let commit = r.flag("whether there is a commit")?.then(|| read_commit(r)).transpose()?;
            RosterAsk::Recite { restart, whole, commit }
        }
        n => {
            let (what, value) = ("what is asked of a roster", u64::from(n));
            return Err(WireError::Value { what, value, expected: "0 to 9" });
        }
    })
}

/// Writes a version or none.
fn write_version(w: &mut Writer, version: Option<Version>) {
    w.u64(version.map_or(u64::MAX, |version| version.0));
}

fn read_version(r: &mut Reader<'_>) -> Result<Option<Version>, WireError> {
    Ok(Some(Version(r.u64()?)).filter(|version| *version <= Version::LAST))
}

pub(super) fn write_answer(w: &mut Writer, answer: &RosterAnswer) {
    // No list is longer than its limit.
    let count = |len: usize| u8::try_from(len).unwrap_or(u8::MAX);
    match answer {
        RosterAnswer::Committed { is_last, whole, ranks } => {
            w.u8(0).u8(u8::from(*is_last));
            write_version(w, *whole);
            w.u64(*ranks);
        }
        RosterAnswer::Ranks { world_size, next, ranks } => {
            w.u8(1).u32(*world_size).u32(next.unwrap_or(u32::MAX)).u8(count(ranks.len()));
            for rank in ranks {
                w.u32(rank.rank).u64(rank.instance).u64(rank.layout).text(rank.node.as_str());
            }
        }
        RosterAnswer::Missing { world_size, count: all, first } => {
            w.u8(2).u32(*world_size).u32(*all).u8(count(first.len()));
            for rank in first {
                w.u32(*rank);
            }
        }
        RosterAnswer::State { restart, whole, settled, held } => {
            w.u8(3).u64(*restart);
            write_version(w, *whole);
            w.u8(u8::from(*settled)).u8(count(held.len()));
            for version in held {
                w.u64(version.0);
            }
        }
    }
}

/// Reads the length of a list.
fn read_count(r: &mut Reader<'_>) -> Result<u8, WireError> {
    match r.u8()? {
        n if usize::from(n) <= MAX_LISTED_RANKS => Ok(n),
        n => Err(WireError::Value { what: "length of a roster's list", value: u64::from(n), expected: "at most 64" }),
    }
}

pub(super) fn read_answer(r: &mut Reader<'_>) -> Result<RosterAnswer, WireError> {
    Ok(match r.u8()? {
        0 => {
            let is_last = r.flag("whether it was the last rank")?;
            RosterAnswer::Committed { is_last, whole: read_version(r)?, ranks: r.u64()? }
        }
        1 => {
            let (world_size, next) = (r.u32()?, Some(r.u32()?).filter(|next| *next != u32::MAX));
            let mut ranks = Vec::new();
            for _ in 0..read_count(r)? {
                let (rank, instance, layout) = (r.u32()?, r.u64()?, r.u64()?);
                ranks.push(CommittedRank { rank, instance, layout, node: Name::from_bytes(r.text()?)? });
            }
            RosterAnswer::Ranks { world_size, next, ranks }
        }
        2 => {
            let (world_size, count) = (r.u32()?, r.u32()?);
            let first = (0..read_count(r)?).map(|_| r.u32()).collect::<Result<_, _>>()?;
            RosterAnswer::Missing { world_size, count, first }
        }
        3 => {
            let (restart, whole) = (r.u64()?, read_version(r)?);
            let settled = r.flag("whether the home is settled")?;
            let held = (0..read_count(r)?).map(|_| Ok(Version(r.u64()?))).collect::<Result<_, WireError>>()?;
            RosterAnswer::State { restart, whole, settled, held }
        }
        n => {
            let (what, value) = ("kind of a roster's answer", u64::from(n));
            return Err(WireError::Value { what, value, expected: "0 to 3" });
        }
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One of each.
    pub(crate) fn asks(worker: Option<Name>) -> Vec<RosterAsk> {
        let version = Version(7);
        let commit = RankCommit { version, rank: 3, world_size: 8, restart: 2, instance: 5, layout: 6, worker };
        vec![
            RosterAsk::Commit(commit.clone()),
            RosterAsk::Withdraw { version, rank: 3, instance: 5 },
            RosterAsk::Published { version, ranks: 9 },
            RosterAsk::Ranks { version, from: 2 },
            RosterAsk::Missing { version },
            RosterAsk::Look,
            RosterAsk::Hold { version },
            RosterAsk::Forget { restart: 2, version },
            RosterAsk::UntilWhole { restart: 2, version, rank: Some(3) },
            RosterAsk::UntilWhole { restart: 2, version, rank: None },
            RosterAsk::Recite { restart: 2, whole: None, commit: Some(commit) },
            RosterAsk::Recite { restart: 2, whole: Some(version), commit: None },
        ]
    }

    /// One of each, as long as they can be.
    pub(crate) fn answers() -> Vec<RosterAnswer> {
        let rank = CommittedRank { rank: 3, instance: 5, layout: 6, node: Name::new("n").unwrap() };
        let fit = (MAX_LIST_BYTES / rank_bytes(&rank)).min(MAX_LISTED_RANKS);
        vec![
            RosterAnswer::Committed { is_last: true, whole: Some(Version(6)), ranks: 9 },
            RosterAnswer::Committed { is_last: false, whole: None, ranks: 0 },
            RosterAnswer::Ranks { world_size: 8, next: Some(4), ranks: vec![rank; fit] },
            RosterAnswer::Ranks { world_size: 0, next: None, ranks: Vec::new() },
            RosterAnswer::Missing { world_size: 1000, count: 900, first: (0..64).collect() },
            RosterAnswer::State {
                restart: 2,
                whole: Some(Version(7)),
                settled: true,
                held: (0..64).map(Version).collect(),
            },
        ]
    }

    #[test]
    fn questions_and_answers_read_back() {
        for ask in asks(None).into_iter().chain(asks(Some(Name::new("rank-3").unwrap()))) {
            let mut w = Writer::new();
            write_ask(&mut w, &ask);
            let mut r = Reader::new("a question", w.as_slice());
            assert_eq!(read_ask(&mut r), Ok(ask));
            r.end().unwrap();
        }
        for answer in answers() {
            let mut w = Writer::new();
            write_answer(&mut w, &answer);
            assert!(w.as_slice().len() <= MAX_LIST_BYTES + 16, "{answer:?}");
            let mut r = Reader::new("an answer", w.as_slice());
            assert_eq!(read_answer(&mut r), Ok(answer));
            r.end().unwrap();
        }
    }
}
