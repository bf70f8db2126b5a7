//! Hostile bytes for parsers, on stable Rust.
//!
//! A target is an ordinary test beside its parser, named `fuzz_...`. It makes a [`Target`] with valid examples, and
//! asserts properties that must hold for any bytes. As a test it first replays `fuzz/corpus/NAME.hex`, which includes
//! every input that once broke it, and then tries thousands of mutations, the same ones each time. `make fuzz` runs
//! each target for `TRANSFER_FUZZ_SECONDS`, with another seed each time. An input that breaks a target is added to its
//! corpus, to be fixed and committed. With `TRANSFER_FUZZ_KEEP` set, every input that brought a new answer is added,
//! too.
//!
//! Three properties hold for every target: it does not panic, it does not allocate more than its [`Target::bound`] for
//! any input, and it ends. The target itself asserts the others.
//!
//! libFuzzer is not used because it needs nightly Rust and an instrumented build. In place of coverage, an input is
//! kept for further mutation if the target gives a new answer to it: another error, another kind of message. The
//! answers of a parser that checks its fields one by one distinguish nearly as much as its branches. A target also
//! corrects lengths and checksums, because mutations would hardly ever get past them.
//!
//! # Layout
//! - this file: targets, and how they run. - [`corpus`]: the inputs that every run replays. - [`mutate`]: mutations of
//!   bytes.
#![forbid(unsafe_code)]

pub mod corpus;
pub mod mutate;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The default number of mutations of an ordinary test.
const ROUNDS: u64 = 20_000;

/// The limit of inputs that are kept for further mutation.
const MAX_KEPT: usize = 4096;

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
    /// Makes a target that starts from these examples. The name is that of its file in `fuzz/corpus`.
    ///
    /// # Panics
    /// If there is no example.
    #[must_use]
    pub fn new(name: &'a str, seeds: impl IntoIterator<Item = Vec<u8>>) -> Target<'a> {
        let seeds: Vec<_> = seeds.into_iter().collect();
        assert!(!seeds.is_empty(), "{name} needs an example of what is right");
        Target { name, seeds, repair: |_| (), max_len: 4096, bound: 64 << 10, rounds: ROUNDS }
    }

    /// Sets a function that corrects fields at which a parser would stop early: a length, a checksum. Three in four
    /// mutations pass through it.
    #[must_use]
    pub fn repair(mut self, repair: fn(&mut Vec<u8>)) -> Self {
        self.repair = repair;
        self
    }

    /// Sets the limit of an input's length, in bytes. The default is 4,096.
    #[must_use]
    pub fn max_len(mut self, bytes: usize) -> Self {
        self.max_len = bytes;
        self
    }

    /// Sets the limit of the heap memory in use at one time while one input is parsed, in bytes, whatever its fields
    /// claim. The default is 64 KiB.
    #[must_use]
    pub fn bound(mut self, bytes: u64) -> Self {
        self.bound = bytes;
        self
    }

    /// Sets the number of mutations of an ordinary test. Slow targets take fewer.
    #[must_use]
    pub fn rounds(mut self, rounds: u64) -> Self {
        self.rounds = rounds;
        self
    }

    /// Runs the target. `check` gets any bytes, asserts the properties, and returns the parser's answer: an error's
    /// text, or the kind of the parsed value.
    ///
    /// # Panics
    /// If a property does not hold. The input is then in the target's corpus.
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
        // For miri, for instance, which is slow.
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
            if known.insert(outcome) && pool.len() < MAX_KEPT {
                pool.push(input);
            }
        }
        if std::env::var_os("TRANSFER_FUZZ_KEEP").is_some() {
            let new: Vec<_> = pool[remembered..].iter().map(Vec::as_slice).collect();
            corpus::add(self.name, "each brought an answer of its own", &new);
        }
        println!("{}: seed {seed}, {rounds} inputs, {} different answers", self.name, known.len());
    }

    /// Runs `check` on one input. Returns the parser's answer without its numbers.
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

/// Replaces all numbers, so that answers that differ only in numbers are equal.
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

    /// A parser with mistakes, each behind a check. The driver finds all of them.
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
