//! Publishes a call of three segments and its end, and prints where the stream stored each message.
//!
//! Needs a nats-server with the streams of `transcript-processor setup`: `NATS_URL` says where, or it is the local one.

use std::{env, error::Error, io::Write};

use transcript_publishing::{Publisher, SegmentMessage, Session, SessionEnded};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("NATS_URL").unwrap_or_else(|_| "nats://localhost:4222".to_owned());
    let publisher = Publisher::new(async_nats::jetstream::new(async_nats::connect(url).await?));
    let session = Session::new("room-7", "monday")?;

    let said = [("Ann", "Shall we begin?"), ("Ben", "One moment."), ("Ann", "Then at ten.")];
    let segments: Vec<_> = (0..)
        .zip(said)
        .map(|(index, (speaker, text))| SegmentMessage {
            speaker: Some(speaker.to_owned()),
            ..SegmentMessage::new(session.clone(), index, text)
        })
        .collect();

    let mut out = std::io::stdout().lock();
    for (segment, published) in segments.iter().zip(publisher.segments(&segments).await?) {
        let known = if published.duplicate { ", which the stream had before" } else { "" };
        writeln!(out, "segment {} is message {}{known}", segment.id(), published.sequence)?;
    }
    let ended = publisher.session_ended(&SessionEnded { session, published_segments: 3, reprocess: 0 }).await?;
    writeln!(out, "the end of the call is message {}", ended.sequence)?;
    Ok(())
}
