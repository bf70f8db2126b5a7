use super::*;
use crate::fabric::LinkId;

const NAME: &str = "policy";

/// A roster that has been there for long.
fn roster() -> Roster {
    Roster { is_settled: true, has_heard_all: true, ..new_roster() }
}

/// A roster that may have the place of one that was lost.
fn new_roster() -> Roster {
    Roster::new(2, Rules::default(), Time(0))
}

fn asker(index: u32) -> Asker {
    Asker { waiter: Waiter::Peer(LinkId(1), index), node: Name::new("node").unwrap(), now: Time(u64::from(index)) }
}

fn commit(version: u64, rank: u32, of: u32) -> RankCommit {
    let worker = Some(Name::new(&format!("rank-{rank}")).unwrap());
    let (instance, layout) = (u64::from(rank) + 100, 1);
    RankCommit { version: Version(version), rank, world_size: of, restart: 0, instance, layout, worker }
}

/// Asks, and returns the only answer, which is that to this question.
fn ask(roster: &mut Roster, ask: RosterAsk) -> Result<RosterAnswer, Failure> {
    let mut answered = roster.ask(NAME, asker(1), ask);
    assert_eq!(answered.len(), 1, "{answered:?}");
    answered.pop().unwrap().result
}

fn committed(roster: &mut Roster, commit: RankCommit) -> Result<(bool, u64), Failure> {
    ask(roster, RosterAsk::Commit(commit)).map(|answer| match answer {
        RosterAnswer::Committed { is_last, ranks, .. } => (is_last, ranks),
        answer => panic!("{answer:?}"),
    })
}

/// Commits a version of two ranks, and publishes it.
fn make_whole(roster: &mut Roster, version: u64) {
    assert_eq!(committed(roster, commit(version, 0, 2)), Ok((false, 0)));
    let (is_last, ranks) = committed(roster, commit(version, 1, 2)).unwrap();
    assert!(is_last);
    ask(roster, RosterAsk::Published { version: Version(version), ranks }).unwrap();
}

fn whole(roster: &mut Roster) -> Option<u64> {
    match ask(roster, RosterAsk::Look).unwrap() {
        RosterAnswer::State { whole, .. } => whole.map(|version| version.0),
        answer => panic!("{answer:?}"),
    }
}

// Promise: whole-versions, seen to fail
#[test]
fn version_is_whole_when_its_manifest_is_published_and_not_before() {
    let mut roster = roster();
    committed(&mut roster, commit(7, 0, 2)).unwrap();
    let unpublished = RosterAsk::Published { version: Version(7), ranks: 0 };
    assert_eq!(ask(&mut roster, unpublished).unwrap_err().code, FailureCode::VersionGone);
    let (is_last, ranks) = committed(&mut roster, commit(7, 1, 2)).unwrap();
    assert_eq!((is_last, whole(&mut roster)), (true, None));
    ask(&mut roster, RosterAsk::Published { version: Version(7), ranks }).unwrap();
    assert_eq!(whole(&mut roster), Some(7));
    assert_eq!(roster.commits(), 0);
}

#[test]
fn same_commit_again_has_the_same_answer() {
    let mut roster = roster();
    committed(&mut roster, commit(7, 0, 2)).unwrap();
    let last = committed(&mut roster, commit(7, 1, 2)).unwrap();
    assert_eq!(committed(&mut roster, commit(7, 1, 2)), Ok(last), "its first answer may be lost");
    assert!(!committed(&mut roster, commit(7, 0, 2)).unwrap().0, "another worker publishes");
}

// Promise: one-rank-one-commit, seen to fail
#[test]
fn first_commit_of_a_rank_counts_and_the_other_learns_its_worker() {
    let mut roster = roster();
    committed(&mut roster, commit(7, 0, 2)).unwrap();
    let other = RankCommit { instance: 9, worker: Some(Name::new("other").unwrap()), ..commit(7, 0, 2) };
    let failure = committed(&mut roster, other).unwrap_err();
    assert_eq!(failure.code, FailureCode::KeyOwned);
    assert!(failure.text.contains("rank-0"), "{failure}");
    // A worker of that name takes the place of one that is gone.
    let again = RankCommit { instance: 9, ..commit(7, 0, 2) };
    committed(&mut roster, again).unwrap();
    assert_eq!(roster.commits(), 1);
}

/// Commits from another node, under the same name, and returns the answers that the directory's two answers lead to.
fn moved(roster: &mut Roster, commit: RankCommit, at: Option<&str>) -> Vec<Answered> {
    let who = Asker { node: Name::new("other").unwrap(), ..asker(3) };
    assert!(roster.ask(NAME, who, RosterAsk::Commit(commit)).is_empty(), "the directory is asked first");
    let (worker, at) = (Name::new("rank-0").unwrap(), at.map(|at| Name::new(at).unwrap()));
    assert_eq!(roster.take_unasked(), std::slice::from_ref(&worker));
    let early = roster.located(NAME, &worker, Some(&Name::new("other").unwrap()));
    assert!(early.is_empty(), "this may be the answer to an earlier question");
    assert_eq!(roster.take_unasked(), std::slice::from_ref(&worker));
    roster.located(NAME, &worker, at.as_ref())
}

// Promise: one-rank-one-commit, seen to fail
#[test]
fn commit_of_a_worker_that_has_moved_counts_where_the_directory_says_it_is() {
    let again = RankCommit { instance: 9, ..commit(7, 0, 2) };
    let mut roster = roster();
    committed(&mut roster, commit(7, 0, 2)).unwrap();
    let late = moved(&mut roster, again.clone(), Some("node")).pop().unwrap().result.unwrap_err();
    assert_eq!(late.code, FailureCode::KeyOwned);
    assert!(late.text.contains("\"rank-0\"") && late.text.contains("is at node \"node\""), "{late}");
    let unknown = moved(&mut roster, again.clone(), None).pop().unwrap().result.unwrap_err();
    assert_eq!(unknown.code, FailureCode::Busy);
    assert_eq!(roster.contents().unfinished[&Version(7)][&0], commit(7, 0, 2).instance);
    moved(&mut roster, again, Some("other")).pop().unwrap().result.unwrap();
    assert_eq!(roster.contents().unfinished[&Version(7)][&0], 9);
    assert_eq!((roster.commits(), roster.waiting()), (1, 0));
}

#[test]
fn rank_that_is_replaced_after_the_last_commit_makes_another_manifest() {
    let mut roster = roster();
    committed(&mut roster, commit(7, 0, 2)).unwrap();
    let (_, ranks) = committed(&mut roster, commit(7, 1, 2)).unwrap();
    let (is_last, other) = committed(&mut roster, RankCommit { instance: 9, ..commit(7, 0, 2) }).unwrap();
    assert!(is_last && other != ranks);
    let failure = ask(&mut roster, RosterAsk::Published { version: Version(7), ranks }).unwrap_err();
    assert_eq!(failure.code, FailureCode::VersionGone);
    ask(&mut roster, RosterAsk::Published { version: Version(7), ranks: other }).unwrap();
}

// Promise: unfinished-versions, seen to fail
#[test]
fn fast_rank_waits_until_a_version_is_whole_and_earlier_ones_end() {
    let mut roster = roster();
    committed(&mut roster, commit(7, 0, 2)).unwrap();
    committed(&mut roster, commit(8, 0, 2)).unwrap();
    assert!(roster.ask(NAME, asker(3), RosterAsk::Commit(commit(9, 0, 2))).is_empty(), "two are unfinished");
    assert!(roster.waits_for(&RosterAsk::Commit(commit(9, 0, 2))).contains("rank 1 is the first"));
    assert!(roster.waits_for(&RosterAsk::Commit(commit(9, 0, 2))).contains("--unfinished-versions"));
    let (_, ranks) = committed(&mut roster, commit(8, 1, 2)).unwrap();
    let answered = roster.ask(NAME, asker(5), RosterAsk::Published { version: Version(8), ranks });
    let who: Vec<_> = answered.iter().map(|answered| answered.waiter).collect();
    assert_eq!(who, [3, 5].map(|index| Waiter::Peer(LinkId(1), index)), "those that waited come first");
    assert!(answered.iter().all(|answered| answered.result.is_ok()), "{answered:?}");
    // 7 has ended, 9 has one commit.
    assert_eq!((roster.commits(), roster.waiting()), (1, 0));
    let failure = committed(&mut roster, commit(7, 1, 2)).unwrap_err();
    assert!(failure.text.contains("not newer than version 8"), "{failure}");
}

// Promise: sharded-restart, seen to fail
#[test]
fn restart_begins_the_versions_again_once_for_all_ranks() {
    let mut roster = roster();
    make_whole(&mut roster, 7);
    committed(&mut roster, commit(8, 0, 2)).unwrap();
    committed(&mut roster, commit(9, 0, 2)).unwrap();
    assert!(roster.ask(NAME, asker(4), RosterAsk::Commit(commit(10, 0, 2))).is_empty());
    let restart = |rank| RosterAsk::Commit(RankCommit { restart: 5, instance: 50, ..commit(3, rank, 2) });
    let answered = roster.ask(NAME, asker(5), restart(0));
    let [old, new] = &answered[..] else { panic!("{answered:?}") };
    assert_eq!(old.result.as_ref().unwrap_err().code, FailureCode::VersionGone);
    assert!(old.result.as_ref().unwrap_err().text.contains("have begun again with restart 5"), "{old:?}");
    assert!(new.result.is_ok());
    assert_eq!((whole(&mut roster), roster.restart), (None, 5));
    let Ok(RosterAnswer::Committed { is_last: true, ranks, .. }) = ask(&mut roster, restart(1)) else { panic!() };
    ask(&mut roster, RosterAsk::Published { version: Version(3), ranks }).unwrap();
    assert_eq!(whole(&mut roster), Some(3));
}

// Promise: sharded-restart, seen to fail
#[test]
fn rank_that_is_left_over_from_an_earlier_restart_is_refused_with_both_numbers() {
    let mut roster = roster();
    let of = |restart, instance, rank| RankCommit { restart, instance, ..commit(3, rank, 2) };
    committed(&mut roster, of(1, 11, 0)).unwrap();
    committed(&mut roster, of(2, 21, 0)).unwrap();
    let failure = committed(&mut roster, of(1, 12, 1)).unwrap_err();
    assert_eq!(failure.code, FailureCode::VersionGone);
    assert!(failure.text.contains("restart 1 of rank 1") && failure.text.contains("restart 2"), "{failure}");
    assert_eq!(roster.commits(), 1, "version 3 is not complete by it");
    // Its first commit ended with its restart, and does not count as one that was made before.
    assert_eq!(committed(&mut roster, of(1, 11, 0)).unwrap_err().code, FailureCode::VersionGone);
    ask(&mut roster, RosterAsk::Forget { restart: 1, version: Version(3) }).unwrap();
    assert!(committed(&mut roster, of(2, 22, 1)).unwrap().0);
}

#[test]
fn wrong_ranks_and_sizes_are_refused_by_name() {
    let mut roster = roster();
    for (rank, of) in [(0, 0), (2, 2), (0, MAX_WORLD_SIZE + 1)] {
        let failure = committed(&mut roster, commit(1, rank, of)).unwrap_err();
        assert_eq!(failure.code, FailureCode::Invalid, "{failure}");
    }
    committed(&mut roster, commit(1, 0, 2)).unwrap();
    let failure = committed(&mut roster, commit(1, 1, 3)).unwrap_err();
    assert!(failure.text.contains("has 2 ranks") && failure.text.contains("3"), "{failure}");
}

#[test]
fn held_versions_are_listed_until_their_holders_let_go() {
    let mut roster = roster();
    for (index, version) in [(1, 7), (2, 8), (3, 7)] {
        assert!(roster.ask(NAME, asker(index), RosterAsk::Hold { version: Version(version) }).is_empty());
    }
    let held = |roster: &mut Roster| match ask(roster, RosterAsk::Look).unwrap() {
        RosterAnswer::State { held, .. } => held.into_iter().map(|version| version.0).collect::<Vec<_>>(),
        answer => panic!("{answer:?}"),
    };
    assert_eq!(held(&mut roster), [8, 7]);
    roster.withdraw(asker(1).waiter);
    assert_eq!(held(&mut roster), [8, 7]);
    roster.withdraw(asker(3).waiter);
    assert_eq!(held(&mut roster), [8]);
    assert_eq!(roster.take_waiting(), [asker(2).waiter]);
}

#[test]
fn ranks_come_in_pages_and_missing_ones_are_counted() {
    let mut roster = roster();
    for rank in (0..200).filter(|rank| rank % 2 == 0) {
        committed(&mut roster, commit(7, rank, 200)).unwrap();
    }
    let (mut from, mut found) = (Some(0), Vec::new());
    while let Some(rank) = from {
        let answer = ask(&mut roster, RosterAsk::Ranks { version: Version(7), from: rank }).unwrap();
        let RosterAnswer::Ranks { world_size: 200, next, ranks } = answer else { panic!("{answer:?}") };
        from = next;
        found.extend(ranks.into_iter().map(|rank| rank.rank));
    }
    assert_eq!(found, (0..200).step_by(2).collect::<Vec<u32>>());
    let missing = ask(&mut roster, RosterAsk::Missing { version: Version(7) }).unwrap();
    let first = (0..200).filter(|rank| rank % 2 == 1).take(MAX_LISTED_RANKS).collect();
    assert_eq!(missing, RosterAnswer::Missing { world_size: 200, count: 100, first });
    ask(&mut roster, RosterAsk::Withdraw { version: Version(7), rank: 0, instance: 1 }).unwrap();
    assert_eq!(roster.commits(), 100, "it is of another instance");
    ask(&mut roster, RosterAsk::Withdraw { version: Version(7), rank: 0, instance: 100 }).unwrap();
    assert_eq!(roster.commits(), 99);
}

#[test]
fn commit_whose_answer_was_lost_counts_also_when_its_version_is_whole() {
    let mut roster = roster();
    make_whole(&mut roster, 7);
    assert_eq!(committed(&mut roster, commit(7, 0, 2)), Ok((false, 0)));
    let other = RankCommit { instance: 9, ..commit(7, 0, 2) };
    assert_eq!(committed(&mut roster, other).unwrap_err().code, FailureCode::VersionNotRising);
    assert_eq!(whole(&mut roster), Some(7));
}

#[test]
fn forgotten_version_leaves_the_commits_of_later_ones() {
    let mut roster = roster();
    make_whole(&mut roster, 7);
    committed(&mut roster, commit(8, 0, 2)).unwrap();
    ask(&mut roster, RosterAsk::Forget { restart: 0, version: Version(6) }).unwrap();
    assert_eq!(whole(&mut roster), Some(7));
    ask(&mut roster, RosterAsk::Forget { restart: 1, version: Version(7) }).unwrap();
    assert_eq!(whole(&mut roster), Some(7));
    ask(&mut roster, RosterAsk::Forget { restart: 0, version: Version(7) }).unwrap();
    assert_eq!((whole(&mut roster), roster.commits()), (None, 1));
    committed(&mut roster, commit(7, 1, 2)).unwrap();
}

#[test]
fn withdrawn_commit_makes_room_for_one_that_waits() {
    let mut roster = roster();
    for version in [7, 8] {
        committed(&mut roster, commit(version, 0, 2)).unwrap();
    }
    assert!(roster.ask(NAME, asker(3), RosterAsk::Commit(commit(9, 0, 2))).is_empty());
    let withdraw = RosterAsk::Withdraw { version: Version(8), rank: 0, instance: 100 };
    assert_eq!(roster.ask(NAME, asker(4), withdraw).len(), 2);
    assert_eq!((roster.commits(), roster.waiting()), (2, 0));
}

// Promise: sharded-restart
#[test]
fn ranks_that_say_the_restart_again_keep_the_commits_of_all() {
    let mut roster = roster();
    for rank in 0..2 {
        let restart = RankCommit { restart: 1, ..commit(3, rank, 2) };
        assert_eq!(committed(&mut roster, restart).unwrap().0, rank == 1);
    }
    // A rank that comes back, and one that goes on.
    committed(&mut roster, RankCommit { restart: 1, instance: 50, ..commit(3, 0, 2) }).unwrap();
    committed(&mut roster, RankCommit { restart: 1, ..commit(4, 0, 2) }).unwrap();
    assert_eq!(roster.commits(), 3);
}

#[test]
fn version_that_is_whole_is_whole_for_no_other_ranks() {
    let mut roster = roster();
    committed(&mut roster, commit(7, 0, 2)).unwrap();
    let (_, before) = committed(&mut roster, commit(7, 1, 2)).unwrap();
    let (_, ranks) = committed(&mut roster, RankCommit { instance: 9, ..commit(7, 0, 2) }).unwrap();
    let published = |ranks| RosterAsk::Published { version: Version(7), ranks };
    ask(&mut roster, published(ranks)).unwrap();
    ask(&mut roster, published(ranks)).unwrap();
    assert_eq!(ask(&mut roster, published(before)).unwrap_err().code, FailureCode::VersionGone);
}

#[test]
fn number_of_unfinished_versions_is_that_of_the_node() {
    let mut roster = Roster::new(1, Rules::default(), Time(0));
    committed(&mut roster, commit(7, 0, 2)).unwrap();
    assert!(roster.ask(NAME, asker(3), RosterAsk::Commit(commit(8, 0, 2))).is_empty(), "one is unfinished");
    let waits_for = roster.waits_for(&RosterAsk::Commit(commit(8, 0, 2)));
    assert!(waits_for.starts_with("one of 1 unfinished versions to be whole"), "{waits_for}");
}

#[test]
fn unfinished_versions_are_shown_with_their_missing_ranks() {
    let mut roster = roster();
    committed(&mut roster, commit(7, 0, 2)).unwrap();
    committed(&mut roster, commit(7, 1, 2)).unwrap();
    for rank in 1..4 {
        roster.ask(NAME, asker(rank + 5), RosterAsk::Commit(commit(8, rank, 20)));
    }
    let shown: Vec<_> = roster.unfinished(NAME).collect();
    let of = |shown: &UnfinishedVersion| (shown.version.0, shown.world_size, shown.committed, shown.since);
    assert_eq!(shown.iter().map(of).collect::<Vec<_>>(), [(7, 2, 2, Time(1)), (8, 20, 3, Time(6))]);
    assert_eq!((&shown[0].missing[..], &shown[1].missing[..]), (&[][..], &[0, 4, 5, 6, 7, 8, 9, 10][..]));
    assert_eq!(shown[0].state, NAME);
}

fn recite(roster: &mut Roster, restart: u64, whole: Option<u64>, commit: Option<RankCommit>) -> Vec<Answered> {
    let ask = RosterAsk::Recite { restart, whole: whole.map(Version), commit };
    roster.recite(NAME, Time(9), Name::new("node").unwrap(), ask)
}

// Promise: lost-homes, seen to fail
#[test]
fn half_committed_version_becomes_whole_at_the_next_home() {
    let (mut before, mut next) = (roster(), new_roster());
    committed(&mut before, commit(7, 0, 3)).unwrap();
    committed(&mut before, commit(7, 1, 3)).unwrap();
    recite(&mut next, 0, Some(6), Some(commit(7, 0, 3)));
    recite(&mut next, 0, Some(6), Some(commit(7, 1, 3)));
    assert_eq!((whole(&mut next), next.commits()), (Some(6), 2));
    assert_eq!(committed(&mut next, commit(6, 2, 3)).unwrap_err().code, FailureCode::VersionNotRising);
    let (is_last, ranks) = committed(&mut next, commit(7, 2, 3)).unwrap();
    assert!(is_last);
    ask(&mut next, RosterAsk::Published { version: Version(7), ranks }).unwrap();
    assert_eq!(whole(&mut next), Some(7));
}

// Promise: lost-homes, seen to fail
#[test]
fn manifest_that_was_published_when_the_home_was_lost_waits_for_what_others_recite() {
    let mut before = roster();
    committed(&mut before, commit(7, 0, 2)).unwrap();
    let (_, ranks) = committed(&mut before, commit(7, 1, 2)).unwrap();
    let mut next = new_roster();
    let (list, published) =
        (RosterAsk::Ranks { version: Version(7), from: 0 }, RosterAsk::Published { version: Version(7), ranks });
    let until = RosterAsk::UntilWhole { restart: 4, version: Version(7), rank: None };
    for (index, ask) in [(1, &list), (2, &published), (3, &until)] {
        assert!(next.ask(NAME, asker(index), ask.clone()).is_empty());
    }
    let of = |rank| Some(RankCommit { restart: 4, ..commit(7, rank, 2) });
    assert!(recite(&mut next, 4, None, of(1)).is_empty());
    let answered = recite(&mut next, 4, None, of(0));
    assert!(answered.iter().all(|answered| answered.result.is_ok()), "{answered:?}");
    assert_eq!(answered.len(), 3, "the ranks, the manifest, and the reader");
    assert_eq!((whole(&mut next), next.waiting()), (Some(7), 0));
    // What comes late changes nothing.
    recite(&mut next, 4, Some(6), of(0));
    recite(&mut next, 3, Some(9), None);
    assert_eq!((whole(&mut next), next.commits()), (Some(7), 0));
}

// Promise: lost-homes, seen to fail
#[test]
fn version_whose_last_rank_was_lost_with_the_home_is_published_by_another() {
    let mut next = new_roster();
    let until = |rank| RosterAsk::UntilWhole { restart: 0, version: Version(7), rank: Some(rank) };
    recite(&mut next, 0, None, Some(commit(7, 0, 2)));
    for rank in 0..2 {
        assert!(next.ask(NAME, asker(rank), until(rank)).is_empty());
    }
    assert!(recite(&mut next, 0, None, Some(commit(7, 1, 2))).is_empty(), "its worker may be about to publish it");
    let at = next.settles_at().unwrap();
    let answered = next.settle(NAME, at);
    let [Answered { result: Ok(RosterAnswer::Committed { is_last: true, ranks, .. }), .. }] = &answered[..] else {
        panic!("{answered:?}")
    };
    let answered = next.ask(NAME, asker(5), RosterAsk::Published { version: Version(7), ranks: *ranks });
    assert_eq!((answered.len(), whole(&mut next)), (2, Some(7)), "and the other rank");
}

#[test]
fn reader_of_a_manifest_of_which_nobody_knows_waits_until_the_roster_is_settled() {
    let mut next = new_roster();
    let until = RosterAsk::UntilWhole { restart: 4, version: Version(7), rank: None };
    assert!(next.ask(NAME, asker(1), until.clone()).is_empty());
    let at = next.settles_at().unwrap();
    assert_eq!(next.settle(NAME, at).len(), 1);
    // Once a rank has committed the version, the roster knows it, and the reader waits until it is whole.
    committed(&mut next, commit(7, 0, 2)).unwrap();
    assert!(next.ask(NAME, asker(2), until).is_empty());
}

#[test]
fn peer_that_recites_too_much_takes_no_memory() {
    let mut next = new_roster();
    for version in 0..100 {
        recite(&mut next, 0, None, Some(commit(version, 0, 2)));
    }
    recite(&mut next, 0, None, Some(commit(1, 5, 2)));
    recite(&mut next, 0, None, Some(commit(0, 1, 9)));
    assert_eq!(next.commits(), 4, "twice the usual number of versions, and no rank that cannot be");
}

fn is_settled(roster: &mut Roster, now: Time, asked: RosterAsk) -> bool {
    let mut answered = roster.ask(NAME, Asker { now, ..asker(1) }, asked);
    match answered.pop().unwrap().result.unwrap() {
        RosterAnswer::State { settled, .. } => settled,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn home_after_another_knows_what_is_held_and_whole_when_all_have_noticed() {
    let mut first = new_roster();
    assert!(!is_settled(&mut first, Time(1), RosterAsk::Look));
    make_whole(&mut first, 7);
    assert!(is_settled(&mut first, Time(1), RosterAsk::Look), "nobody has recited: there was no home before");
    let mut next = new_roster();
    recite(&mut next, 0, Some(6), Some(commit(7, 0, 2)));
    let (_, ranks) = committed(&mut next, commit(7, 1, 2)).unwrap();
    let withdraw = RosterAsk::Withdraw { version: Version(8), rank: 1, instance: 100 };
    let published = RosterAsk::Published { version: Version(7), ranks };
    for ask in [withdraw.clone(), published, RosterAsk::Look, withdraw] {
        assert!(!is_settled(&mut next, Time(0) + SETTLING, ask));
    }
    assert!(is_settled(&mut next, Time(0) + HEARING, RosterAsk::Look));
}

#[test]
fn commit_that_completes_a_version_where_no_home_was_before_can_be_taken_back_for_sure() {
    let withdraw = RosterAsk::Withdraw { version: Version(7), rank: 1, instance: 101 };
    for was_before in [false, true] {
        let mut roster = new_roster();
        if was_before {
            recite(&mut roster, 0, None, Some(commit(7, 0, 2)));
        } else {
            committed(&mut roster, commit(7, 0, 2)).unwrap();
        }
        assert!(committed(&mut roster, commit(7, 1, 2)).unwrap().0);
        assert_eq!(is_settled(&mut roster, Time(1), withdraw.clone()), !was_before);
        assert_eq!(roster.commits(), 1);
    }
}

#[test]
fn roster_that_knows_what_is_whole_believes_no_recital_of_it() {
    let mut lives = new_roster();
    make_whole(&mut lives, 7);
    committed(&mut lives, commit(8, 0, 2)).unwrap();
    recite(&mut lives, 0, Some(u64::MAX - 1), None);
    recite(&mut lives, u64::MAX, Some(9), Some(RankCommit { restart: u64::MAX, ..commit(9, 0, 2) }));
    assert_eq!((whole(&mut lives), lives.restart, lives.commits()), (Some(7), 0, 1));
    assert!(is_settled(&mut lives, Time(1), RosterAsk::Look), "nor that it is the next home");
    // Nor one that its publishers have ended.
    let mut next = new_roster();
    recite(&mut next, 0, Some(7), None);
    ask(&mut next, RosterAsk::Forget { restart: 0, version: Version(7) }).unwrap();
    recite(&mut next, 0, Some(7), Some(commit(3, 1, 2)));
    assert_eq!((whole(&mut next), next.commits()), (None, 1), "commits count");
}

#[test]
fn rank_that_has_to_publish_is_told_so_again_and_no_other_is() {
    let mut roster = roster();
    committed(&mut roster, commit(7, 0, 2)).unwrap();
    let (_, ranks) = committed(&mut roster, commit(7, 1, 2)).unwrap();
    let until = |rank| RosterAsk::UntilWhole { restart: 0, version: Version(7), rank: Some(rank) };
    assert!(roster.ask(NAME, asker(2), until(0)).is_empty(), "rank 1 publishes it");
    for _ in 0..2 {
        let answer = RosterAnswer::Committed { is_last: true, whole: None, ranks };
        assert_eq!(ask(&mut roster, until(1)), Ok(answer));
    }
}

#[test]
fn publisher_of_a_newer_attempt_is_not_refused_when_that_attempt_is_recited() {
    let mut next = new_roster();
    let of = |rank| RankCommit { restart: 2, instance: 50 + u64::from(rank), ..commit(3, rank, 2) };
    let mut before = roster();
    committed(&mut before, of(0)).unwrap();
    let (_, ranks) = committed(&mut before, of(1)).unwrap();
    recite(&mut next, 1, Some(7), Some(RankCommit { restart: 1, ..commit(8, 1, 2) }));
    let published = RosterAsk::Published { version: Version(3), ranks };
    assert!(next.ask(NAME, asker(2), published).is_empty(), "what is whole is of the attempt before");
    assert!(recite(&mut next, 2, None, Some(of(0))).is_empty());
    assert_eq!(recite(&mut next, 2, None, Some(of(1))).len(), 1);
    assert_eq!(whole(&mut next), Some(3));
}
