//! The connection to the collector: HTTP/1.1, kept open from one request to the next.

use std::{io, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, to_bytes},
    http::{
        HeaderValue, Method, Request, StatusCode, Uri,
        header::{CONTENT_TYPE, HOST, USER_AGENT},
    },
};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls_native_certs::load_native_certs;
use serde::Deserialize;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, RootCertStore,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

use super::settings::OtlpSettings;

/// The most bytes of an answer that are read.
const MOST_ANSWER: usize = 64 << 10;

/// A collector.
#[derive(Debug)]
pub struct Collector {
    settings: OtlpSettings,
    /// How TLS is spoken, once it was.
    tls: Option<Arc<ClientConfig>>,
    open: Option<SendRequest<Body>>,
}

/// Why an export failed.
#[derive(Debug, Error)]
pub enum ExportError {
    /// It cannot be reached.
    #[error("it cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] hyper::Error),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The certificates cannot be used.
    #[error("no certificates to check the collector's against (OTEL_EXPORTER_OTLP_CERTIFICATE)")]
    Certificates,
    /// It refused.
    #[error("it answers {0}")]
    Refused(StatusCode),
    /// The endpoint has no host that can be one.
    #[error("the endpoint names no host")]
    Host,
}

impl ExportError {
    /// Whether the same request can succeed later (OTLP specification, "Failures": 429, 502, 503 and 504).
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Broken(_) | Self::TimedOut(_) => true,
            Self::Refused(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Self::Certificates | Self::Host => false,
        }
    }
}

/// The body of an answer; a collector may leave it out.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExportAnswer {
    partial_success: PartialSuccess,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialSuccess {
    /// A number of 64 bits, which the encoding lets be a string or a number.
    rejected_spans: serde_json::Value,
}

impl Collector {
    /// A collector to which no connection is open yet.
    #[must_use]
    pub fn new(settings: OtlpSettings) -> Self {
        Self { settings, tls: None, open: None }
    }

    /// Posts a request, within the time that one may take. Gives how many of its spans the collector refused.
    ///
    /// # Errors
    ///
    /// See [`ExportError`].
    pub async fn export(&mut self, body: Bytes) -> Result<usize, ExportError> {
        let within = self.settings.timeout;
        let exported = timeout(within, self.post(body)).await;
        let result = exported.unwrap_or(Err(ExportError::TimedOut(within)));
        if result.is_err() {
            self.open = None;
        }
        result
    }

    async fn post(&mut self, body: Bytes) -> Result<usize, ExportError> {
        let mut sender = match self.open.take().filter(|open| !open.is_closed()) {
            Some(open) => open,
            None => self.connect().await?,
        };
        sender.ready().await.map_err(ExportError::Broken)?;
        let answer = sender.send_request(self.request(body)?).await.map_err(ExportError::Broken)?;
        let status = answer.status();
        // What is not read keeps the connection from being used again.
        let text = to_bytes(Body::new(answer.into_body()), MOST_ANSWER).await.unwrap_or_default();
        if !status.is_success() {
            return Err(ExportError::Refused(status));
        }
        self.open = Some(sender);
        let ExportAnswer { partial_success } = serde_json::from_slice(&text).unwrap_or_default();
        let refused = partial_success.rejected_spans;
        let refused = refused.as_u64().or_else(|| refused.as_str()?.parse().ok()).unwrap_or(0);
        Ok(usize::try_from(refused).unwrap_or(usize::MAX))
    }

    fn request(&self, body: Bytes) -> Result<Request<Body>, ExportError> {
        let OtlpSettings { endpoint, headers, .. } = &self.settings;
        let host = endpoint.authority().map(|authority| authority.as_str().rsplit('@').next().unwrap_or_default());
        let host = host.and_then(|host| HeaderValue::from_str(host).ok()).ok_or(ExportError::Host)?;
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        let path = endpoint.path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse().map_err(|_| ExportError::Host)?;
        let named = request.headers_mut();
        named.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        named.insert(USER_AGENT, HeaderValue::from_static(concat!("transcript-processor/", env!("CARGO_PKG_VERSION"))));
        named.extend(headers.iter().cloned());
        named.insert(HOST, host);
        Ok(request)
    }

    async fn connect(&mut self) -> Result<SendRequest<Body>, ExportError> {
        let endpoint = self.settings.endpoint.clone();
        let host = endpoint.host().ok_or(ExportError::Host)?.trim_start_matches('[').trim_end_matches(']');
        let is_tls = endpoint.scheme_str() == Some("https");
        let stream = tcp(host, &endpoint, is_tls).await.map_err(ExportError::Unreachable)?;
        if !is_tls {
            return open(stream).await;
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|_| ExportError::Host)?;
        let tls = match &self.tls {
            Some(tls) => Arc::clone(tls),
            None => Arc::clone(self.tls.insert(tls(&self.settings)?)),
        };
        open(TlsConnector::from(tls).connect(name, stream).await.map_err(ExportError::Unreachable)?).await
    }
}

async fn tcp(host: &str, endpoint: &Uri, is_tls: bool) -> io::Result<TcpStream> {
    let port = endpoint.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The connection's own work ends with the connection.
async fn open(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<SendRequest<Body>, ExportError> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(ExportError::Broken)?;
    tokio::spawn(async move {
        // Whoever sent a request is told of it too.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to the collector broke");
        }
    });
    Ok(sender)
}

fn tls(settings: &OtlpSettings) -> Result<Arc<ClientConfig>, ExportError> {
    let mut roots = RootCertStore::empty();
    match &settings.certificate {
        Some(file) => {
            let certificates = CertificateDer::pem_file_iter(file).map_err(|_| ExportError::Certificates)?;
            roots.add_parsable_certificates(certificates.filter_map(Result::ok));
        }
        None => {
            roots.add_parsable_certificates(load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(ExportError::Certificates);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(rustls::DEFAULT_VERSIONS)
        .map_err(|_| ExportError::Certificates)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
