//! Asking MongoDB.
