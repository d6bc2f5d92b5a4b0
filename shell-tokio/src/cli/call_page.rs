//! The settings of `call-page`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;

use super::{
    given::Given,
    parse,
    servers::{Options, SERVERS},
};
use crate::secret::SecretFile;

/// The settings of `call-page`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct CallPageArgs {
    /// Loopback address and port to listen on; port 0 for a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8092")]
    pub listen: SocketAddr,
    /// Where the page finds the transcriber. The transcriber must allow the page's origin (--allow-origin) and need no token
    #[arg(long, value_name = "URL", default_value = "ws://127.0.0.1:8090", value_parser = transcriber)]
    pub transcriber: String,
    /// A running processor (its --http), of which the page tells what keeps it from working; not given: that is not told
    #[arg(long, value_name = "HOST:PORT")]
    pub processor: Option<String>,
    /// File with the token of that processor
    #[arg(long, value_name = "FILE", requires = "processor")]
    pub token_file: Option<SecretFile>,
    /// Directory with the traces of a running processor (--record), of which timelines are drawn
    #[arg(long, value_name = "DIR")]
    pub traces: Option<PathBuf>,
    /// How long MongoDB may refuse a login, 1s to 1d. Then it ends with exit code 1, so that its supervisor starts it with the
    /// credentials that hold then
    #[arg(
        long, env = "TRANSCRIPT_LOGIN_TIMEOUT", value_name = "DURATION", default_value = "2m", help_heading = SERVERS,
        value_parser = parse::duration("1s", "1d")
    )]
    pub login_timeout: Duration,
}

impl Options for CallPageArgs {
    fn check(&self, _given: &mut Given<'_>) -> Result<(), String> {
        if self.listen.ip().is_loopback() {
            Ok(())
        } else {
            Err(format!("--listen {}: must be a loopback address, because the page needs no login", self.listen))
        }
    }

    fn login_timeout(&self) -> Option<Duration> {
        Some(self.login_timeout)
    }
}

fn transcriber(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("ws://").or_else(|| text.strip_prefix("wss://"));
    if rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace)) {
        Ok(text.to_owned())
    } else {
        Err("must be the URL of a transcriber, such as ws://127.0.0.1:8090".to_owned())
    }
}
