//! A fake sidecar, by which tests send arbitrary frames and messages to a real one.

use crate::{Sidecar, WAIT_LIMIT};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;
use transfer_core::memory::RemoteSlice;
use transfer_core::wire::crc32c;
use transfer_core::wire::message::{Body, LAYOUT_VERSION, Message, Role};
use transfer_proto::v1::{self, directory_item, node_item};

/// The stranger's node name.
pub const NAME: &str = "stranger";

/// The first frame of a data connection, which carries the token. docs/protocol.md describes the frames of the tcp
/// fabric.
pub const HELLO: u8 = 1;
/// A write into granted memory.
pub const WRITE: u8 = 3;
/// A control message.
pub const SEND: u8 = 4;
/// The reason why the link ends.
pub const REFUSE: u8 = 6;

const TOKEN: [u8; 16] = [7; 16];

/// Returns a valid request for a link, as a sidecar of this version would send it.
#[must_use]
pub fn good_call() -> v1::ConnectRequest {
    let tcp = [&b"TTCP\x01i"[..], &TOKEN].concat();
    // A link of one rail, whose messages are sent unchanged.
    let offer = [&b"RAIL\x01\x01"[..], &(tcp.len() as u16).to_le_bytes(), &tcp].concat();
    v1::ConnectRequest {
        protocol_version: LAYOUT_VERSION.into(),
        node: NAME.into(),
        incarnation: 1,
        fabric: v1::Fabric::Tcp.into(),
        offer,
        receive_slots: 256,
        link: 1,
        to: String::new(),
        passed_over: Vec::new(),
    }
}

/// The other side's offer: the token, the address at which it has to be shown, and the number of receive slots.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Valid for one connection.
    pub token: [u8; 16],
    /// The address at which the other side's tcp fabric listens.
    pub address: SocketAddr,
    /// The number of messages that may be on their way to the other side.
    pub receive_slots: u32,
    /// The other side's number for the link.
    pub link: u32,
}

/// Requests a link over this connection.
///
/// # Errors
/// The other side's error.
///
/// # Panics
/// If the offer is not one of the tcp fabric.
pub async fn connect(channel: Channel, request: v1::ConnectRequest) -> Result<Offer, tonic::Status> {
    let answer = v1::peering_client::PeeringClient::new(channel).connect(request).await?.into_inner();
    let tcp = answer.offer.strip_prefix(b"RAIL\x01\x01").expect("a link of one rail")[2..].to_vec();
    let (token, place) = tcp.strip_prefix(b"TTCP\x01a").expect("an acceptor's offer").split_at(16);
    let ip: [u8; 4] = place[2..].try_into().expect("an IPv4 address");
    let address = SocketAddr::new(IpAddr::from(ip), u16::from_le_bytes([place[0], place[1]]));
    let token = token.try_into().expect("16 bytes");
    Ok(Offer { token, address, receive_slots: answer.receive_slots, link: answer.link })
}

/// Requests a link at the admin socket. Returns the token and the address at which it has to be shown.
///
/// # Errors
/// The other side's error.
pub fn call(sidecar: &Sidecar, request: v1::ConnectRequest) -> Result<([u8; 16], SocketAddr), tonic::Status> {
    let offer = sidecar.admin().call(|channel| connect(channel, request))?;
    Ok((offer.token, offer.address))
}

/// A node that a stranger has attached to a directory.
#[derive(Debug)]
pub struct Attached {
    out: tokio::sync::mpsc::Sender<v1::NodeUpdate>,
    answers: tonic::Streaming<v1::DirectoryUpdate>,
}

impl Attached {
    /// Attaches under this name.
    ///
    /// # Errors
    /// The directory's error.
    pub async fn to(channel: Channel, node: &str) -> Result<Attached, Status> {
        let address = "127.0.0.1:1".into();
        let hello = v1::Hello { node: node.into(), address, incarnation: 1, version: 5, ..v1::Hello::default() };
        Attached::with(channel, hello).await
    }

    /// Attaches with this first item.
    ///
    /// # Errors
    /// The directory's error.
    pub async fn with(channel: Channel, hello: v1::Hello) -> Result<Attached, Status> {
        let (out, outgoing) = tokio::sync::mpsc::channel(4);
        let _ = out.try_send(update(node_item::Item::Hello(hello)));
        let mut client = v1::directory_client::DirectoryClient::new(channel);
        let mut answers = client.attach(ReceiverStream::new(outgoing)).await?.into_inner();
        // The welcome.
        answers.message().await?;
        Ok(Attached { out, answers })
    }

    /// Sends an item that has no answer.
    pub async fn send(&self, item: node_item::Item) {
        // The next question finds that the stream has ended.
        let _ = self.out.send(update(item)).await;
    }

    /// Sends an item, and returns its answer.
    ///
    /// # Errors
    /// The directory has ended the stream.
    pub async fn ask(&mut self, item: node_item::Item) -> Result<directory_item::Item, Status> {
        self.send(item).await;
        let answer = self.answers.message().await?.ok_or_else(|| Status::ok("the stream has ended"))?;
        answer.items.into_iter().find_map(|item| item.item).ok_or_else(|| Status::unknown("no answer"))
    }
}

fn update(item: node_item::Item) -> v1::NodeUpdate {
    v1::NodeUpdate { items: vec![v1::NodeItem { item: Some(item) }] }
}

/// Makes the item that enters a worker of a tenant, as if a directory had entered it before.
#[must_use]
pub fn worker_up(worker: &str, tenant: u32) -> node_item::Item {
    node_item::Item::WorkerUp(v1::WorkerUp { worker: worker.into(), tenant: tenant.to_string(), entered: 1 })
}

/// The connection of a link.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    /// Whether a time-out counts as the end of the stream.
    is_brief: bool,
}

impl Link {
    /// Opens a valid link to a sidecar.
    ///
    /// # Panics
    /// If the sidecar does not accept it.
    #[must_use]
    pub fn to(sidecar: &Sidecar) -> Link {
        let (token, address) = call(sidecar, good_call()).expect("a good call");
        let mut link = Link::at(address);
        assert!(link.greet(&token), "it is welcome");
        sidecar.until("the stranger has a link", |s| s.links.iter().any(|l| l.peer == NAME));
        link
    }

    /// Shows the token. Returns whether the other side accepts it.
    pub fn greet(&mut self, token: &[u8; 16]) -> bool {
        self.frame(HELLO, 0, 0, None, token);
        self.next_frame().is_some_and(|(kind, body)| (kind, &body[..]) == (2, &TOKEN[..]))
    }

    /// Opens a connection without showing a token.
    ///
    /// # Panics
    /// If nothing listens there.
    #[must_use]
    pub fn at(address: SocketAddr) -> Link {
        let stream = TcpStream::connect(address).expect("somebody listens");
        stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a socket has a timeout");
        Link { stream, is_brief: false }
    }

    /// Sets a time-out for reads and writes, and makes a time-out count as the end of the stream.
    ///
    /// # Panics
    /// If the time-out is zero.
    pub fn be_brief(&mut self, patience: Duration) {
        self.is_brief = true;
        self.stream.set_read_timeout(Some(patience)).expect("a socket has a timeout");
        self.stream.set_write_timeout(Some(patience)).expect("a socket has a timeout");
    }

    /// Sends bytes as they are. The other side may have closed the connection.
    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends a frame.
    pub fn frame(&mut self, kind: u8, key: u32, address: u64, immediate: Option<u32>, body: &[u8]) {
        let mut bytes = b"TTCP\x01".to_vec();
        bytes.extend([kind, immediate.is_some().into(), 0]);
        bytes.extend(immediate.unwrap_or(0).to_le_bytes());
        bytes.extend(key.to_le_bytes());
        bytes.extend(address.to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend([0; 12]);
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes.extend(body);
        self.raw(&bytes);
    }

    /// Sends a write into a granted range, from the offset `at` on.
    pub fn write(&mut self, to: &RemoteSlice, at: u64, immediate: Option<u32>, body: &[u8]) {
        self.frame(WRITE, to.key().0, to.address + at, immediate, body);
    }

    /// Sends a control message.
    pub fn send(&mut self, role: Role, index: u32, body: Body) {
        let message = Message::new(role, index, body).encode();
        self.frame(SEND, 0, 0, None, &message);
    }

    /// Reads the next frame. Returns its kind and body, or `None` at the end of the stream.
    ///
    /// # Panics
    /// If neither comes.
    pub fn next_frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 48];
        self.exact(&mut header)?;
        let len = u64::from_le_bytes(header[24..32].try_into().expect("8 bytes"));
        let mut body = vec![0; usize::try_from(len).expect("a length")];
        self.exact(&mut body)?;
        Some((header[5], body))
    }

    fn exact(&mut self, to: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(to) {
            Ok(()) => Some(()),
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => None,
            Err(_) if self.is_brief => None,
            Err(e) => panic!("nothing comes: {e}"),
        }
    }

    /// Reads until `take` accepts a message. Returns the message's index and the value of `take`.
    ///
    /// # Panics
    /// If no such message comes.
    pub fn recv<T>(&mut self, what: &str, take: impl Fn(&Body) -> Option<T>) -> (u32, T) {
        let until = Instant::now() + WAIT_LIMIT;
        while let Some((kind, body)) = self.next_frame() {
            assert!(Instant::now() < until, "{what} does not come");
            if kind == SEND {
                let message = Message::decode(&body).expect("a real sidecar keeps to the layout");
                if let Some(taken) = take(&message.body) {
                    return (message.index, taken);
                }
            }
        }
        panic!("the link has ended before {what} came");
    }

    /// Reads to the end of the stream. Returns the text of the last refusal, or an empty string.
    pub fn refusal(&mut self) -> String {
        let mut last = String::new();
        while let Some((kind, body)) = self.next_frame() {
            if kind == REFUSE {
                last = String::from_utf8_lossy(&body).into_owned();
            }
        }
        last
    }
}
