//! Carries messages between the engine and the rest of the sidecar.

use crate::directory::{DirectoryClient, DirectoryCommand, DirectoryEvent};
use crate::engine::{ControlRequest, EngineClient, EngineCommand, EngineGone};
use crate::events::Events;
use crate::peering::Links;
use crate::sessions::Sessions;
use tokio::sync::mpsc;
use transfer_proto::v1;
use v1::event::What;

/// Carries out the engine's requests.
pub(crate) struct Control {
    pub(crate) engine: EngineClient,
    pub(crate) directory: DirectoryClient,
    pub(crate) links: Links,
    pub(crate) sessions: Sessions,
    pub(crate) events: Events,
}

impl Control {
    /// Runs until the engine has ended, or no receiver is left.
    pub(crate) async fn run(
        self,
        mut requests: mpsc::UnboundedReceiver<ControlRequest>,
        mut news: mpsc::UnboundedReceiver<DirectoryEvent>,
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
                Some(news) = news.recv() => self.pass_on(news),
            };
            if told.is_err() {
                return;
            }
        }
    }

    fn pass_on(&self, news: DirectoryEvent) -> Result<(), EngineGone> {
        match news {
            // The worker's session may not be in the engine yet.
            DirectoryEvent::NameLost { worker, node } => {
                self.sessions.name_lost(&worker, node);
                Ok(())
            }
            DirectoryEvent::Directory(news) => self.engine.send(EngineCommand::Directory(news)),
        }
    }

    fn carry_out(&self, request: ControlRequest) {
        match request {
            ControlRequest::Claim(claim) => self.directory.ask(DirectoryCommand::Claim(claim)),
            ControlRequest::Directory(request) => self.directory.ask(DirectoryCommand::Request(request)),
            ControlRequest::Connect { peer } => self.links.wanted(&peer),
            ControlRequest::PrepareBuffers { link, peer, asks } => self.links.prepare_buffers(link, peer, asks),
            ControlRequest::LinkUp { link, peer } => {
                self.links.link_up(&peer, link);
                let what = v1::LinkUp { link: link.0, peer: peer.to_string() };
                self.events.tell(format!("{link} to node {peer} is up"), What::LinkUp(what));
            }
            ControlRequest::RailDown { link, peer, rail, left, why } => {
                let text = format!("rail {rail} of {link} to node {peer} is down, {left} are left: {why}");
                let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
                let (rail, left) = (number(rail), number(left));
                self.events
                    .tell(text, What::RailDown(v1::RailDown { link: link.0, peer: peer.to_string(), rail, left, why }));
            }
            // The link's waiters get the reason if no other link can be made.
            ControlRequest::LinkFailed { link, peer, why } => self.links.link_down(&peer, link, &why),
            ControlRequest::LinkDown { link, peer, why } => {
                self.links.link_down(&peer, link, &why);
                let text = format!("{link} to node {peer} is down: {why}");
                self.events.tell(text, What::LinkDown(v1::LinkDown { link: link.0, peer: peer.to_string(), why }));
            }
            ControlRequest::SessionClosed { session, worker, why } => {
                self.sessions.closed(session, &worker);
                let text = format!("session {} of worker {worker} is closed: {why}", session.0);
                let what = v1::SessionClosed { session: session.0, worker: worker.to_string(), why };
                self.events.tell(text, What::SessionClosed(what));
            }
            ControlRequest::Event(event) => self.events.tell_of_node(event),
        }
    }
}
