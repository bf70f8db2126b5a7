//! Carries words between the engine and everything else.

use crate::directory::{Ask, DirectoryClient, News, Refused};
use crate::engine::{ClaimRefused, ControlRequest, EngineClient, EngineCommand, EngineGone};
use crate::peering::Links;
use crate::sessions::Sessions;
use tokio::sync::mpsc;

/// What the engine's requests are carried out with.
pub(crate) struct Control {
    pub(crate) engine: EngineClient,
    pub(crate) directory: DirectoryClient,
    pub(crate) links: Links,
    pub(crate) sessions: Sessions,
}

impl Control {
    /// Runs until the engine has ended, or nobody is left to tell.
    pub(crate) async fn run(
        self,
        mut requests: mpsc::UnboundedReceiver<ControlRequest>,
        mut news: mpsc::UnboundedReceiver<News>,
    ) {
        loop {
            let told = tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => {
                        self.carry_out(request);
                        Ok(())
                    }
                    None => Err(EngineGone),
                },
                Some(news) = news.recv() => self.engine.send(command(news)),
            };
            if told.is_err() {
                return;
            }
        }
    }

    fn carry_out(&self, request: ControlRequest) {
        match request {
            ControlRequest::Resolve { key, newer_than } => self.directory.ask(Ask::Resolve { key, newer_than }),
            ControlRequest::StopResolve { key } => self.directory.ask(Ask::StopResolve { key }),
            ControlRequest::ResolveWorker { worker } => self.directory.ask(Ask::ResolveWorker { worker }),
            ControlRequest::Claim { key, owner, takeover } => self.directory.ask(Ask::Claim { key, owner, takeover }),
            ControlRequest::Unclaim { key } => self.directory.ask(Ask::Unclaim { key }),
            ControlRequest::Connect { peer } => self.links.wanted(&peer),
            ControlRequest::PrepareBuffers { link, peer, asks } => self.links.prepare_buffers(link, peer, asks),
            ControlRequest::LinkUp { link, peer } => self.links.link_up(&peer, link),
            // The engine's log has it, and the status of the link.
            ControlRequest::RailDown { .. } => {}
            ControlRequest::LinkFailed { link, peer, why } | ControlRequest::LinkDown { link, peer, why } => {
                self.links.link_down(&peer, link, &why)
            }
            ControlRequest::SessionClosed { session, worker, .. } => self.sessions.closed(session, &worker),
        }
    }
}

fn command(news: News) -> EngineCommand {
    match news {
        News::Attached => EngineCommand::ClaimAll,
        News::Claimed { key, result } => {
            let result = result.map_err(|refused| match refused {
                Refused::Owned { owner, node } => ClaimRefused::Owned { owner, node },
                Refused::Unreachable(why) => ClaimRefused::Unreachable(why),
            });
            EngineCommand::Claimed { key, result }
        }
        News::Lost { key, owner } => EngineCommand::KeyLost { key, owner },
        News::Located { key, node, sequence } => EngineCommand::Located { key, node, sequence },
        News::WorkerLocated { worker, node } => EngineCommand::WorkerLocated { worker, node },
    }
}
