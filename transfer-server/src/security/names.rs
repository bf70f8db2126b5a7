//! The names of a certificate.

use rustls::pki_types::CertificateDer;

/// The prefix of the URI that names a node whose name is not valid in DNS.
const NODE_URI: &str = "transfer://node/";

/// Returns the names among the certificate's subject alternative names: DNS names unchanged, and URIs like
/// `transfer://node/NAME` without their prefix. A common name does not count, following RFC 6125.
pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Vec<String>, webpki::Error> {
    let parsed = webpki::EndEntityCert::try_from(certificate)?;
    let dns = parsed.valid_dns_names();
    let uris = parsed.valid_uri_names().filter_map(|uri| uri.strip_prefix(NODE_URI));
    Ok(dns.chain(uris).map(str::to_owned).collect())
}

/// Lists a few of the names for an error text.
pub(super) fn in_words(names: &[String]) -> String {
    const MAX_NAMES_SHOWN: usize = 8;
    match names {
        [] => "no name".to_owned(),
        few if few.len() <= MAX_NAMES_SHOWN => few.join(", "),
        many => format!("{}, and {} more", many[..MAX_NAMES_SHOWN].join(", "), many.len() - MAX_NAMES_SHOWN),
    }
}
