//! The eyes of a world: its ledger, its promises, its trace.

use std::{fmt::Write as _, rc::Rc};

use serde::Serialize;
use transcript_core::Time;

use crate::{
    ledger::Ledger,
    observation::{Clock, Observation},
    plan::Plan,
    property::{Properties, TheEnd},
};

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    /// The name of the property.
    pub property: String,
    /// How it was broken.
    pub what: String,
    /// When, in microseconds since the world's start.
    pub at_us: u64,
}

/// Whether a run keeps its trace. A trace costs more than the run, and a plan gives it again at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    /// Nothing is kept.
    Off,
    /// One line for each thing that happens.
    On,
}

pub(crate) struct Watch {
    pub(crate) ledger: Ledger,
    properties: Properties,
    pub(crate) violation: Option<Violation>,
    pub(crate) trace: Option<String>,
}

impl Watch {
    pub(crate) fn new(plan: Rc<Plan>, recording: Recording) -> Self {
        let trace = (recording == Recording::On).then(String::new);
        Self { ledger: Ledger::new(plan), properties: Properties::default(), violation: None, trace }
    }

    pub(crate) fn saw(&mut self, now: Time, seen: &Observation<'_>) {
        if self.violation.is_some() {
            return;
        }
        if let Some(trace) = &mut self.trace {
            writeln!(trace, "{} {seen}", Clock(now)).expect("a string takes any text");
        }
        self.ledger.enter(now, seen);
        if let Err((property, what)) = self.properties.saw(now, seen, &self.ledger) {
            self.fail(now, property, what);
        }
    }

    pub(crate) fn end(&mut self, now: Time, end: &TheEnd) {
        if self.violation.is_none()
            && let Err((property, what)) = self.properties.at_end(now, &self.ledger, end)
        {
            self.fail(now, property, what);
        }
        if let (Some(trace), Some(violation)) = (&mut self.trace, &self.violation) {
            let Violation { property, what, .. } = violation;
            writeln!(trace, "{} broken: {property}: {what}", Clock(now)).expect("a string takes any text");
        }
    }

    /// A run that does not come to rest breaks a promise as well.
    pub(crate) fn fail(&mut self, now: Time, property: &str, what: String) {
        self.violation.get_or_insert_with(|| Violation { property: property.to_owned(), what, at_us: now.as_micros() });
    }
}
