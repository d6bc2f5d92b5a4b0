//! Readers of single values. clap names the flag and repeats the value; these say what it must be.

use std::time::{Duration, UNIX_EPOCH};

use async_nats::datetime::parse_rfc3339;
use bytesize::ByteSize;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};
use transcript_core::WallTime;

use super::Since;

/// A duration from `min` to `max`, both of which are written as a user would write them.
pub(super) fn duration(
    min: &'static str,
    max: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    let bound = |text| humantime::parse_duration(text).expect("a bound is a duration");
    let range = bound(min)..=bound(max);
    move |text| match humantime::parse_duration(text) {
        Ok(value) if range.contains(&value) => Ok(value),
        Ok(_) => Err(format!("must be from {min} to {max}")),
        Err(e) => Err(format!("must be a duration such as 500ms, 6s or 24h, from {min} to {max}: {e}")),
    }
}

/// One or more words joined by dots, without wildcards.
pub(super) fn subject(text: &str) -> Result<String, String> {
    let is_bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>');
    if text.split('.').all(|word| !word.is_empty() && !word.contains(is_bad)) {
        Ok(text.to_owned())
    } else {
        Err("must be one or more words joined by dots, without spaces, `*` and `>`".to_owned())
    }
}

/// One word of a subject.
pub(super) fn subject_token(text: &str) -> Result<String, String> {
    match subject(text) {
        Ok(word) if !word.contains('.') => Ok(word),
        Ok(_) | Err(_) => Err("must be one word, without dots, spaces, `*` and `>`".to_owned()),
    }
}

/// A number of bytes from `min` to `max`, such as `example`; all three are written as a user would write them.
pub(super) fn size(
    example: &'static str,
    min: &'static str,
    max: &'static str,
) -> impl Fn(&str) -> Result<ByteSize, String> + Clone + Send + Sync + 'static {
    let bound = |text: &str| text.parse::<ByteSize>().expect("a bound is a size");
    let range = bound(min)..=bound(max);
    move |text| match text.parse::<ByteSize>() {
        Ok(value) if range.contains(&value) => Ok(value),
        Ok(_) => Err(format!("must be from {min} to {max}")),
        Err(e) => Err(format!("must be a size such as {example}, from {min} to {max}: {e}")),
    }
}

/// The address of a transcriber, without a path.
pub(super) fn websocket(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("ws://").map(|host| host.trim_end_matches('/'));
    match host {
        Some(host) if !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ']) => Ok(format!("ws://{host}")),
        Some(_) | None => Err("must be an address such as ws://127.0.0.1:8090, without a path".to_owned()),
    }
}

/// What clients outside write before the paths of the transcriber.
pub(super) fn public_url(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("wss://").or_else(|| text.strip_prefix("ws://"));
    let is_bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '@');
    match host {
        Some(host) if !host.is_empty() && !host.starts_with('/') && !host.contains(is_bad) => {
            Ok(text.trim_end_matches('/').to_owned())
        }
        Some(_) | None => Err("must be an address such as wss://transcriber.example, without a query".to_owned()),
    }
}

/// A time span before now, or a moment of which the time zone is UTC where it names none.
pub(super) fn since(text: &str) -> Result<Since, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        return Ok(Since::Ago(ago));
    }
    let millis = match parse_rfc3339(text) {
        Ok(moment) => i64::try_from(moment.unix_timestamp_nanos() / 1_000_000).ok(),
        Err(_) => humantime::parse_rfc3339_weak(text)
            .ok()
            .and_then(|moment| moment.duration_since(UNIX_EPOCH).ok())
            .and_then(|since| i64::try_from(since.as_millis()).ok()),
    };
    millis
        .map(|millis| Since::At(WallTime::from_millis(millis)))
        .ok_or_else(|| "must be a duration such as 90m or 7d, or a moment such as 2026-11-29T08:00:00Z".to_owned())
}

/// JetStream keeps a stream on an odd number of servers, at most five.
pub(super) fn replicas(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(n @ (1 | 3 | 5)) => Ok(n),
        Ok(_) | Err(_) => Err("must be 1, 3 or 5".to_owned()),
    }
}

/// A factor of speed; zero means that no time passes.
pub(super) fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (0.0..=10_000.0).contains(&factor) => Ok(factor),
        Ok(_) | Err(_) => Err("must be a number from 0 to 10000".to_owned()),
    }
}

/// A name that MongoDB takes on every platform (manual, "Naming Restrictions").
pub(super) fn database_name(text: &str) -> Result<String, String> {
    const FORBIDDEN: &[char] = &['/', '\\', '.', ' ', '"', '$', '*', '<', '>', ':', '|', '?', '\0'];
    if text.is_empty() || text.len() > 63 || text.contains(FORBIDDEN) {
        return Err(r#"must have 1 to 63 bytes and none of / \ . " $ * < > : | ? or space"#.to_owned());
    }
    Ok(text.to_owned())
}

/// A filter that `tracing-subscriber` understands.
pub(super) fn log_filter(text: &str) -> Result<String, String> {
    // A bare word that is no level would be taken for a target, and nothing be logged.
    let is_directive =
        |part: &str| !part.is_empty() && (part.contains(['=', '[', ':']) || part.trim().parse::<LevelFilter>().is_ok());
    match EnvFilter::try_new(text) {
        Ok(_) if !text.split(',').all(is_directive) => {
            Err("must be a level (off, error, warn, info, debug, trace), or target=level pairs separated by commas"
                .to_owned())
        }
        Ok(_) => Ok(text.to_owned()),
        Err(e) => Err(format!("must be a level, or target=level pairs separated by commas: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_span_or_a_moment() {
        assert_eq!(since("90m"), Ok(Since::Ago(Duration::from_secs(5400))));
        let eight = Ok(Since::At(WallTime::from_millis(1_795_939_200_000)));
        for text in ["2026-11-29T08:00:00Z", "2026-11-29 08:00:00", "2026-11-29T08:00:00", "2026-11-29T10:00:00+02:00"]
        {
            assert_eq!(since(text), eight, "{text}");
        }
        for text in ["", "yesterday", "24", "2026-13-01T00:00:00Z"] {
            assert!(since(text).is_err_and(|message| message.contains("must be a duration")), "{text}");
        }
    }

    #[test]
    fn a_log_filter_is_a_level_or_pairs() {
        for filter in ["info", "OFF", "warn,mongodb=debug", "transcript_processor::service::driver=trace,error"] {
            assert_eq!(log_filter(filter), Ok(filter.to_owned()));
        }
        for filter in ["loud", "info,loud", "a=loud", ""] {
            assert!(log_filter(filter).is_err(), "{filter}");
        }
    }
}
