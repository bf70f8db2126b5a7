//! Attackers: what a worker, a peer and a stranger can do to a sidecar, again and again, each as a program of its own.
//!
//! `transfer-test-worst worker --socket a.sock`, `... peer --socket a.sock --address 127.0.0.1:7471` and `... stranger` of the same go round
//! their deeds for some seconds, in an order that follows from the seed, and then print what came of each: one JSON value, an [`Account`]. None of
//! them may have more than what belongs to it, nor any other error.
//!
//! `transfer-test-worst beside --seconds 60` is the measurement: two sidecars, an honest job of root alone, then with each of the three
//! beside it, then with all of them. It prints what a round of the job takes.
//!
//! # Layout
//! - this file: the program. - `account`: what came of it.
//! - `worker`, `peer`, `stranger`: the deeds. - `bare`: a worker without a client, and its rings.
//! - [`beside`]: sidecars, the honest job, and attackers as another user. - [`held`]: half a core for processes.

mod account;
mod bare;
pub mod beside;
pub mod held;
mod peer;
mod stranger;
mod worker;

pub use account::{Account, Outcome};

use account::Notes;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the program may be told.
#[derive(Debug, clap::Parser)]
#[command(about = "What attackers do to a sidecar, and an honest job beside them")]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Do what a hostile worker does
    Worker(Against),
    /// Do what a hostile sidecar does
    Peer(Against),
    /// Do what somebody does who is neither, and can reach the sockets
    Stranger(Against),
    /// Measure an honest job without them and with them; as root
    Beside(Measure),
}

/// Against which sidecar, and for how long.
#[derive(Debug, Clone, clap::Args)]
struct Against {
    /// Where workers connect to it; its other sockets lie beside that one
    #[arg(long)]
    socket: PathBuf,
    /// Where its gRPC services are
    #[arg(long)]
    address: String,
    /// Where it can be watched over HTTP
    #[arg(long)]
    http: Option<String>,
    /// How long to go on
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The order of the deeds follows from it. Default: another one each time
    #[arg(long)]
    seed: Option<u64>,
    /// What the keys and names of the honest begin with
    #[arg(long, default_value = "job")]
    victim: String,
    /// Begin when a line comes on stdin
    #[arg(long)]
    on_word: bool,
}

#[derive(Debug, clap::Args)]
struct Measure {
    /// How long each part takes
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The order of the deeds follows from it. Default: another one each time
    #[arg(long)]
    seed: Option<u64>,
}

impl Against {
    /// Another socket of the same sidecar.
    fn beside(&self, ending: &str) -> PathBuf {
        let node = self.socket.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        self.socket.with_file_name(node + ending)
    }
}

/// One kind of bad deed. It takes a fraction of a second.
struct Deed<A> {
    name: &'static str,
    act: fn(&mut A, &mut Notes<'_>),
}

/// Who does them.
trait Attacker: Sized + 'static {
    const DEEDS: &'static [Deed<Self>];

    fn new(against: Against, random: SmallRng) -> Self;
}

/// Runs it.
///
/// # Panics
/// Where the sidecar is not there.
pub fn run(options: &Options) {
    match &options.command {
        Command::Worker(against) => attack::<worker::Worker>(against),
        Command::Peer(against) => attack::<peer::Peer>(against),
        Command::Stranger(against) => attack::<stranger::Stranger>(against),
        Command::Beside(Measure { seconds, seed }) => beside::measure(Duration::from_secs(*seconds), *seed),
    }
}

fn attack<A: Attacker>(against: &Against) {
    if against.on_word {
        let mut word = String::new();
        std::io::stdin().read_line(&mut word).expect("stdin can be read");
    }
    let seed = against.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    eprintln!("worst: --seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut attacker = A::new(against.clone(), SmallRng::seed_from_u64(random.random()));
    let mut account = Account::default();
    let until = Instant::now() + Duration::from_secs(against.seconds);
    let mut order: Vec<&Deed<A>> = A::DEEDS.iter().collect();
    // All of them once in any case.
    loop {
        order.shuffle(&mut random);
        for deed in &order {
            (deed.act)(&mut attacker, &mut account.begin(deed.name));
            let all_done = account.deeds.len() == order.len();
            if all_done && Instant::now() >= until {
                println!("{}", serde_json::to_string(&account).expect("an account is plain values"));
                // It dies as it is, with all that it holds.
                return;
            }
        }
    }
}
