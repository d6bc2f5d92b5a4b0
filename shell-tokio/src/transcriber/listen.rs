//! Takes connections. A client has a limited time for the header of its request, and the number of connections is limited.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::sleep,
};

/// The largest header of a request, in bytes.
const HEADER: usize = 16 << 10;
/// How many more connections are taken than may become WebSockets, so that their refusal can be told.
const MORE: usize = 64;
/// How long is waited where the system gives no connection, as it does where too many files are open.
const PAUSE: Duration = Duration::from_millis(100);
/// The answer where there is no room for another connection.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 78\r\n\
    Connection: close\r\nRetry-After: 5\r\n\r\n\
    {\"type\":\"error\",\"reason\":\"too many connections: try again\",\"retryable\":true}\r\n";

/// Serves every connection until `stop` becomes true.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: u32,
    header_timeout: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let most = usize::try_from(max_connections).unwrap_or(usize::MAX).saturating_add(MORE);
    let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(HEADER);
    loop {
        let stream = tokio::select! {
            () = async { stop.wait_for(|stop| *stop).await.map_or((), drop) } => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "no connection can be taken");
                    sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            refuse(&stream);
            continue;
        };
        stream.set_nodelay(true).ok();
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
        tokio::spawn(async move {
            // What a client broke off concerns nobody else.
            connection.await.ok();
            drop(place);
        });
    }
}

/// Tells why, as far as that can be done without waiting for the client.
fn refuse(stream: &TcpStream) {
    stream.try_write(FULL).ok();
}
