//! The caller at the other end of a connection.

use super::authority::Authorities;
use super::places::Source;
use crate::shares::Share;
use rustix::net::RecvFlags;
use std::fmt;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::transport::server::Connected;

/// The caller, as far as the connection identifies it. It is an extension of each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Any process that can reach the address.
    Plain {
        /// Whether the caller is on this host.
        loopback: bool,
    },
    /// The holder of a certificate with these names.
    Certificate(Arc<[String]>),
    /// A process of this host, as the kernel reports it.
    Local {
        /// The effective user id.
        uid: u32,
        /// The effective group id.
        gid: u32,
    },
    /// A process of this host at the socket for sidecars, as the kernel reports it.
    Sidecar {
        /// The effective user id.
        uid: u32,
        /// The effective group id.
        gid: u32,
    },
}

impl Caller {
    /// Checks whether the caller can be the node that it claims to be. Only a certificate can contradict the claim;
    /// without one every claim is accepted.
    pub(crate) fn may_be(&self, node: &str) -> Result<(), Status> {
        match self {
            Caller::Certificate(names) if !names.iter().any(|name| name == node) => {
                let found = super::names::in_words(names);
                Err(Status::permission_denied(format!(
                    "node {node:?} calls with a certificate for {found}: give that node one for the DNS name {node}, or the URI \
                     transfer://node/{node}"
                )))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Plain { .. } => f.write_str("a caller without a certificate"),
            Caller::Certificate(names) => write!(f, "a certificate for {}", super::names::in_words(names)),
            Caller::Local { uid, .. } | Caller::Sidecar { uid, .. } => write!(f, "user id {uid}"),
        }
    }
}

/// An incoming connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(super) caller: Caller,
    pub(super) stream: Stream,
    /// Held as long as the connection is open.
    pub(super) _place: Share<Source>,
    /// Replaces authorities at a socket that accepts any authority.
    pub(super) authorities: Option<Authorities>,
}

/// The stream of a connection.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// Checks whether the other side has sent something, or has closed the connection. Readiness alone may be spurious.
fn look(socket: impl AsFd) -> std::io::Result<()> {
    rustix::net::recv(socket, &mut [0u8], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    Ok(())
}

/// Waits until the other side of a TCP connection has sent something, or has closed the connection.
pub(super) async fn tcp_has_spoken(socket: &TcpStream) -> std::io::Result<()> {
    socket.async_io(Interest::READABLE, || look(socket)).await
}

impl Stream {
    /// Waits until the other side has sent something, or has closed the connection.
    pub(super) async fn has_spoken(&self) -> std::io::Result<()> {
        match self {
            Stream::Plain(s) => tcp_has_spoken(s).await,
            Stream::Tls(s) => tcp_has_spoken(s.get_ref().0).await,
            Stream::Unix(s) => s.async_io(Interest::READABLE, || look(s)).await,
        }
    }
}

impl Connected for Incoming {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

/// Evaluates an expression with the stream, whichever type it has.
macro_rules! with_stream {
    ($this:expr, $stream:ident => $what:expr) => {
        match &mut $this.stream {
            Stream::Plain(s) => {
                let $stream = Pin::new(s);
                $what
            }
            Stream::Tls(s) => {
                let $stream = Pin::new(s.as_mut());
                $what
            }
            Stream::Unix(s) => {
                let $stream = Pin::new(s);
                $what
            }
        }
    };
}

impl AsyncRead for Incoming {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = to.filled().len();
        let read = with_stream!(this, stream => stream.poll_read(cx, to));
        if let Some(authorities) = &mut this.authorities
            && let Some(new) = to.filled_mut().get_mut(before..)
        {
            authorities.mend(new);
        }
        read
    }
}

impl AsyncWrite for Incoming {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        with_stream!(self.get_mut(), stream => stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        with_stream!(self.get_mut(), stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        with_stream!(self.get_mut(), stream => stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        with_stream!(self.get_mut(), stream => stream.poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(s) => s.is_write_vectored(),
            Stream::Tls(s) => s.is_write_vectored(),
            Stream::Unix(s) => s.is_write_vectored(),
        }
    }
}
