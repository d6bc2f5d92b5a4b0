//! A report for people: a table of at most [`WIDTH`] columns.

use std::fmt;

use super::{Consequence, Crash, MOST_POINTS, Report, Seconds};

/// The widest line, but for what cannot be broken.
const WIDTH: usize = 100;
/// The column of the points.
const POINT: usize = 44;
/// How many plans are shown in full; each crash that breaks a promise has its own.
const PLANS: usize = 1;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (conversation, session) = (&self.session.conversation_id, &self.session.session_id);
        let points = self.crashes.len();
        let title = format!("Session {session:?} of {conversation:?}, killed at {points} points of its trace");
        wrapped(f, &title, "")?;
        let parts = self.crashes.iter().any(|crash| crash.part > 1);
        writeln!(
            f,
            "{:>7} {:>10}  {:<POINT$} {:>4} {:>4} {:>4} {:>4} {:>4} {:>9}",
            if parts { "entry*" } else { "entry" },
            "at",
            "killed",
            "dlv",
            "sum",
            "ntf",
            "rev",
            "ltr",
            "recovery"
        )?;
        row(f, "", "", "never: the call as it was rebuilt", Some(&self.rebuilt))?;
        for crash in &self.crashes {
            let Crash { part, entry, at_us, killed, came, .. } = crash;
            let entry = if parts { format!("{part}:{entry}") } else { entry.to_string() };
            row(f, &entry, &Seconds(*at_us).to_string(), killed, came.as_ref())?;
        }
        self.legend(f, parts)?;
        self.verdict(f)
    }
}

impl Report {
    fn legend(&self, f: &mut fmt::Formatter<'_>, parts: bool) -> fmt::Result {
        let legend = "dlv deliveries, sum summaries, ntf notifications, rev revisions, ltr dead letters; recovery: from the \
                      kill until the last delivery was settled";
        wrapped(f, legend, "")?;
        if parts {
            writeln!(f, "* part of the trace, and entry of the part")?;
        }
        if self.left_out > 0 {
            let text = format!("{} more points were not tried: {MOST_POINTS} are the most", self.left_out);
            wrapped(f, &text, "")?;
        }
        self.otherwise.iter().try_for_each(|what| wrapped(f, &format!("Other than in the trace: {what}"), "  "))
    }

    fn verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reached = self.crashes.iter().filter(|crash| crash.came.is_some()).count();
        let missed = self.crashes.len() - reached;
        if missed > 0 {
            writeln!(
                f,
                "To {missed} of {} points the rebuilt call does not come: nothing is said of these.",
                self.crashes.len()
            )?;
        }
        if self.is_kept() {
            return write!(f, "Every promise is kept at each of {reached} points.");
        }
        let broken = self.broken().count();
        write!(f, "BROKEN at {broken} of {reached} points.")?;
        let first = self.rebuilt.violation.is_some().then_some(&self.plan);
        let plans = first.into_iter().chain(self.broken().filter_map(|crash| crash.plan.as_ref()));
        for plan in plans.take(PLANS) {
            writeln!(f, "\nA plan that shows it:")?;
            let text = plan.to_string();
            let options = textwrap::Options::new(WIDTH).subsequent_indent("      ");
            let lines: Vec<String> = text.lines().map(|line| textwrap::fill(line, &options)).collect();
            write!(f, "{}", lines.join("\n"))?;
        }
        Ok(())
    }
}

fn row(f: &mut fmt::Formatter<'_>, entry: &str, at: &str, killed: &str, came: Option<&Consequence>) -> fmt::Result {
    let lines = textwrap::wrap(killed, POINT);
    let (last, before) = lines.split_last().map_or(("".into(), &[][..]), |(last, before)| (last.clone(), before));
    for (number, line) in before.iter().enumerate() {
        let (entry, at) = if number == 0 { (entry, at) } else { ("", "") };
        writeln!(f, "{entry:>7} {at:>10}  {line}")?;
    }
    let (entry, at) = if before.is_empty() { (entry, at) } else { ("", "") };
    let Some(came) = came else {
        return writeln!(f, "{entry:>7} {at:>10}  {last:<POINT$}  the rebuilt call never comes here");
    };
    let Consequence { deliveries, summaries, notifications, revisions, dead_letters, recovery_us, violation } = came;
    let recovery = recovery_us.map_or("-".to_owned(), |us| Seconds(i64::try_from(us).unwrap_or(i64::MAX)).to_string());
    writeln!(
        f,
        "{entry:>7} {at:>10}  {last:<POINT$} {deliveries:>4} {summaries:>4} {notifications:>4} {revisions:>4} \
         {dead_letters:>4} {recovery:>9}"
    )?;
    match violation {
        Some(violation) => wrapped(f, &format!("BROKEN: {}: {}", violation.property, violation.what), "          "),
        None => Ok(()),
    }
}

fn wrapped(f: &mut fmt::Formatter<'_>, text: &str, indent: &str) -> fmt::Result {
    let deeper = format!("{indent}  ");
    let options = textwrap::Options::new(WIDTH).initial_indent(indent).subsequent_indent(&deeper);
    writeln!(f, "{}", textwrap::fill(text, options))
}
