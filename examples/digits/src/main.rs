//! The command line of the example; everything else is explained in the library, [`digits`].
#![forbid(unsafe_code)]
// They panic where their output cannot be written.
#![deny(clippy::print_stderr, clippy::print_stdout)]

use clap::{Parser, Subcommand};
use digits::bulk::Load;
use digits::error::Error;
use digits::training::{Job, WORKERS};
use digits::{bulk, demo, grpc, ps, reference, tied, worker};
use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Distributed training on handwritten digits, through two sidecars.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Runs every process of the job on this machine, and reports.
    Demo(demo::Options),
    /// Does the job in one process, without an exchange.
    Reference {
        #[command(flatten)]
        job: Job,
    },
    /// Runs the parameter server, over transfer.
    Ps {
        #[command(flatten)]
        job: Job,
        #[command(flatten)]
        node: Node,
    },
    /// Runs a worker, over transfer.
    Worker {
        #[command(flatten)]
        job: Job,
        #[arg(long, value_parser = rank)]
        rank: usize,
        #[command(flatten)]
        node: Node,
    },
    /// Publishes many large tensors.
    BulkProducer {
        #[command(flatten)]
        load: Load,
        #[command(flatten)]
        node: Node,
    },
    /// Fetches these tensors and checks every byte.
    BulkReader {
        #[command(flatten)]
        load: Load,
        #[command(flatten)]
        node: Node,
    },
    /// Runs the baseline's parameter server, with plain gRPC messages.
    GrpcPs {
        #[command(flatten)]
        job: Job,
        /// The address to listen at; port 0 takes any free one.
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
    /// Runs a worker of the baseline.
    GrpcWorker {
        #[command(flatten)]
        job: Job,
        #[arg(long, value_parser = rank)]
        rank: usize,
        /// The parameter server's address.
        #[arg(long)]
        server: SocketAddr,
    },
    /// Runs a program that ends when the process PARENT does.
    #[command(hide = true)]
    Tied {
        #[arg(long)]
        parent: u32,
        program: OsString,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// The node of a role: that of the sidecar to which it connects.
#[derive(Debug, clap::Args)]
struct Node {
    /// The socket where the node's transferd listens for workers.
    #[arg(long, value_name = "PATH", default_value = "/run/transfer/worker.sock")]
    sidecar: PathBuf,
}

// One thread is enough: each role does one thing at a time, and waking another thread would only slow every step down.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse().role).await {
        Ok(code) => code,
        Err(error) => {
            // If standard error cannot be written, nobody can be told.
            let _ = writeln!(io::stderr(), "digits: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

async fn run(role: Role) -> Result<ExitCode, Error> {
    match role {
        Role::Demo(options) => {
            let report = demo::demo(&options).await?;
            write!(io::stdout(), "\n{report}").map_err(Error::io("print the report"))?;
            return Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Role::Reference { job } => reference::run(job)?,
        Role::Ps { job, node } => ps::serve(job, &node.sidecar).await?,
        Role::Worker { job, rank, node } => worker::work(job, rank, &node.sidecar).await?,
        Role::BulkProducer { load, node } => bulk::produce(load, &node.sidecar).await?,
        Role::BulkReader { load, node } => bulk::read(load, &node.sidecar).await?,
        Role::GrpcPs { job, listen } => grpc::serve(job, listen).await?,
        Role::GrpcWorker { job, rank, server } => grpc::work(job, rank, server).await?,
        Role::Tied { parent, program, arguments } => tied::become_program(parent, &program, &arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn rank(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|rank| *rank < WORKERS).ok_or_else(|| format!("a rank is less than {WORKERS}"))
}

/// Formats an error and its causes in one line: tonic says "transport error" for everything and keeps the reason in the
/// cause.
fn with_causes(error: &Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
