//! The HTTP server: `/metrics`, the status page and its data, `/healthz` and `/readyz`.
//!
//! Plain HTTP/1.1 and read-only, for a scraper and a browser on the same host, or in a protected network. The server
//! has a thread of its own, so slow or busy clients delay neither the control plane nor the data plane. A connection
//! carries one request, and at most [`MAX_CONNECTIONS`] are served. Silent connections make room for others (`places`).

use super::history::History;
use super::observer::Observer;
use super::places::{Places, WholeRequest};
use super::{metrics, status};
use crate::page;
use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use tower::ServiceExt;

/// The most connections at once; others wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 32;

/// The time-out of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The time-out of a whole connection.
const ALL: Duration = Duration::from_secs(20);

/// A running server. It ends when dropped.
#[derive(Debug)]
pub(crate) struct HttpServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The state of the routes.
#[derive(Debug, Clone)]
struct PageState {
    watched: Observer,
    history: Arc<History>,
    /// Whether only this host can connect. Requests must then name this host.
    loopback: bool,
}

impl HttpServer {
    /// Serves at `listener`, which must not block.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn start(listener: TcpListener, watched: Observer) -> std::io::Result<HttpServer> {
        let loopback = listener.local_addr()?.ip().to_canonical().is_loopback();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("transfer-http".into()).spawn(move || {
            runtime.block_on(async {
                let shown = PageState { watched, history: Arc::default(), loopback };
                let sampling = shown.history.clone().sample(shown.watched.clone());
                tokio::select! {
                    // An error means that the sidecar is gone, so stop as well.
                    _ = stopped => {}
                    () = sampling => {}
                    () = serve(listener, routes(shown), REQUEST_TIMEOUT) => {}
                }
            });
        })?;
        Ok(HttpServer { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // There is no receiver if the server has ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the HTTP server has panicked");
        }
    }
}

async fn serve(listener: TcpListener, routes: Router, asking: Duration) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return tracing::error!("--http-listen: the socket cannot be waited for: {e}"),
    };
    let mut places = Places::new(MAX_CONNECTIONS);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                // Most likely no descriptor is free, which is temporary.
                tracing::warn!("--http-listen: a connection cannot be taken: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let place = places.wait().await;
        let asked = WholeRequest::default();
        let has_asked = asked.clone();
        // hyper passes a request on when its head is complete, and no route here reads a request's body.
        let service = TowerToHyperService::new(routes.clone().map_request(move |request| {
            has_asked.set();
            request
        }));
        let task = tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(asking)
                .keep_alive(false)
                .max_buf_size(16 << 10)
                .serve_connection(TokioIo::new(stream), service);
            // A client that violates HTTP, goes away or is too slow harms only itself.
            let _ = tokio::time::timeout(ALL, connection).await;
            drop(place);
        });
        places.give(task.abort_handle(), asked);
    }
}

fn routes(shown: PageState) -> Router {
    Router::new()
        .route("/", get(async || page::html()))
        .route("/page.css", get(async || page::css()))
        .route("/page.js", get(async || page::script()))
        .route("/metrics", get(scrape))
        .route("/api/status", get(show_status))
        .route("/api/history", get(show_history))
        // This route only tells that the process answers.
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .fallback(async || {
            let paths = "/, /metrics, /healthz, /readyz, /api/status and /api/history";
            (StatusCode::NOT_FOUND, format!("there is nothing here: {paths} are all that there is\n"))
        })
        .layer(axum::middleware::from_fn_with_state(shown.clone(), guard))
        .with_state(shown)
}

/// The headers of every answer. With them a browser runs only the page's own script, and no other site can read the
/// answer.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Checks the Host header. A page of another site can make a name of its own resolve to this host, and its visitor's
/// browser would then let the page read the answers. So if only this host can connect, only requests for this host's
/// own names are answered.
async fn guard(State(shown): State<PageState>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    let mut response = if shown.loopback && !is_this_host(host) {
        let text = format!(
            "this is served for its own host only: ask for 127.0.0.1 or localhost, not for {:?}\n",
            crate::text::printable(host, 80)
        );
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    } else {
        next.run(request).await
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns whether a Host header is an address, or localhost. A missing header cannot come from a browser.
fn is_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.is_empty() || name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

fn unavailable(why: impl std::fmt::Display) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

async fn scrape(State(shown): State<PageState>) -> Response {
    match shown.watched.look().await {
        Ok(look) => match metrics::text(&shown.watched, &look) {
            Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
            Err(e) => unavailable(format_args!("the metrics cannot be written: {e}")),
        },
        Err(e) => unavailable(e),
    }
}

async fn show_status(State(shown): State<PageState>) -> Response {
    match (shown.watched.look().await, shown.watched.lists().await) {
        (Ok(look), Ok(lists)) => axum::Json(status::of(&shown.watched, &look, &lists)).into_response(),
        (Err(e), _) | (_, Err(e)) => unavailable(e),
    }
}

/// The time after which the caller wants samples.
#[derive(Debug, serde::Deserialize)]
struct Since {
    #[serde(default)]
    since: u64,
}

async fn show_history(State(shown): State<PageState>, Query(Since { since }): Query<Since>) -> Response {
    axum::Json(shown.history.since(since)).into_response()
}

async fn ready(State(shown): State<PageState>) -> Response {
    match shown.watched.look().await {
        Ok(look) if look.measured.snapshot.draining => unavailable("draining: it takes nothing new"),
        Ok(look) if look.directory.attached => "ready\n".into_response(),
        Ok(look) => unavailable(format_args!("not attached to the directory: {}", look.directory.why_not)),
        Err(e) => unavailable(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    /// Longer than the test waits, so that no connection is closed because of its time.
    const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

    // Promise: http-listen, seen to fail
    #[test]
    fn silent_connections_do_not_delay_requests() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        listener.set_nonblocking(true).expect("a flag");
        let at = listener.local_addr().expect("an address");
        let routes = Router::new().route("/healthz", get(async || "ok\n"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let server = runtime.spawn(serve(listener, routes, CONNECTION_TIMEOUT));
        let connect = || {
            let stream = TcpStream::connect(at).expect("somebody listens");
            stream.set_read_timeout(Some(CONNECTION_TIMEOUT / 2)).expect("a timeout");
            stream
        };
        let ask = |mut stream: &TcpStream| {
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is taken");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer and the end");
            assert!(answer.ends_with("ok\n"), "{answer:?}");
        };
        let silent: Vec<_> = (0..MAX_CONNECTIONS).map(|_| connect()).collect();
        ask(&connect());
        // Only the first connection was closed.
        assert_eq!((&silent[0]).read(&mut [0]).expect("the end"), 0);
        silent[1..].iter().for_each(ask);
        server.abort();
    }

    #[test]
    fn only_addresses_and_localhost_are_this_host() {
        for host in ["", "127.0.0.1", "127.0.0.1:9471", "[::1]:9471", "localhost", "LocalHost:1", "10.0.0.1"] {
            assert!(is_this_host(host), "{host:?}");
        }
        for host in ["evil.example", "localhost.evil.example:9471", "127.0.0.1.evil.example", "[::1", "[evil]"] {
            assert_eq!(is_this_host(host), host == "[::1", "{host:?}");
        }
    }
}
