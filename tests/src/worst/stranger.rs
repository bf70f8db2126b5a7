//! A stranger, who is neither worker nor peer and can reach all sockets.

use super::account::Notes;
use super::contract;
use super::{Against, Attacker, Deed};
use crate::stranger::{HELLO, Link, connect, good_call};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// The timeout of each connection attempt, read and write.
const IO_TIMEOUT: Duration = Duration::from_millis(100);

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A TCP stream or a Unix stream.
trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

pub(super) struct Stranger {
    random: SmallRng,
    ports: Vec<SocketAddr>,
    sockets: Vec<PathBuf>,
    http: Option<SocketAddr>,
    data: Option<SocketAddr>,
    /// Connections that send nothing more, until later deeds close them.
    silent: Vec<Box<dyn Stream>>,
    /// The address of the gRPC services.
    grpc: SocketAddr,
    /// The prefix of the honest job's keys and names.
    victim: String,
}

impl Attacker for Stranger {
    const DEEDS: &'static [Deed<Stranger>] = &[
        Deed { name: "connects everywhere and says nothing", act: Stranger::be_silent },
        Deed { name: "says half of a handshake", act: Stranger::half },
        Deed { name: "says garbage", act: Stranger::garbage },
        Deed { name: "opens streams and gives them up", act: Stranger::reset },
        Deed { name: "says frames that are too long", act: Stranger::too_long },
        Deed { name: "asks for pages without end", act: Stranger::pages },
        Deed { name: "shows tokens that nobody gave", act: Stranger::tokens },
        Deed { name: "attaches and speaks for others", act: Stranger::attach },
        Deed { name: "makes an administrator's calls", act: Stranger::administer },
    ];

    fn new(against: Against, random: SmallRng) -> Stranger {
        let address = |text: &str| text.parse().expect("an address and a port");
        let grpc: SocketAddr = address(&against.address);
        let http = against.http.as_deref().map(address);
        // Every caller is told the address of the data connections.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let url = format!("http://{grpc}");
        let data = runtime.block_on(async {
            let channel = tonic::transport::Endpoint::from_shared(url).expect("an address").connect().await.ok()?;
            Some(connect(channel, good_call()).await.ok()?.address)
        });
        let ports = [Some(grpc), http, data].into_iter().flatten().collect();
        // The worker's socket takes no streams.
        let sockets = vec![against.beside(".peers"), against.beside("-admin.sock")];
        Stranger { random, ports, sockets, http, data, silent: Vec::new(), grpc, victim: against.victim }
    }
}

impl Stranger {
    /// Opens one connection to each address and socket. Connections that fail, because a queue is full for example,
    /// are recorded and left out.
    fn everywhere(&self, notes: &mut Notes<'_>) -> Vec<Box<dyn Stream>> {
        let mut all: Vec<Box<dyn Stream>> = Vec::new();
        for port in &self.ports {
            let connected = TcpStream::connect_timeout(port, IO_TIMEOUT).and_then(|stream| {
                stream.set_read_timeout(Some(IO_TIMEOUT))?;
                stream.set_write_timeout(Some(IO_TIMEOUT))?;
                Ok(stream)
            });
            if let Some(stream) = note(notes, connected) {
                all.push(Box::new(stream));
            }
        }
        for path in &self.sockets {
            let connected = UnixStream::connect(path).and_then(|stream| {
                stream.set_read_timeout(Some(IO_TIMEOUT))?;
                stream.set_write_timeout(Some(IO_TIMEOUT))?;
                Ok(stream)
            });
            if let Some(stream) = note(notes, connected) {
                all.push(Box::new(stream));
            }
        }
        all
    }

    fn be_silent(&mut self, notes: &mut Notes<'_>) {
        self.silent.clear();
        for _ in 0..40 {
            let more = self.everywhere(notes);
            self.silent.extend(more);
        }
    }

    /// Sends half a handshake of HTTP/2, of HTTP/1, of TLS and of the tcp fabric, and keeps the connections open.
    fn half(&mut self, notes: &mut Notes<'_>) {
        let halves: [&[u8]; 6] = [
            &PREFACE[..10],
            &[PREFACE, &[0, 0, 18, 4, 0, 0]].concat(),
            b"GET /metrics HTTP/1.1\r\nhost:",
            // A TLS handshake record, 512 bytes long, with the beginning of a ClientHello.
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"TTCP\x01",
            b"TTCP\x01\x01\x00\x00",
        ];
        for half in halves {
            for mut stream in self.everywhere(notes) {
                let _ = stream.write_all(half);
                self.silent.push(stream);
            }
        }
        if self.silent.len() > 400 {
            self.silent.clear();
        }
    }

    fn garbage(&mut self, notes: &mut Notes<'_>) {
        for begins in [&b""[..], PREFACE, b"TTCP\x01", b"GET /"] {
            for mut stream in self.everywhere(notes) {
                let mut bytes = vec![0; self.random.random_range(1..10_000)];
                self.random.fill_bytes(&mut bytes);
                let _ = stream.write_all(begins).and_then(|()| stream.write_all(&bytes));
                let _ = stream.read(&mut bytes);
            }
        }
    }

    /// Opens HTTP/2 streams, and resets each of them at once.
    fn reset(&mut self, notes: &mut Notes<'_>) {
        for mut stream in self.everywhere(notes) {
            // SETTINGS; then HEADERS with `:method: POST` and little else, and RST_STREAM.
            let mut bytes = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
            for number in 0..2000_u32 {
                let id = (2 * number + 1).to_be_bytes();
                bytes.extend([&[0, 0, 3, 1, 4][..], &id, &[0x83, 0x86, 0x84]].concat());
                bytes.extend([&[0, 0, 4, 3, 0][..], &id, &[0, 0, 0, 8]].concat());
            }
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut bytes);
        }
    }

    fn too_long(&mut self, notes: &mut Notes<'_>) {
        for mut stream in self.everywhere(notes) {
            // An HTTP/2 frame of 16 MiB, of which a part is sent.
            let _ = stream.write_all(&[PREFACE, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &[7; 30_000]].concat());
            self.silent.push(stream);
        }
        for mut stream in self.everywhere(notes) {
            // HTTP/1 headers that do not end.
            for _ in 0..200 {
                if stream
                    .write_all(&[b"GET / HTTP/1.1\r\n", &b"x: yyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(20)[..]].concat())
                    .is_err()
                {
                    break;
                }
            }
        }
    }

    fn pages(&mut self, notes: &mut Notes<'_>) {
        let Some(http) = self.http else { return };
        for page in ["/metrics", "/", "/healthz", "/nothing"].into_iter().cycle().take(40) {
            let asked = TcpStream::connect_timeout(&http, IO_TIMEOUT).and_then(|mut stream| {
                stream.set_read_timeout(Some(IO_TIMEOUT))?;
                write!(stream, "GET {page} HTTP/1.1\r\nhost: x\r\n\r\n")?;
                stream.read(&mut [0; 100]).map(drop)
            });
            note(notes, asked);
        }
    }

    fn attach(&mut self, notes: &mut Notes<'_>) {
        contract::attach(self.grpc, &self.victim, self.random.random(), notes);
    }

    fn administer(&mut self, notes: &mut Notes<'_>) {
        contract::administer(self.grpc, &self.victim, notes);
    }

    fn tokens(&mut self, notes: &mut Notes<'_>) {
        let Some(data) = self.data else { return };
        for _ in 0..40 {
            let Some(stream) = note(notes, TcpStream::connect_timeout(&data, IO_TIMEOUT)) else { continue };
            drop(stream);
            let mut link = Link::at(data);
            link.be_brief(IO_TIMEOUT);
            let mut token = [0; 16];
            self.random.fill_bytes(&mut token);
            link.frame(HELLO, 0, 0, None, &token);
            while let Some((kind, _)) = link.next_frame() {
                if kind == 2 {
                    notes.strange("a token by chance is welcome");
                }
            }
        }
    }
}

/// Records the result of a connection, and returns it if it succeeded. An unwanted connection may fail with any of
/// these errors.
fn note<T>(notes: &mut Notes<'_>, result: std::io::Result<T>) -> Option<T> {
    match result {
        Ok(value) => {
            notes.done();
            Some(value)
        }
        Err(error) => {
            let may = ["ConnectionReset", "WouldBlock", "TimedOut", "BrokenPipe", "ConnectionRefused"];
            notes.error(&format!("{:?}", error.kind()), &error.to_string(), &may);
            None
        }
    }
}
