//! Pull requests.

use std::{borrow::Cow, sync::Arc, time::Duration};

use serde::Deserialize;

/// What a pull request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pull {
    /// How many messages at most.
    pub batch: u64,
    /// How long the request waits; `None` waits until the inbox is gone.
    pub expires: Option<Duration>,
    /// What happens where nothing is there to deliver.
    pub when_empty: WhenEmpty,
    /// How often the broker says that it is alive while the request waits.
    pub heartbeat: Option<Duration>,
    /// How many bytes at most: subject, reply subject, headers and payload of all messages.
    pub max_bytes: Option<u64>,
    /// What it says to a consumer with priority groups; `None` where the body is no JSON, which such a consumer serves.
    pub priority: Option<PriorityRequest>,
}

/// What a pull request does where nothing is there to deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenEmpty {
    /// It waits for messages.
    Wait,
    /// It is answered: `no_wait` of the protocol.
    Answer,
}

/// What a pull request says to a consumer with priority groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriorityRequest {
    /// The group.
    pub group: Option<Arc<str>>,
    /// How many messages must be pending.
    pub min_pending: i64,
    /// How many deliveries must be unacknowledged.
    pub min_ack_pending: i64,
    /// The id of a pinned client.
    pub id: Option<Arc<str>>,
    /// Its priority, 0 to 9.
    pub priority: i64,
}

impl Pull {
    /// A request for `batch` messages that waits for at most `expires`.
    #[must_use]
    pub const fn waiting(batch: u64, expires: Duration) -> Self {
        let mut pull = Self::no_wait(batch);
        pull.expires = Some(expires);
        pull.when_empty = WhenEmpty::Wait;
        pull
    }

    /// A request for at most `batch` messages that are there already.
    #[must_use]
    pub const fn no_wait(batch: u64) -> Self {
        let priority = Some(PriorityRequest { group: None, min_pending: 0, min_ack_pending: 0, id: None, priority: 0 });
        Self { batch, expires: None, when_empty: WhenEmpty::Answer, heartbeat: None, max_bytes: None, priority }
    }

    /// Reads the body of a request as the server's `nextReqFromMsg` does: JSON, a number, or nothing.
    ///
    /// # Errors
    ///
    /// JSON that is none; the text says what is wrong.
    pub fn parse(body: &[u8]) -> Result<Self, Arc<str>> {
        let body = body.trim_ascii();
        if body.first() == Some(&b'{') {
            let body: Body<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
            return Ok(body.into());
        }
        let batch = std::str::from_utf8(body).ok().and_then(|text| text.parse().ok()).unwrap_or(1);
        Ok(Self { when_empty: WhenEmpty::Wait, priority: None, ..Self::no_wait(batch) })
    }
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Body<'b> {
    expires: i64,
    batch: i64,
    max_bytes: i64,
    no_wait: bool,
    idle_heartbeat: i64,
    #[serde(borrow)]
    group: Cow<'b, str>,
    min_pending: i64,
    min_ack_pending: i64,
    #[serde(borrow)]
    id: Cow<'b, str>,
    priority: i64,
}

impl From<Body<'_>> for Pull {
    fn from(body: Body<'_>) -> Self {
        let text = |text: Cow<'_, str>| (!text.is_empty()).then(|| text.as_ref().into());
        let positive = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
        Self {
            batch: u64::try_from(body.batch).unwrap_or(0),
            expires: (body.expires != 0).then(|| Duration::from_nanos(positive(body.expires).unwrap_or(0))),
            when_empty: if body.no_wait { WhenEmpty::Answer } else { WhenEmpty::Wait },
            heartbeat: positive(body.idle_heartbeat).map(Duration::from_nanos),
            max_bytes: positive(body.max_bytes),
            priority: Some(PriorityRequest {
                group: text(body.group),
                min_pending: body.min_pending,
                min_ack_pending: body.min_ack_pending,
                id: text(body.id),
                priority: body.priority,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_as_the_server_reads_them() {
        let plain = |batch| Pull { when_empty: WhenEmpty::Wait, priority: None, ..Pull::no_wait(batch) };
        for (body, expected) in [
            ("", plain(1)),
            ("7", plain(7)),
            ("many", plain(1)),
            (r#"{"batch":3,"expires":2000000000}"#, Pull::waiting(3, Duration::from_secs(2))),
            (r#"{"batch":3,"no_wait":true,"unknown":[1]}"#, Pull::no_wait(3)),
            (r#"{"no_wait":true}"#, Pull::no_wait(0)),
        ] {
            assert_eq!(Pull::parse(body.as_bytes()), Ok(expected), "{body}");
        }
        assert!(Pull::parse(b"{\"batch\":\"3\"}").is_err() && Pull::parse(b"{").is_err());
    }
}
