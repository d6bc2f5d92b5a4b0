//! Publishes the end of a call and tries again until the stream has it.
//!
//! A publish that was not acknowledged may have been stored all the same. Publishing the end again is safe, because the
//! processor does the work of a call once. The caller keeps the end where it survives a crash until this returns.

use std::{env, error::Error, time::Duration};

use transcript_publishing::{PublishError, Published, Publisher, Session, SessionEnded};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("NATS_URL").unwrap_or_else(|_| "nats://localhost:4222".to_owned());
    let publisher = Publisher::new(async_nats::jetstream::new(async_nats::connect(url).await?));
    let session = Session::new("room-7", "monday")?;
    publish_until_stored(&publisher, &SessionEnded { session, published_segments: 3, reprocess: 0 }).await?;
    Ok(())
}

/// Fails only where trying again cannot help.
async fn publish_until_stored(publisher: &Publisher, ended: &SessionEnded) -> Result<Published, PublishError> {
    let mut pause = FIRST_PAUSE;
    loop {
        match publisher.session_ended(ended).await {
            Ok(published) => return Ok(published),
            // The stream may not be there yet, and a server may be away.
            Err(PublishError::NoStream(_) | PublishError::NotAcknowledged(_)) => {}
            Err(error @ (PublishError::Id(_) | PublishError::Event(_) | PublishError::Json(_))) => return Err(error),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
