//! What a command says at its end.

use std::{
    fs::{DirBuilder, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::{Value, json};
use transcript_sim::{
    Plan, Recording,
    explore::{Failure, Found, Hunted, shrink},
};
use transcript_timeline::{Selection, Timeline};
use transcript_trace::Reader;

use super::{Cli, progress::Stopwatch};

/// Lines of a trace that are printed; the whole is in a file.
const TAIL: usize = 40;

/// What is known at the end of a command.
pub(super) struct Report<'a> {
    pub(super) command: &'static str,
    pub(super) cli: &'a Cli,
    pub(super) watch: Stopwatch,
    pub(super) families: Vec<(&'static str, u64)>,
    pub(super) digest: Option<String>,
}

impl Report<'_> {
    /// Says what was found, and gives the exit code.
    pub(super) fn finish(&self, found: &Found) -> io::Result<ExitCode> {
        let (seconds, core_seconds) = (self.watch.seconds(), self.watch.core_seconds());
        let told = found.failure.as_ref().map(|failure| self.tell(failure)).transpose()?;
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let rate = |seconds: f64| found.worlds as f64 / seconds;
        if self.cli.json {
            json(&json!({
                "command": self.command,
                "worlds": found.worlds,
                "exhausted": found.exhausted,
                "missing": found.missing,
                "deadLetters": found.dead_letters,
                "virtualSeconds": super::micros(found.virtual_us),
                "families": self.families.iter().map(|(name, worlds)| json!({ "name": name, "worlds": worlds }))
                    .collect::<Vec<Value>>(),
                "digest": self.digest,
                "failure": told,
            }))?;
        } else {
            line(&format!(
                "{} worlds ({} calls exhausted by faults, {} of them heard of by nobody; {} dead letters), {:.0} s of theirs",
                found.worlds,
                found.exhausted,
                found.missing,
                found.dead_letters,
                super::micros(found.virtual_us),
            ))?;
        }
        timing(&format!(
            "{seconds:.3} s: {:.0} worlds a second, {:.0} a second and core",
            rate(seconds),
            rate(core_seconds)
        ));
        Ok(if told.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Shrinks a failure, keeps its plan and trace in files, and tells everything about it.
    fn tell(&self, failure: &Failure) -> io::Result<Value> {
        let seed = failure.plan.seed;
        let (plan, violation) = shrink(&failure.plan, &failure.violation);
        let kept = Kept::new(&self.cli.out, &format!("{}-{seed}", self.command), &plan)?;
        let feature = if plan.bug.is_some() { " --features planted-bugs" } else { "" };
        let repeat = format!("cargo run --release -p transcript-sim{feature} -- run --plan {}", kept.plan.display());
        if !self.cli.json {
            let mut out = io::stdout().lock();
            writeln!(out, "BROKEN: {} (seed {seed})", violation.property)?;
            writeln!(out, "  {}\ndrawn: {:?}", violation.what, failure.plan.options)?;
            writeln!(out, "the shrunk plan:\n{plan}")?;
            let lines: Vec<&str> = kept.told.lines().collect();
            writeln!(out, "the end of what happened (the whole: {}):", kept.text.display())?;
            for text in lines.iter().skip(lines.len().saturating_sub(TAIL)) {
                writeln!(out, "  {text}")?;
            }
            writeln!(out, "its trace: {}", kept.trace.display())?;
            writeln!(out, "look at it: {}", kept.timeline.display())?;
            writeln!(out, "repeat with: {repeat}")?;
        }
        Ok(json!({
            "seed": seed,
            "property": violation.property,
            "what": violation.what,
            "options": failure.plan.options,
            "plan": plan,
            "planFile": kept.plan,
            "textFile": kept.text,
            "traceFile": kept.trace,
            "timelineFile": kept.timeline,
            "repeat": repeat,
        }))
    }
}

/// The files that a plan leaves which breaks a promise, and what happened in it.
pub(super) struct Kept {
    /// The plan.
    pub(super) plan: PathBuf,
    /// What happened, a line for each thing.
    pub(super) text: PathBuf,
    /// What every core was told and said, in the format in which production records.
    pub(super) trace: PathBuf,
    /// The same as a picture.
    pub(super) timeline: PathBuf,
    told: String,
}

impl Kept {
    /// Runs the plan once more and keeps everything about it in a directory, in files that begin with `name`.
    pub(super) fn new(out: &Path, name: &str, plan: &Plan) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(out)?;
        let (outcome, trace) = plan.record(Recording::On);
        let file = |end: &str| out.join(format!("{name}.{end}"));
        let told = outcome.trace.unwrap_or_default();
        let timeline =
            Timeline::read(Reader::new(trace.as_slice()), &Selection::default()).map_err(io::Error::other)?;
        let kept = Self {
            plan: file("plan.json"),
            text: file("trace.txt"),
            trace: file("trace.jsonl"),
            timeline: file("plan.html"),
            told,
        };
        write_private(&kept.plan, serde_json::to_string_pretty(plan).map_err(io::Error::other)?)?;
        write_private(&kept.text, &kept.told)?;
        write_private(&kept.trace, trace)?;
        write_private(&kept.timeline, timeline.html())?;
        Ok(kept)
    }
}

/// Writes a file for its owner only: a plan can come from the trace of real calls.
pub(super) fn write_private(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(content.as_ref())
}

/// One planted bug: in how many seeds, by which promise, with which plan.
pub(super) fn hunted(hunted: &Hunted, kept: Option<&Kept>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let seeds: Vec<String> = hunted.seeds.iter().map(ToString::to_string).collect();
    match &hunted.shrunk {
        None => writeln!(out, "{}: NOT FOUND", hunted.bug),
        Some(Failure { plan, violation }) => {
            let (bug, median, events) = (hunted.bug, hunted.median(), plan.events());
            writeln!(out, "{bug}: median {median} seed(s) ({}), {events} event(s)", seeds.join(" "))?;
            writeln!(out, "  {}: {}", violation.property, violation.what)?;
            for text in plan.to_string().lines() {
                writeln!(out, "  {text}")?;
            }
            match kept {
                Some(kept) => writeln!(out, "  {}, {}", kept.plan.display(), kept.timeline.display()),
                None => Ok(()),
            }
        }
    }
}

pub(super) fn line(text: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

pub(super) fn json(value: &Value) -> io::Result<()> {
    line(&value.to_string())
}

/// How long something took on this machine: to stderr, so that the same seed prints the same bytes on stdout.
pub(super) fn timing(text: &str) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}

pub(super) fn complain(error: &io::Error) {
    drop(writeln!(io::stderr().lock(), "transcript-sim: {error}"));
}

pub(super) fn warn(warning: &str) {
    drop(writeln!(io::stderr().lock(), "transcript-sim: warning: {warning}"));
}
