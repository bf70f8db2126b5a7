use super::*;

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

struct Stage {
    parents: Parents,
    now: Time,
}

impl Stage {
    fn new() -> Stage {
        let mut parents = Parents::default();
        parents.add(Time(0), key("p"), key("p/a"));
        parents.add(Time(0), key("p"), key("p/b"));
        Stage { parents, now: Time(0) }
    }

    /// Makes a look. Returns the parents that are asked for.
    fn look(&mut self, is_here: bool) -> Vec<Key> {
        self.now = self.now + CHECK_INTERVAL;
        self.parents.look(self.now, |_| true, |_| is_here)
    }
}

// Promise: rows-of-dead-workers
#[test]
fn keys_end_when_their_parent_was_not_found_a_number_of_times() {
    let mut stage = Stage::new();
    for n in 1..=CHECKS_WITHOUT_PARENT {
        assert_eq!(stage.look(false), [key("p")]);
        let (absent, gone) = stage.parents.answered();
        assert_eq!(absent, [key("p")]);
        let all = [key("p/a"), key("p/b")];
        assert_eq!(gone, if n == CHECKS_WITHOUT_PARENT { &all[..] } else { &[] });
    }
    assert!(stage.parents.is_empty());
    assert!(stage.look(false).is_empty());
    assert_eq!(stage.parents.look_at(), None);
}

#[test]
fn one_look_that_finds_the_parent_counts_anew() {
    for is_here in [true, false] {
        let mut stage = Stage::new();
        for n in 1..CHECKS_WITHOUT_PARENT * 3 {
            let found = n % (CHECKS_WITHOUT_PARENT - 1) == 0;
            let asked = stage.look(found && is_here);
            assert_eq!(asked.is_empty(), found && is_here);
            if found {
                stage.parents.located(&key("p"));
            }
            assert_eq!(stage.parents.answered().1, []);
        }
    }
}

// Promise: rows-of-dead-workers
#[test]
fn no_answer_ends_nothing_and_no_further_look_begins() {
    let mut stage = Stage::new();
    assert_eq!(stage.look(false), [key("p")]);
    for _ in 0..100 {
        assert!(stage.look(false).is_empty());
        assert_eq!(stage.parents.look_at(), None);
    }
    assert_eq!(stage.parents.answered(), (vec![key("p")], vec![]));
    assert!(stage.parents.look_at().is_some());
}

#[test]
fn keys_that_no_longer_stay_are_forgotten() {
    let mut stage = Stage::new();
    stage.now = stage.now + CHECK_INTERVAL;
    assert_eq!(stage.parents.look(stage.now, |key| key.as_str() == "p/a", |_| false), [key("p")]);
    assert_eq!(stage.parents.end(&key("p")), [key("p/a")]);
}
