//! A transcriber as one is often written first: each socket inserts a segment, publishes it, and acknowledges it, one after the
//! other. It is what the load test compares with; it loses what the transcriber does not.

use std::{net::SocketAddr, sync::Arc};

use async_nats::{HeaderMap, header::NATS_MESSAGE_ID, jetstream};
use futures::{SinkExt, StreamExt};
use mongodb::{
    Collection, Database,
    bson::{Document, doc},
    options::{Acknowledgment, WriteConcern},
};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::{
    Message,
    handshake::server::{Callback, ErrorResponse, Request, Response},
};
use transcript_core::contract::{SEGMENT_SUBJECT, SEGMENTS_COLLECTION};

/// Starts it on a free port.
///
/// # Errors
///
/// There is none.
pub async fn start(database: Database, jetstream: jetstream::Context) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let journaled = WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build();
    let options = mongodb::options::CollectionOptions::builder().write_concern(journaled).build();
    let segments = Arc::new(database.collection_with_options::<Document>(SEGMENTS_COLLECTION, options));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&segments), jetstream.clone()));
        }
    });
    Ok(address)
}

struct Path<'a>(&'a mut String);

impl Callback for Path<'_> {
    fn on_request(self, request: &Request, response: Response) -> Result<Response, ErrorResponse> {
        request.uri().path().rsplit('/').next().unwrap_or_default().clone_into(self.0);
        Ok(response)
    }
}

async fn serve(stream: TcpStream, segments: Arc<Collection<Document>>, jetstream: jetstream::Context) -> Option<()> {
    let mut session = String::new();
    let mut socket = tokio_tungstenite::accept_hdr_async(stream, Path(&mut session)).await.ok()?;
    socket.send(Message::text(json!({ "type": "ready" }).to_string())).await.ok()?;
    let mut index = 0_i64;
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else { continue };
        let frame: Value = serde_json::from_str(&text).ok()?;
        let id = format!("{session}:{index}");
        let said = frame["text"].as_str().unwrap_or_default();
        let document =
            doc! { "_id": &id, "conversationId": "load", "sessionId": &session, "index": index, "text": said };
        segments.insert_one(document).await.ok()?;
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, id.as_str());
        let payload = json!({ "conversationId": "load", "sessionId": session, "index": index, "text": said });
        let published =
            jetstream.publish_with_headers(SEGMENT_SUBJECT, headers, payload.to_string().into()).await.ok()?;
        published.await.ok()?;
        let ack = json!({ "type": "ack", "id": frame["id"], "index": index });
        socket.send(Message::text(ack.to_string())).await.ok()?;
        index += 1;
    }
    Some(())
}
