//! The stop points of the crash test, in virtual time.

use std::io;

use serde_json::{Value, json};
use transcript_core::EffectKind;
use transcript_sim::{
    Plan, Recording,
    plan::{Action, Call, EffectPattern, Fault, Moment, Options, Trigger},
};

use super::report;

const WINDOWS_MS: [(&str, u64); 2] = [("2 min", 120_000), ("24 h", 86_400_000)];
const OUTAGES_MS: [(&str, u64); 2] = [("0 s", 0), ("130 s", 130_000)];

/// Prints the table.
pub(super) fn print(as_json: bool) -> io::Result<()> {
    let mut rows = vec![];
    if !as_json {
        report::line("stop point    window  outage  summaries  notifications  recovery")?;
    }
    for (stop, when) in stops() {
        for (window, window_ms) in WINDOWS_MS {
            for (outage, outage_ms) in OUTAGES_MS {
                let row = play(stop, when, (window, window_ms), (outage, outage_ms));
                if !as_json {
                    let number = |name: &str| row.get(name).map(ToString::to_string).unwrap_or_default();
                    let (summaries, notifications) = (number("summaries"), number("notifications"));
                    let recovery = row.get("recoverySeconds").and_then(Value::as_f64);
                    let recovery = recovery.map_or("-".to_owned(), |seconds| format!("{seconds:.3} s"));
                    report::line(&format!(
                        "{stop:<13} {window:<7} {outage:<7} {summaries:<10} {notifications:<14} {recovery}"
                    ))?;
                }
                rows.push(row);
            }
        }
    }
    if as_json { report::json(&json!({ "command": "table", "rows": rows })) } else { Ok(()) }
}

/// In the order of the job. What is sent before a kill still arrives.
fn stops() -> [(&'static str, Option<Trigger>); 7] {
    let at = |kind, moment| Some(Trigger::Effect { processor: 0, kind, nth: 1, moment });
    [
        ("none", None),
        ("wait", Some(Trigger::AtMs(2_000))),
        ("before-store", at(EffectPattern::Of(EffectKind::Save), Moment::Before)),
        ("after-store", at(EffectPattern::Of(EffectKind::Publish), Moment::Before)),
        ("after-notify", at(EffectPattern::Of(EffectKind::Mark), Moment::Before)),
        ("after-mark", at(EffectPattern::Of(EffectKind::Acknowledge), Moment::Before)),
        ("after-ack", at(EffectPattern::Of(EffectKind::Acknowledge), Moment::After)),
    ]
}

fn play(stop: &str, when: Option<Trigger>, window: (&str, u64), outage: (&str, u64)) -> Value {
    let plan = Plan {
        seed: 0,
        processors: 1,
        options: Options { window_ms: window.1, ..Options::quick() },
        calls: vec![Call::short("c", "s", 1_000)],
        faults: when
            .map(|when| Fault { when, what: Action::Kill { processor: 0, outage_ms: outage.1 } })
            .into_iter()
            .collect(),
        chores: vec![],
        heals_at_ms: None,
        bug: None,
    };
    let outcome = plan.run(Recording::Off);
    let stats = outcome.stats;
    let recovery = stats.faults_us.first().copied().flatten().map(|killed| super::micros(stats.settled_us - killed));
    json!({
        "stop": stop,
        "window": window.0,
        "outage": outage.0,
        "summaries": stats.summaries,
        "notifications": stats.notifications,
        "recoverySeconds": recovery,
        "broken": outcome.violation.map(|violation| violation.property),
    })
}
