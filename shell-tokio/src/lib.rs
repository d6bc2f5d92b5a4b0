//! shell
mod batch;
pub mod broker;
pub mod clock;
pub mod driver;
pub mod store;
