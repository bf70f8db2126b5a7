//! Connections that come in, each with who it is from.

use super::caller::{Caller, Incoming, Stream};
use super::{Present, Security, names, verify};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;

/// How long a handshake may take.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(3);

/// How many handshakes may be under way. Who is beyond waits in the kernel's queue.
const MOST_HANDSHAKES: usize = 512;

/// How many of them may be with one address: one stranger that says nothing does not keep all others out.
const MOST_HANDSHAKES_OF_ONE: usize = 32;

/// How long nobody is accepted after that failed, for want of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

type Connections = ReceiverStream<io::Result<Incoming>>;

/// Accepts, and hands each connection on once `greet` has made it one. It ends when nobody takes them any more.
fn accepted<S, A, G>(accept: impl Fn() -> A + Send + 'static, greet: impl Fn(S) -> G + Send + 'static) -> Connections
where
    S: Send + 'static,
    A: Future<Output = io::Result<S>> + Send,
    G: Future<Output = Option<Incoming>> + Send + 'static,
{
    let (tell, connections) = mpsc::channel(1);
    let room = Arc::new(Semaphore::new(MOST_HANDSHAKES));
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
                            // The server may have ended meanwhile.
                            let _ = tell.send(Ok(connection)).await;
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections for gRPC");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    });
    ReceiverStream::new(connections)
}

async fn in_the_clear((socket, from): (TcpStream, SocketAddr)) -> Option<Incoming> {
    // A socket that is dead already is found to be by whoever reads from it.
    let _ = socket.set_nodelay(true);
    let caller = Caller::Plain { loopback: from.ip().to_canonical().is_loopback() };
    Some(Incoming { caller, stream: Stream::Plain(socket) })
}

async fn local(socket: UnixStream, caller: fn(u32, u32) -> Caller) -> Option<Incoming> {
    match socket.peer_cred() {
        Ok(cred) => Some(Incoming { caller: caller(cred.uid(), cred.gid()), stream: Stream::Unix(socket) }),
        Err(error) => {
            tracing::warn!(%error, "the kernel does not say who has connected to a Unix socket");
            None
        }
    }
}

/// Who is in a handshake, and how often.
#[derive(Debug, Clone, Default)]
struct Sources(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One handshake with an address.
struct FromOne(Sources, IpAddr);

impl Sources {
    /// One more; `None` where there are too many.
    fn enter(&self, from: IpAddr) -> Option<FromOne> {
        let mut counts = self.0.lock();
        let count = counts.entry(from).or_default();
        (*count < MOST_HANDSHAKES_OF_ONE).then(|| {
            *count += 1;
            FromOne(self.clone(), from)
        })
    }
}

impl Drop for FromOne {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock();
        if let Some(count) = counts.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.1);
            }
        }
    }
}

async fn encrypted(
    present: Option<Arc<Present>>,
    sources: Sources,
    socket: TcpStream,
    from: SocketAddr,
) -> Option<Incoming> {
    let Some(_counted) = sources.enter(from.ip()) else {
        tracing::warn!(%from, "a connection for gRPC was refused: its address has {MOST_HANDSHAKES_OF_ONE} others in their handshakes");
        return None;
    };
    let _ = socket.set_nodelay(true);
    let acceptor = TlsAcceptor::from(present?.material.server.clone());
    let why = match tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(socket)).await {
        Ok(Ok(stream)) => {
            let certificates = stream.get_ref().1.peer_certificates();
            match certificates.and_then(<[_]>::first).map(names::of).transpose() {
                Ok(names) => {
                    let caller = Caller::Certificate(names.unwrap_or_default().into());
                    return Some(Incoming { caller, stream: Stream::Tls(Box::new(stream)) });
                }
                Err(e) => format!("its certificate is not understood: {e}"),
            }
        }
        Ok(Err(e)) => why(&e),
        Err(_) => format!("no handshake within {HANDSHAKE_DEADLINE:?}"),
    };
    tracing::warn!(%from, why, "a connection for gRPC was refused");
    None
}

/// A failed handshake in words.
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

/// Connections over TCP without certificates.
pub(crate) fn over_plain(listener: TcpListener) -> Connections {
    accepted(each(listener, next), in_the_clear)
}

/// Connections over TCP that show a certificate.
pub(crate) fn over_tls(listener: TcpListener, security: Security) -> Connections {
    let sources = Sources::default();
    accepted(each(listener, next), move |(socket, from)| {
        let (security, sources) = (security.clone(), sources.clone());
        async move {
            let connection = encrypted(security.present(), sources, socket, from).await;
            if connection.is_none() {
                security.0.refused.fetch_add(1, Ordering::Relaxed);
            }
            connection
        }
    })
}

fn over_socket(listener: UnixListener, caller: fn(u32, u32) -> Caller) -> Connections {
    let accept = each(listener, |listener: Arc<UnixListener>| async move { Ok(listener.accept().await?.0) });
    accepted(accept, move |socket| local(socket, caller))
}

/// Connections over the admin socket.
pub(crate) fn over_unix(listener: UnixListener) -> Connections {
    over_socket(listener, |uid, gid| Caller::Local { uid, gid })
}

/// Connections over the socket for sidecars of this host.
pub(crate) fn of_this_host(listener: UnixListener) -> Connections {
    over_socket(listener, |uid, gid| Caller::Sidecar { uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_takes_its_share_of_the_handshakes_and_no_more() {
        let (sources, one, other) = (Sources::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut entered: Vec<_> =
            (0..MOST_HANDSHAKES_OF_ONE).map(|_| sources.enter(one).expect("there is room")).collect();
        assert!(sources.enter(one).is_none());
        assert!(sources.enter(other).is_some());
        entered.pop();
        assert!(sources.enter(one).is_some());
        drop(entered);
        assert!(sources.0.lock().is_empty());
    }
}
