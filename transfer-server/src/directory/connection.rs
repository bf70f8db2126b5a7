//! A node's connection to the directory: to the one in this process, or to another node's by gRPC. Both carry the same
//! items.

use super::convert;
use super::host::{Attachment, Directory, MAX_BATCH};
use super::item::{Answer, Hello, NodeItem};
use super::registry::AttachRefused;
use crate::security::{Caller, Expected, Security};
use crate::text;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use transfer_core::protocol::Vouches;
use transfer_core::tensor::Name;
use transfer_proto::v1;

/// The time-out of a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// The time-out of attaching. The directory may need 5 s to find out whether another sidecar of this name is alive.
const ATTACH_DEADLINE: Duration = Duration::from_secs(10);

/// The interval of pings. A dead host is noticed after this and [`KEEP_ALIVE_TIMEOUT`].
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The time-out of a ping.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The place of the directory.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// The directory is in this process.
    Local(Directory),
    /// The directory is at another node, at this URL.
    Remote(Box<Remote>),
    /// Which node it is at is not known yet. This is where to ask.
    Unknown(Arc<str>),
}

/// The directory of another node.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    /// The URL as the operator wrote it.
    url: Box<str>,
    endpoint: Endpoint,
    security: Security,
}

impl Remote {
    /// Connects to the directory.
    pub(crate) async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        Ok(self.reach("").await?.0)
    }

    /// Connects to the Unix socket that the directory has named, if it is reachable, else to the directory's address.
    async fn reach(&self, local: &str) -> Result<(Channel, Caller), tonic::transport::Error> {
        self.security.reach(self.endpoint.clone(), local, Expected::Host).await
    }

    /// Attaches over a connection.
    async fn attach(&self, channel: Channel, hello: &Hello, asks_for_socket: bool) -> Result<Connection, Status> {
        let (out, outgoing) = mpsc::channel(4);
        // A new channel has room.
        let _ = out.try_send(convert::hello_update(hello, asks_for_socket));
        let mut client = v1::directory_client::DirectoryClient::new(channel);
        let answers = client.attach(ReceiverStream::new(outgoing)).await?;
        let mut answers = Box::new(answers.into_inner());
        match answers.message().await?.and_then(convert::welcomed) {
            Some(welcome) if welcome.version == convert::VERSION => {
                let silence = u64::from(welcome.silence_ms);
                let silence = Some(Duration::from_millis(silence)).filter(|silence| !silence.is_zero());
                Ok(Connection::Remote { out, answers, silence })
            }
            Some(v1::Welcome { host, version, .. }) => {
                let why = convert::other_version(&host, version, hello.node.as_str(), convert::VERSION);
                Err(Status::failed_precondition(why))
            }
            None => Err(Status::unknown("not understood: its first word is not Welcome")),
        }
    }

    /// Returns the reason why the directory does not attach this node.
    fn refusal(&self, status: &tonic::Status) -> NotConnected {
        match status.code() {
            Code::AlreadyExists | Code::FailedPrecondition => NotConnected::Refused(status.message().to_owned()),
            Code::PermissionDenied if convert::local_of(status).is_some() => {
                NotConnected::Refused(status.message().to_owned())
            }
            Code::Unavailable if status.metadata().get_bin(convert::LEADER).is_some() => {
                NotConnected::StandsBy(status.message().to_owned(), convert::leader_of(status))
            }
            _ => NotConnected::Failed(self.why_not(status)),
        }
    }

    /// Returns the reason why a call failed. A caller without TLS at a listener with TLS only sees that the connection
    /// ends.
    fn why_not(&self, status: &tonic::Status) -> String {
        let broken = std::error::Error::source(status).is_some_and(|cause| cause.is::<tonic::transport::Error>());
        let hint = match broken && !self.security.has_tls() {
            true => "; has that node certificates? Then this one needs them, too: --tls-cert, --tls-key and --tls-ca",
            false => "",
        };
        format!("{}{hint}", text::status(status))
    }
}

impl Place {
    /// Returns the place of the directory at a URL.
    pub(crate) fn there(url: &str, security: Security) -> Result<Place, tonic::transport::Error> {
        // The connector below does TLS. tonic does not know that, and would start TLS itself for an https URL.
        let endpoint = Endpoint::from_shared(url.replacen("https://", "http://", 1))?
            .connect_timeout(CONNECT_DEADLINE)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        Ok(Place::Remote(Box::new(Remote { url: url.trim_end_matches('/').into(), endpoint, security })))
    }

    /// Connects to the directory for requests outside an attachment.
    pub(crate) async fn reach(&self) -> Result<Reached<'_>, Status> {
        match self {
            Place::Local(directory) => Ok(Reached::Local(directory)),
            Place::Unknown(ask) => Err(Status::unavailable(format!(
                "no host leads the directory, as far as this node has heard from {ask}"
            ))),
            Place::Remote(there) => match there.connect().await {
                Ok(channel) => Ok(Reached::Remote(v1::directory_client::DirectoryClient::new(channel))),
                Err(e) => {
                    let why = text::chain(&e);
                    Err(Status::unavailable(format!("the directory at {} cannot be reached: {why}", self.describe())))
                }
            },
        }
    }

    /// Returns "embedded", or the URL, or where to ask for it.
    pub(crate) fn describe(&self) -> String {
        match self {
            Place::Local(_) => "embedded".to_owned(),
            Place::Remote(there) => there.url.to_string(),
            Place::Unknown(ask) => ask.to_string(),
        }
    }
}

/// A directory that can be called.
pub(crate) enum Reached<'a> {
    /// See [`Place::Local`].
    Local(&'a Directory),
    /// See [`Place::Remote`].
    Remote(v1::directory_client::DirectoryClient<Channel>),
}

/// The reason why an attempt to attach failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotConnected {
    /// The directory, or this side, refuses the attachment. Another attempt does not help.
    Refused(String),
    /// That host stands by. Names the one that leads, if it knows it.
    StandsBy(String, Option<Name>),
    /// Any other failure.
    Failed(String),
}

/// The connection of an attached node. Dropping it detaches the node.
#[derive(Debug)]
pub(crate) enum Connection {
    /// See [`Place::Local`].
    Local(Attachment),
    /// See [`Place::Remote`].
    Remote {
        /// Items to the directory.
        out: mpsc::Sender<v1::NodeUpdate>,
        /// Answers from the directory.
        answers: Box<Streaming<v1::DirectoryUpdate>>,
        /// The time after which a silent host is given up. `None`: it says nothing without a reason.
        silence: Option<Duration>,
    },
}

impl Connection {
    /// Attaches to the directory. The error is the reason in words.
    pub(crate) async fn open(place: &Place, hello: &Hello) -> Result<Connection, NotConnected> {
        let there = match place {
            Place::Local(directory) => {
                let attached = directory.attach(hello, Vouches::ForAll).await;
                return attached.map(Connection::Local).map_err(|refused| match refused {
                    AttachRefused::StandsBy { ref leader, .. } => {
                        NotConnected::StandsBy(refused.to_string(), leader.clone())
                    }
                    refused => NotConnected::Refused(refused.to_string()),
                });
            }
            Place::Remote(there) => there,
            Place::Unknown(_) => return Err(NotConnected::Failed("no host leads the directory yet".to_owned())),
        };
        let attach = async {
            let channel = there.connect().await.map_err(|e| NotConnected::Failed(text::chain(&e)))?;
            let first = there.attach(channel.clone(), hello, there.security.proves_by_socket()).await;
            // A directory on this host trusts the kernel about this node, so attach at its socket instead.
            let local = match &first {
                Err(status) => convert::local_of(status).filter(|local| !local.is_empty()),
                Ok(_) => None,
            };
            let line = match local {
                Some(local) => match there.reach(&local).await {
                    Ok((closer, Caller::Sidecar { .. })) => there.attach(closer, hello, false).await,
                    _ => there.attach(channel, hello, false).await,
                },
                None => first,
            };
            line.map_err(|status| there.refusal(&status))
        };
        match tokio::time::timeout(ATTACH_DEADLINE, attach).await {
            Ok(line) => line,
            Err(_) => Err(NotConnected::Failed(format!("no answer within {ATTACH_DEADLINE:?}"))),
        }
    }

    /// The time after which a silent host is given up.
    pub(crate) fn silence(&self) -> Option<Duration> {
        match self {
            Connection::Local(_) => None,
            Connection::Remote { silence, .. } => *silence,
        }
    }

    /// Splits the connection, so that both halves can be waited on at once.
    pub(crate) fn split(&mut self) -> (ConnectionOut<'_>, ConnectionIn<'_>) {
        match self {
            Connection::Local(attachment) => (ConnectionOut::Local(attachment), ConnectionIn::Local(attachment)),
            Connection::Remote { out, answers, .. } => (ConnectionOut::Remote(out), ConnectionIn::Remote(answers)),
        }
    }
}

/// The sending half.
pub(crate) enum ConnectionOut<'a> {
    Local(&'a Attachment),
    Remote(&'a mpsc::Sender<v1::NodeUpdate>),
}

impl ConnectionOut<'_> {
    /// Waits until [`ConnectionOut::say`] may be called. Cancel-safe.
    pub(crate) async fn ready(&self) {
        match self {
            ConnectionOut::Local(attachment) => attachment.ready().await,
            ConnectionOut::Remote(out) => {
                if out.reserve().await.is_err() {
                    // The connection broke; the receiving half reports why.
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    /// Sends at most [`MAX_BATCH`] items.
    pub(crate) fn say(&self, items: Vec<NodeItem>) {
        debug_assert!(items.len() <= MAX_BATCH);
        match self {
            ConnectionOut::Local(attachment) => attachment.say(items),
            // `ready` saw room, and no one else sends. The receiving half reports a connection that broke in the
            // meantime.
            ConnectionOut::Remote(out) => drop(out.try_send(convert::node_update(items))),
        }
    }
}

/// The receiving half.
pub(crate) enum ConnectionIn<'a> {
    Local(&'a Attachment),
    Remote(&'a mut Streaming<v1::DirectoryUpdate>),
}

impl ConnectionIn<'_> {
    /// Waits for answers. The error is the reason why the connection ended. Cancel-safe.
    pub(crate) async fn hear(&mut self) -> Result<Vec<Answer>, String> {
        let answers = match self {
            ConnectionIn::Local(attachment) => return attachment.hear().await.map_err(|e| e.to_string()),
            ConnectionIn::Remote(answers) => answers,
        };
        match answers.message().await {
            Ok(Some(update)) => {
                let answers: Result<Vec<_>, _> = update.items.into_iter().map(convert::answer).collect();
                answers.map(|a| a.into_iter().flatten().collect()).map_err(|e| format!("not understood: {e}"))
            }
            Ok(None) => Err("the directory ended the stream".to_owned()),
            Err(status) => Err(text::status(&status)),
        }
    }
}
