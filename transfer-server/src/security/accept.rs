//! Incoming connections, each with its caller.

use super::authority::Authorities;
use super::caller::{Caller, Incoming, Stream, tcp_has_spoken};
use super::places::{Places, Source};
use super::{Present, Security, names, verify};
use crate::shares::Share;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use transfer_core::silent::{Silent, Ticket};

/// The time-out of a handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(3);

/// The time-out of a connection's first byte.
const FIRST_BYTE: Duration = Duration::from_secs(1);

/// The most silent connections, and the most handshakes. Beyond that the oldest is closed.
const MAX_HANDSHAKES: usize = 512;

/// The most silent connections, and the most handshakes, of one address.
const MAX_HANDSHAKES_OF_ONE: usize = 32;

/// The most accepted connections that the server has not taken yet. Further ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 4 * MAX_HANDSHAKES;

/// The pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Connections = ReceiverStream<io::Result<Incoming>>;

/// Accepts connections, and passes each on after `greet`. Ends when no receiver is left.
fn accepted<S, A, G>(accept: impl Fn() -> A + Send + 'static, greet: impl Fn(S) -> G + Send + 'static) -> Connections
where
    S: Send + 'static,
    A: Future<Output = io::Result<S>> + Send,
    G: Future<Output = Option<Incoming>> + Send + 'static,
{
    let (tell, connections) = mpsc::channel(1);
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    tokio::spawn(async move {
        loop {
            // The semaphore is never closed.
            let Ok(permit) = room.clone().acquire_owned().await else { return };
            let socket = tokio::select! {
                socket = accept() => socket,
                () = tell.closed() => return,
            };
            match socket {
                Ok(socket) => {
                    let (tell, greeted) = (tell.clone(), greet(socket));
                    tokio::spawn(async move {
                        if let Some(connection) = greeted.await {
                            // The server may have ended in the meantime.
                            let _ = tell.send(Ok(connection)).await;
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections for gRPC");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    ReceiverStream::new(connections)
}

/// Admits a connection without TLS. The caller has to send something, and the connection has to get a place.
async fn greeted_in_the_clear(gate: Gate, source: Source, caller: Caller, stream: Stream) -> Option<Incoming> {
    let mut silent = gate.silent.enter(source);
    let spoken = silent.within(FIRST_BYTE, "first byte", stream.has_spoken()).await;
    drop(silent);
    match spoken.and_then(|()| gate.places.take(source)) {
        Ok(place) => {
            // Sidecars send a valid authority.
            let authorities = matches!(caller, Caller::Local { .. }).then(Authorities::new);
            Some(Incoming { caller, stream, authorities, _place: place })
        }
        Err(why) => {
            tracing::debug!(%source, why, "a connection for gRPC was closed");
            None
        }
    }
}

async fn in_the_clear(gate: Gate, (socket, from): (TcpStream, SocketAddr)) -> Option<Incoming> {
    // A dead socket is noticed when it is read.
    let _ = socket.set_nodelay(true);
    let address = from.ip().to_canonical();
    let caller = Caller::Plain { loopback: address.is_loopback() };
    greeted_in_the_clear(gate, Source::Address(address), caller, Stream::Plain(socket)).await
}

async fn local(gate: Gate, socket: UnixStream, caller: fn(u32, u32) -> Caller) -> Option<Incoming> {
    match socket.peer_cred() {
        Ok(cred) => {
            let (source, caller) = (Source::User(cred.uid()), caller(cred.uid(), cred.gid()));
            greeted_in_the_clear(gate, source, caller, Stream::Unix(socket)).await
        }
        Err(error) => {
            tracing::warn!(%error, "the kernel does not say who has connected to a Unix socket");
            None
        }
    }
}

/// The connections in one stage of their handshake. When there are too many, it chooses the one to close.
#[derive(Debug, Clone)]
struct Sources(Arc<Mutex<Entered>>);

#[derive(Debug)]
struct Entered {
    silent: Silent<Source>,
    /// A connection is closed when its sender is dropped.
    stay: HashMap<Ticket, oneshot::Sender<()>>,
}

/// A connection's place in a stage.
struct FromOne {
    sources: Sources,
    from: Source,
    ticket: Ticket,
    /// Completes when the connection has to be closed.
    gone: oneshot::Receiver<()>,
}

impl Sources {
    fn new() -> Sources {
        let silent = Silent::new(MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ONE);
        Sources(Arc::new(Mutex::new(Entered { silent, stay: HashMap::new() })))
    }

    /// Adds a connection. If there are too many, another one is closed.
    fn enter(&self, from: Source) -> FromOne {
        let (stay, gone) = oneshot::channel();
        let mut entered = self.0.lock();
        let (ticket, oldest) = entered.silent.enter(from);
        entered.stay.insert(ticket, stay);
        if let Some(oldest) = oldest {
            entered.stay.remove(&oldest);
        }
        FromOne { sources: self.clone(), from, ticket, gone }
    }
}

impl FromOne {
    /// Runs `work` until it completes, for at most `limit`, or until the connection has to be closed. The error is the
    /// reason.
    async fn within<T>(
        &mut self,
        limit: Duration,
        what: &str,
        work: impl Future<Output = io::Result<T>>,
    ) -> Result<T, String> {
        tokio::select! {
            biased;
            done = work => done.map_err(|e| why(&e)),
            _ = &mut self.gone => Err(format!(
                "{what} was not there when another one came: {MAX_HANDSHAKES_OF_ONE} of one address or user and {MAX_HANDSHAKES} \
                 of all may be in this stage of their handshake"
            )),
            () = tokio::time::sleep(limit) => Err(format!("no {what} within {limit:?}")),
        }
    }
}

impl Drop for FromOne {
    fn drop(&mut self) {
        let mut entered = self.sources.0.lock();
        entered.silent.leave(self.from, self.ticket);
        entered.stay.remove(&self.ticket);
    }
}

/// The stages of a connection: silent, in its handshake, and established.
#[derive(Debug, Clone)]
struct Gate {
    silent: Sources,
    greeting: Sources,
    places: Places,
}

impl Gate {
    fn new() -> Gate {
        Gate { silent: Sources::new(), greeting: Sources::new(), places: Places::default() }
    }
}

async fn encrypted(present: Option<Arc<Present>>, gate: Gate, socket: TcpStream, from: SocketAddr) -> Option<Incoming> {
    let _ = socket.set_nodelay(true);
    let acceptor = TlsAcceptor::from(present?.material.server.clone());
    let why = match greeted(&acceptor, &gate, socket, Source::Address(from.ip().to_canonical())).await {
        Ok((stream, place)) => {
            let certificates = stream.get_ref().1.peer_certificates();
            match certificates.and_then(<[_]>::first).map(names::of).transpose() {
                Ok(names) => {
                    let caller = Caller::Certificate(names.unwrap_or_default().into());
                    let stream = Stream::Tls(Box::new(stream));
                    return Some(Incoming { caller, stream, authorities: None, _place: place });
                }
                Err(e) => format!("its certificate is not understood: {e}"),
            }
        }
        Err(why) => why,
    };
    tracing::warn!(%from, why, "a connection for gRPC was refused");
    None
}

/// Does the TLS handshake, in its two stages.
async fn greeted(
    acceptor: &TlsAcceptor,
    gate: &Gate,
    socket: TcpStream,
    from: Source,
) -> Result<(TlsStream<TcpStream>, Share<Source>), String> {
    let mut silent = gate.silent.enter(from);
    silent.within(FIRST_BYTE, "first byte", tcp_has_spoken(&socket)).await?;
    drop(silent);
    let stream = gate.greeting.enter(from).within(HANDSHAKE_DEADLINE, "handshake", acceptor.accept(socket)).await?;
    Ok((stream, gate.places.take(from)?))
}

/// Returns the error text of a failed handshake.
pub(super) fn why(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => verify::in_words(error),
        None => error.to_string(),
    }
}

fn each<L: Send + Sync + 'static, A>(listener: L, accept: impl Fn(Arc<L>) -> A) -> impl Fn() -> A {
    let listener = Arc::new(listener);
    move || accept(listener.clone())
}

async fn next(listener: Arc<TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    listener.accept().await
}

/// Accepts connections over TCP without certificates.
pub(crate) fn over_plain(listener: TcpListener) -> Connections {
    let gate = Gate::new();
    accepted(each(listener, next), move |connection| in_the_clear(gate.clone(), connection))
}

/// Accepts connections over TCP that show a certificate.
pub(crate) fn over_tls(listener: TcpListener, security: Security) -> Connections {
    let gate = Gate::new();
    accepted(each(listener, next), move |(socket, from)| {
        let (security, gate) = (security.clone(), gate.clone());
        async move {
            let connection = encrypted(security.present(), gate, socket, from).await;
            if connection.is_none() {
                security.0.refused.fetch_add(1, Ordering::Relaxed);
            }
            connection
        }
    })
}

fn over_socket(listener: UnixListener, caller: fn(u32, u32) -> Caller) -> Connections {
    let accept = each(listener, |listener: Arc<UnixListener>| async move { Ok(listener.accept().await?.0) });
    let gate = Gate::new();
    accepted(accept, move |socket| local(gate.clone(), socket, caller))
}

/// Accepts connections over the admin socket.
pub(crate) fn over_unix(listener: UnixListener) -> Connections {
    over_socket(listener, |uid, gid| Caller::Local { uid, gid })
}

/// Accepts connections over the socket for sidecars of this host.
pub(crate) fn of_this_host(listener: UnixListener) -> Connections {
    over_socket(listener, |uid, gid| Caller::Sidecar { uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_stream::StreamExt;

    /// Longer than a test waits.
    const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(600);

    // Promise: silent-connections, seen to fail
    #[tokio::test]
    async fn handshakes_of_one_address_are_bounded() {
        let address = |last| Source::Address(IpAddr::from([10, 0, 0, last]));
        let (sources, one, other) = (Sources::new(), address(1), address(2));
        let mut entered: Vec<_> = (0..MAX_HANDSHAKES_OF_ONE).map(|_| sources.enter(one)).collect();
        let mut alone = sources.enter(other);
        entered.push(sources.enter(one));
        // Only the oldest connection of that address is closed.
        let silence = std::future::pending::<io::Result<()>>;
        let why = entered[0].within(HANDSHAKE_TIMEOUT, "first byte", silence()).await.expect_err("another one came");
        assert!(why.contains("32 of one address"), "{why}");
        for stays in entered[1..].iter_mut().chain([&mut alone]) {
            assert_eq!(stays.within(HANDSHAKE_TIMEOUT, "first byte", async { Ok(7) }).await, Ok(7));
            let why = stays.within(Duration::ZERO, "first byte", silence()).await.expect_err("its time is over");
            assert_eq!(why, "no first byte within 0ns");
        }
        drop((entered, alone));
        let entered = sources.0.lock();
        assert!(entered.silent.is_empty() && entered.stay.is_empty());
    }

    /// Many connections are silent. The oldest of them are closed, and a client that sends is served.
    // Promise: silent-connections, seen to fail
    #[tokio::test]
    async fn silent_connections_without_certificates_block_no_other_caller() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut served = over_plain(listener);
        let mut silent = Vec::new();
        for _ in 0..=MAX_HANDSHAKES_OF_ONE {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // The first connection is closed, because of the limit or because its time is over.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap(), 0);
        let mut speaks = TcpStream::connect(address).await.unwrap();
        speaks.write_all(b"PRI * HTTP/2.0").await.unwrap();
        let mut connection = served.next().await.unwrap().unwrap();
        let mut said = [0; 3];
        connection.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"PRI");
    }
}
