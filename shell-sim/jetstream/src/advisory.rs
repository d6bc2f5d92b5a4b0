//! What the broker tells whoever listens.

use std::{fmt::Write as _, sync::Arc};

use serde_json::json;

use super::stamp::Stamp;

/// Something that happened to a message of a consumer. On the wire it is a core message, at most once: lost where nobody listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advisory {
    /// The stream.
    pub stream: Arc<str>,
    /// The consumer.
    pub consumer: Arc<str>,
    /// The sequence of the message in the stream.
    pub stream_seq: u64,
    /// How often it had been delivered.
    pub deliveries: u64,
    /// What happened.
    pub kind: AdvisoryKind,
}

/// What happened to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdvisoryKind {
    /// It will not be delivered again.
    MaxDeliveries,
    /// It was given back.
    Naked {
        /// The consumer sequence of the delivery named.
        consumer_seq: u64,
    },
    /// It was terminated, or was removed from the stream while it was out.
    Terminated {
        /// The consumer sequence of the delivery named.
        consumer_seq: u64,
        /// Why.
        reason: Arc<str>,
    },
}

impl Advisory {
    /// The subject of the core message.
    #[must_use]
    pub fn subject(&self) -> String {
        let token = match self.kind {
            AdvisoryKind::MaxDeliveries => "MAX_DELIVERIES",
            AdvisoryKind::Naked { .. } => "MSG_NAKED",
            AdvisoryKind::Terminated { .. } => "MSG_TERMINATED",
        };
        format!("$JS.EVENT.ADVISORY.CONSUMER.{token}.{}.{}", self.stream, self.consumer)
    }

    /// The payload of the core message; `number` makes its id.
    pub(super) fn payload(&self, number: u64, at: Stamp) -> Arc<[u8]> {
        let kind = match self.kind {
            AdvisoryKind::MaxDeliveries => "max_deliver",
            AdvisoryKind::Naked { .. } => "nak",
            AdvisoryKind::Terminated { .. } => "terminated",
        };
        let mut fields = json!({
            "type": format!("io.nats.jetstream.advisory.v1.{kind}"),
            "id": format!("{number:022}"),
            "timestamp": rfc3339(at),
            "stream": *self.stream,
            "consumer": *self.consumer,
            "stream_seq": self.stream_seq,
            "deliveries": self.deliveries,
        });
        match &self.kind {
            AdvisoryKind::MaxDeliveries => {}
            AdvisoryKind::Naked { consumer_seq } => fields["consumer_seq"] = json!(consumer_seq),
            AdvisoryKind::Terminated { consumer_seq, reason } => {
                fields["consumer_seq"] = json!(consumer_seq);
                if !reason.is_empty() {
                    fields["reason"] = json!(**reason);
                }
            }
        }
        fields.to_string().into_bytes().into()
    }
}

/// The calendar of the proleptic Gregorian year, by counting in eras of 400 years that start in March.
fn rfc3339(at: Stamp) -> String {
    let micros = at.nanos() / 1_000;
    let (days, of_day) = (micros.div_euclid(86_400_000_000), micros.rem_euclid(86_400_000_000));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let seconds = of_day / 1_000_000;
    let mut text = String::new();
    write!(
        text,
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60,
        of_day % 1_000_000
    )
    .expect("a string takes any text");
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_advisory_is_dated() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
        ] {
            let at = Stamp::new(seconds * 1_000, Duration::ZERO);
            assert_eq!(rfc3339(at), expected);
        }
        let at = Stamp::new(0, Duration::from_micros(3_661_000_007));
        assert_eq!(rfc3339(at), "1970-01-01T01:01:01.000007Z");
    }
}
