//! The names of a certificate.

use rustls::pki_types::CertificateDer;

/// How a node is named where its name is none that DNS could have.
const NODE_URI: &str = "transfer://node/";

/// The names in the certificate's subject alternative names: DNS names as they are, URIs like `transfer://node/NAME` without what stands
/// before the name. A common name is none: it has not been looked at by anybody since RFC 6125.
pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Vec<String>, webpki::Error> {
    let parsed = webpki::EndEntityCert::try_from(certificate)?;
    let dns = parsed.valid_dns_names();
    let uris = parsed.valid_uri_names().filter_map(|uri| uri.strip_prefix(NODE_URI));
    Ok(dns.chain(uris).map(str::to_owned).collect())
}

/// Names for an error, a few of them.
pub(super) fn in_words(names: &[String]) -> String {
    const MOST: usize = 8;
    match names {
        [] => "no name".to_owned(),
        few if few.len() <= MOST => few.join(", "),
        many => format!("{}, and {} more", many[..MOST].join(", "), many.len() - MOST),
    }
}
