//! The calls of Kubernetes' API over HTTPS, one after the other on one connection. The token is read for each call, because Kubernetes
//! replaces it every hour, and the authorities' certificates for each connection.

use super::lease::{LABEL, Lease};
use super::translator::{Call, Now, Reply, Step, Translator};
use crate::config::{KubernetesConfig, KubernetesLease};
use crate::directory::election::Takeover;
use crate::directory::election::coordinator::claimant::{Answer, Request};
use crate::security::{ServerFiles, TlsError};
use crate::text;
use axum::body::{Body, to_bytes};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// The longest token.
const MAX_TOKEN_BYTES: usize = 64 << 10;

/// The longest answer: a hundred hosts.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// The longest message of Kubernetes that is shown.
const MAX_SHOWN: usize = 400;

/// The Leases of a directory in Kubernetes.
#[derive(Debug)]
pub(crate) struct Kubernetes {
    lease: KubernetesLease,
    host: String,
    port: u16,
    ca: PathBuf,
    token_file: PathBuf,
    translator: Mutex<Translator>,
    connection: Mutex<Option<SendRequest<Body>>>,
}

impl Kubernetes {
    /// Reads the files that the settings name, to see whether they can be used. They are read again later.
    pub(crate) fn new(
        lease: KubernetesLease,
        (host, port): (String, u16),
        config: &KubernetesConfig,
        takeover: Takeover,
    ) -> Result<Kubernetes, TlsError> {
        let (ca, token_file) = (config.ca(), config.token_file());
        let ttl = takeover.in_whole_seconds().lease();
        let translator = Mutex::new(Translator::new(lease.name.clone(), ttl));
        let kubernetes = Kubernetes { lease, host, port, ca, token_file, translator, connection: Mutex::new(None) };
        kubernetes.tls()?;
        kubernetes.token()?;
        Ok(kubernetes)
    }

    /// Makes a request. Where a call has no answer `within` that time it fails, and what it has sent may be done all the same.
    pub(in crate::directory) async fn ask(&self, request: &Request, within: Duration) -> Answer {
        match self.ask_in_turn(request, within).await {
            Answer::Failed(why) => Answer::Failed(format!("https://{}:{}: {why}", self.host, self.port)),
            answer => answer,
        }
    }

    async fn ask_in_turn(&self, request: &Request, within: Duration) -> Answer {
        let mut step = self.translator.lock().begin(now(), request);
        loop {
            let call = match step {
                Step::Answer(answer) => return answer,
                Step::Call(call) => call,
            };
            // Each has its time: a slow API server is one that answers. One that was given up takes its connection with it.
            let reply = tokio::time::timeout(within, self.call(&call)).await;
            let reply =
                reply.unwrap_or_else(|_| Err(format!("no answer within {within:?}"))).unwrap_or_else(Reply::Failed);
            step = self.translator.lock().answered(now(), reply);
        }
    }

    fn tls(&self) -> Result<rustls::ClientConfig, TlsError> {
        ServerFiles { ca: ("--kubernetes-ca", &self.ca), identity: None }.client(b"http/1.1")
    }

    fn token(&self) -> Result<HeaderValue, TlsError> {
        let (flag, path) = ("--kubernetes-token-file", &self.token_file);
        let bad = |why: String| TlsError::Content { flag, path: path.clone(), why };
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|source| TlsError::Read { flag, path: path.clone(), source })?;
        let token = text.trim();
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(bad(format!("it has {} bytes, and a token 1 to {MAX_TOKEN_BYTES}", token.len())));
        }
        let mut header = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| bad("it is no token: a token is one line of ASCII".to_owned()))?;
        header.set_sensitive(true);
        Ok(header)
    }

    /// The error is in words.
    async fn connect(&self) -> Result<SendRequest<Body>, String> {
        // A connection takes one call at a time. One that was given up took its connection with it.
        let known = self.connection.lock().take();
        if let Some(mut connection) = known
            && connection.ready().await.is_ok()
        {
            return Ok(connection);
        }
        let tls = self.tls().map_err(|e| e.to_string())?;
        let host = self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&self.host);
        let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("{host:?} is no name of a host"))?;
        let socket = TcpStream::connect((host, self.port)).await.map_err(|e| text::chain(&e))?;
        socket.set_nodelay(true).map_err(|e| text::chain(&e))?;
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, socket).await.map_err(|e| text::chain(&e))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| text::chain(&e))?;
        // It ends with the sender, or with the server, which then fails the call.
        tokio::spawn(connection);
        Ok(sender)
    }

    /// The error is in words.
    async fn call(&self, call: &Call) -> Result<Reply, String> {
        let mut connection = self.connect().await?;
        let folder = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.lease.namespace);
        let (method, path, body) = match call {
            Call::Get(name) => (Method::GET, format!("{folder}/{name}"), None),
            Call::ListHosts => {
                let label = LABEL.replace('/', "%2F");
                (Method::GET, format!("{folder}?labelSelector={label}%3D{}", self.lease.name), None)
            }
            Call::Create(lease) => (Method::POST, folder, Some(lease.json(SystemTime::now()))),
            Call::Update(lease) => {
                (Method::PUT, format!("{folder}/{}", lease.name), Some(lease.json(SystemTime::now())))
            }
            Call::Delete(name) => (Method::DELETE, format!("{folder}/{name}"), None),
        };
        let does = format!("{method} {path}");
        let token = self.token().map_err(|e| e.to_string())?;
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, format!("{}:{}", self.host, self.port))
            .header(AUTHORIZATION, token)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .body(body.map_or_else(Body::empty, |body: Value| Body::from(body.to_string())));
        let request = request.map_err(|e| e.to_string())?;
        let failed = |e: &(dyn std::error::Error + 'static)| format!("{does}: {}", text::chain(e));
        let response = connection.send_request(request).await.map_err(|e| failed(&e))?;
        let status = response.status();
        let bytes = to_bytes(Body::new(response.into_body()), MAX_ANSWER_BYTES).await.map_err(|e| failed(&e))?;
        // After an error of its own, the next call may reach another API server.
        *self.connection.lock() = Some(connection).filter(|_| !status.is_server_error());
        let value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        self.reply(call, status, &value).ok_or_else(|| format!("{does}: {}", self.in_words(status, &value)))
    }

    /// `None`: an error, or nothing that is understood.
    fn reply(&self, call: &Call, status: StatusCode, value: &Value) -> Option<Reply> {
        match (status, call) {
            (StatusCode::NOT_FOUND, Call::Get(_) | Call::Update(_) | Call::Delete(_)) if is_of_lease(value) => {
                Some(Reply::NotFound)
            }
            (StatusCode::CONFLICT, _) => Some(Reply::Conflict),
            (status, _) if !status.is_success() => None,
            (_, Call::Delete(_)) => Some(Reply::Deleted),
            (_, Call::ListHosts) => {
                value["items"].as_array().map(|items| Reply::Leases(items.iter().filter_map(Lease::parse).collect()))
            }
            _ => Lease::parse(value).map(Reply::Lease),
        }
    }

    fn in_words(&self, status: StatusCode, value: &Value) -> String {
        let message =
            text::printable(value["message"].as_str().unwrap_or("an answer that is not understood"), MAX_SHOWN);
        let advice = match status {
            StatusCode::UNAUTHORIZED => format!(
                "; is the token of --kubernetes-token-file {} that of a service account? It is read for each call",
                self.token_file.display()
            ),
            StatusCode::FORBIDDEN => format!(
                "; its service account needs the verbs get, list, create, update and delete on leases of coordination.k8s.io in namespace {}",
                self.lease.namespace
            ),
            _ => String::new(),
        };
        format!("{} {message}{advice}", status.as_u16())
    }
}

/// Whether an object is missing, and not all that the path names, as where a proxy answers.
fn is_of_lease(value: &Value) -> bool {
    value["details"]["kind"] == "leases"
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Now { instant: Instant::now(), unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX) }
}
