//! core
pub mod contract;
pub mod ids;
pub mod summary;
pub mod time;
