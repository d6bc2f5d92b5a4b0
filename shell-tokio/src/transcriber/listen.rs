//! Takes connections. A client has a limited time for the header of its request, and the number of connections is limited,
//! those that have become WebSockets included.

use std::{pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{sleep, timeout},
};

/// The largest header of a request, in bytes.
const HEADER: usize = 16 << 10;
/// How many more connections are taken than may become WebSockets, so that their refusal can be told.
const MORE: u32 = 64;
/// How long is waited where the system gives no connection, as it does where too many files are open.
const PAUSE: Duration = Duration::from_millis(100);
/// The answer where there is no room for another connection.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 78\r\n\
    Connection: close\r\nRetry-After: 5\r\n\r\n\
    {\"type\":\"error\",\"reason\":\"too many connections: try again\",\"retryable\":true}\r\n";

/// The place of one connection, free again once every clone is dropped. A WebSocket keeps it: the HTTP connection that it
/// was is over with the upgrade.
#[derive(Debug, Clone)]
pub struct Place(#[expect(dead_code, reason = "it is held")] Arc<OwnedSemaphorePermit>);

/// The places of all connections.
#[derive(Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    all: u32,
}

impl Places {
    fn new(max_connections: u32) -> Self {
        let most = u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX);
        let all = max_connections.saturating_add(MORE).min(most);
        Self { free: Arc::new(Semaphore::new(usize::try_from(all).unwrap_or(usize::MAX))), all }
    }

    fn take(&self) -> Option<Place> {
        Arc::clone(&self.free).try_acquire_owned().ok().map(|permit| Place(Arc::new(permit)))
    }

    /// Waits until no connection is left, but not for longer than this.
    pub async fn all_free(self, within: Duration) {
        timeout(within, self.free.acquire_many(self.all)).await.ok();
    }
}

/// Serves every connection until `stop` becomes true. Requests that came before that are still answered.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: u32,
    header_timeout: Duration,
    mut stop: watch::Receiver<bool>,
) -> Places {
    let places = Places::new(max_connections);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(HEADER);
    let mut fails = false;
    loop {
        let stream = tokio::select! {
            () = stopped(&mut stop) => return places,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if !std::mem::replace(&mut fails, true) {
                        tracing::warn!(
                            %error,
                            "no connection can be taken, and that is tried again: raise the limit of open files (ulimit -n), \
                             or start another transcriber"
                        );
                    }
                    sleep(PAUSE).await;
                    continue;
                }
            },
        };
        if std::mem::take(&mut fails) {
            tracing::info!("connections are taken again");
        }
        let Some(place) = places.take() else {
            refuse(&stream);
            continue;
        };
        stream.set_nodelay(true).ok();
        let router = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(place.clone());
            router.call(request)
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let mut stop = stop.clone();
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            // What a client broke off concerns nobody else.
            tokio::select! {
                ended = connection.as_mut() => return drop(ended),
                () = stopped(&mut stop) => connection.as_mut().graceful_shutdown(),
            }
            connection.await.ok();
        });
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Whoever could say so is gone: the transcriber has ended.
    stop.wait_for(|stop| *stop).await.ok();
}

/// Tells why, as far as that can be done without waiting for the client.
fn refuse(stream: &TcpStream) {
    stream.try_write(FULL).ok();
}
