//! shell

pub mod cli;
pub mod connect;
pub mod logging;
pub mod play;
pub mod publishing;
pub mod secret;
pub mod setup;
pub mod show;
