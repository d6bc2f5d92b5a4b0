//! The settings of `call-page`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

/// The settings of `call-page`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct CallPageArgs {
    /// Loopback address and port to listen on; port 0 for a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8092")]
    pub listen: SocketAddr,
    /// Where the page finds the transcriber; that must allow the page's origin (--allow-origin)
    #[arg(long, value_name = "URL", default_value = "ws://127.0.0.1:8090", value_parser = transcriber)]
    pub transcriber: String,
    /// Directory with the traces of a running processor (--record), of which timelines are drawn
    #[arg(long, value_name = "DIR")]
    pub traces: Option<PathBuf>,
}

impl CallPageArgs {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.listen.ip().is_loopback() {
            Ok(())
        } else {
            Err(format!("--listen {}: must be a loopback address, because the page needs no login", self.listen))
        }
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
