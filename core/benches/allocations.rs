//! What the core allocates. Counting takes time: `core.rs` measures that without it. `cargo bench -p transcript-core`.

mod life;

use divan::{AllocProfiler, Bencher};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// The life of a job whose call has no segment. Divide by the number of jobs.
#[divan::bench(args = life::JOBS)]
fn job(bencher: Bencher<'_, '_>, count: u64) {
    life::jobs(bencher, count, 0);
}

/// The same with a call of twelve segments: the summary's words are in it.
#[divan::bench(args = life::JOBS)]
fn job_of_twelve_segments(bencher: Bencher<'_, '_>, count: u64) {
    life::jobs(bencher, count, 12);
}
