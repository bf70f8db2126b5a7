//! The calls to etcd's members. One member is asked until it fails, and then the next one. A login lasts longer than a connection,
//! because etcd's members take a tenth of a second of a processor to check a password.

use super::keys::Keys;
use crate::config::{EtcdConfig, EtcdMembers};
use crate::directory::election::coordinator::claimant::{Answer, Request};
use crate::directory::election::coordinator::outlook::{Held, Seen};
use crate::directory::election::coordinator::record::Record;
use crate::security::{ServerFiles, TlsError};
use crate::text;
use hashbrown::HashMap;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request as Call, Status};
use transfer_core::tensor::Name;
use transfer_proto::etcd as api;
use transfer_proto::etcd::compare::{CompareTarget, TargetUnion};
use transfer_proto::etcd::request_op::Request as Op;
use transfer_proto::etcd::response_op::Response as Done;

/// The longest password.
const MAX_PASSWORD_BYTES: usize = 4096;

/// The most hosts that may stand in etcd.
const MAX_HOSTS: i64 = 100;

/// The most nodes that may.
const MAX_NODES: i64 = 20_000;

/// The longest answer: so many nodes with long names.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The pause after a login that has failed, and the longest one after several.
const LOGIN_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What etcd says where the users have changed since a login.
const OLD_TOKEN: &str = "revision of auth store is old";

/// What etcd says of a lease that has ended.
const NO_LEASE: &str = "requested lease not found";

/// The members of an etcd.
#[derive(Debug)]
pub(crate) struct Etcd {
    members: EtcdMembers,
    config: EtcdConfig,
    keys: Keys,
    /// The member that is asked.
    at: AtomicUsize,
    /// The connection to it.
    connection: Mutex<Option<Channel>>,
    login: Mutex<Login>,
}

/// The user's logins.
#[derive(Debug, Default)]
struct Login {
    /// The token of each member that has given one.
    tokens: HashMap<usize, String>,
    /// How many have failed since one has not, why the last one did, and when the next one is due.
    failures: u32,
    why_not: String,
    due_at: Option<Instant>,
}

impl Etcd {
    /// Reads the files that the settings name, to see whether they can be used. They are read again for each connection.
    pub(crate) fn new(members: EtcdMembers, config: EtcdConfig) -> Result<Etcd, TlsError> {
        let keys = Keys { prefix: members.prefix.clone() };
        // Not all nodes ask the same member.
        let at = AtomicUsize::new(fastrand::usize(..members.urls.len().max(1)));
        let etcd = Etcd { members, config, keys, at, connection: Mutex::new(None), login: Mutex::default() };
        etcd.tls()?;
        etcd.password()?;
        Ok(etcd)
    }

    /// Makes a request. Without an answer `within` that time it fails, and another member is asked the next time.
    pub(in crate::directory) async fn ask(&self, request: &Request, within: Duration) -> Answer {
        let at = self.at.load(Ordering::Relaxed) % self.members.urls.len();
        let url = &self.members.urls[at];
        let why = match self.ask_at(at, request, within).await {
            Ok(answer) => return answer,
            Err(why) if why.contains(NO_LEASE) => return Answer::LeaseGone,
            Err(why) => why,
        };
        // Another member may answer; and this one may take a new certificate.
        *self.connection.lock() = None;
        self.at.store(at + 1, Ordering::Relaxed);
        Answer::Failed(format!("{url}: {why}"))
    }

    /// The error is in words.
    async fn ask_at(&self, at: usize, request: &Request, within: Duration) -> Result<Answer, String> {
        let late = |within: Duration| format!("no answer within {within:?}");
        let connected = tokio::time::timeout(within, self.connect(&self.members.urls[at])).await;
        let channel = connected.unwrap_or_else(|_| Err(late(within)))?;
        for is_last in [false, true] {
            // A login takes its time.
            let token = tokio::time::timeout(2 * within, self.token(at, &channel)).await;
            let token = token.unwrap_or_else(|_| Err(late(2 * within)))?;
            let call = self.call(channel.clone(), token.as_deref(), request);
            let Ok(answer) = tokio::time::timeout(within, call).await else { return Err(late(within)) };
            match answer {
                Err(status) if !is_last && token.is_some() && is_of_token(&status) => {
                    self.login.lock().tokens.remove(&at);
                }
                answer => return answer.map_err(|status| text::status(&status)),
            }
        }
        Err("the token of the user is not accepted".to_owned())
    }

    fn tls(&self) -> Result<Option<rustls::ClientConfig>, TlsError> {
        let Some(ca) = &self.config.ca else { return Ok(None) };
        let (cert, key) = (self.config.cert.as_deref(), self.config.key.as_deref());
        let identity = cert.zip(key).map(|(cert, key)| [("--etcd-cert", cert), ("--etcd-key", key)]);
        ServerFiles { ca: ("--etcd-ca", ca), identity }.client(b"h2").map(Some)
    }

    fn password(&self) -> Result<Option<(String, String)>, TlsError> {
        let (Some(name), Some(path)) = (&self.config.user, &self.config.password_file) else { return Ok(None) };
        let flag = "--etcd-password-file";
        let bad = |why: String| TlsError::Content { flag, path: path.clone(), why };
        let text =
            std::fs::read_to_string(path).map_err(|source| TlsError::Read { flag, path: path.clone(), source })?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() || password.len() > MAX_PASSWORD_BYTES {
            return Err(bad(format!("it has {} bytes, and a password 1 to {MAX_PASSWORD_BYTES}", password.len())));
        }
        Ok(Some((name.clone(), password.to_owned())))
    }

    /// The error is in words.
    async fn connect(&self, url: &str) -> Result<Channel, String> {
        if let Some(channel) = self.connection.lock().clone() {
            return Ok(channel);
        }
        // The connector below does TLS. tonic does not know that, and would start TLS itself for an https URL.
        let endpoint = Endpoint::from_shared(url.replacen("https://", "http://", 1)).map_err(|e| e.to_string())?;
        let channel = match self.tls().map_err(|e| e.to_string())? {
            None => endpoint.connect().await,
            Some(tls) => {
                let connector = TlsConnector::from(Arc::new(tls));
                endpoint.connect_with_connector(tower::service_fn(move |uri| dial(connector.clone(), uri))).await
            }
        };
        let channel = channel.map_err(|e| text::chain(&e))?;
        *self.connection.lock() = Some(channel.clone());
        Ok(channel)
    }

    /// The user's token at a member; none without a user. Logs in, if that is due. The error is in words.
    async fn token(&self, at: usize, channel: &Channel) -> Result<Option<String>, String> {
        let Some((name, password)) = self.password().map_err(|e| e.to_string())? else { return Ok(None) };
        let user = name.clone();
        {
            let mut login = self.login.lock();
            if let Some(token) = login.tokens.get(&at) {
                return Ok(Some(token.clone()));
            }
            let now = Instant::now();
            if login.due_at.is_some_and(|due| now < due) {
                return Err(login.why_not.clone());
            }
            // It counts as failed until it has not: it may be given up at any time.
            let pause = LOGIN_BACKOFF.0 * 2_u32.pow(login.failures.min(10));
            login.failures += 1;
            login.due_at = Some(now + pause.min(LOGIN_BACKOFF.1).mul_f64(0.5 + fastrand::f64() / 2.0));
            login.why_not = format!("user {user:?} cannot log in: no answer");
        }
        let mut client = api::auth_client::AuthClient::new(channel.clone());
        let answer = client.authenticate(api::AuthenticateRequest { name, password }).await;
        let mut login = self.login.lock();
        match answer {
            Ok(answer) => {
                let token = answer.into_inner().token;
                (login.failures, login.due_at) = (0, None);
                login.tokens.insert(at, token.clone());
                Ok(Some(token))
            }
            Err(e) => {
                login.why_not = format!("user {user:?} cannot log in: {}", text::status(&e));
                Err(login.why_not.clone())
            }
        }
    }

    async fn call(&self, channel: Channel, token: Option<&str>, request: &Request) -> Result<Answer, Status> {
        let mut leases = api::lease_client::LeaseClient::new(channel.clone());
        let not_understood = |what: &str| Status::unknown(format!("not understood: {what}"));
        let seconds = |ttl: i64| Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
        Ok(match request {
            Request::Grant { ttl } => {
                let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
                let granted = leases.lease_grant(with(token, api::LeaseGrantRequest { ttl })?).await?.into_inner();
                Answer::Granted { lease: granted.id, ttl: seconds(granted.ttl) }
            }
            Request::Renew { lease, .. } => {
                let only = tokio_stream::once(api::LeaseKeepAliveRequest { id: *lease });
                let mut answers = leases.lease_keep_alive(with(token, only)?).await?.into_inner();
                let answer = answers.message().await?.ok_or_else(|| not_understood("no answer about a lease"))?;
                match answer.ttl {
                    ..=0 => Answer::LeaseGone,
                    ttl => Answer::Renewed { ttl: seconds(ttl), is_agreed: false },
                }
            }
            Request::Revoke { lease } => {
                leases.lease_revoke(with(token, api::LeaseRevokeRequest { id: *lease })?).await?;
                Answer::LeaseGone
            }
            request => {
                let mut client = api::kv_client::KvClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
                let done = client.txn(with(token, self.transaction(request))?).await?.into_inner();
                let mut ranges = done.responses.into_iter().filter_map(|op| match op.response {
                    Some(Done::ResponseRange(range)) => Some(range),
                    _ => None,
                });
                let mut next = || {
                    let range = ranges.next().ok_or_else(|| not_understood("a transaction without its answers"))?;
                    match range.more {
                        true => Err(Status::out_of_range(self.too_many())),
                        false => Ok(range.kvs),
                    }
                };
                match request {
                    Request::Look => {
                        let (leader, hosts) = (next()?, next()?);
                        Answer::Seen(seen(leader, hosts))
                    }
                    Request::Claim { .. } if done.succeeded => {
                        let (nodes, newest) = (next()?, next()?);
                        let term = done.header.map_or(0, |header| header.revision);
                        Answer::Claimed {
                            term: u64::try_from(term).unwrap_or(0),
                            nodes: nodes.iter().filter_map(|kv| self.name_of(&kv.key)).collect(),
                            newest: newest.first().map_or(0, |kv| number(&kv.value)),
                        }
                    }
                    _ if done.succeeded => Answer::Done,
                    _ => Answer::Outdated,
                }
            }
        })
    }

    fn too_many(&self) -> String {
        let prefix = &self.keys.prefix;
        format!(
            "there are more than {MAX_HOSTS} keys below {prefix}/hosts/, or more than {MAX_NODES} below {prefix}/nodes/: delete those of \
             other programs there, or give this directory another prefix"
        )
    }

    /// The name of a node, from its key. Another program's key is none.
    fn name_of(&self, key: &[u8]) -> Option<Name> {
        let name = key.strip_prefix(&*self.keys.node("")).and_then(|name| std::str::from_utf8(name).ok());
        name.and_then(|name| Name::new(name).ok())
    }

    fn transaction(&self, request: &Request) -> api::TxnRequest {
        let keys = &self.keys;
        let at_term = |term: u64| compare(keys.leader(), i64::try_from(term).unwrap_or(i64::MAX));
        let both = || [range(keys.leader()), folder(keys.host(""), false, MAX_HOSTS)];
        match request {
            // Nothing is written: else each look would be one more entry in the log of all members.
            Request::Look => api::TxnRequest { success: both().into(), ..Default::default() },
            Request::Register { me, lease } => api::TxnRequest {
                success: vec![put(keys.host(me.node.as_str()), me.text(), *lease)],
                ..Default::default()
            },
            Request::Claim { me, lease, over } => api::TxnRequest {
                compare: vec![at_term(*over)],
                success: vec![
                    put(keys.leader(), me.text(), *lease),
                    folder(keys.node(""), true, MAX_NODES),
                    range(keys.newest()),
                ],
                failure: Vec::new(),
            },
            Request::Write { term, puts, deletes, newest, .. } => {
                let puts = puts.iter().map(|node| put(keys.node(node.as_str()), String::new(), 0));
                let deletes = deletes.iter().map(|node| delete(keys.node(node.as_str())));
                let newest = newest.iter().map(|newest| put(keys.newest(), newest.to_string(), 0));
                let success = puts.chain(deletes).chain(newest).collect();
                api::TxnRequest { compare: vec![at_term(*term)], success, failure: Vec::new() }
            }
            Request::Release { term, heir: Some((heir, lease)) } => api::TxnRequest {
                compare: vec![at_term(*term), compare_lease(keys.host(heir.node.as_str()), *lease)],
                success: vec![put(keys.leader(), heir.text(), *lease)],
                failure: Vec::new(),
            },
            Request::Release { term, heir: None } => api::TxnRequest {
                compare: vec![at_term(*term)],
                success: vec![delete(keys.leader())],
                failure: Vec::new(),
            },
            // These are no transactions.
            Request::Grant { .. } | Request::Renew { .. } | Request::Revoke { .. } => api::TxnRequest::default(),
        }
    }
}

/// Whether a member does not take a token, which it has given before.
fn is_of_token(status: &Status) -> bool {
    status.code() == tonic::Code::Unauthenticated || status.message().contains(OLD_TOKEN)
}

fn with<T>(token: Option<&str>, message: T) -> Result<Call<T>, Status> {
    let mut call = Call::new(message);
    if let Some(token) = token {
        let token = token.parse().map_err(|_| Status::unauthenticated("etcd's token is no text"))?;
        call.metadata_mut().insert("token", token);
    }
    Ok(call)
}

async fn dial(connector: TlsConnector, uri: Uri) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
    let host = uri.host().unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?} is no name of a host"));
    let name = ServerName::try_from(bare.to_owned()).map_err(invalid)?;
    let socket = TcpStream::connect((bare, uri.port_u16().unwrap_or(2379))).await?;
    socket.set_nodelay(true)?;
    connector.connect(name, socket).await.map(TokioIo::new)
}

fn seen(leader: Vec<api::KeyValue>, hosts: Vec<api::KeyValue>) -> Seen {
    let held = leader.into_iter().next().map(|kv| {
        // A host's ends with its lease.
        let by = match kv.lease {
            0 => Err(format!("{} without a lease", Record::shown(&kv.value))),
            _ => Record::parse(&kv.value),
        };
        Held { by, term: u64::try_from(kv.mod_revision).unwrap_or(0) }
    });
    // Another program's key is no host.
    let hosts = hosts.into_iter().filter_map(|kv| Some((Record::parse(&kv.value).ok()?, kv.lease)));
    Seen { held, hosts: hosts.filter(|(_, lease)| *lease != 0).collect() }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn compare(key: Vec<u8>, revision: i64) -> api::Compare {
    let target_union = Some(TargetUnion::ModRevision(revision));
    api::Compare { target: CompareTarget::Mod.into(), key, target_union, ..Default::default() }
}

fn compare_lease(key: Vec<u8>, lease: i64) -> api::Compare {
    let target_union = Some(TargetUnion::Lease(lease));
    api::Compare { target: CompareTarget::Lease.into(), key, target_union, ..Default::default() }
}

fn range(key: Vec<u8>) -> api::RequestOp {
    let range = api::RangeRequest { key, ..Default::default() };
    api::RequestOp { request: Some(Op::RequestRange(range)) }
}

/// All keys of a folder, which ends with a slash.
fn folder(key: Vec<u8>, keys_only: bool, limit: i64) -> api::RequestOp {
    let range_end = Keys::end_of(key.clone());
    api::RequestOp { request: Some(Op::RequestRange(api::RangeRequest { key, range_end, limit, keys_only })) }
}

fn put(key: Vec<u8>, value: String, lease: i64) -> api::RequestOp {
    api::RequestOp { request: Some(Op::RequestPut(api::PutRequest { key, value: value.into_bytes(), lease })) }
}

fn delete(key: Vec<u8>) -> api::RequestOp {
    api::RequestOp { request: Some(Op::RequestDeleteRange(api::DeleteRangeRequest { key })) }
}
