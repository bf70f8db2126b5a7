//! `digits demo`: all processes of the job on one machine, and a report at the end.
//!
//! ```text
//!              node A                                             node B
//!   ps, worker 0, producer, reader ──► transferd ◄──TCP──► transferd ◄── worker 1, reader
//! ```

use crate::bulk::Load;
use crate::error::Error;
use crate::event::{Event, Read, Trained, Transfers};
use crate::nodes::{self, A, B, Node};
use crate::progress::Progress;
use crate::report::{Exchange, Report};
use crate::run::Run;
use crate::signals::Signals;
use crate::stage::{Happening, Stage};
use crate::training::{Job, WORKERS};
use std::path::PathBuf;
use transfer_client::FabricKind;

/// The node of each worker, by rank. The parameter server is on A.
const WORKER_NODES: [Node; WORKERS] = [A, B];

/// The options of `digits demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The job.
    #[command(flatten)]
    pub job: Job,
    /// The number of times that the job is done in each way; the report has the median time.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// The bulk load.
    #[command(flatten)]
    pub load: Load,
    /// The fabric between the nodes: tcp; or verbs, if there is an RDMA device
    #[arg(long, value_name = "FABRIC", default_value = "tcp", value_parser = fabric)]
    pub fabric: FabricKind,
    /// The sidecar's program. Default: transferd beside this program.
    #[arg(long, value_name = "PATH")]
    pub transferd: Option<PathBuf>,
}

fn fabric(text: &str) -> Result<FabricKind, String> {
    let known = [FabricKind::Tcp, FabricKind::Verbs];
    known
        .into_iter()
        .find(|kind| kind.name() == text)
        .ok_or_else(|| "a fabric between nodes is tcp or verbs".to_owned())
}

/// Runs all parts of the demo, and reports. At the end no process and no socket is left, also after an error.
///
/// # Errors
/// The errors of all roles, and [`Error::Interrupted`].
pub async fn demo(options: &Options) -> Result<Report, Error> {
    let mut signals = Signals::listen()?;
    let mut stage = Stage::new()?;
    let result = tokio::select! {
        // A terminal's Ctrl-C goes to all processes of the demo, so their end is then no error of its own.
        biased;
        () = signals.told_to_end() => Err(Error::Interrupted),
        result = play(&mut stage, options) => result,
    };
    stage.clear().await;
    result
}

async fn play(stage: &mut Stage, options: &Options) -> Result<Report, Error> {
    let transferd = match &options.transferd {
        Some(path) => path.clone(),
        None => std::env::current_exe().map_err(Error::io("find this program"))?.with_file_name("transferd"),
    };
    nodes::start(stage, &transferd, options.fabric).await?;

    let job = options.job;
    let mut transfers = Vec::new();
    let mut reference = Exchange { name: "none (one process)", runs: Vec::new() };
    let mut transfer = Exchange { name: "transfer", runs: Vec::new() };
    let mut grpc = Exchange { name: "gRPC messages", runs: Vec::new() };
    for _ in 0..options.rounds {
        // The three ways take turns, so that a slow phase of the machine affects all of them.
        let (trained, told) = train_over_transfer(stage, job).await?;
        transfer.runs.push(trained);
        transfers.extend(told);
        grpc.runs.push(train_over_grpc(stage, job).await?);
        reference.runs.push(train_alone(stage, job).await?);
    }
    let reads = move_in_bulk(stage, options.load).await?;
    Ok(Report { job, reference, exchanges: vec![transfer, grpc], server: A.name, transfers, load: options.load, reads })
}

/// Does the job in one process.
async fn train_alone(stage: &mut Stage, job: Job) -> Result<Trained, Error> {
    stage.start_role("reference", &format!("reference {}", job.flags()))?;
    let mut run = Run::new("reference", job.steps);
    run.follow(stage, 1).await?;
    Ok(run.end()?.0)
}

/// Does the job with a parameter server and workers in separate processes, which exchange gRPC messages.
async fn train_over_grpc(stage: &mut Stage, job: Job) -> Result<Trained, Error> {
    stage.start_role("grpc-ps", &format!("grpc-ps {}", job.flags()))?;
    let address = match stage.next().await? {
        (_, Happening::Said(Event::Listening { address })) => address,
        _ => return Err(Error::Unexpected { what: "start of the parameter server" }),
    };
    for rank in 0..WORKERS {
        let line = format!("grpc-worker --rank {rank} --server {address} {}", job.flags());
        stage.start_role(&format!("grpc-worker-{rank}"), &line)?;
    }
    let mut run = Run::new("gRPC", job.steps);
    run.follow(stage, 1 + WORKERS).await?;
    Ok(run.end()?.0)
}

/// Does the job with a parameter server and workers in processes on two nodes, which exchange tensors through their
/// sidecars.
async fn train_over_transfer(stage: &mut Stage, job: Job) -> Result<(Trained, Vec<Transfers>), Error> {
    // The order does not matter: a fetch waits for a version that is not published yet.
    stage.start_role("ps", &format!("ps --sidecar {} {}", A.socket, job.flags()))?;
    for (rank, node) in WORKER_NODES.iter().enumerate() {
        let line = format!("worker --rank {rank} --sidecar {} {}", node.socket, job.flags());
        stage.start_role(&format!("worker-{rank}"), &line)?;
    }
    let mut run = Run::new("transfer", job.steps);
    run.follow(stage, WORKERS).await?;
    // The workers have left, so the owner of the weights may leave, too, once it has reported. A worker may see the
    // last version before its owner learns that it is published.
    run.follow_to_transfers_of(stage, "ps").await?;
    stage.tell_to_end("ps");
    run.follow(stage, 1).await?;
    run.end()
}

/// Moves large tensors from a producer on A to a reader on A, and then to one on B.
async fn move_in_bulk(stage: &mut Stage, load: Load) -> Result<Vec<Read>, Error> {
    let progress = Progress::new("bulk", 3);
    stage.start_role("producer", &format!("bulk-producer --sidecar {} {}", A.socket, load.flags()))?;
    match stage.next().await? {
        (_, Happening::Said(Event::Published { tensors })) => progress.show(1, &format!("{tensors} tensors made")),
        _ => return Err(Error::Unexpected { what: "end of the producer" }),
    }
    let mut reads = Vec::new();
    for (node, done) in [(A, 2), (B, 3)] {
        // The readers run one after the other, so that they do not slow each other down.
        let name = format!("reader-{}", node.name);
        stage.start_role(&name, &format!("bulk-reader --sidecar {} {}", node.socket, load.flags()))?;
        loop {
            match stage.next().await? {
                (_, Happening::Said(Event::Read(read))) => {
                    progress.show(done, &format!("read on node {}", node.name));
                    reads.push(read);
                }
                (_, Happening::Left) => break,
                _ => return Err(Error::Unexpected { what: "news of a reader" }),
            }
        }
    }
    stage.tell_to_end("producer");
    Ok(reads)
}
