//! Signatures of engines: they prove that a request comes from the engine's service, on behalf of our own account.
//!
//! | dialect | signed | headers | the signed text |
//! |---|---|---|---|
//! | `recall` | requests and upgrades | `webhook-id`, `webhook-timestamp`, `webhook-signature`; for older accounts `svix-` instead of `webhook-` | `<id>.<timestamp>.<body>`, where an upgrade has an empty body |
//! | `conversationrelay` | upgrades | `x-twilio-signature` | the public URL with its query, or the URL without it and then each parameter's name and value, sorted by name |
//!
//! Recall.ai signs by HMAC-SHA256 with the bytes behind `whsec_`, which are Base64. A header can hold several signatures, each
//! after `v1,`, separated by spaces. Source: Recall.ai's documentation, "Verifying webhooks, websockets and callback requests",
//! and the specification of Standard Webhooks.
//!
//! Twilio signs by HMAC-SHA1 with the account's auth token. Source: Twilio's documentation, "Onboarding" of Conversation Relay and
//! "Webhooks security". It does not say how the query of a WebSocket's URL is signed: Twilio's own `twilio-agent-connect` takes its
//! parameters like those of a form, and the validator of webhooks takes the URL with its query. Both are accepted: whoever does not
//! have the token can make neither.

use axum::http::{HeaderMap, Uri};
use base64::{Engine, engine::general_purpose::STANDARD};
use percent_encoding::percent_decode_str;
use ring::hmac;
use transcript_core::WallTime;
use transcript_dialects::Dialect;
use transcript_transcriber::document::Transport;

use super::{AccessError, Refused, read};
use crate::{cli::TranscriberAccess, secret::SecretFile};

/// What a secret of Recall.ai begins with.
const RECALL_SECRET: &str = "whsec_";
/// The shortest key of Recall.ai that is taken, in bytes: Standard Webhooks has 24 at least.
const SHORTEST_RECALL_KEY: usize = 24;
/// The shortest auth token of Twilio that is taken, in bytes: it has 32 hexadecimal digits.
const SHORTEST_TWILIO_TOKEN: usize = 32;
/// By how many milliseconds a signature's time may differ from ours: Standard Webhooks' implementations have five minutes.
const TOLERANCE: u64 = 5 * 60 * 1000;

/// The secrets of the engines whose signatures are required.
#[derive(Debug, Default)]
pub(super) struct Signatures {
    recall: Option<Vec<hmac::Key>>,
    twilio: Option<Twilio>,
}

#[derive(Debug)]
struct Twilio {
    keys: Vec<hmac::Key>,
    public_url: String,
}

/// What of a request is signed.
#[derive(Debug, Clone, Copy)]
pub struct SignedRequest<'a> {
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Its target, as it came.
    pub uri: &'a Uri,
    /// Its body; empty for an upgrade.
    pub body: &'a [u8],
}

impl Signatures {
    /// Reads the files of the settings.
    pub(super) fn read(settings: &TranscriberAccess) -> Result<Self, AccessError> {
        let recall = settings.recall_secret_file.as_ref().map(|file| keys(file, "--recall-secret-file", recall_key));
        let twilio = settings.twilio_token_file.as_ref().map(|file| keys(file, "--twilio-token-file", twilio_key));
        let public_url = settings.public_url.clone();
        Ok(Self {
            recall: recall.transpose()?,
            twilio: twilio.transpose()?.zip(public_url).map(|(keys, public_url)| Twilio { keys, public_url }),
        })
    }

    /// Whether a client of this dialect must sign.
    pub(super) fn are_required(&self, dialect: Dialect, transport: Transport) -> bool {
        match (dialect, transport) {
            (Dialect::Recall, _) => self.recall.is_some(),
            (Dialect::ConversationRelay, Transport::Socket) => self.twilio.is_some(),
            // Twilio's Conversation Relay sends no requests.
            (Dialect::ConversationRelay, Transport::Post)
            | (
                Dialect::Native | Dialect::Deepgram | Dialect::AssemblyAi | Dialect::LiveKit | Dialect::Jigasi,
                Transport::Socket | Transport::Post,
            ) => false,
        }
    }

    /// Checks the signature of a request, where its dialect must sign.
    pub(super) fn check(
        &self,
        dialect: Dialect,
        transport: Transport,
        request: SignedRequest<'_>,
        now: WallTime,
    ) -> Result<(), Refused> {
        if !self.are_required(dialect, transport) {
            return Ok(());
        }
        match (dialect, &self.recall, &self.twilio) {
            (Dialect::ConversationRelay, _, Some(twilio)) => twilio.check(request),
            (_, Some(keys), _) => check_recall(keys, request, now),
            (_, None, _) => Ok(()),
        }
    }
}

fn check_recall(keys: &[hmac::Key], request: SignedRequest<'_>, now: WallTime) -> Result<(), Refused> {
    let header = |name: &str| {
        let named = |prefix: &str| request.headers.get(format!("{prefix}-{name}"))?.to_str().ok();
        named("webhook").or_else(|| named("svix")).ok_or(Refused::Unsigned)
    };
    let (id, timestamp, signatures) = (header("id")?, header("timestamp")?, header("signature")?);
    let seconds: i64 = timestamp.parse().map_err(|_| Refused::Forged)?;
    if seconds.saturating_mul(1000).abs_diff(now.as_millis()) > TOLERANCE {
        return Err(Refused::Stale);
    }
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(request.body);
    let of_this_version = signatures.split(' ').filter_map(|signature| signature.strip_prefix("v1,"));
    let is_signed =
        of_this_version.filter_map(|text| STANDARD.decode(text).ok()).any(|tag| is_tag(keys, &signed, &tag));
    if is_signed { Ok(()) } else { Err(Refused::Forged) }
}

impl Twilio {
    fn check(&self, SignedRequest { headers, uri, body: _ }: SignedRequest<'_>) -> Result<(), Refused> {
        let signature = headers.get("x-twilio-signature").ok_or(Refused::Unsigned)?;
        let tag = STANDARD.decode(signature.as_bytes()).map_err(|_| Refused::Forged)?;
        let path = format!("{}{}", self.public_url, uri.path());
        let query = uri.query().unwrap_or_default();
        let with_query = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
        let is_signed =
            [with_query, path + &sorted(query)].iter().any(|text| is_tag(&self.keys, text.as_bytes(), &tag));
        if is_signed { Ok(()) } else { Err(Refused::Forged) }
    }
}

/// The parameters of a query as those of a form are signed: sorted by name, each one's name and then its value.
fn sorted(query: &str) -> String {
    let decoded = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    let mut parameters: Vec<(String, String)> = parameters
        .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect();
    parameters.sort();
    parameters.into_iter().map(|(name, value)| name + &value).collect()
}

/// Whether one of the keys signed this. Comparing takes the same time whatever is compared.
fn is_tag(keys: &[hmac::Key], signed: &[u8], tag: &[u8]) -> bool {
    keys.iter().any(|key| hmac::verify(key, signed, tag).is_ok())
}

/// The keys of a file: each line that is not empty is one, so that an old and a new one can both be valid for a while.
fn keys(
    file: &SecretFile,
    option: &'static str,
    key: impl Fn(&str) -> Result<hmac::Key, &'static str>,
) -> Result<Vec<hmac::Key>, AccessError> {
    let refused = |reason| AccessError::Secret { option, file: file.clone(), reason };
    let text = read(file)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Vec<hmac::Key> = lines.map(key).collect::<Result<_, _>>().map_err(refused)?;
    if keys.is_empty() { Err(refused("holds no secret")) } else { Ok(keys) }
}

fn recall_key(line: &str) -> Result<hmac::Key, &'static str> {
    let key = line.strip_prefix(RECALL_SECRET).and_then(|text| STANDARD.decode(text).ok());
    let key = key.filter(|key| key.len() >= SHORTEST_RECALL_KEY);
    let key = key.ok_or("holds a line that is not whsec_ and at least 24 bytes in Base64")?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &key))
}

fn twilio_key(line: &str) -> Result<hmac::Key, &'static str> {
    if line.len() < SHORTEST_TWILIO_TOKEN {
        return Err("holds an auth token of less than 32 characters");
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, line.as_bytes()))
}

#[cfg(test)]
mod tests;
