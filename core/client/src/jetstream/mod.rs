//! Asking NATS JetStream.
