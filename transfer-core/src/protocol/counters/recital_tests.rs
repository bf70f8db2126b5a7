use super::*;
use crate::tensor::Name;

const TENANT: Tenant = Tenant::User(0);

fn state() -> Key {
    Key::of_roster(&Name::new("policy").unwrap()).unwrap()
}

fn commit(version: u64, rank: u32) -> RankCommit {
    let worker = Some(Name::new(&format!("rank-{rank}")).unwrap());
    RankCommit { version: Version(version), rank, world_size: 2, restart: 0, instance: 1, layout: 1, worker }
}

fn committed(recitals: &mut Recitals, tenant: Tenant, commit: &RankCommit, whole: Option<u64>) {
    recitals.committed((&state(), tenant), HomeAt::Here, commit, whole.map(Version));
}

/// Which version is whole, and the version and rank of a commit.
type Recited = (Option<u64>, Option<(u64, u32)>);

/// What is recited to the next home.
fn recited(recitals: &mut Recitals) -> Vec<Recited> {
    let of = |ask| match ask {
        RosterAsk::Recite { whole, commit, .. } => {
            (whole.map(|whole| whole.0), commit.map(|commit| (commit.version.0, commit.rank)))
        }
        ask => panic!("{ask:?}"),
    };
    let (_, asks) = recitals.of(&state(), HomeAt::Over(LinkId(1))).unwrap();
    asks.into_iter().map(of).collect()
}

#[test]
fn version_that_another_node_has_forgotten_is_whole_no_longer() {
    let mut recitals = Recitals::new(2);
    committed(&mut recitals, TENANT, &commit(8, 0), Some(7));
    // A commit that was answered shows that the roster has no version that is so high.
    committed(&mut recitals, TENANT, &commit(3, 0), Some(2));
    assert_eq!(recited(&mut recitals), [(Some(2), Some((3, 0))), (Some(2), Some((8, 0)))]);
    // One that was answered by a home that was not told yet shows nothing.
    committed(&mut recitals, TENANT, &commit(4, 0), None);
    assert_eq!(recitals.states[&state()].whole, Some(Version(2)));
}

#[test]
fn commits_that_are_taken_back_take_no_memory_and_ranks_have_a_limit() {
    let mut recitals = Recitals::new(2);
    for rank in 0..100 {
        committed(&mut recitals, TENANT, &commit(7, rank), None);
        recitals.withdraw(&state(), Version(7), rank, 1);
    }
    assert_eq!((recitals.len(), recitals.len), (0, 0));
    recitals.len = MAX_REMEMBERED - 5;
    for rank in 0..100 {
        committed(&mut recitals, TENANT, &commit(7, rank), None);
    }
    let known = &recitals.states[&state()];
    assert_eq!((recitals.len, known.ranks.len(), known.len), (MAX_REMEMBERED, 3, 5));
    // What is whole needs no commits, and has ranks that go with their workers.
    recitals.change(&state(), |state| state.learn(0, Some(Version(9))));
    assert_eq!((recitals.len, recitals.states[&state()].len), (MAX_REMEMBERED - 2, 3));
}

#[test]
fn commits_of_another_tenant_are_not_taken_for_those_of_the_first() {
    let mut recitals = Recitals::new(2);
    committed(&mut recitals, TENANT, &commit(7, 0), None);
    committed(&mut recitals, Tenant::User(1), &commit(9, 1), Some(8));
    assert_eq!(recited(&mut recitals), [(None, Some((7, 0)))]);
}

#[test]
fn home_that_is_lost_at_once_each_time_is_looked_for_once_in_each_interval() {
    let mut counters = Counters::new(&crate::protocol::NodeConfig::new(Name::new("away").unwrap(), 1));
    committed(&mut counters.recitals, TENANT, &commit(7, 0), None);
    let lose = |counters: &mut Counters, now| {
        counters.recitals.states.get_mut(&state()).unwrap().told = Some(HomeAt::Over(LinkId(1)));
        counters.home_lost(now, LinkId(1), Some(&state()));
        counters.recitals.due().unwrap()
    };
    assert_eq!(lose(&mut counters, Time(1)), Time(1), "the first time at once");
    counters.look_for_homes(Time(1));
    assert_eq!(lose(&mut counters, Time(2)), Time(1) + RETRY_INTERVAL);
}
