//! The certificate, its key and the authorities: read, checked, and converted for rustls.

use super::names;
use super::verify::{Accept, PeerVerifier};
use super::{Files, verify};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use transfer_core::tensor::Name;

/// The longest file. A longer one is not a certificate.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The protocol that both sides of a data link must offer.
const DATA_PROTOCOL: &[u8] = b"transfer-data/1";

/// The reason why certificates cannot be used. Each error names the flag and the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{flag} {}: cannot read it: {source}", path.display())]
    Read {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file has the wrong contents.
    #[error("{flag} {}: {why}", path.display())]
    Content {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The error, and the requirement.
        why: String,
    },
    /// The certificate belongs to another node.
    #[error(
        "--tls-cert {}: its names are {found}, and this is node {node}; it needs the DNS name {node}, or the URI \
         transfer://node/{node}, among its subject alternative names",
        path.display()
    )]
    OtherNode {
        /// The file.
        path: PathBuf,
        /// The names of the certificate.
        found: String,
        /// This node.
        node: Name,
    },
}

/// The TLS configuration of all connections.
#[derive(Debug)]
pub(super) struct Material {
    /// For incoming gRPC.
    pub(super) server: Arc<ServerConfig>,
    /// For outgoing gRPC, without the verifier.
    client: ClientConfig,
    verifier: PeerVerifier,
    /// For the tcp fabric.
    pub(super) data_client: Arc<ClientConfig>,
    pub(super) data_server: Arc<ServerConfig>,
    /// The expiry of the first certificate of this node's chain to expire, as the time since 1970.
    pub(super) expires: Option<Duration>,
}

impl Material {
    /// Reads the files. Refuses a certificate that a peer would refuse: one that the authorities have not signed, that
    /// has expired, or that is for another use or another node.
    pub(super) fn read(files: &Files, node: &Name) -> Result<Material, TlsError> {
        let Files { cert, key, ca } = files;
        let in_cert = |why: String| TlsError::Content { flag: "--tls-cert", path: cert.clone(), why };
        let chain = certificates("--tls-cert", cert)?;
        let key = private_key("--tls-key", key)?;
        let roots = Arc::new(authorities("--tls-ca", ca)?);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        check_own(&chain, &roots, &provider).map_err(|e| in_cert(verify::in_words(&e)))?;
        let expires = expires(&chain, &roots, &provider);
        let own =
            chain.first().map(names::of).transpose().map_err(|e| in_cert(format!("it is not understood: {e}")))?;
        let own = own.unwrap_or_default();
        if !own.iter().any(|name| name == node.as_str()) {
            return Err(TlsError::OtherNode { path: cert.clone(), found: names::in_words(&own), node: node.clone() });
        }
        let verifier = PeerVerifier::new(roots.clone(), &provider, Accept::Signed);
        let sides = Sides { chain, key, roots, provider };
        let all = |protocol: &[u8]| -> Result<_, rustls::Error> {
            Ok((sides.client(&verifier, protocol)?, sides.server(protocol)?))
        };
        // The parts were checked one by one. The last check is whether the key belongs to the certificate.
        let bad = |e: rustls::Error| in_cert(verify::in_words(&e));
        let (client, server) = all(b"h2").map_err(bad)?;
        let (data_client, data_server) = all(DATA_PROTOCOL).map_err(bad)?;
        Ok(Material {
            server: Arc::new(server),
            client,
            data_client: Arc::new(data_client),
            data_server: Arc::new(data_server),
            verifier,
            expires,
        })
    }

    /// Returns the configuration for a call to an expected peer.
    pub(super) fn client_for(&self, accept: Accept) -> Arc<ClientConfig> {
        let mut client = self.client.clone();
        client.dangerous().set_certificate_verifier(Arc::new(self.verifier.clone().accepting(accept)));
        Arc::new(client)
    }
}

struct Sides {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl Sides {
    // A resumed session would not check certificates again, not even replaced ones. Resumption also gains nothing for
    // long connections.

    fn client(&self, verifier: &PeerVerifier, protocol: &[u8]) -> Result<ClientConfig, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier.clone()));
        let mut config = builder.with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        config.resumption = Resumption::disabled();
        // The names are the names of nodes, which the verifier knows, and not of hosts.
        config.enable_sni = false;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }

    fn server(&self, protocol: &[u8]) -> Result<ServerConfig, rustls::Error> {
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots.clone(), self.provider.clone()).build();
        let verifier = verifier.map_err(|e| rustls::Error::General(e.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}

/// Checks whether a peer with the same authorities would accept this certificate, as a server's and as a client's.
fn check_own(
    chain: &[CertificateDer<'static>],
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<(), rustls::Error> {
    let Some((own, rest)) = chain.split_first() else { return Ok(()) };
    let now = UnixTime::now();
    let algorithms = provider.signature_verification_algorithms.all;
    let parsed = ParsedCertificate::try_from(own)?;
    rustls::client::verify_server_cert_signed_by_trust_anchor(&parsed, roots, rest, now, algorithms)?;
    let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
    let clients = clients.map_err(|e| rustls::Error::General(e.to_string()))?;
    clients.verify_client_cert(own, rest, now).map(drop)
}

/// Returns the expiry of a valid chain. The library reports the expiry of a chain that it finds expired. So it checks
/// the chain at a late time, and again at each reported time, until no certificate of the chain expires earlier.
fn expires(chain: &[CertificateDer<'static>], roots: &RootCertStore, provider: &CryptoProvider) -> Option<Duration> {
    /// 9999-12-31, the last day that a certificate can name.
    const LAST_DAY: Duration = Duration::from_secs(253_402_214_400);
    let (own, rest) = chain.split_first()?;
    let parsed = ParsedCertificate::try_from(own).ok()?;
    let algorithms = provider.signature_verification_algorithms.all;
    let mut end = None;
    for _ in 0..=chain.len() {
        let at = UnixTime::since_unix_epoch(end.unwrap_or(LAST_DAY));
        match rustls::client::verify_server_cert_signed_by_trust_anchor(&parsed, roots, rest, at, algorithms) {
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
                end = Some(Duration::from_secs(not_after.as_secs()));
            }
            _ => break,
        }
    }
    end
}

fn content(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let cannot = |source| TlsError::Read { flag, path: path.to_owned(), source };
    let bad = |why: String| Err(TlsError::Content { flag, path: path.to_owned(), why });
    // The file is read again while the sidecar runs, so it must not be one that blocks.
    if !std::fs::metadata(path).map_err(cannot)?.is_file() {
        return bad("it is no file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(cannot)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return bad(format!("it has more than {MAX_FILE_BYTES} bytes, and no file of certificates has"));
    }
    Ok(bytes)
}

/// The files for connections to a server that is no sidecar: its authorities, and a certificate with its key if it asks for one. Each
/// has its flag.
pub(crate) struct ServerFiles<'a> {
    pub(crate) ca: (&'static str, &'a Path),
    pub(crate) identity: Option<[(&'static str, &'a Path); 2]>,
}

impl ServerFiles<'_> {
    /// Reads the files. The server's certificate has to have the name or the address by which it is called.
    pub(crate) fn client(&self, protocol: &[u8]) -> Result<ClientConfig, TlsError> {
        let (flag, path) = self.identity.map_or(self.ca, |[cert, _]| cert);
        let bad = |e: rustls::Error| TlsError::Content { flag, path: path.to_owned(), why: verify::in_words(&e) };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
        let builder = builder.map_err(bad)?.with_root_certificates(authorities(self.ca.0, self.ca.1)?);
        let mut config = match self.identity {
            None => builder.with_no_client_auth(),
            Some([cert, key]) => {
                builder.with_client_auth_cert(certificates(cert.0, cert.1)?, private_key(key.0, key.1)?).map_err(bad)?
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}

fn authorities(flag: &'static str, path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for root in certificates(flag, path)? {
        let bad = |e: rustls::Error| TlsError::Content {
            flag,
            path: path.to_owned(),
            why: format!("a certificate of it is none of an authority: {}", verify::in_words(&e)),
        };
        roots.add(root).map_err(bad)?;
    }
    Ok(roots)
}

fn certificates(flag: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = content(flag, path)?;
    let bad = |why: String| TlsError::Content { flag, path: path.to_owned(), why };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(bad("there is no certificate in it; PEM begins with -----BEGIN CERTIFICATE-----".to_owned())),
        Err(e) => Err(bad(format!("it is no PEM: {e}"))),
    }
}

fn private_key(flag: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = content(flag, path)?;
    let bad = |why: String| TlsError::Content { flag, path: path.to_owned(), why };
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| match e {
        rustls::pki_types::pem::Error::NoItemsFound => {
            bad("there is no private key in it; PEM begins with -----BEGIN PRIVATE KEY-----".to_owned())
        }
        e => bad(format!("it is no PEM: {e}")),
    })
}
