//! `transferctl doctor`: what is wrong with this host and its sidecar, and what to do about it.
//!
//! # Layout
//! - `facts`: what is looked at, once, before anything is judged: this host, the sidecar, real bytes, another node.
//! - `checks`: the list of checks. Each one judges the facts; a new one is a function and its place in the list.

mod checks;
pub(crate) mod facts;

use crate::admin::Target;
use crate::admin::address::Address;
use crate::error::Error;
use facts::Facts;
use serde::Serialize;
use serde_json::json;
use std::path::PathBuf;
use transfer_terminal::units::size;

/// What `transferctl doctor` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Which sidecar.
    #[command(flatten)]
    pub target: Target,
    /// Where its workers connect: --socket of transferd. Default: /run/transfer/worker.sock, where that is there. Bytes are moved through it
    #[arg(long, env = "TRANSFER_SOCKET", value_name = "PATH", help_heading = "Connection")]
    pub socket: Option<PathBuf>,
    /// Look at another node too, and at what lies between: where its gRPC services are
    #[arg(long, value_name = "http://HOST:PORT|PATH")]
    pub with: Option<Address>,
    /// Where the other node's workers connect, if this host can reach that: bytes are moved both ways then. Without it, a tensor is
    /// pushed to a worker there and fetched back, or something that is published there is fetched
    #[arg(long, value_name = "PATH", requires = "with")]
    pub with_socket: Option<PathBuf>,
    /// A file of certificates to look at, in PEM, beside those of --tls-cert and --tls-ca; may be given more than once
    #[arg(long, value_name = "FILE")]
    pub certificate: Vec<PathBuf>,
    /// How much to move; 0 moves nothing
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = size)]
    pub bytes: u64,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and could be better, or will not work for everything.
    Warn,
    /// It does not work.
    Fail,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    /// What there is.
    found: String,
    /// What to do.
    advice: Option<String>,
}

/// Looks, judges and prints.
///
/// # Errors
/// [`Error::Unwell`] where a check failed.
pub async fn run(options: &Options) -> Result<(), Error> {
    let facts = Facts::gather(options).await;
    let findings: Vec<Finding> = checks::ALL.iter().flat_map(|check| check(&facts)).collect();
    match options.json {
        true => transfer_terminal::outln!("{:#}", json!({ "checks": findings })),
        false => findings.iter().for_each(|finding| transfer_terminal::outln!("{}", line(finding))),
    }
    let failed = findings.iter().filter(|finding| finding.verdict == Verdict::Fail).count();
    if failed == 0 { Ok(()) } else { Err(Error::Unwell { failed, checks: findings.len() }) }
}

fn line(finding: &Finding) -> String {
    let Finding { check, verdict, found, advice } = finding;
    let verdict = match verdict {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    };
    let advice = advice.as_ref().map_or_else(String::new, |advice| format!(". {advice}"));
    format!("{verdict:<5} {check:<14} {found}{advice}")
}
