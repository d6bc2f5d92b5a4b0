//! Which settings were given, and how.

use clap::{ArgMatches, parser::ValueSource};

/// The settings of a command line and its environment; what of them has no effect is collected.
#[derive(Debug)]
pub struct Given<'a> {
    matches: &'a ArgMatches,
    warnings: Vec<String>,
}

impl<'a> Given<'a> {
    /// Those of the command that the command line names.
    pub(super) fn new(matches: &'a ArgMatches) -> Self {
        Self { matches, warnings: vec![] }
    }

    /// Whether somebody gave the setting: its value is no default.
    pub(super) fn is_given(&self, id: &str) -> bool {
        self.source(id).is_some_and(|source| source != ValueSource::DefaultValue)
    }

    /// Tells of a setting that has no effect without another one: on the command line it is a mistake, and in an environment,
    /// where whole sets of variables are kept, it is worth a warning.
    ///
    /// # Errors
    ///
    /// It is on the command line.
    pub(super) fn has_no_effect_without(&mut self, id: &str, missing: &str) -> Result<(), String> {
        let reason = format!("--{id} has no effect without --{missing}: give both or none");
        match self.source(id) {
            Some(ValueSource::CommandLine) => Err(reason),
            Some(ValueSource::EnvVariable) if self.is_on(id) => {
                self.warnings.push(reason);
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn warnings(self) -> Vec<String> {
        self.warnings
    }

    fn source(&self, id: &str) -> Option<ValueSource> {
        self.matches.value_source(id)
    }

    /// A flag can be given as `false`.
    fn is_on(&self, id: &str) -> bool {
        self.matches.try_get_one::<bool>(id).map_or(true, |flag| flag.copied().unwrap_or(true))
    }
}
