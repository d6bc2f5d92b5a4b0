//! A duration on the wire: whole microseconds. For `#[serde(with = "micros")]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes a duration; one that is too long becomes the longest.
///
/// # Errors
///
/// Those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).serialize(serializer)
}

/// Reads a duration.
///
/// # Errors
///
/// Anything but a whole number of 64 bits.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_micros)
}
