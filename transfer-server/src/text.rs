//! Error texts for people.

use std::error::Error;

/// Returns the text of an error with all its causes. tonic's own text for nearly everything is "transport error"; the
/// causes say what happened.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    if let Some(cause) = next.filter(|_| text == "transport error") {
        text = cause.to_string();
        next = cause.source();
    }
    while let Some(cause) = next {
        let words = cause.to_string();
        // Many errors repeat their cause.
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

/// Returns a number with its noun: "1 key", "2 keys".
pub(crate) fn counted(n: u64, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

/// Returns the text of another process, safe to show: its first `most` characters, escaped as
/// [`printable`](transfer_core::text::printable) does.
pub(crate) fn printable(text: &str, most: usize) -> String {
    transfer_core::text::printable(text.chars().take(most).collect())
}

/// Returns the text of a failed call: the other side's message, and the underlying error if there is one.
pub(crate) fn status(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    if text.is_empty() {
        text = status.code().description().to_owned();
    }
    if let Some(cause) = status.source() {
        let words = chain(cause);
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn refused_connection_is_reported_as_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        let e = endpoint.clone().connect_timeout(Duration::from_secs(5)).connect().await.unwrap_err();
        assert!(!e.to_string().contains("refused"));
        assert!(chain(&e).contains("refused"), "{}", chain(&e));
        let channel = endpoint.connect_lazy();
        let mut client = transfer_proto::v1::admin_client::AdminClient::new(channel);
        let e = client.status(transfer_proto::v1::StatusRequest {}).await.unwrap_err();
        assert!(status(&e).contains("refused"), "{}", status(&e));
    }
}
