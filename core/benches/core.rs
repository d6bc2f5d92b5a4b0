//! What the core costs in time: a job's life, and the summary a word. `cargo bench -p transcript-core`.

mod life;

use divan::{Bencher, counter::ItemsCount};
use transcript_core::{
    WallTime,
    ids::Session,
    summary::{Limits, Segment, Summarizer},
};

fn main() {
    divan::main();
}

/// The life of a job whose call has no segment, among so many others. Divide by their number.
#[divan::bench(args = life::JOBS)]
fn job(bencher: Bencher<'_, '_>, count: u64) {
    life::jobs(bencher, count, 0);
}

/// The same with a call of twelve segments: the summary's words are in it.
#[divan::bench(args = life::JOBS)]
fn job_of_twelve_segments(bencher: Bencher<'_, '_>, count: u64) {
    life::jobs(bencher, count, 12);
}

/// The summary, by words.
#[divan::bench(args = ["English", "Greek", "Japanese"])]
fn summary(bencher: Bencher<'_, '_>, language: &str) {
    let text = match language {
        "English" => {
            "so the plan for the quarter is to ship the summary page first, and then look at the search box again"
        }
        "Greek" => "το σχέδιο για το τρίμηνο είναι να στείλουμε πρώτα τη σελίδα και μετά να δούμε την αναζήτηση",
        _ => "四半期の計画はまず要約のページを出して、それから検索をもう一度見ることです",
    };
    let segments: Vec<Segment> = (0..2000).map(|index| life::segment(index, text)).collect();
    let session = Session::new("c", "s").expect("ids are valid");
    let summarise = || {
        let mut summarizer = Summarizer::new(Limits::default());
        segments.iter().for_each(|segment| summarizer.push(segment));
        summarizer.finish(&session, 2000, WallTime::from_millis(0))
    };
    bencher.counter(ItemsCount::new(summarise().words)).bench(summarise);
}
