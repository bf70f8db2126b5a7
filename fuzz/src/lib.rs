//! Hostile bytes for parsers, on stable Rust.
//!
//! A target is an ordinary test beside its parser, named `fuzz_...`: it makes a [`Target`] with examples of what is right, and says what must
//! hold for any bytes. Run as a test it replays `fuzz/corpus/NAME.hex`, what once broke it included, and then thousands of mutations, the
//! same ones each time. `make fuzz` runs each target for `TRANSFER_FUZZ_SECONDS` with another seed each time; what breaks it is added to its
//! corpus, to be fixed and committed. With `TRANSFER_FUZZ_KEEP` set, so is what brought an answer that no other input brought.
//!
//! What must hold is up to the target, and three things always hold: it does not panic, it does not allocate more than its [`Target::bound`]
//! for any input, and it ends.
//!
//! Why not libFuzzer: it needs nightly Rust and an instrumented build. In place of coverage, an input is kept for further mutation when the
//! target answers it in a way that was not seen before: another error, another kind of message. Parsers that check fields one by one tell
//! nearly as much as their branches would. A target says how to put length and checksum right, or a mutation would never come past them.
//!
//! # Layout
//! - this file: targets and how they are run. - [`corpus`]: inputs that must not be forgotten. - [`mutate`]: how bytes are changed.
#![forbid(unsafe_code)]

pub mod corpus;
pub mod mutate;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many mutations an ordinary test tries, where the target says nothing else.
const ROUNDS: u64 = 20_000;

/// How many inputs are kept for further mutation.
const MOST_KEPT: usize = 4096;

/// A parser under test.
pub struct Target<'a> {
    name: &'a str,
    seeds: Vec<Vec<u8>>,
    repair: fn(&mut Vec<u8>),
    max_len: usize,
    bound: u64,
    rounds: u64,
}

impl<'a> Target<'a> {
    /// One that starts from these examples. The name is that of its folder in `fuzz/corpus`.
    ///
    /// # Panics
    /// Where there is no example.
    #[must_use]
    pub fn new(name: &'a str, seeds: impl IntoIterator<Item = Vec<u8>>) -> Target<'a> {
        let seeds: Vec<_> = seeds.into_iter().collect();
        assert!(!seeds.is_empty(), "{name} needs an example of what is right");
        Target { name, seeds, repair: |_| (), max_len: 4096, bound: 64 << 10, rounds: ROUNDS }
    }

    /// Puts right what would stop a parser early: a length, a checksum. Three in four mutations go through it.
    #[must_use]
    pub fn repair(mut self, repair: fn(&mut Vec<u8>)) -> Self {
        self.repair = repair;
        self
    }

    /// No input is longer than this, in bytes. 4,096 where nothing is said.
    #[must_use]
    pub fn max_len(mut self, bytes: usize) -> Self {
        self.max_len = bytes;
        self
    }

    /// The most heap memory that one input may take at a time, in bytes, whatever its fields say. 64 KiB where nothing is said.
    #[must_use]
    pub fn bound(mut self, bytes: u64) -> Self {
        self.bound = bytes;
        self
    }

    /// How many mutations an ordinary test tries: fewer where one takes long.
    #[must_use]
    pub fn rounds(mut self, rounds: u64) -> Self {
        self.rounds = rounds;
        self
    }

    /// Runs it. `check` gets any bytes, asserts what must hold, and answers with what the parser said: an error's text, or what kind of thing
    /// was read.
    ///
    /// # Panics
    /// Where something does not hold; the input is in the target's corpus then.
    pub fn run(self, check: impl Fn(&[u8]) -> String) {
        let mut known = HashSet::new();
        let mut pool = corpus::read(self.name);
        let remembered = pool.len();
        pool.extend(self.seeds.iter().cloned());
        for input in &pool {
            known.insert(self.one(input, &check));
        }
        let set = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let seconds: Option<u64> = set("TRANSFER_FUZZ_SECONDS");
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
        let seed = set("TRANSFER_FUZZ_SEED").unwrap_or_else(|| if seconds.is_some() { clock() } else { 1 });
        let mut random = SmallRng::seed_from_u64(seed);
        let until = seconds.map(|s| Instant::now() + Duration::from_secs(s));
        // Fewer under miri, for instance.
        let most = set("TRANSFER_FUZZ_ROUNDS").unwrap_or(self.rounds);
        let mut rounds = 0;
        let goes_on =
            |rounds: u64| until.map_or(rounds < most, |until| !rounds.is_multiple_of(64) || Instant::now() < until);
        while goes_on(rounds) {
            rounds += 1;
            let mut input = mutate::one(&pool, self.max_len, &mut random);
            if random.random_ratio(3, 4) {
                (self.repair)(&mut input);
            }
            let outcome = self.one(&input, &check);
            if known.insert(outcome) && pool.len() < MOST_KEPT {
                pool.push(input);
            }
        }
        if std::env::var_os("TRANSFER_FUZZ_KEEP").is_some() {
            let new: Vec<_> = pool[remembered..].iter().map(Vec::as_slice).collect();
            corpus::add(self.name, "each brought an answer of its own", &new);
        }
        println!("{}: seed {seed}, {rounds} inputs, {} different answers", self.name, known.len());
    }

    /// One input: what the parser said to it, with numbers taken out.
    fn one(&self, input: &[u8], check: &impl Fn(&[u8]) -> String) -> String {
        let mut outcome = Ok(String::new());
        let allocated = allocation_counter::measure(|| outcome = catch_unwind(AssertUnwindSafe(|| check(input))));
        let what = match outcome {
            Ok(outcome) if allocated.bytes_max <= self.bound => return without_numbers(&outcome),
            Ok(outcome) => {
                format!("takes {} bytes of memory, {} are allowed: {outcome}", allocated.bytes_max, self.bound)
            }
            Err(_) => "panics, see above".to_owned(),
        };
        let path = corpus::add(self.name, &what, &[input]);
        panic!("{}: an input of {} bytes {what}. It is the last one in {}", self.name, input.len(), path.display());
    }
}

/// An answer to many inputs is one answer.
fn without_numbers(text: &str) -> String {
    let mut out: String = text.chars().map(|c| if c.is_ascii_hexdigit() { '0' } else { c }).collect();
    while out.contains("00") {
        out = out.replace("00", "0");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parser with three mistakes, each behind a check: the driver finds all of them.
    #[test]
    fn driver_finds_planted_mistakes() {
        let find = |check: fn(&[u8]) -> String| {
            let run = || Target::new("driver-itself", [b"HEAD\x01\x00\x00\x00\x00".to_vec()]).run(check);
            let message = catch_unwind(run).expect_err("the mistake is found");
            let text = message.downcast_ref::<String>().expect("a text").clone();
            let kept = corpus::read("driver-itself");
            assert_eq!(kept.len(), 1, "what was found is kept");
            std::fs::remove_file(corpus::path("driver-itself")).expect("it is there");
            text
        };
        let panics = find(|bytes| {
            let good = bytes.starts_with(b"HEAD") && bytes.get(4) == Some(&7);
            assert!(!good || bytes.len() < 20, "seven and long");
            if good { "seven".into() } else { "no".into() }
        });
        assert!(panics.contains("panics"), "{panics}");
        let allocates = find(|bytes| match bytes {
            [b'H', b'E', b'A', b'D', _, a, b, c, d, ..] => {
                let len = u32::from_le_bytes([*a, *b, *c, *d]);
                format!("{}", Vec::<u8>::with_capacity(len.min(1 << 26) as usize).capacity() > 5)
            }
            _ => "no".into(),
        });
        assert!(allocates.contains("bytes of memory"), "{allocates}");
    }

    #[test]
    fn numbers_do_not_make_answers_differ() {
        assert_eq!(without_numbers("slot 0x1f of 12"), without_numbers("slot 0x3 of 777"));
        assert_ne!(without_numbers("too short"), without_numbers("too long"));
    }
}
