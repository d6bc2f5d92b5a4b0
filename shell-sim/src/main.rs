//! `transcript-sim`: tries the processor in simulated worlds.

mod cli;

use std::process::ExitCode;

/// A world is some thousand small allocations and no waiting: this allocator runs one with a tenth fewer instructions
/// than the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::main()
}
