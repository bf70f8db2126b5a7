//! Attackers of a sidecar: a hostile worker, a hostile peer and a stranger, each of which is a program of its own and
//! attacks repeatedly.
//!
//! `transfer-test-worst worker --socket a.sock --address 127.0.0.1:7471`, and `... peer` and `... stranger` with the
//! same options, repeat their deeds for some seconds, in an order that follows from the seed. Then they print the
//! results as one JSON value, an [`Account`]. An attacker must get nothing that does not belong to it, and no error
//! that its deed does not allow.
//!
//! `transfer-test-worst beside --seconds 60` is the measurement: two sidecars, an honest job of root alone, then
//! beside each of the three attackers, then beside all of them. It prints how long a round of the job takes.
//!
//! # Layout
//! - this file: the program. - `account`: the results.
//! - `worker`, `peer`, `stranger`: the deeds; `contract`: those of a stranger with the gRPC contract. - `bare`: a worker without a client, and its rings.
//! - [`beside`]: sidecars, the honest job, and attackers as another user. - [`held`]: half a core for processes.

mod account;
mod bare;
pub mod beside;
mod contract;
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

/// The options of the program.
#[derive(Debug, clap::Parser)]
#[command(about = "What attackers do to a sidecar, and an honest job beside them")]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Attack as a hostile worker
    Worker(Against),
    /// Attack as a hostile sidecar
    Peer(Against),
    /// Attack as a stranger, who is neither and can reach the sockets
    Stranger(Against),
    /// Measure an honest job without the attackers and beside them; as root
    Beside(Measure),
}

/// The sidecar that is attacked, and for how long.
#[derive(Debug, Clone, clap::Args)]
struct Against {
    /// The socket where workers connect; the sidecar's other sockets lie beside it
    #[arg(long)]
    socket: PathBuf,
    /// The address of its gRPC services
    #[arg(long)]
    address: String,
    /// The address where it serves HTTP
    #[arg(long)]
    http: Option<String>,
    /// How many seconds to attack
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The seed of the order of the deeds. Default: a random one
    #[arg(long)]
    seed: Option<u64>,
    /// The prefix of the honest job's keys and names
    #[arg(long, default_value = "job")]
    victim: String,
    /// Begin after a line has come on stdin
    #[arg(long)]
    on_word: bool,
}

#[derive(Debug, clap::Args)]
struct Measure {
    /// How many seconds each part takes
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed of the order of the deeds. Default: a random one
    #[arg(long)]
    seed: Option<u64>,
}

impl Against {
    /// Returns the path of another socket of the same sidecar.
    fn beside(&self, ending: &str) -> PathBuf {
        let node = self.socket.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        self.socket.with_file_name(node + ending)
    }
}

/// One kind of attack. It takes a fraction of a second.
struct Deed<A> {
    name: &'static str,
    act: fn(&mut A, &mut Notes<'_>),
}

/// An attacker and its deeds.
trait Attacker: Sized + 'static {
    const DEEDS: &'static [Deed<Self>];

    fn new(against: Against, random: SmallRng) -> Self;
}

/// Runs the chosen command.
///
/// # Panics
/// If the sidecar is not there.
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
    // Every deed is done at least once.
    loop {
        order.shuffle(&mut random);
        for deed in &order {
            (deed.act)(&mut attacker, &mut account.begin(deed.name));
            let all_done = account.deeds.len() == order.len();
            if all_done && Instant::now() >= until {
                println!("{}", serde_json::to_string(&account).expect("an account is plain values"));
                // The process ends without releasing anything that it holds.
                return;
            }
        }
    }
}
