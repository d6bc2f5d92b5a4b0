//! W3C trace context: the trace that a message belongs to, and the span that sent it
//! (<https://www.w3.org/TR/trace-context/>).

use std::{
    borrow::Cow,
    fmt,
    num::{NonZeroU64, NonZeroU128},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// On a message: its trace and the span that sent it. Names of headers are compared without regard to case: libraries write
/// `Traceparent` too.
pub const TRACEPARENT_HEADER: &str = "traceparent";
/// On a message: what tracing systems add to it, each for itself.
pub const TRACESTATE_HEADER: &str = "tracestate";
/// The longest `tracestate` that is passed on, in bytes: as much as the standard asks for. A longer one is dropped whole,
/// as the standard allows.
const LONGEST_STATE: usize = 512;
/// The bit of the flags that says whether spans of the trace are kept.
const SAMPLED: u8 = 1;

/// The number of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(NonZeroU128);

/// The number of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(NonZeroU64);

/// The trace that a message belongs to, and the span that sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span that sent the message.
    pub span: SpanId,
    /// The trace's flags.
    pub flags: u8,
    /// What tracing systems add.
    pub state: Option<Box<str>>,
}

/// It is no `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("it is no traceparent")]
pub struct BadTraceparent;

/// The context as headers have it.
#[derive(Serialize, Deserialize)]
struct Written {
    traceparent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tracestate: Option<Box<str>>,
}

impl TraceId {
    /// The trace of this number; 1 in place of zero, which is no trace.
    #[must_use]
    pub fn new(number: u128) -> Self {
        Self(NonZeroU128::new(number).unwrap_or(NonZeroU128::MIN))
    }
}

impl SpanId {
    /// The span of this number; 1 in place of zero, which is no span.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }
}

impl TraceContext {
    /// The context of a new trace whose spans are kept.
    #[must_use]
    pub fn begin(trace: TraceId, span: SpanId) -> Self {
        Self { trace, span, flags: SAMPLED, state: None }
    }

    /// The context of a message; `None` where it has none, or none that can be read.
    pub fn of_headers<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let (mut parents, mut states) = (vec![], vec![]);
        for (name, value) in headers {
            if name.eq_ignore_ascii_case(TRACEPARENT_HEADER) {
                parents.push(value);
            } else if name.eq_ignore_ascii_case(TRACESTATE_HEADER) {
                states.push(value);
            }
        }
        let &[parent] = parents.as_slice() else { return None };
        let context = Self::of_traceparent(parent.trim()).ok()?;
        Some(Self { state: clean(&states.join(",")), ..context })
    }

    /// The headers, with the names that the standard gives.
    pub fn headers(&self) -> impl Iterator<Item = (Cow<'static, str>, String)> {
        let state = self.state.as_ref().map(|state| (TRACESTATE_HEADER.into(), state.to_string()));
        std::iter::once((TRACEPARENT_HEADER.into(), self.to_string())).chain(state)
    }

    /// Whether spans of the trace are kept.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same trace, with this span as the sender.
    #[must_use]
    pub fn sent_by(&self, span: SpanId) -> Self {
        Self { span, ..self.clone() }
    }

    /// Reads `version-trace-span-flags`. A later version than 00 may have more fields behind those.
    fn of_traceparent(text: &str) -> Result<Self, BadTraceparent> {
        let mut fields = text.split('-');
        let mut field = |length| hexadecimal(fields.next(), length);
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        if version == 0xff || (version == 0 && fields.next().is_some()) {
            return Err(BadTraceparent);
        }
        let span = u64::try_from(span).ok().and_then(NonZeroU64::new).ok_or(BadTraceparent)?;
        Ok(Self {
            trace: TraceId(NonZeroU128::new(trace).ok_or(BadTraceparent)?),
            span: SpanId(span),
            flags: u8::try_from(flags).map_err(|_| BadTraceparent)?,
            state: None,
        })
    }
}

/// A field of so many lower-case hexadecimal digits.
fn hexadecimal(field: Option<&str>, length: usize) -> Result<u128, BadTraceparent> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
    let field = field.filter(|field| field.len() == length && field.bytes().all(is_digit)).ok_or(BadTraceparent)?;
    u128::from_str_radix(field, 16).map_err(|_| BadTraceparent)
}

/// A state that a header can carry on.
fn clean(state: &str) -> Option<Box<str>> {
    let fits = state.len() <= LONGEST_STATE && state.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    let state = state.trim();
    (fits && !state.is_empty()).then(|| state.into())
}

impl fmt::Display for TraceContext {
    /// The `traceparent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, span, flags, .. } = self;
        write!(f, "00-{trace}-{span}-{flags:02x}")
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<TraceContext> for Written {
    fn from(context: TraceContext) -> Self {
        Self { traceparent: context.to_string(), tracestate: context.state }
    }
}

impl TryFrom<Written> for TraceContext {
    type Error = BadTraceparent;

    fn try_from(Written { traceparent, tracestate }: Written) -> Result<Self, BadTraceparent> {
        Ok(Self { state: tracestate, ..Self::of_traceparent(&traceparent)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn of(headers: &[(&str, &str)]) -> Option<TraceContext> {
        TraceContext::of_headers(headers.iter().copied())
    }

    #[test]
    fn a_context_is_passed_on_as_it_came() {
        let context = of(&[("Traceparent", PARENT), ("X", "y"), ("tracestate", "a=1"), ("Tracestate", "b=2")]);
        let context = context.expect("there is one");
        assert!(context.is_sampled());
        let headers: Vec<_> = context.headers().collect();
        let expected = [("traceparent", PARENT), ("tracestate", "a=1,b=2")];
        assert_eq!(headers, expected.map(|(name, value)| (name.into(), value.to_owned())));
        let json = serde_json::to_string(&context).expect("it is JSON");
        assert_eq!(json, format!(r#"{{"traceparent":"{PARENT}","tracestate":"a=1,b=2"}}"#));
        assert_eq!(serde_json::from_str::<TraceContext>(&json).expect("it is one"), context);
        let sent = context.sent_by(SpanId::new(0xab));
        assert_eq!(sent.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00000000000000ab-01");
    }

    #[test]
    fn what_is_no_context_is_none() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        ] {
            assert_eq!(of(&[("traceparent", bad)]), None, "{bad}");
        }
        assert_eq!(of(&[("traceparent", PARENT), ("Traceparent", PARENT)]), None, "nobody knows which");
        assert_eq!(of(&[("tracestate", "a=1")]), None);
    }

    #[test]
    fn a_later_version_is_read_as_the_one_that_is_known() {
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-what-comes";
        let context = of(&[("traceparent", later)]).expect("there is one");
        assert_eq!(context.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
        assert!(!context.is_sampled());
    }

    #[test]
    fn a_state_that_no_header_can_carry_is_dropped() {
        for state in ["a=\u{e4}", "a=1\u{7}", "  ", &"x".repeat(513)] {
            let context = of(&[("traceparent", PARENT), ("tracestate", state)]).expect("there is one");
            assert_eq!(context.state, None, "{state}");
        }
    }
}
