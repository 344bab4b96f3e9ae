//! One request, from its last byte to the head of its answer.
//!
//! ```text
//!  take an instance ─► connect ─► request ─► head of the answer ─► `passing`
//!        ▲                │ refused: it had ended while it was idle     │ broken, late
//!        └────────────────┘                                            ▼
//!                              taken back to its image: once more; else 502 or 504, and it is thrown away
//! ```
//! The request's body has been read whole before, so that a slow client holds no instance.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

use crate::config::FrontConfig;
use crate::host::{Instance, Link, StartError};
use crate::metrics::{Metrics, Start};
use crate::passing::Passing;
use crate::pool::{Pool, Refusal};

/// Tells a client whether its instance was restored for it.
const STARTED: HeaderName = HeaderName::from_static("fermata-start");
/// Names the instance.
const INSTANCE: HeaderName = HeaderName::from_static("fermata-instance");
const FORWARDED: HeaderName = HeaderName::from_static("x-forwarded-for");
/// What concerns one connection only (RFC 9110, section 7.6.1).
const OF_ONE_CONNECTION: [&str; 5] = ["keep-alive", "proxy-connection", "te", "trailer", "upgrade"];

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// The status for the client.
    pub code: StatusCode,
    /// One sentence.
    pub message: String,
    /// What to do next; may be empty.
    pub hint: String,
}

impl Unanswered {
    /// Without a hint.
    pub fn new(code: StatusCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: String::new(),
        }
    }
}

impl From<Refusal> for Unanswered {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        let hint = match refusal {
            Refusal::Start(StartError { hint, .. }) => hint,
            _ => String::new(),
        };
        Self {
            code: StatusCode::SERVICE_UNAVAILABLE,
            message,
            hint,
        }
    }
}

/// Why an instance has not answered.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("its program does not listen any more")]
    Connect(#[source] io::Error),
    #[error("its connection broke")]
    Exchange(#[source] hyper::Error),
}

/// Has a request answered; `cut` is notified if the client does not read its answer in time.
///
/// # Errors
/// What the client is to be told instead.
pub async fn answer(
    pool: &Arc<Pool>,
    config: &FrontConfig,
    metrics: &Metrics,
    (head, body): (&Parts, Bytes),
    (client, cut): (SocketAddr, &Arc<Notify>),
) -> Result<Response<Passing>, Unanswered> {
    let begun = Instant::now();
    let mut repeated = false;
    let mut lease = pool.take(begun + config.wait).await?;
    loop {
        let Some(instance) = lease.instance().cloned() else {
            return Err(Refusal::Closing.into());
        };
        let start = match lease.fresh {
            true => Start::cold,
            false => Start::warm,
        };
        let until = Instant::now() + config.limit;
        let request = request(head, body.clone(), client);
        let exchanged = tokio::time::timeout_at(until.into(), exchange(&instance, request)).await;
        let broken = match exchanged {
            Ok(Ok(mut response)) => {
                metrics.began(start, begun.elapsed().as_secs_f64());
                strip(response.headers_mut());
                let started = HeaderValue::from_static(start.word());
                response.headers_mut().insert(STARTED, started);
                if let Ok(name) = HeaderValue::from_str(instance.name()) {
                    response.headers_mut().insert(INSTANCE, name);
                }
                let cut = Arc::clone(cut);
                return Ok(response.map(|body| Passing::new(body, lease, until, cut)));
            }
            Ok(Err(broken)) => broken,
            Err(_) => {
                let text = format!(
                    "instance `{}` has not answered within {} s",
                    instance.name(),
                    config.limit.as_secs_f64()
                );
                return Err(Unanswered::new(StatusCode::GATEWAY_TIMEOUT, text));
            }
        };
        if !repeated && comes_back(&instance).await {
            repeated = true;
            metrics.repeated();
            continue;
        }
        if let (Broken::Connect(_), false) = (&broken, lease.fresh) {
            // It has seen nothing of the request.
            drop(lease);
            lease = pool.take(begun + config.wait).await?;
            continue;
        }
        let text = format!("instance `{}` has not answered: {broken}", instance.name());
        return Err(Unanswered::new(StatusCode::BAD_GATEWAY, text));
    }
}

async fn comes_back(instance: &Arc<dyn Instance>) -> bool {
    let instance = Arc::clone(instance);
    let asked = tokio::task::spawn_blocking(move || instance.came_back());
    asked.await.unwrap_or(false)
}

/// The request as an instance gets it, over a connection that is its alone.
fn request(head: &Parts, body: Bytes, client: SocketAddr) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = head.method.clone();
    let path = head.uri.path_and_query().cloned();
    *request.uri_mut() = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    *headers = head.headers.clone();
    strip(headers);
    // The body is here already.
    headers.remove(EXPECT);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    if !headers.contains_key(HOST) {
        headers.insert(HOST, HeaderValue::from_static("localhost"));
    }
    if let Ok(address) = HeaderValue::from_str(&client.ip().to_string()) {
        headers.append(FORWARDED, address);
    }
    request
}

/// Takes out what concerns one connection only.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|it| it.to_str().ok())
        .flat_map(|it| it.split(','))
        .filter_map(|it| it.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    headers.remove(CONNECTION);
    headers.remove(TRANSFER_ENCODING);
    for name in OF_ONE_CONNECTION {
        headers.remove(name);
    }
}

async fn exchange(
    instance: &Arc<dyn Instance>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, Broken> {
    let connecting = Arc::clone(instance);
    let connected = tokio::task::spawn_blocking(move || connecting.connect()).await;
    let link = connected
        .unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(Broken::Connect)?;
    match link {
        Link::Tcp(stream) => {
            let set = stream
                .set_nonblocking(true)
                .and_then(|()| stream.set_nodelay(true));
            let stream = set.and_then(|()| TcpStream::from_std(stream));
            send(stream.map_err(Broken::Connect)?, request).await
        }
        Link::Unix(stream) => {
            let set = stream.set_nonblocking(true);
            let stream = set.and_then(|()| UnixStream::from_std(stream));
            send(stream.map_err(Broken::Connect)?, request).await
        }
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, Broken> {
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(Broken::Exchange)?;
    // It ends with the answer, or when the answer is not read any more.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender.send_request(request).await.map_err(Broken::Exchange)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_one_connection_is_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("x-public", "2"),
        ] {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        strip(&mut headers);
        let left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["x-public"]);
    }
}
