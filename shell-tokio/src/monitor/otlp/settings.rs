//! What the environment says about OpenTelemetry, under the names of its specification
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>, and "SDK environment variables").
//!
//! As the specification asks, a value that cannot be used is warned of and left out; it never keeps the process from
//! starting. No value of a header is ever logged: it can be a credential.

use std::{path::PathBuf, time::Duration};

use axum::http::{HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

/// The service's name where nobody gave one.
const SERVICE: &str = "transcript-processor";
/// How long an export may take, where nobody said.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where spans are sent, and what is said of their process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpSettings {
    /// Where spans are posted to.
    pub endpoint: Uri,
    /// More headers of each request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How long one request may take.
    pub timeout: Duration,
    /// A file of certificates in PEM that an https collector's is checked against, in place of the system's.
    pub certificate: Option<PathBuf>,
    /// The attributes of the process.
    pub resource: Vec<(String, String)>,
}

impl OtlpSettings {
    /// What these variables say, and what is wrong with them; `None` where no spans are to be sent.
    pub fn read(name: &str, variable: impl Fn(&str) -> Option<String>) -> (Option<Self>, Vec<String>) {
        let mut warnings = vec![];
        let given = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let of_traces = |part: &str| {
            given(&format!("OTEL_EXPORTER_OTLP_TRACES_{part}")).or_else(|| given(&format!("OTEL_EXPORTER_OTLP_{part}")))
        };
        let is_off = given("OTEL_SDK_DISABLED").is_some_and(|value| value.trim().eq_ignore_ascii_case("true"))
            || given("OTEL_TRACES_EXPORTER").is_some_and(|value| value.trim() == "none");
        if is_off {
            return (None, warnings);
        }
        let (from, address) = match (given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), given("OTEL_EXPORTER_OTLP_ENDPOINT"))
        {
            (Some(whole), _) => ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", whole),
            (None, Some(base)) => {
                ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("{}/v1/traces", base.trim().trim_end_matches('/')))
            }
            (None, None) => return (None, warnings),
        };
        let Some(endpoint) = endpoint(&address) else {
            warnings.push(format!("{from} must be http://HOST:PORT or https://HOST:PORT: no spans are sent"));
            return (None, warnings);
        };
        if let Some(protocol) = of_traces("PROTOCOL").filter(|protocol| protocol.trim() != "http/json") {
            warnings.push(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL {:?} is not known: spans are sent in http/json, which a collector takes at \
                 its port for OTLP over HTTP (4318)",
                protocol.trim()
            ));
        }
        let timeout = of_traces("TIMEOUT").and_then(|millis| match millis.trim().parse() {
            Ok(millis @ 1..) => Some(Duration::from_millis(millis)),
            Ok(0) | Err(_) => {
                warnings.push("OTEL_EXPORTER_OTLP_TIMEOUT must be a number of milliseconds: it is 10000".to_owned());
                None
            }
        });
        let mut headers = vec![];
        for (name, value) in pairs(&of_traces("HEADERS").unwrap_or_default()) {
            match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                (Ok(name), Ok(mut value)) => {
                    value.set_sensitive(true);
                    headers.push((name, value));
                }
                (Ok(_) | Err(_), _) => {
                    warnings.push("a header of OTEL_EXPORTER_OTLP_HEADERS is none, and is left out".to_owned());
                }
            }
        }
        let resource =
            resource(name, given("OTEL_SERVICE_NAME"), &given("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default());
        let certificate = of_traces("CERTIFICATE").map(PathBuf::from);
        let settings = Self { endpoint, headers, timeout: timeout.unwrap_or(TIMEOUT), certificate, resource };
        (Some(settings), warnings)
    }
}

fn endpoint(address: &str) -> Option<Uri> {
    let endpoint: Uri = address.trim().parse().ok()?;
    let is_http = matches!(endpoint.scheme_str(), Some("http" | "https"));
    (is_http && endpoint.host().is_some_and(|host| !host.is_empty())).then_some(endpoint)
}

/// `name=value,name=value`, percent-encoded.
fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    let decoded = |text: &str| percent_decode_str(text.trim()).decode_utf8_lossy().into_owned();
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(move |(name, value)| (decoded(name), decoded(value))).filter(|(name, _)| !name.is_empty())
}

/// The attributes of the process: ours, those of `OTEL_RESOURCE_ATTRIBUTES`, and the name of `OTEL_SERVICE_NAME`, which
/// counts before all.
fn resource(name: &str, service: Option<String>, more: &str) -> Vec<(String, String)> {
    let mut attributes: Vec<(String, String)> = [
        ("service.name", SERVICE),
        ("service.instance.id", name),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.name", env!("CARGO_PKG_NAME")),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let service = service.map(|service| ("service.name".to_owned(), service));
    for (name, value) in pairs(more).chain(service) {
        match attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, before)) => *before = value,
            None => attributes.push((name, value)),
        }
    }
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Option<OtlpSettings>, Vec<String>) {
        OtlpSettings::read("p1", |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_an_endpoint_or_when_disabled_nothing_is_sent() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318");
        assert_eq!(read(&[]), (None, vec![]));
        assert_eq!(read(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]), (None, vec![]));
        assert_eq!(read(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]), (None, vec![]));
        assert!(read(&[endpoint, ("OTEL_SDK_DISABLED", "1")]).0.is_some(), "only true disables");
        for bad in ["localhost:4318", "grpc://localhost:4317", "http://", "no address at all"] {
            let (settings, warnings) = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", bad)]);
            assert_eq!((settings, warnings.len()), (None, 1), "{bad}");
        }
    }

    #[test]
    fn the_endpoint_of_traces_is_taken_whole_and_the_other_one_gets_a_path() {
        let endpoint = |variables: &[(&str, &str)]| read(variables).0.expect("there is one").endpoint.to_string();
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/base/");
        assert_eq!(endpoint(&[base]), "http://c:4318/base/v1/traces");
        assert_eq!(endpoint(&[base, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t/x")]), "https://t/x");
    }

    #[test]
    fn headers_and_attributes_are_decoded_and_the_service_has_its_name() {
        let (settings, warnings) = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3%20cret, x = y ,bad name=z"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,service.name=other,a=%2C"),
            ("OTEL_SERVICE_NAME", "summaries"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ]);
        let settings = settings.expect("there is an endpoint");
        let headers: Vec<_> = settings.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(headers, [("api-key", &b"s3 cret"[..]), ("x", b"y")]);
        assert!(!format!("{settings:?}").contains("s3"), "{settings:?}");
        let attribute =
            |name: &str| settings.resource.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
        assert_eq!(attribute("service.name"), Some("summaries"));
        assert_eq!(attribute("service.instance.id"), Some("p1"));
        assert_eq!(attribute("deployment.environment.name"), Some("prod"));
        assert_eq!(attribute("a"), Some(","));
        assert_eq!(settings.timeout, TIMEOUT);
        assert_eq!(warnings.len(), 3, "{warnings:?}");
    }
}
