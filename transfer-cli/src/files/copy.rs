//! `transferctl copy`: a file goes to the folder of another node's sidecar.
//!
//! This program is a worker of its own node. It reads the file piece by piece into its arena, publishes each piece as the
//! next version of a key of its own, and the digest at the end. The other sidecar fetches them. A piece's memory is free
//! for a later one as soon as it is fetched, so the arena holds a few pieces, whatever the file's length.

use super::compare::{self, Clock, Ends};
use super::copy_options::{Options, To};
use super::digest::Hash;
use super::input::Input;
use super::story;
use super::{FilesError, blocking, interruption};
use crate::admin::{Target, cluster, fabric_name};
use crate::error::Error;
use serde_json::json;
use std::io::Read;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};
use transfer_client::{Client, DType, Until};
use transfer_core::text::printable;
use transfer_proto::v1::{CopyDone, CopyProgress, CopyRequest};
use transfer_terminal::units::{bytes as in_units, nanos};

/// The pieces in the arena: those that the receiver fetches ahead, and those that are read meanwhile.
const PIECES_IN_ARENA: u64 = 8;

/// The time for which a piece may wait for the receiver.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);

/// Copies the file, and reports.
///
/// # Errors
/// [`Error::Files`] of the file, [`Error::Connect`] and [`Error::Call`] of this node's sidecar, [`Error::Admin`] and
/// [`Error::Unreachable`] of the other one.
pub async fn run(options: &Options) -> Result<(), Error> {
    let interrupted = interruption().map_err(|source| Error::Runtime { source })?;
    tokio::select! {
        copied = copy(options) => copied,
        () = interrupted => Err(FilesError::Interrupted.into()),
    }
}

async fn copy(options: &Options) -> Result<(), Error> {
    let path = options.file.clone();
    let input = blocking(move || Input::at(&path)).await?;
    let len = input.len_bytes();
    let To { host, path } = &options.to;
    let host = cluster::find(&options.target, host).await?;
    let to = match &options.to_admin {
        Some(admin) => Target { admin: admin.clone(), ..host.target.clone() },
        None => host.target.clone(),
    };
    let piece = options.message_size.min(len).max(64);
    // Each allocation begins at a multiple of 64 at least.
    let client = options.worker.connect((piece.next_multiple_of(64) + 64) * PIECES_IN_ARENA).await?;
    if client.node() != host.asked {
        let (socket, node) = (options.worker.socket.clone(), client.node().to_owned());
        return Err(Error::AnotherSidecar { socket, node, address: options.target.admin.clone() });
    }
    let key = format!("transferctl-copy/{}", random()?);
    let request = CopyRequest {
        path: path.clone(),
        bytes: len,
        message_bytes: options.message_size,
        key: key.clone(),
        from: client.node().to_owned(),
        overwrite: options.overwrite,
        unencrypted: options.unencrypted,
    };
    let clock = Clock::start(&options.target, &to, host.node == host.asked).await?;
    let began = Instant::now();
    let mut admin = to.connect_for_long().await?;
    let mut reports = admin.copy(request).await.map_err(|e| to.answered(e))?.into_inner();
    let bar = story::bar(Some(len), &options.verbosity);
    let mut publishing = std::pin::pin!(publish(&client, &input, &key, options.message_size));
    let mut digest = None;
    let done: CopyDone = loop {
        tokio::select! {
            // What the receiver says comes first: its failure is the reason why nothing is fetched any more.
            biased;
            report = reports.message() => match report.map_err(|e| to.answered(e))? {
                Some(CopyProgress { done: Some(done), .. }) => break done,
                Some(CopyProgress { bytes, .. }) => bar.set_position(bytes),
                None => return Err(Error::StreamEnded { address: to.admin.clone(), what: "the copy" }),
            },
            published = &mut publishing, if digest.is_none() => digest = Some(published?),
        }
    };
    bar.finish_and_clear();
    let took = began.elapsed();
    // The receiver may be done before this node has answered the push of the digest.
    let digest = match digest {
        Some(digest) => digest,
        None => publishing.await?,
    };
    // The receiver has compared it with the one that was published, so this fails only if the receiver lies.
    let found = <[u8; 32]>::try_from(&done.blake3[..]).map(Hash::from).ok();
    if found != Some(digest) {
        let found = found.map(|found| found.to_hex().to_string()).unwrap_or_default();
        let wanted = digest.to_hex().to_string();
        return Err(FilesError::NotVerified { key: format!("{}:{path}", host.node), wanted, found }.into());
    }
    report(options, &host.node, len, &done, &digest, (took, &clock.end().await?));
    if let (Some(program), Some(to)) = (options.compare, &options.compare_to) {
        let (took, ends) = compare::other(options, program, to).await?;
        let name = compare::name(program);
        if options.verbosity.json {
            let shown = json!({ "program": name, "bytes": len, "took_ns": nanos(took), "cpu": ends.as_json() });
            transfer_terminal::outln!("{shown}");
        } else if !options.verbosity.quiet {
            transfer_terminal::outln!("{name}: {}\n{}", how_fast(len, took), ends.as_text());
        }
    }
    Ok(())
}

/// Publishes the pieces of the file, and its digest after them. Returns the digest.
async fn publish(client: &Client, input: &Input, key: &str, message_bytes: u64) -> Result<Hash, Error> {
    let failed = |source| Error::Call { what: "push", key: key.to_owned(), source };
    let (len, mut at, mut version) = (input.len_bytes(), 0, 0);
    let mut hasher = blake3::Hasher::new();
    let once = Until::Fetched(NonZeroU32::MIN);
    while at < len {
        let part = message_bytes.min(len - at);
        let mut tensor = client.allocate_wait(DType::U8, [part]).timeout(PIECE_TIMEOUT).await.map_err(failed)?;
        let file = input.clone();
        (tensor, hasher) = blocking(move || {
            let to = tensor.as_mut_bytes();
            file.read_into(at, to, &|_| ())?;
            hasher.update(to);
            Ok((tensor, hasher))
        })
        .await?;
        version += 1;
        client.push_tensor(key, tensor).version(version).keep(once).await.map_err(|e| failed(e.into()))?;
        at += part;
    }
    // The file may have been changed behind a piece that was read.
    let file = input.clone();
    blocking(move || file.with(|_| Ok(()))).await?;
    let digest = hasher.finalize();
    let mut tensor = client.allocate_wait(DType::U8, [32]).timeout(PIECE_TIMEOUT).await.map_err(failed)?;
    tensor.as_mut_bytes().copy_from_slice(digest.as_bytes());
    client.push_tensor(key, tensor).version(version + 1).keep(once).await.map_err(|e| failed(e.into()))?;
    Ok(digest)
}

/// A part of a key that no other copy has.
fn random() -> Result<String, FilesError> {
    let path = "/dev/urandom";
    let mut bytes = [0; 16];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|source| FilesError::File { what: "read", path: path.into(), source })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// `256 MiB in 0.500 s, 512 MiB/s`
fn how_fast(len: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    format!("{} in {seconds:.3} s, {}/s", in_units(len), in_units((len as f64 / seconds.max(1e-9)) as u64))
}

fn report(options: &Options, node: &str, len: u64, done: &CopyDone, digest: &Hash, (took, ends): (Duration, &Ends)) {
    let (path, fabric) = (&options.to.path, fabric_name(done.fabric));
    if options.verbosity.json {
        let shown = json!({
            "node": node, "path": path, "bytes": len, "fabric": fabric, "copied_bytes": done.copied_bytes,
            "took_ns": nanos(took), "cpu": ends.as_json(), "message_bytes": options.message_size,
            "blake3": digest.to_hex().to_string(),
        });
        transfer_terminal::outln!("{shown}");
    } else if !options.verbosity.quiet {
        transfer_terminal::outln!(
            "{}: {}, fabric={fabric} copied={} B, digests are equal\n{}",
            printable(format!("{node}:{path}")),
            how_fast(len, took),
            done.copied_bytes,
            ends.as_text()
        );
    }
}
