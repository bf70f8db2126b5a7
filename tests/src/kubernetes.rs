//! A server with the part of Kubernetes' API that is about Lease objects, over HTTPS: it refuses what Kubernetes refuses.

use crate::Authority;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// The namespace that its users may use.
const NAMESPACE: &str = "training";

/// The most bytes of annotations of an object.
const MAX_ANNOTATIONS_BYTES: usize = 256 << 10;

/// How it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As Kubernetes does.
    Normal,
    /// Each request fails with this status, and is not done.
    Fails(u16),
    /// No request is answered, nor done.
    Silent,
    /// What is written is done, and one of eight answers is lost.
    LosesAnswers,
}

/// The server, on loopback. It ends when it is dropped.
#[derive(Debug)]
pub struct Kubernetes {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    ca: PathBuf,
    token_file: PathBuf,
    runtime: Option<tokio::runtime::Runtime>,
    _folder: TempDir,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    tokens: Vec<String>,
    revision: u64,
    leases: BTreeMap<String, Value>,
}

impl Kubernetes {
    /// Starts it on a free port of loopback.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start() -> Kubernetes {
        let folder = tempfile::Builder::new().prefix("transfer-test-kubernetes-").tempdir().expect("a folder");
        let identity = Authority::new(folder.path(), "ca").identity(&["127.0.0.1"]);
        let chain = CertificateDer::pem_file_iter(&identity.cert).expect("a certificate");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(&identity.key).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a certificate with its key");
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "secret-1\n").expect("a token");
        let (tokens, leases) = (vec!["secret-1".to_owned()], BTreeMap::new());
        let state = State { mode: Mode::Normal, tokens, revision: 0, leases };
        let state = Arc::new(Mutex::new(state));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        runtime.spawn(serve(listener, tls, state.clone()));
        Kubernetes { address, state, ca: identity.ca, token_file, runtime: Some(runtime), _folder: folder }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the settings of a sidecar whose directory has this name.
    #[must_use]
    pub fn arguments(&self, name: &str) -> Vec<String> {
        let text = |path: &PathBuf| path.to_str().expect("text").to_owned();
        let words = [
            ("--directory", format!("kubernetes:{NAMESPACE}/{name}")),
            ("--kubernetes-url", format!("https://{}", self.address)),
            ("--kubernetes-ca", text(&self.ca)),
            ("--kubernetes-token-file", text(&self.token_file)),
        ];
        words.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// Answers in this way from now on.
    pub fn set_mode(&self, mode: Mode) {
        self.state().mode = mode;
    }

    /// Writes another token into the file, and refuses the one before.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn rotate_token(&self) {
        let token = {
            let mut state = self.state();
            let token = format!("secret-{}", state.tokens.len() + state.revision as usize + 1);
            state.tokens.push(token.clone());
            token
        };
        let new = self.token_file.with_extension("new");
        std::fs::write(&new, &token).expect("a token");
        std::fs::rename(&new, &self.token_file).expect("a token");
        self.state().tokens.retain(|known| *known == token);
    }

    /// Accepts no token that a sidecar can know.
    pub fn forget_tokens(&self) {
        self.state().tokens.clear();
    }

    /// Returns an object.
    #[must_use]
    pub fn lease(&self, name: &str) -> Option<Value> {
        self.state().leases.get(name).cloned()
    }

    /// Returns the names of all objects.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.state().leases.keys().cloned().collect()
    }

    /// Writes an object, whatever is there.
    pub fn put(&self, name: &str, spec: Value) {
        let mut state = self.state();
        state.revision += 1;
        let metadata = json!({"name": name, "namespace": NAMESPACE, "resourceVersion": state.revision.to_string(), "uid": "other"});
        state.leases.insert(name.to_owned(), json!({"metadata": metadata, "spec": spec}));
    }

    /// Deletes an object.
    pub fn delete(&self, name: &str) {
        self.state().leases.remove(name);
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(listener: tokio::net::TcpListener, tls: rustls::ServerConfig, state: Arc<Mutex<State>>) {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    while let Ok((socket, _)) = listener.accept().await {
        let (acceptor, state) = (acceptor.clone(), state.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(socket).await else { return };
            let service = tower::service_fn(move |request| {
                let state = state.clone();
                async move { Ok::<_, Infallible>(answer(&state, request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            // It ends when the client goes.
            let _ = connection.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
        });
    }
}

async fn answer(state: &Mutex<State>, request: Request<hyper::body::Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = to_bytes(Body::new(body), 3 << 20).await.unwrap_or_default();
    let (mode, mut answered) = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let mode = state.mode;
        let answered = match mode {
            Mode::Normal | Mode::LosesAnswers => {
                let token = head.headers.get("authorization").and_then(|value| value.to_str().ok());
                let path = head.uri.path_and_query().map_or("", |path| path.as_str());
                state.done(&head.method, path, token.unwrap_or_default(), &body)
            }
            // As a proxy in front of it may say it.
            Mode::Fails(404) => Ok((404, json!({"message": "it is told to fail"}))),
            Mode::Fails(status) => Err((status, "Failure", "it is told to fail".to_owned())),
            Mode::Silent => Ok((200, Value::Null)),
        };
        (mode, answered)
    };
    // Not every eighth: what is tried again would meet the same end again.
    let is_lost = mode == Mode::LosesAnswers && head.method != Method::GET && rand::random_bool(0.125);
    if mode == Mode::Silent || is_lost {
        std::future::pending::<()>().await;
    }
    if let Err((code, reason, message)) = &answered {
        let details = json!({"group": "coordination.k8s.io", "kind": "leases"});
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "details": details, "code": code,
        });
        answered = Ok((*code, status));
    }
    let (status, value) = answered.unwrap_or_default();
    let response = Response::builder().status(StatusCode::from_u16(status).expect("a status"));
    let response = response.header("content-type", "application/json");
    response.body(Body::from(value.to_string())).expect("an answer")
}

/// A status, a reason and a message.
type Refused = (u16, &'static str, String);

impl State {
    fn done(&mut self, method: &Method, path: &str, token: &str, body: &[u8]) -> Result<(u16, Value), Refused> {
        if !token.strip_prefix("Bearer ").is_some_and(|token| self.tokens.iter().any(|known| known == token)) {
            return Err((401, "Unauthorized", "Unauthorized".to_owned()));
        }
        let rest = path.strip_prefix("/apis/coordination.k8s.io/v1/namespaces/");
        let rest = rest.ok_or((404, "NotFound", "the server could not find the requested resource".to_owned()))?;
        let Some(rest) = rest.strip_prefix(NAMESPACE).and_then(|rest| rest.strip_prefix("/leases")) else {
            let user = "system:serviceaccount:training:transfer";
            let what = "leases.coordination.k8s.io is forbidden";
            return Err((403, "Forbidden", format!("{what}: User \"{user}\" cannot use resource \"leases\" there")));
        };
        let name = rest.strip_prefix('/');
        let missing = |name: &str| (404, "NotFound", format!("leases.coordination.k8s.io {name:?} not found"));
        match (method.as_str(), name) {
            ("GET", None) => {
                let label = rest.strip_prefix("?labelSelector=transfer%2Fdirectory%3D");
                let label = label.ok_or((400, "BadRequest", format!("a selector is expected, and not {rest:?}")))?;
                let has = |lease: &&Value| lease["metadata"]["labels"]["transfer/directory"] == label;
                Ok((200, json!({"kind": "LeaseList", "items": self.leases.values().filter(has).collect::<Vec<_>>()})))
            }
            ("GET", Some(name)) => self.leases.get(name).map(|lease| (200, lease.clone())).ok_or_else(|| missing(name)),
            ("DELETE", Some(name)) => {
                self.leases.remove(name).map(|_| (200, json!({"status": "Success"}))).ok_or_else(|| missing(name))
            }
            ("POST", None) => {
                let lease = valid(body)?;
                let name = lease["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                if !lease["metadata"]["resourceVersion"].is_null() {
                    let why = "resourceVersion should not be set on objects to be created";
                    return Err((500, "InternalError", why.to_owned()));
                }
                if self.leases.contains_key(&name) {
                    return Err((409, "AlreadyExists", format!("leases.coordination.k8s.io {name:?} already exists")));
                }
                Ok((201, self.stored(&name, lease)))
            }
            ("PUT", Some(name)) => {
                let lease = valid(body)?;
                // Leases may be created by an update, but where it says of which object it is.
                let conflict =
                    |why: &str| (409, "Conflict", format!("Operation cannot be fulfilled on {name:?}: {why}"));
                let uid = &lease["metadata"]["uid"];
                let Some(known) = self.leases.get(name) else {
                    return match uid.as_str() {
                        Some(uid) => Err(conflict(&format!("Precondition failed: UID in precondition: {uid}"))),
                        None => Ok((201, self.stored(name, lease))),
                    };
                };
                if !uid.is_null() && *uid != known["metadata"]["uid"] {
                    return Err(conflict("Precondition failed: another UID"));
                }
                if lease["metadata"]["name"] != name {
                    return Err((400, "BadRequest", "the name of the object is not that of the URL".to_owned()));
                }
                let version = &lease["metadata"]["resourceVersion"];
                if version.is_null() {
                    let why = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update";
                    return Err((422, "Invalid", why.to_owned()));
                }
                if *version != known["metadata"]["resourceVersion"] {
                    let why =
                        "the object has been modified; please apply your changes to the latest version and try again";
                    return Err(conflict(why));
                }
                // What changes nothing gets no new version.
                if *known == with_namespace(lease.clone()) {
                    return Ok((200, known.clone()));
                }
                Ok((200, self.stored(name, lease)))
            }
            _ => Err((405, "MethodNotAllowed", format!("{method} {path}"))),
        }
    }

    fn stored(&mut self, name: &str, lease: Value) -> Value {
        self.revision += 1;
        let mut lease = with_namespace(lease);
        lease["metadata"]["resourceVersion"] = self.revision.to_string().into();
        if lease["metadata"]["uid"].is_null() {
            lease["metadata"]["uid"] = format!("uid-{}", self.revision).into();
        }
        self.leases.insert(name.to_owned(), lease.clone());
        lease
    }
}

fn with_namespace(mut lease: Value) -> Value {
    lease["metadata"]["namespace"] = NAMESPACE.into();
    lease
}

/// What Kubernetes checks of an object.
fn valid(body: &[u8]) -> Result<Value, Refused> {
    let invalid = |why: String| (422, "Invalid", why);
    let lease: Value = serde_json::from_slice(body).map_err(|e| (400, "BadRequest", e.to_string()))?;
    if (&lease["apiVersion"], &lease["kind"]) != (&json!("coordination.k8s.io/v1"), &json!("Lease")) {
        return Err((400, "BadRequest", "the object is no Lease".to_owned()));
    }
    let name = lease["metadata"]["name"].as_str().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    if name.is_empty() || name.len() > 253 || !name.chars().all(is_name) || !name.ends_with(char::is_alphanumeric) {
        return Err(invalid(format!("metadata.name: Invalid value: {name:?}: a lowercase RFC 1123 subdomain")));
    }
    let annotations = lease["metadata"]["annotations"].as_object().into_iter().flatten();
    let bytes: usize =
        annotations.map(|(key, value)| key.len() + value.as_str().map_or(usize::MAX / 4, str::len)).sum();
    if bytes > MAX_ANNOTATIONS_BYTES {
        return Err(invalid(format!(
            "metadata.annotations: Too long: must have at most {MAX_ANNOTATIONS_BYTES} bytes"
        )));
    }
    let spec = &lease["spec"];
    let is_number =
        |value: &Value, least: i64| value.as_i64().is_some_and(|n| (least..=i64::from(i32::MAX)).contains(&n));
    if !is_number(&spec["leaseDurationSeconds"], 1) || !is_number(&spec["leaseTransitions"], 0) {
        return Err(invalid("spec: Invalid value: leaseDurationSeconds must be greater than 0".to_owned()));
    }
    if spec["holderIdentity"].as_str().is_some_and(str::is_empty) {
        return Err(invalid("spec.holderIdentity: Invalid value: \"\": must not be empty".to_owned()));
    }
    let time = spec["renewTime"].as_str().unwrap_or_default().as_bytes();
    let is_time = time.len() == 27
        && time.iter().zip(b"0000-00-00T00:00:00.000000Z").all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            form => byte == form,
        });
    if !is_time {
        return Err((400, "BadRequest", format!("spec.renewTime: {} is no time", spec["renewTime"])));
    }
    Ok(lease)
}
