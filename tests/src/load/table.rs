//! What came of all load tests: a table, the figures that matter, and JSON.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};

use super::{
    Machine, Outcome,
    giant::{GiantOutcome, median},
};

/// The names of the load tests; those of peers are their own.
pub mod name {
    /// The product, quiet period 0.
    pub const QUIET_0: &str = "quiet-0";
    /// The same commands without the product.
    pub const CEILING: &str = "ceiling";
    /// The burst of an hour's end.
    pub const BURST: &str = "burst-10000";
    /// A smaller one.
    pub const SMALL_BURST: &str = "burst-1000";
    /// Two instances.
    pub const TWO: &str = "two-instances";
    /// Four instances.
    pub const FOUR: &str = "four-instances";
    /// Many calls that settle.
    pub const WAITING: &str = "waiting-50000";
    /// A giant call among small ones, quiet period 0.
    pub const GIANT: &str = "giant";
    /// The same with a quiet period.
    pub const SETTLING_GIANT: &str = "giant-settling";

    /// All, in the order of the table.
    pub const ALL: [&str; 9] = [QUIET_0, CEILING, TWO, FOUR, BURST, SMALL_BURST, WAITING, GIANT, SETTLING_GIANT];
}

/// Everything, with what it was measured on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// The day, as `2026-01-31`.
    pub date: String,
    /// The machine.
    pub machine: Machine,
    /// The version of nats-server.
    pub nats_server: String,
    /// The version of mongod.
    pub mongod: String,
    /// The processor's settings that the environment gave it, as `NAME=value`.
    pub settings: Vec<String>,
    /// The load tests, each as often as it was run.
    pub load_tests: Vec<Outcome>,
    /// The load tests with a giant call.
    pub giants: Vec<GiantOutcome>,
}

/// A figure that the product should reach on a machine that does nothing else.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// What is measured, with its unit.
    pub what: String,
    /// What it is.
    pub value: f64,
    /// What it should be.
    pub goal: Goal,
}

/// What a figure should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Goal {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Figure {
    /// Whether it is what it should be.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        match self.goal {
            Goal::AtLeast(least) => self.value >= least,
            Goal::AtMost(most) => self.value <= most,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::AtMost(most) => write!(f, "at most {most}"),
        }
    }
}

impl Table {
    /// Everything that the product did and may not do; nothing where all is well. A figure that is not reached is no problem
    /// of this kind: the machine may be busy.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let load_tests = self.load_tests.iter().flat_map(Outcome::problems);
        load_tests.chain(self.giants.iter().flat_map(GiantOutcome::problems)).collect()
    }

    /// The figures of what was run, each of the median run.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = vec![];
        let mut figure = |what: String, value: f64, goal: Goal| figures.push(Figure { what, value, goal });
        if let Some(own) = self.median_run(name::QUIET_0) {
            for peer in self.peers() {
                let what = format!("sessions a second at quiet period 0, as a multiple of {}", peer.name);
                figure(what, own.per_second / peer.per_second, Goal::AtLeast(6.0));
            }
            if let Some(ceiling) = self.median_run(name::CEILING) {
                let what = "sessions a second at quiet period 0, as a part of the ceiling".to_owned();
                figure(what, own.per_second / ceiling.per_second, Goal::AtLeast(0.7));
            }
            let what = "commands to MongoDB a session at quiet period 0".to_owned();
            figure(what, own.commands_per_session(), Goal::AtMost(0.2));
        }
        for (load_test, seconds) in [(name::BURST, 5.0), (name::SMALL_BURST, 1.0)] {
            if let Some(burst) = self.median_run(load_test) {
                let what = format!("{load_test}: seconds from the last end, less settling, to the last notification");
                figure(what, burst.beyond_settling_seconds, Goal::AtMost(seconds));
            }
        }
        if let Some(burst) = self.median_run(name::BURST) {
            figure(format!("{}: MiB at the peak", name::BURST), burst.peak_mib, Goal::AtMost(150.0));
        }
        for giant in &self.giants {
            let what = format!("{}: the small calls' median, as a multiple of that without the giant one", giant.name);
            figure(what, giant.ratio(), Goal::AtMost(1.2));
        }
        figures
    }

    /// The table as Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut page = String::new();
        self.write(&mut page).expect("a string takes everything");
        page
    }

    fn write(&self, page: &mut String) -> fmt::Result {
        let Machine { cores, cpu, memory_mib, system } = &self.machine;
        writeln!(
            page,
            "Measured on {} with nats-server {} and mongod {}, both on the same machine as the workers: {cores} cores \
             ({cpu}), {:.0} GiB of memory, {system}. Twelve segments a session.\n",
            self.date,
            self.nats_server,
            self.mongod,
            *memory_mib as f64 / 1024.0,
        )?;
        if !self.settings.is_empty() {
            writeln!(page, "The processor was given {}.\n", self.settings.join(", "))?;
        }
        if !self.load_tests.is_empty() {
            self.write_races(page)?;
        }
        self.write_waiting(page)?;
        self.write_giants(page)?;
        let figures = self.figures();
        if !figures.is_empty() {
            writeln!(page, "\n| figure | is | should be | |\n|---|---|---|---|")?;
        }
        for figure in figures {
            let reached = if figure.is_reached() { "reached" } else { "**not reached**" };
            writeln!(page, "| {} | {:.2} | {} | {reached} |", figure.what, figure.value, figure.goal)?;
        }
        Ok(())
    }

    fn write_races(&self, page: &mut String) -> fmt::Result {
        page.push_str(
            "| load test | instances | sessions | quiet period | sessions/s | last notification, less settling | latency: median, \
             99 %, most | redelivered | commands a session | CPU s: worker, mongod, nats-server | CPU ms a session, all | MiB at the peak |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for (name, runs) in self.by_name() {
            let Some(run) = self.median_run(name) else { continue };
            let rates: Vec<f64> = runs.iter().map(|run| run.per_second).collect();
            let [least, most] = [f64::min, f64::max].map(|of| rates.iter().copied().reduce(of).unwrap_or(0.0));
            let range = if runs.len() > 1 { format!(" ({least:.0} to {most:.0})") } else { String::new() };
            let [median, high, longest] = run.latency_seconds;
            let [worker, mongod, nats] = run.cpu_seconds;
            writeln!(
                page,
                "| {name} | {} | {} | {} s | {:.0}{range} | {:.2} s | {median:.2}, {high:.2}, {longest:.2} s | {} | {:.3} | \
                 {worker:.1}, {mongod:.1}, {nats:.1} | {:.2} | {:.0} |",
                run.instances,
                run.sessions,
                run.quiet_seconds,
                run.per_second,
                run.beyond_settling_seconds,
                run.redelivered,
                run.commands_per_session(),
                run.cpu_per_session().as_secs_f64() * 1000.0,
                run.peak_mib,
            )?;
        }
        let commands = self.by_name().into_iter().filter_map(|(name, _)| self.median_run(name));
        page.push_str("\nCommands to MongoDB for a session: ");
        for (place, run) in commands.enumerate() {
            let each: Vec<String> = run.commands.iter().map(|(name, count)| format!("{name} {count:.4}")).collect();
            let comma = if place == 0 { "" } else { "; " };
            write!(page, "{comma}{}: {}", run.name, each.join(", "))?;
        }
        page.push_str(".\n");
        Ok(())
    }

    fn write_waiting(&self, page: &mut String) -> fmt::Result {
        for run in &self.load_tests {
            let Some(waiting) = run.waiting else { continue };
            let bytes = (waiting.resident_mib - run.idle_mib) * f64::from(1 << 20) / run.sessions as f64;
            writeln!(
                page,
                "\n{}: after {:.0} s with {} calls in hand {} were redelivered, and the processor held {:.0} MiB, {:.0} of them \
                 before the first call: {bytes:.0} bytes a waiting call.",
                run.name,
                waiting.seconds,
                waiting.unacknowledged,
                waiting.redelivered,
                waiting.resident_mib,
                run.idle_mib,
            )?;
        }
        Ok(())
    }

    fn write_giants(&self, page: &mut String) -> fmt::Result {
        for giant in &self.giants {
            writeln!(
                page,
                "\n{}: among {} small calls, quiet period {} s, a call of {} segments makes the small ones' median {:.0} ms \
                 instead of {:.0} ms ({:+.0} %), and is announced itself after {:.0} ms; medians of {} rounds each.",
                giant.name,
                giant.sessions,
                giant.quiet_seconds,
                giant.segments,
                median(&giant.with) * 1000.0,
                median(&giant.without) * 1000.0,
                (giant.ratio() - 1.0) * 100.0,
                median(&giant.giant) * 1000.0,
                giant.with.len(),
            )?;
        }
        Ok(())
    }

    /// The table as JSON, with every single run and the figures.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let mut json = serde_json::to_value(self).expect("a table is made of texts and numbers");
        let figures = self.figures().into_iter().map(|figure| {
            let reached = figure.is_reached();
            serde_json::json!({ "what": figure.what, "value": figure.value, "goal": figure.goal, "reached": reached })
        });
        json["figures"] = figures.collect();
        json
    }

    fn by_name(&self) -> Vec<(&str, Vec<&Outcome>)> {
        let mut names: Vec<(&str, Vec<&Outcome>)> = vec![];
        for load_test in &self.load_tests {
            match names.iter_mut().find(|(name, _)| *name == load_test.name) {
                Some((_, runs)) => runs.push(load_test),
                None => names.push((&load_test.name, vec![load_test])),
            }
        }
        names
    }

    /// The run of that name with the median rate; of an even number the slower one.
    fn median_run(&self, name: &str) -> Option<&Outcome> {
        let mut runs: Vec<&Outcome> = self.load_tests.iter().filter(|load_test| load_test.name == name).collect();
        runs.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        runs.get(runs.len().saturating_sub(1) / 2).copied()
    }

    /// The median run of everybody who is not of this workspace.
    fn peers(&self) -> Vec<&Outcome> {
        let others = self.by_name().into_iter().filter_map(|(name, _)| self.median_run(name));
        others.filter(|run| !run.product && run.name != name::CEILING).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn outcome(name: &str, per_second: f64) -> Outcome {
        Outcome {
            name: name.to_owned(),
            product: name == name::QUIET_0,
            instances: 1,
            sessions: 100,
            quiet_seconds: 0.0,
            seconds: 100.0 / per_second,
            per_second,
            beyond_settling_seconds: 0.5,
            latency_seconds: [0.1, 0.2, 0.3],
            redelivered: 0,
            announced: 100,
            notifications: 100,
            summaries: 100,
            incomplete: 0,
            commands: BTreeMap::from([("find".to_owned(), 0.1), ("update".to_owned(), 0.05)]),
            cpu_seconds: [1.0, 2.0, 3.0],
            peak_mib: 50.0,
            idle_mib: 20.0,
            waiting: None,
        }
    }

    fn table(load_tests: Vec<Outcome>) -> Table {
        let machine = Machine { cores: 2, cpu: "a CPU".into(), memory_mib: 4096, system: "linux 6".into() };
        let (date, nats_server, mongod) = ("2026-01-31".into(), "2".into(), "8".into());
        Table { date, machine, nats_server, mongod, settings: vec![], load_tests, giants: vec![] }
    }

    #[test]
    fn figures_are_of_the_median_runs() {
        let load_tests =
            [("quiet-0", 600.0), ("ceiling", 1000.0), ("loop", 200.0), ("quiet-0", 900.0), ("quiet-0", 700.0)];
        let table = table(load_tests.map(|(name, rate)| outcome(name, rate)).into());
        let figures: Vec<_> = table.figures().iter().map(|figure| (figure.value, figure.is_reached())).collect();
        let expected = [(3.5, false), (0.7, true), (0.15, true)];
        for ((value, reached), (wanted, should)) in figures.iter().zip(expected) {
            assert!((value - wanted).abs() < 1e-9 && *reached == should, "{figures:?}");
        }
        assert_eq!(figures.len(), expected.len());
        let line = "| quiet-0 | 1 | 100 | 0 s | 700 (600 to 900) | 0.50 s | 0.10, 0.20, 0.30 s | 0 | 0.150 | 1.0, 2.0, 3.0 | 60.00 | 50 |";
        assert!(table.markdown().lines().any(|other| other == line), "{}", table.markdown());
        assert_eq!(table.json()["figures"][1]["reached"], true);
    }

    #[test]
    fn what_may_not_happen_is_a_problem_of_the_product_only() {
        let wrong = |name| Outcome { redelivered: 3, announced: 99, ..outcome(name, 1.0) };
        assert_eq!(table(vec![wrong("loop")]).problems(), Vec::<String>::new());
        let problems = table(vec![wrong("quiet-0")]).problems();
        let expected = [
            "quiet-0: 3 redeliveries of 100 sessions",
            "quiet-0: 99 sessions announced of 100 sessions",
            "quiet-0: 100 notifications of 100 sessions",
        ];
        assert_eq!(problems, expected);
    }
}
