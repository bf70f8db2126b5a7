//! Checks that a certificate belongs to the expected owner.

use super::names;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// The expected owner of a certificate.
#[derive(Debug, Clone)]
pub(super) enum Accept {
    /// The node of this name.
    Node(String),
    /// The host in a URL.
    Host(ServerName<'static>),
    /// Any owner of a certificate that the authorities have signed; the caller identifies the owner in another way.
    Signed,
}

/// Verifies a server's certificate.
#[derive(Debug, Clone)]
pub(super) struct PeerVerifier {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
    accept: Accept,
}

impl PeerVerifier {
    pub(super) fn new(roots: Arc<RootCertStore>, provider: &CryptoProvider, accept: Accept) -> PeerVerifier {
        PeerVerifier { roots, algorithms: provider.signature_verification_algorithms, accept }
    }

    pub(super) fn accepting(self, accept: Accept) -> PeerVerifier {
        PeerVerifier { accept, ..self }
    }
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        match &self.accept {
            Accept::Signed => {}
            Accept::Host(host) => verify_server_name(&parsed, host)?,
            Accept::Node(node) => {
                let found = names::of(end_entity).map_err(|e| Error::General(e.to_string()))?;
                if !found.contains(node) {
                    let found = names::in_words(&found);
                    return Err(Error::General(format!("its certificate is for {found}, and not for node {node}")));
                }
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Returns the error and its remedy. The library's own texts are for programmers.
pub(super) fn in_words(error: &Error) -> String {
    use CertificateError as C;
    match error {
        Error::InvalidCertificate(C::Expired | C::ExpiredContext { .. }) => {
            format!("the certificate has expired ({error}); a new one is needed, or the clock is wrong")
        }
        Error::InvalidCertificate(C::NotValidYet | C::NotValidYetContext { .. }) => {
            format!("the certificate is not valid yet ({error}); is the clock right?")
        }
        Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature) => {
            "no authority of --tls-ca has signed the certificate; both have to be of one authority".to_owned()
        }
        Error::InvalidCertificate(C::InvalidPurpose | C::InvalidPurposeContext { .. }) => {
            "the certificate is for another use; it needs both serverAuth and clientAuth as extended key usage, or none"
                .to_owned()
        }
        Error::InconsistentKeys(_) => "it does not belong to the key of --tls-key".to_owned(),
        Error::InvalidMessage(_) => {
            "it does not speak TLS; has the other side certificates, too (--tls-cert)?".to_owned()
        }
        Error::NoCertificatesPresented => "it showed no certificate; this side asks for one (--tls-cert)".to_owned(),
        other => other.to_string(),
    }
}
