//! The server in front of a function: connections of clients, its end, and the metrics.
//!
//! ```text
//!  accept ─► [ read a request whole ─► `proxy` ─► pass the answer on ]*  ─► close
//!  stop asked for once: no connection more; requests under way are finished, then the instances are ended
//!                 twice: connections are cut, then the instances are ended
//! ```

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

use crate::config::FrontConfig;
use crate::host::Host;
use crate::metrics::Metrics;
use crate::passing::BodyError;
use crate::pool::Pool;
use crate::proxy::{self, Unanswered};

/// The path that the front answers itself.
pub const METRICS_PATH: &str = "/-/metrics";
/// The most connections of clients at once; more wait in the socket's backlog.
const MOST_CONNECTIONS: usize = 1024;
/// How long a client may take for the head of a request, and for its body.
const HEAD_TIME: Duration = Duration::from_secs(30);
const BODY_TIME: Duration = Duration::from_secs(60);
/// How long the end of the instances is waited for.
const END_TIME: Duration = Duration::from_secs(120);
/// How long calls that block are waited for after that.
const LAST_TIME: Duration = Duration::from_secs(5);
/// Between two tries to accept where descriptors are short.
const BREATH: Duration = Duration::from_millis(50);

/// Its address, and what cuts its connection.
type Client<'a> = (SocketAddr, &'a Arc<Notify>);
type Answer = Response<BoxBody<Bytes, BodyError>>;

/// Asks a front to end. Clones ask the same.
#[derive(Debug, Clone)]
pub struct Stop(watch::Sender<u32>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Stop {
    /// Asks once more: the first time to finish what is under way, then to end at once.
    pub fn ask(&self) {
        self.0.send_modify(|times| *times += 1);
    }

    async fn asked(&self, times: u32) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|it| *it >= times).await;
    }
}

/// What a connection needs.
struct Front {
    config: FrontConfig,
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
    host: Arc<dyn Host>,
}

/// Serves until `stop` is asked; then no instance is left.
///
/// # Errors
/// The listener cannot be used, or no thread can be started.
pub fn serve(
    listener: TcpListener,
    config: FrontConfig,
    host: Arc<dyn Host>,
    stop: &Stop,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("front")
        .enable_all()
        .build()?;
    let served = runtime.block_on(run(listener, config, host, stop));
    runtime.shutdown_timeout(LAST_TIME);
    served
}

async fn run(
    listener: TcpListener,
    config: FrontConfig,
    host: Arc<dyn Host>,
    stop: &Stop,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let metrics = Arc::new(Metrics::new(&config.name));
    let pool = Pool::new(config.clone(), Arc::clone(&host), Arc::clone(&metrics));
    let front = Arc::new(Front {
        config,
        pool: Arc::clone(&pool),
        metrics,
        host: Arc::clone(&host),
    });
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    let accepting = async {
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, client)) => {
                    let (front, stop) = (Arc::clone(&front), stop.clone());
                    connections.spawn(async move {
                        converse(&front, stream, client, &stop).await;
                        drop(place);
                    });
                }
                // No message tells that descriptors are free again.
                Err(_) => tokio::time::sleep(BREATH).await,
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop.asked(1) => {}
    }
    drop(listener);
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        () = stop.asked(2) => {}
    }
    connections.shutdown().await;
    pool.close();
    if tokio::time::timeout(END_TIME, pool.empty()).await.is_err() {
        host.warn("instances are still being ended; `fermata ps` lists them");
    }
    Ok(())
}

/// Serves a connection until the client closes it, or the front is to end and no request is under way.
async fn converse(front: &Arc<Front>, stream: TcpStream, client: SocketAddr, stop: &Stop) {
    // Without it small answers come later.
    let _ = stream.set_nodelay(true);
    let cut = &Arc::new(Notify::new());
    let service = service_fn(|request| async move {
        let answer = respond(front, request, (client, cut)).await;
        front.metrics.answered(answer.status().as_u16());
        Ok::<_, Infallible>(answer)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // What a client does wrong concerns that client alone, and it was told.
        _ = connection.as_mut() => return,
        () = cut.notified() => return,
        () = stop.asked(1) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = cut.notified() => {}
    }
}

async fn respond(front: &Arc<Front>, request: Request<Incoming>, client: Client<'_>) -> Answer {
    if request.uri().path() == METRICS_PATH {
        let text = front.metrics.text(front.pool.counts());
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        return text_answer(StatusCode::OK, kind, text);
    }
    match forward(front, request, client).await {
        Ok(answer) => answer,
        Err(unanswered) => refuse(front, &unanswered),
    }
}

async fn forward(
    front: &Arc<Front>,
    request: Request<Incoming>,
    client: Client<'_>,
) -> Result<Answer, Unanswered> {
    if request.method() == Method::CONNECT {
        let text = "a function is no proxy: CONNECT is not answered";
        return Err(Unanswered::new(StatusCode::METHOD_NOT_ALLOWED, text));
    }
    let (head, body) = request.into_parts();
    let whole = Limited::new(body, front.config.body).collect();
    let body = match tokio::time::timeout(BODY_TIME, whole).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let text = format!("the request has more than {} bytes", front.config.body);
            return Err(Unanswered::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        Ok(Err(error)) => {
            let text = format!("the request cannot be read: {error}");
            return Err(Unanswered::new(StatusCode::BAD_REQUEST, text));
        }
        Err(_) => {
            let text = format!(
                "the request has not come whole within {} s",
                BODY_TIME.as_secs()
            );
            return Err(Unanswered::new(StatusCode::REQUEST_TIMEOUT, text));
        }
    };
    let request = (&head, body);
    let answer = proxy::answer(&front.pool, &front.config, &front.metrics, request, client);
    Ok(answer.await?.map(BodyExt::boxed))
}

fn refuse(front: &Front, unanswered: &Unanswered) -> Answer {
    if matches!(
        unanswered.code,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT
    ) {
        front.host.warn(&unanswered.message);
    }
    let mut text = format!("error: {}\n", unanswered.message);
    if !unanswered.hint.is_empty() {
        text += &format!("\nhint: {}\n", unanswered.hint);
    }
    let mut answer = text_answer(unanswered.code, "text/plain; charset=utf-8", text);
    if unanswered.code == StatusCode::SERVICE_UNAVAILABLE {
        let soon = HeaderValue::from_static("1");
        answer.headers_mut().insert(RETRY_AFTER, soon);
    }
    answer
}

fn text_answer(code: StatusCode, kind: &'static str, text: String) -> Answer {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed());
    *answer.status_mut() = code;
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
