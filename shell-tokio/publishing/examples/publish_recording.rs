//! Publishes that a recording started, with data of the application's own.

use std::{
    env,
    error::Error,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, json};
use transcript_publishing::{Publisher, WallTime};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("NATS_URL").unwrap_or_else(|_| "nats://localhost:4222".to_owned());
    let publisher = Publisher::new(async_nats::jetstream::new(async_nats::connect(url).await?));

    #[expect(clippy::disallowed_methods, reason = "an application reads its own clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let at = WallTime::from_millis(i64::try_from(now.as_millis())?);
    let data = Map::from_iter([("conversationId".to_owned(), json!("room-7")), ("track".to_owned(), json!("audio"))]);
    publisher.recording("track.started", at, data).await?;
    Ok(())
}
