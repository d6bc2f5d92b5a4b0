//! The harness: real servers, the real binary, and conditions to wait for.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use transcript_tests::{calls::Call, wait::wait_until, world::TestWorld};
//!
//! let world = TestWorld::start().await?; // a nats-server of its own, a database of its own
//! world.processor("setup").run(Duration::from_secs(10)).await?;
//! let processor = world.processor("run").start().await?;
//!
//! let call = Call::of("conversation", "session", 30)?;
//! world.insert_segments(&call.segments).await?;
//! world.publish_session_end(&call.session, 30).await?;
//! wait_until("the call is announced", Duration::from_secs(30), || async {
//!     match world.notifications().await {
//!         Ok(all) if all.len() == 1 => Ok(()),
//!         other => Err(format!("{other:?}")),
//!     }
//! })
//! .await?;
//! processor.terminate().await?;
//! # Ok(())
//! # }
//! ```
//!
//! - The servers' binaries come from `NATS_SERVER_BIN` and `MONGOD_BIN`, from `PATH`, or are fetched once, pinned, into the
//!   target directory ([`servers::Program`]).
//! - Every test starts its own nats-server: the processor's streams have fixed names, a server is there in the blink of
//!   an eye, and so any test may kill it. Accounts on a shared one would save nothing and forbid that. mongod takes seconds, so
//!   it is shared through databases.
//! - No process outlives its test, and no directory either, also where the test is killed ([`process_guard`]).
//! - Nothing sleeps for a while and hopes: conditions are awaited ([`wait::wait_until`]), and a time passes only where it is
//!   what is tested, such as the time for which a crashed processor stays down.

pub mod browser_call;
pub mod by_hand;
pub mod calls;
pub mod cargo;
pub mod certificates;
pub mod clients;
pub mod collector;
pub mod conformance;
pub mod crash;
pub mod http;
pub mod load;
pub mod numbered;
pub mod operator;
pub mod process_guard;
pub mod processor;
pub mod proxy;
pub mod raw_nats;
pub mod recording;
pub mod restarted_processor;
pub mod servers;
pub mod storm;
pub mod summary;
pub mod transcriber;
pub mod transcriber_by_hand;
pub mod transcriber_storm;
pub mod wait;
pub mod world;
