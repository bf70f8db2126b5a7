//! `transferctl watch`: a list, refreshed periodically.

use super::lists::Lists;
use super::status;
use crate::error::Error;
use std::io::IsTerminal;
use std::time::Duration;
use transfer_terminal::exit::Exit;

/// The options of `transferctl watch`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The pause between two refreshes
    #[arg(long, global = true, value_name = "TIME", default_value = "2s", value_parser = transfer_terminal::units::duration)]
    pub every: Duration,
    /// Stop after this many refreshes
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub times: Option<u64>,
    /// The list to watch.
    #[command(subcommand)]
    pub what: What,
}

/// The lists that can be watched.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum What {
    /// The sidecar's identity, health, contents and counters
    Status(status::Options),
    /// A list.
    #[command(flatten)]
    List(Lists),
}

/// Refreshes a listing until interrupted, or the given number of times. The sidecar may be gone for a while after the
/// first listing.
///
/// # Errors
/// Those of the list. If the sidecar is gone, only those of the first and the last refresh.
pub async fn run(options: &Options) -> Result<(), Error> {
    let mut looks = 0;
    // On a terminal each refresh replaces the previous one.
    let clear = std::io::stdout().is_terminal();
    loop {
        if clear {
            transfer_terminal::output::control("\x1b[H\x1b[2J");
        } else if looks > 0 && !options.what.is_json() {
            transfer_terminal::outln!("");
        }
        let looked = options.what.look().await;
        looks += 1;
        let is_last = options.times.is_some_and(|times| looks >= times);
        match looked {
            Err(error) if looks > 1 && !is_last && error.exit() == Exit::Unreachable => {
                transfer_terminal::errln!("transferctl: {}", error.in_one_line());
            }
            looked => looked?,
        }
        if is_last {
            return Ok(());
        }
        tokio::time::sleep(options.every).await;
    }
}

impl What {
    async fn look(&self) -> Result<(), Error> {
        match self {
            What::Status(options) => status::run(options).await,
            What::List(list) => list.run().await,
        }
    }

    fn is_json(&self) -> bool {
        match self {
            What::Status(options) => options.json,
            What::List(list) => list.common().json,
        }
    }
}
