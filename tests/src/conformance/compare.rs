//! Many scripts at once, each against both.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use futures::{StreamExt, stream};

use super::{Disagreement, Record, Script, model, real};
use crate::servers::NatsServer;

/// How many scripts run at once on one server.
const AT_ONCE: usize = 32;
/// How many servers of their own run at once.
const SERVERS_AT_ONCE: usize = 6;
/// How often a script is run where the machine stood still.
const TRIES: u32 = 20;
/// How often a disagreement must be seen.
const CONFIRMED: u32 = 3;

/// What became of a comparison.
#[derive(Debug)]
pub struct Compared {
    /// How many observations the server gave.
    pub observations: usize,
    /// The largest difference in time from the model, in milliseconds.
    pub gap_ms: u64,
    /// How many runs it took until the machine was steady.
    pub tries: u32,
    /// The nearest of the model's runs, where none agrees, and what the server did.
    pub disagreement: Option<(Disagreement, Record, Record)>,
}

/// Runs a script against both until the machine was steady, and compares.
///
/// # Panics
///
/// The server could not be had, or the machine never was steady.
pub async fn compare(script: &Script, host: Option<&NatsServer>) -> Compared {
    static STREAMS: AtomicU64 = AtomicU64::new(0);
    let mut disagreed = 0;
    for tries in 1..=TRIES {
        let stream = format!("S{:05}", STREAMS.fetch_add(1, Ordering::Relaxed));
        let seen = match host {
            Some(server) => real::run(script, &stream, real::Host::Shared(server)).await,
            None => {
                let mut own = NatsServer::start().await.expect("a server of its own");
                real::run(script, &stream, real::Host::Own(&mut own)).await
            }
        };
        match seen {
            Ok(seen) => {
                let compared = judge(script, &stream, seen, tries);
                disagreed += 1;
                if compared.disagreement.is_none() || disagreed == CONFIRMED {
                    return compared;
                }
            }
            Err(real::RunError::Stalled(_)) => {}
            Err(error) => panic!("{}: {error}", script.name),
        }
    }
    panic!("{}: the machine stood still in {TRIES} tries", script.name);
}

fn judge(script: &Script, stream: &str, seen: Record, tries: u32) -> Compared {
    let runs = model::runs(script, stream);
    let agreeing = runs.iter().filter(|run| seen.disagreement(run).is_none());
    let observations = seen.len();
    if let Some(gap_ms) = agreeing.map(|run| seen.largest_gap_ms(run)).min() {
        return Compared { observations, gap_ms, tries, disagreement: None };
    }
    let nearest = runs.into_iter().find_map(|run| Some((seen.disagreement(&run)?, run)));
    Compared { observations, gap_ms: 0, tries, disagreement: nearest.map(|(how, run)| (how, run, seen)) }
}

/// Compares all scripts at once and prints the table; says which disagree, and how.
///
/// # Panics
///
/// A script has a step that is too close to something that happens by itself.
#[expect(clippy::print_stdout, reason = "the table says what was compared")]
pub async fn compare_all(scripts: &[Script]) -> Vec<(String, String)> {
    let frail = scripts.iter().filter(|script| !model::is_robust(script)).map(|script| script.name.as_str());
    let frail: Vec<&str> = frail.collect();
    assert!(frail.is_empty(), "a step is too close to something that happens by itself: {frail:#?}");
    let shared = NatsServer::start().await.expect("a server");
    let (own, others): (Vec<&Script>, Vec<&Script>) = scripts.iter().partition(|script| script.restarts());
    let shared = &shared;
    let on_shared = stream::iter(others).map(|script| async move { (script, compare(script, Some(shared)).await) });
    let on_own = stream::iter(own).map(|script| async move { (script, compare(script, None).await) });
    let (mut all, owns) = futures::join!(
        on_shared.buffer_unordered(AT_ONCE).collect::<Vec<_>>(),
        on_own.buffer_unordered(SERVERS_AT_ONCE).collect::<Vec<_>>()
    );
    all.extend(owns);
    let by_name: BTreeMap<&str, Compared> =
        all.into_iter().map(|(script, seen)| (script.name.as_str(), seen)).collect();
    println!("{:<84} {:>5} {:>6} {:>5}", "script", "seen", "gap ms", "tries");
    let mut disagreeing = vec![];
    for (name, compared) in by_name {
        println!("{name:<84} {:>5} {:>6} {:>5}", compared.observations, compared.gap_ms, compared.tries);
        if let Some((how, expected, seen)) = compared.disagreement {
            let script = scripts.iter().find(|script| script.name == name);
            disagreeing
                .push((name.to_owned(), format!("{name}\n  {how}\n{script:?}\n model\n{expected} server\n{seen}")));
        }
    }
    disagreeing
}

/// Fails where a script disagrees.
///
/// # Panics
///
/// That is what it is for.
pub async fn assert_all(scripts: &[Script]) {
    let disagreeing: Vec<String> = compare_all(scripts).await.into_iter().map(|(_, how)| how).collect();
    assert!(
        disagreeing.is_empty(),
        "{} of {} disagree\n\n{}",
        disagreeing.len(),
        scripts.len(),
        disagreeing.join("\n")
    );
}
