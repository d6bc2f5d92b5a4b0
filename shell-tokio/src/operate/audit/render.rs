//! An audit laid out for a terminal.

use std::fmt::Write;

use super::{Asking, Audit, Incomplete, Names};

/// How many of each kind are named; the rest is counted.
const NAMED: usize = 20;

/// The counts, the names of what is not as it should be, and what to do about it.
#[must_use]
pub fn render(audit: &Audit, incomplete: Incomplete) -> String {
    let mut page = String::new();
    let counts = [("ended", audit.ended), ("summarised", audit.summarised), ("announced", audit.announced)];
    for (name, count) in counts {
        counted(&mut page, name, count);
    }
    counted(&mut page, "incomplete", audit.incomplete.total);
    match incomplete {
        Incomplete::Some => listed(&mut page, &audit.incomplete),
        Incomplete::All => listed_within(&mut page, &audit.incomplete, usize::MAX),
    }
    let counts = [("under way", audit.under_way), ("discarded", audit.discarded), ("terminated", audit.terminated)];
    for (name, count) in counts {
        counted(&mut page, name, count);
    }
    for (name, names) in audit.problems() {
        counted(&mut page, name, names.total);
        listed(&mut page, names);
    }
    if audit.unreadable_headers.total > 0 {
        counted(&mut page, "bad headers", audit.unreadable_headers.total);
        listed(&mut page, &audit.unreadable_headers);
    }
    for note in notes(audit) {
        line(&mut page, &note);
    }
    if let Some(repair) = &audit.repair {
        counted(&mut page, "redriven", repair.redriven);
        counted(&mut page, "redriven before", repair.redriven_before);
        counted(&mut page, "marks corrected", repair.marks_corrected);
        counted(&mut page, "ended now", repair.ended);
        counted(&mut page, "kept", repair.kept);
        counted(&mut page, "not repaired", repair.failed.total);
        listed(&mut page, &repair.failed);
    }
    for advice in advice(audit) {
        line(&mut page, advice);
    }
    page
}

fn notes(audit: &Audit) -> impl Iterator<Item = String> {
    let unreadable =
        (audit.unreadable > 0).then(|| format!("{} notifications and dead letters name no call", audit.unreadable));
    let terminated = (audit.terminated > 0).then(|| {
        format!("{} ends can never be processed: their publisher sends what is no end of a call", audit.terminated)
    });
    let headers = (audit.unreadable_headers.total > 0).then(|| {
        "no client can take messages with bad headers from a consumer: find and mend who publishes them".to_owned()
    });
    let revised = (audit.revised_unannounced > 0).then(|| {
        format!(
            "{} summaries were replaced and nobody was told: `run --revise` announces them",
            audit.revised_unannounced
        )
    });
    let elsewhere = (audit.summarised == 0 && audit.announced > 0)
        .then(|| "calls were announced, and none is summarised here: is --mongodb-database right?".to_owned());
    let asking = match audit.asking {
        Asking::NoConsumer if audit.under_way > 0 => Some("there is no consumer"),
        Asking::Nobody if audit.under_way > 0 => Some("no processor was asking for messages"),
        Asking::NoConsumer | Asking::Nobody | Asking::Somebody => None,
    };
    let asking = asking.map(|what| format!("{what}: what is under way waits for `transcript-processor run`"));
    let to_be_ended = (audit.to_be_ended > 0)
        .then(|| format!("{} sessions of dead transcribers are about to be ended by one that runs", audit.to_be_ended));
    [unreadable, headers, terminated, revised, elsewhere, asking, to_be_ended].into_iter().flatten()
}

fn advice(audit: &Audit) -> Vec<&'static str> {
    let mut advice = vec![];
    let repairable =
        [&audit.without_end, &audit.missing, &audit.never_announced, &audit.stale, &audit.wrong_mark, &audit.not_kept];
    let repairable = repairable.iter().any(|names| names.total > 0);
    match &audit.repair {
        Some(repair) if repair.redriven + repair.redriven_before + repair.ended > 0 => {
            advice.push("audit again when a processor has done what was redriven or ended");
        }
        Some(repair) if repair.marks_corrected + repair.kept > 0 => advice.push("audit again to see what is left"),
        None if repairable => {
            advice
                .push("`audit --repair` has missing, never announced, stale and wrongly marked calls processed again,");
            advice.push("ends sessions that have no end, and keeps ends that can never be processed as dead letters");
        }
        Some(_) | None => {}
    }
    if audit.dead_letters.total > 0 || audit.repair.as_ref().is_some_and(|repair| repair.kept > 0) {
        advice
            .push("`dead-letters list` says why calls were given up, `dead-letters redrive` has them processed again");
    }
    if audit.announced_again.total > 0 {
        advice.push("what was announced again cannot be taken back; `audit --since` leaves out what is older");
    }
    advice.push(match audit.under_way {
        _ if !audit.one_to_one => "not one to one",
        0 if audit.to_be_ended == 0 => "one to one",
        _ => "one to one, but for what is under way",
    });
    advice
}

fn counted(page: &mut String, name: &str, count: u64) {
    line(page, &format!("{name:<16}{count:>12}"));
}

fn listed(page: &mut String, names: &Names) {
    listed_within(page, names, NAMED);
}

fn listed_within(page: &mut String, names: &Names, most: usize) {
    for name in names.named.iter().take(most) {
        line(page, &format!("    {name}"));
    }
    let shown = u64::try_from(names.named.len().min(most)).unwrap_or(0);
    if names.total > shown {
        line(page, &format!("    and {} more", names.total - shown));
    }
}

fn line(page: &mut String, text: &str) {
    writeln!(page, "{text}").expect("a String takes everything");
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Name, Remedy},
        *,
    };

    fn empty(remedy: Remedy) -> Audit {
        Audit { one_to_one: true, passes: 1, ..Audit::new(0, Asking::Somebody, remedy) }
    }

    #[test]
    fn nothing_is_one_to_one() {
        let page = render(&empty(Remedy::Tell), Incomplete::Some);
        assert!(page.starts_with("ended                      0\nsummarised                 0\n"), "{page}");
        assert!(page.ends_with("not kept                   0\none to one\n"), "{page}");
    }

    #[test]
    fn twenty_are_named_and_the_rest_is_counted() {
        let mut audit = Audit { one_to_one: false, ..empty(Remedy::Tell) };
        for number in 0..25 {
            audit.missing.add(Name { key: Some(format!("c:{number}")), end: Some(number), ..Name::default() });
        }
        let page = render(&audit, Incomplete::Some);
        assert!(page.contains("missing                   25\n    c:0, ended at 0\n"), "{page}");
        assert!(page.contains("    c:19, ended at 19\n    and 5 more\nnever announced"), "{page}");
        assert!(page.ends_with("keeps ends that can never be processed as dead letters\nnot one to one\n"));
    }

    #[test]
    fn what_is_no_problem_is_said_all_the_same() {
        let audit = Audit { terminated: 2, revised_unannounced: 3, announced: 4, ..empty(Remedy::Tell) };
        let page = render(&audit, Incomplete::Some);
        assert!(
            page.contains("2 ends can never be processed: their publisher sends what is no end of a call\n"),
            "{page}"
        );
        assert!(
            page.contains("3 summaries were replaced and nobody was told: `run --revise` announces them\n"),
            "{page}"
        );
        assert!(page.contains("none is summarised here: is --mongodb-database right?\none to one\n"), "{page}");
    }

    #[test]
    fn what_waits_for_nobody_is_said() {
        let audit = Audit { under_way: 2, asking: Asking::Nobody, ..empty(Remedy::Tell) };
        let page = render(&audit, Incomplete::Some);
        assert!(page.contains("no processor was asking for messages: what is under way waits for"), "{page}");
        assert!(page.ends_with("one to one, but for what is under way\n"), "{page}");
        assert!(!render(&Audit { under_way: 0, ..audit }, Incomplete::Some).contains("asking"));
    }

    #[test]
    fn a_repair_calls_for_another_audit() {
        let mut audit = Audit { one_to_one: false, ..empty(Remedy::Repair) };
        audit.announced_again.add(Name { key: Some("c:s".into()), notifications: Some(2), ..Name::default() });
        if let Some(repair) = &mut audit.repair {
            repair.redriven = 3;
        }
        let page = render(&audit, Incomplete::Some);
        assert!(page.contains("redriven                   3\n"), "{page}");
        assert!(page.contains("audit again when a processor has done what was redriven or ended\n"), "{page}");
        assert!(page.contains("what was announced again cannot be taken back; `audit --since` leaves out"), "{page}");
        assert!(page.ends_with("not one to one\n"), "{page}");
    }
}
