//! What clap is told about the command line, besides the options themselves, and what is told of a wrong one.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
};

use clap::{
    Arg, ArgMatches, Command, CommandFactory,
    builder::{Resettable, StyledStr},
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{Cli, LogFormat};

/// The name of the program, in every command's version too.
const NAME: &str = "transcript-processor";
const LOG_FORMAT: &str = "log-format";

/// The command line, as clap knows it.
///
/// An empty environment variable counts as unset: compose files and unit files set variables that somebody left out to
/// nothing. The usage lines hold what the command line must hold, and not what the environment provides.
#[must_use]
pub fn definition() -> Command {
    let mut plain = each_option(Cli::command(), &|option| option.env(Resettable::Reset));
    plain.build();
    let definition = each_option(Cli::command(), &|option| {
        let value = option.get_env().and_then(env::var_os);
        // The value may be a secret; the name is what matters.
        let option = option.hide_env_values(true);
        if value.is_some_and(|value| value.is_empty()) { option.env(Resettable::Reset) } else { option }
    });
    with_usage(definition, &mut plain)
}

fn each_option(command: Command, change: &impl Fn(Arg) -> Arg) -> Command {
    command.mut_args(change).mut_subcommands(|subcommand| each_option(subcommand, change))
}

/// The usage line of each command is that of `plain`.
fn with_usage(command: Command, plain: &mut Command) -> Command {
    let usage = plain.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    command.override_usage(StyledStr::from(usage)).display_name(NAME).mut_subcommands(|subcommand| {
        match plain.find_subcommand_mut(subcommand.get_name()) {
            Some(plain) => with_usage(subcommand, plain),
            None => subcommand,
        }
    })
}

/// What the last subcommand of the command line was given.
pub(super) fn leaf(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, matches)| leaf(matches))
}

/// Settings that cannot be used together, told with the usage of their command.
pub(super) fn wrong_settings(definition: &mut Command, matches: &ArgMatches, reason: &str) -> clap::Error {
    definition.build();
    error_of_leaf(definition, matches, reason)
}

fn error_of_leaf(command: &mut Command, matches: &ArgMatches, reason: &str) -> clap::Error {
    match matches.subcommand() {
        Some((name, matches)) if command.find_subcommand(name).is_some() => {
            let inner = command.find_subcommand_mut(name).expect("it was found");
            error_of_leaf(inner, matches, reason)
        }
        Some(_) | None => command.error(ErrorKind::ValueValidation, reason),
    }
}

/// The environment variables that begin like ours and are none of ours: what somebody misspelt has no effect.
///
/// Kubernetes gives each container variables about the services of its namespace, named after them: those are left out.
#[must_use]
pub fn unknown_variables(names: impl IntoIterator<Item = OsString>) -> Vec<String> {
    const OURS: &str = "TRANSCRIPT_";
    const OF_THE_TESTS: [&str; 2] = ["TRANSCRIPT_TESTS_", "TRANSCRIPT_PROCESSOR_BIN"];
    let mut known = vec![];
    collect_variables(&Cli::command(), &mut known);
    let is_of_a_service = |name: &str| {
        name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT") || name.ends_with("_PORT") || {
            name.contains("_PORT_") && ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| name.contains(protocol))
        }
    };
    let mut unknown: Vec<_> = names
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with(OURS) && !known.contains(name) && !is_of_a_service(name))
        .filter(|name| !OF_THE_TESTS.iter().any(|start| name.starts_with(start)))
        .collect();
    unknown.sort();
    unknown
}

fn collect_variables(command: &Command, names: &mut Vec<String>) {
    names.extend(command.get_arguments().filter_map(Arg::get_env).map(|name| name.to_string_lossy().into_owned()));
    command.get_subcommands().for_each(|subcommand| collect_variables(subcommand, names));
}

/// Why a command line is not carried out: it is wrong, or asks for help or the version.
#[derive(Debug)]
pub struct Refusal {
    error: clap::Error,
    format: LogFormat,
}

impl Refusal {
    pub(super) fn new(definition: &Command, args: &[OsString], mut error: clap::Error) -> Self {
        let early = args.get(1).map(|arg| arg.to_string_lossy()).filter(|arg| arg.starts_with("--"));
        if let (ErrorKind::UnknownArgument, Some(option)) = (error.kind(), early) {
            let name = option.trim_start_matches('-').split('=').next().unwrap_or_default();
            if let Some(command) = command_with(definition, name) {
                let tip = format!("give the options of a command behind it: {NAME} {command} --{name} …");
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
            }
        }
        if error.kind() != ErrorKind::DisplayHelp && error.get(ContextKind::Usage).is_none() {
            error.insert(ContextKind::Usage, ContextValue::StyledStr(usage(definition, args)));
        }
        Self { error, format: log_format(definition, args) }
    }

    /// What clap says.
    #[must_use]
    pub fn error(&self) -> &clap::Error {
        &self.error
    }

    /// How the command would have logged it.
    #[must_use]
    pub fn format(&self) -> LogFormat {
        self.format
    }

    /// The exit code: 0 where help or the version was asked for.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        self.error.exit_code()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Refusal {}

/// The usage of the command that the line begins with. clap gives none where a value is wrong.
fn usage(definition: &Command, args: &[OsString]) -> StyledStr {
    let mut definition = definition.clone();
    definition.build();
    let mut command = &definition;
    for name in args.iter().skip(1) {
        let Some(inner) = command.find_subcommand(name) else { break };
        command = inner;
    }
    command.clone().render_usage()
}

/// The first command that has the option.
fn command_with<'a>(definition: &'a Command, option: &str) -> Option<&'a str> {
    let has = |command: &&Command| command.get_arguments().any(|arg| arg.get_long() == Some(option));
    definition.get_subcommands().find(has).map(Command::get_name)
}

/// How a command logs, as far as its line can be read although it is wrong.
fn log_format(definition: &Command, args: &[OsString]) -> LogFormat {
    let command = args.get(1).and_then(|name| definition.find_subcommand(name));
    let logs = |command: &Command| command.get_arguments().any(|arg| arg.get_id() == LOG_FORMAT);
    if !command.is_some_and(|command| logs(command) || command.get_subcommands().any(logs)) {
        return LogFormat::Plain;
    }
    let option = format!("--{LOG_FORMAT}");
    let mut given = env::var_os("TRANSCRIPT_LOG_FORMAT");
    for (place, arg) in args.iter().enumerate() {
        let text = arg.to_string_lossy();
        if *text == *option {
            given = args.get(place + 1).cloned();
        } else if let Some(value) = text.strip_prefix(&option).and_then(|rest| rest.strip_prefix('=')) {
            given = Some(value.into());
        }
    }
    if given.as_deref() == Some(OsStr::new("json")) { LogFormat::Json } else { LogFormat::Plain }
}
