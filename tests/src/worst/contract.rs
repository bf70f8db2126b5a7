//! What a stranger says by the gRPC contract, over loopback and without certificates: every item of `Attach` and every
//! call that changes something, in the name of the honest job.

use super::account::Notes;
use crate::stranger::{Attached, worker_up};
use std::net::SocketAddr;
use std::time::Duration;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use transfer_proto::v1::{self, directory_item, node_item};

/// How long one answer may take. Some items have none.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a call may take. The directory asks the holder of a name for up to 5 s.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The status codes with which a sidecar may refuse these calls. Only one of the sidecars hosts the directory, and none
/// has a folder for copies.
const REFUSED: &[&str] =
    &["PermissionDenied", "AlreadyExists", "ResourceExhausted", "Unavailable", "Unimplemented", "FailedPrecondition"];

/// Runs `deed` with a connection to the address.
fn with_channel(grpc: SocketAddr, notes: &mut Notes<'_>, deed: impl AsyncFnOnce(Channel)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).expect("an address").timeout(TIMEOUT);
        match endpoint.connect().await {
            Ok(channel) => deed(channel).await,
            // Connections of other deeds may fill the queue.
            Err(_) => notes.error("Unavailable", "it does not connect", REFUSED),
        }
    });
}

/// Records how a call ended, which must not succeed.
fn refused<T>(what: &str, result: Result<T, Status>, notes: &mut Notes<'_>) {
    match result {
        Ok(_) => notes.strange(&format!("it may {what}")),
        Err(status) => note(&status, notes),
    }
}

fn note(status: &Status, notes: &mut Notes<'_>) {
    // This is how tonic reports a connection that was closed.
    let is_transport = matches!(status.code(), tonic::Code::Unknown | tonic::Code::Cancelled);
    let code = if is_transport { tonic::Code::Unavailable } else { status.code() };
    notes.error(&format!("{code:?}"), status.message(), REFUSED);
}

/// Attaches in other nodes' names, then in one of its own, and sends every item about the job's keys and workers.
pub(super) fn attach(grpc: SocketAddr, victim: &str, random: u32, notes: &mut Notes<'_>) {
    let mut heard = Vec::new();
    let mut found = Vec::new();
    with_channel(grpc, notes, async |channel| {
        for (node, replace) in [("a", false), ("a", true), ("b", false), ("b", true)] {
            let hello = v1::Hello {
                node: node.into(),
                address: grpc.to_string(),
                incarnation: u64::MAX,
                version: 5,
                replace,
                ..v1::Hello::default()
            };
            heard.push((format!("attach as {node}"), Attached::with(channel.clone(), hello).await.map(drop)));
        }
        let mut attached = match Attached::to(channel, &format!("stranger-{random}")).await {
            Ok(attached) => attached,
            Err(status) => return found.push(Err(status)),
        };
        for item in silent_items(victim) {
            attached.send(item).await;
        }
        for item in items(victim) {
            match tokio::time::timeout(ANSWER_TIMEOUT, attached.ask(item)).await {
                Ok(answer) => found.push(answer),
                // The directory watches the key.
                Err(_) => continue,
            }
        }
        attached.send(node_item::Item::Leave(v1::Leave {})).await;
    });
    for (what, result) in heard {
        refused(&what, result, notes);
    }
    for answer in found {
        match answer {
            Ok(item @ (directory_item::Item::Claimed(_) | directory_item::Item::WorkerAdmitted(_))) => {
                notes.strange(&format!("{item:?}"));
            }
            Ok(_) => notes.done(),
            Err(status) => note(&status, notes),
        }
    }
}

/// Returns items that are answered, and a watch, which may not be.
fn items(victim: &str) -> Vec<node_item::Item> {
    let key = |key: &str| format!("{victim}/{key}");
    let mut items = Vec::new();
    for (worker, tenant) in ["leader", "follower", "nobody"].into_iter().zip([0, 1, u32::MAX]) {
        let worker = format!("{victim}-{worker}");
        for entered in [0, 1, u64::MAX] {
            let node_item::Item::WorkerUp(up) = worker_up(&worker, tenant) else { continue };
            items.push(node_item::Item::WorkerUp(v1::WorkerUp { entered, ..up }));
        }
        for (resident, takeover) in [(false, false), (true, false), (false, true), (true, true)] {
            let (key, owner, tenant) = (key("there/0"), worker.clone(), tenant.to_string());
            let claim = v1::Claim { claim: 1, key, owner, takeover, resident, tenant, entered: 0 };
            items.push(node_item::Item::Claim(claim));
        }
        let tenant = tenant.to_string();
        items.push(node_item::Item::ResolveWorker(v1::ResolveWorker { worker, tenant }));
    }
    items.push(node_item::Item::ResolveNode(v1::ResolveNode { node: "b".into() }));
    items.push(node_item::Item::Resolve(v1::Resolve { key: key("there/0"), newer_than: u64::MAX }));
    items
}

/// Returns items that have no answer.
fn silent_items(victim: &str) -> Vec<node_item::Item> {
    let mut items = Vec::new();
    for name in ["there/0", "back/0"] {
        let key = format!("{victim}/{name}");
        items.push(node_item::Item::Unclaim(v1::Unclaim { key: key.clone() }));
        items.push(node_item::Item::StopResolve(v1::StopResolve { key }));
    }
    for name in ["leader", "follower"] {
        items.push(node_item::Item::WorkerDown(v1::WorkerDown { worker: format!("{victim}-{name}") }));
    }
    items.push(node_item::Item::Pong(v1::Pong { ping: u64::MAX }));
    items
}

/// Makes every call that changes something.
pub(super) fn administer(grpc: SocketAddr, victim: &str, notes: &mut Notes<'_>) {
    let mut heard = Vec::new();
    with_channel(grpc, notes, async |channel| {
        let mut admin = v1::admin_client::AdminClient::new(channel);
        let key = format!("{victim}/there/0");
        heard.push(("delete", admin.delete(v1::DeleteRequest { key: key.clone() }).await.map(drop)));
        heard.push(("evict", admin.evict(v1::EvictRequest { uid: Some(0) }).await.map(drop)));
        heard.push(("drain", admin.drain(v1::DrainRequest { deadline_ns: 1 }).await.map(drop)));
        let level = "trace".into();
        heard.push(("set the log's level", admin.set_log_level(v1::SetLogLevelRequest { level }).await.map(drop)));
        heard.push(("set how it polls", admin.set_poll(v1::SetPollRequest::default()).await.map(drop)));
        heard.push(("move the directory", admin.move_directory(v1::MoveDirectoryRequest::default()).await.map(drop)));
        let copy = v1::CopyRequest { path: "x".into(), bytes: 1, message_bytes: 1, key, ..v1::CopyRequest::default() };
        heard.push(("copy", admin.copy(copy).await.map(drop)));
    });
    for (what, result) in heard {
        refused(what, result, notes);
    }
}
