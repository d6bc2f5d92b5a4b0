//! Ports for servers that come back on the port they had.

use std::{
    net::{Ipv4Addr, TcpListener},
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// Ports outside the range from which systems take the local ports of outgoing connections (from 32768 on Linux, from 49152
/// elsewhere). A server that is down for a while must find its port free again, and a client that tries to reach it meanwhile
/// must not be given that very port and be connected with itself.
const FIRST: u16 = 10_000;
const PORTS: u16 = 22_000;
/// How far apart two test processes with neighbouring ids begin.
const STRIDE: u32 = 61;

/// A port that was free an instant ago. Whoever binds it may still find it taken, and then asks for another.
pub(crate) fn probably_free() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(process::id().wrapping_mul(STRIDE) % u32::from(PORTS)).expect("it is less than PORTS");
    loop {
        let port = FIRST + (start + TAKEN.fetch_add(1, Ordering::Relaxed) % PORTS) % PORTS;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
