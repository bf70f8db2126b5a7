//! The control plane's client of the engine: commands go in, answers are awaited with a deadline.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use transfer_core::fabric::{FabricError, FabricKind, LinkId, Offer};
use transfer_core::protocol::{BufferAnswer, BufferAsk, Deleted, Node, NotDeleted, Page, Snapshot, Tenant, Unfinished};
use transfer_core::tensor::{Key, Name};
use transfer_core::time::Time;

pub(crate) use transfer_fabric::engine::{
    Answer, ControlRequest, EngineCommand, EngineGone, EngineHandle, FabricDescription, Listing, Measured, PageFrom,
    PeerInfo, PingError, ReaderReply, ReaderSink,
};

/// The time-out of an answer. The engine answers between two rounds of its loop; only memory registration takes long.
const DEADLINE: Duration = Duration::from_secs(10);

/// The reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum EngineError {
    /// The engine has ended.
    #[error(transparent)]
    Gone(#[from] EngineGone),
    /// The engine did not answer in time.
    #[error("the data plane of this sidecar did not answer within {DEADLINE:?}")]
    Silent,
    /// The fabric refused.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

/// A link that was begun: its number, the data for the peer, and its number of receive slots.
pub(crate) type Begun = (LinkId, Offer, u32);

type Send = dyn Fn(EngineCommand) -> Result<(), EngineGone> + std::marker::Send + Sync;
type SendLater = dyn Fn(EngineCommand) + std::marker::Send + Sync;

/// Sends commands to the engine. Cheap to clone.
#[derive(Clone)]
pub(crate) struct EngineClient(Arc<Send>, Arc<SendLater>);

impl EngineClient {
    /// Makes a client that passes commands to `send`.
    #[cfg(test)]
    pub(crate) fn new(
        send: impl Fn(EngineCommand) -> Result<(), EngineGone> + std::marker::Send + Sync + 'static,
    ) -> EngineClient {
        let send = Arc::new(send);
        let later = send.clone();
        EngineClient(send, Arc::new(move |command| _ = later(command)))
    }

    /// Makes a client of a running engine.
    pub(crate) fn of(handle: EngineHandle) -> EngineClient {
        let later = handle.clone();
        EngineClient(Arc::new(move |command| handle.send(command)), Arc::new(move |command| later.send_later(command)))
    }

    /// Sends a command that has no answer, without ever waiting.
    pub(crate) fn send_later(&self, command: EngineCommand) {
        (self.1)(command);
    }

    /// Sends a command that has no answer.
    pub(crate) fn send(&self, command: EngineCommand) -> Result<(), EngineGone> {
        (self.0)(command)
    }

    async fn ask<T: std::marker::Send + 'static>(
        &self,
        command: impl FnOnce(Answer<T>) -> EngineCommand,
    ) -> Result<T, EngineError> {
        let (tell, told) = oneshot::channel();
        // The caller may have gone.
        self.send(command(Box::new(move |answer| drop(tell.send(answer)))))?;
        match tokio::time::timeout(DEADLINE, told).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(EngineGone.into()),
            Err(_) => Err(EngineError::Silent),
        }
    }

    /// Asks the node for what an operator wants: `operate` runs on the data plane's thread, in bounded steps.
    async fn operate<T: std::marker::Send + 'static>(
        &self,
        operate: impl FnOnce(Time, &mut Node) -> T + std::marker::Send + 'static,
    ) -> Result<T, EngineError> {
        self.ask(|answer| EngineCommand::Operate(Box::new(move |now, node| answer(operate(now, node))))).await
    }

    pub(crate) async fn begin_link(&self, peer: Name, fabric: FabricKind) -> Result<Begun, EngineError> {
        Ok(self.ask(|answer| EngineCommand::BeginLink { peer, fabric, answer }).await??)
    }

    pub(crate) async fn accept_link(
        &self,
        peer: PeerInfo,
        fabric: FabricKind,
        offer: Offer,
    ) -> Result<Begun, EngineError> {
        Ok(self.ask(|answer| EngineCommand::AcceptLink { peer, fabric, offer, answer }).await??)
    }

    pub(crate) async fn finish_link(&self, link: LinkId, peer: PeerInfo, offer: Offer) -> Result<(), EngineError> {
        Ok(self.ask(|answer| EngineCommand::FinishLink { link, peer, offer, answer }).await??)
    }

    /// Ends a link that was begun, without failing requests that wait for another link to the same peer.
    pub(crate) fn abandon_link(&self, link: LinkId, why: &str) {
        // An engine that has ended has no links.
        let _ = self.send(EngineCommand::AbandonLink { link, why: why.to_owned() });
    }

    /// Returns the answers to a peer's call for landing slots. `None`: there is no such link to the peer.
    pub(crate) async fn prepare_buffers(
        &self,
        link: LinkId,
        peer: Name,
        incarnation: u64,
        asks: Vec<BufferAsk>,
    ) -> Result<Option<Vec<BufferAnswer>>, EngineError> {
        self.ask(|answer| EngineCommand::PrepareBuffers { link, peer, incarnation, asks, answer }).await
    }

    pub(crate) async fn snapshot(&self) -> Result<Snapshot, EngineError> {
        self.ask(EngineCommand::Snapshot).await
    }

    pub(crate) async fn measure(&self) -> Result<Measured, EngineError> {
        self.ask(EngineCommand::Measure).await
    }

    pub(crate) async fn describe(&self) -> Result<Vec<FabricDescription>, EngineError> {
        self.ask(EngineCommand::Describe).await
    }

    /// Returns a page of a list.
    pub(crate) async fn list<T: std::marker::Send + 'static>(
        &self,
        from: PageFrom,
        listing: impl FnOnce(Answer<Page<T>>) -> Listing,
    ) -> Result<Page<T>, EngineError> {
        self.ask(|answer| EngineCommand::List { from, listing: listing(answer) }).await
    }

    pub(crate) async fn delete(
        &self,
        key: Key,
        only: Option<Tenant>,
    ) -> Result<Result<Deleted, NotDeleted>, EngineError> {
        self.operate(move |now, node| node.delete_key(now, &key, only)).await
    }

    pub(crate) async fn evict(&self, domain: Option<Tenant>, place: u64) -> Result<Page<u64>, EngineError> {
        self.operate(move |_, node| node.evict(domain, place)).await
    }

    /// Returns the time between a PING on a link and its PONG. `None`: there was no PONG within `timeout`, which is at
    /// most ten seconds.
    pub(crate) async fn ping(
        &self,
        link: LinkId,
        timeout: Duration,
    ) -> Result<Option<Result<Duration, PingError>>, EngineError> {
        let asked = self.ask(|answer| EngineCommand::Ping { link, answer });
        tokio::time::timeout(timeout, asked).await.ok().transpose()
    }

    /// Starts a drain, or asks for its state. Returns the work that is left to finish.
    pub(crate) async fn drain(&self) -> Result<Unfinished, EngineError> {
        self.operate(|now, node| {
            node.drain(now);
            node.state().unfinished()
        })
        .await
    }
}

impl fmt::Debug for EngineClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineClient")
    }
}
