//! Origins of web pages.

use std::str::FromStr;

use axum::http::HeaderValue;
use thiserror::Error;

/// An origin whose pages may connect: `https://app.example`, or `*` for any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(String);

/// A text that is no origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("must be an origin such as https://app.example or http://localhost:3000, without a path, or * for any")]
pub struct BadOrigin;

impl FromStr for Origin {
    type Err = BadOrigin;

    fn from_str(text: &str) -> Result<Self, BadOrigin> {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let is_bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '?' | '#' | '@' | ',');
        if text == "*" || host.is_some_and(|host| !host.is_empty() && !host.contains(is_bad)) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(BadOrigin)
        }
    }
}

impl Origin {
    /// Whether a request's header names it. Browsers write scheme and host in lower case, and leave the default port out.
    pub(super) fn is(&self, header: &HeaderValue) -> bool {
        self.0 == "*" || header.as_bytes().eq_ignore_ascii_case(self.0.as_bytes())
    }
}
