//! The command line: every command, and its settings with their environment variables, defaults and bounds.
//!
//! Each command has a file of its own. A command has the options that it uses and no others: [`Online`] and [`Stored`] add
//! those of the servers.

mod audit;
mod call_page;
mod calls;
mod convert;
mod dead_letters;
mod definition;
mod given;
mod log;
mod monitor;
mod parse;
mod play;
mod recording;
mod reference;
mod run;
mod servers;
mod setup;
mod show;
mod source;
mod stream;
mod traces;
mod transcriber;

use std::ffi::OsString;

use clap::{ArgMatches, FromArgMatches, Parser, Subcommand};

use self::servers::AnyCommand;
pub use self::{
    audit::{AuditArgs, Since},
    call_page::CallPageArgs,
    calls::CallsArgs,
    convert::ConvertArgs,
    dead_letters::{
        DeadLettersArgs, DeadLettersCommand, DiscardArgs, ListArgs, RedriveArgs, ShowDeadLetterArgs, Which,
    },
    definition::{Refusal, definition, unknown_variables},
    given::Given,
    log::{LogArgs, LogFormat},
    monitor::{HttpArgs, PauseArgs, QuietArgs, ResumeArgs, StatusArgs, TranscriberHttpArgs},
    play::PlayArgs,
    recording::{RecordingAction, RecordingArgs, WatchArgs},
    reference::{CompletionsArgs, ManArgs},
    run::{AnnounceSettings, RecordArgs, RunArgs, RunSettings},
    servers::{ConnectArgs, MongodbArgs, NatsArgs, OnNats, Online, Options, Stored},
    setup::SetupArgs,
    show::{CallArgs, ReprocessArgs, ShowArgs},
    source::{CuesArg, LabelsArg, SourceArgs},
    stream::{StreamSettings, StreamValues},
    traces::{Drawing, ReplayArgs, TimelineArgs, TraceArgs, TracePaths, TracedCallArgs},
    transcriber::{TranscriberAccess, TranscriberArgs, TranscriberEnds, TranscriberLimits},
};

/// Turns the transcript of every ended call into one summary and one notification.
///
/// Every setting of a command can be given as an environment variable; the command line wins, and an empty variable counts as
/// unset. Durations are written like 500ms, 6s or 24h.
#[derive(Debug, Parser)]
#[command(name = "transcript-processor", version, propagate_version = true, max_term_width = 120)]
#[command(after_help = EXIT_CODES, after_long_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What was given and has no effect.
    #[arg(skip)]
    pub warnings: Vec<String>,
}

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed, or a check found something wrong
  2    wrong usage or settings; for replay, trace and timeline also a trace that cannot be read
  128+ a command other than `run` and `transcriber` was ended by the signal of this number, less 128

Examples:
  transcript-processor setup
  transcript-processor run
  transcript-processor show olive-oil:2024-11-05";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Process calls until told to stop (SIGTERM, SIGINT or SIGHUP)
    ///
    /// Exit code 0 once it was told to stop and has drained; 1 where it cannot start, where a login stays refused, and where a
    /// second signal stopped it at once.
    #[command(after_help = "Examples:
  transcript-processor run
  transcript-processor run --nats-url tls://nats.example:4222 --log-format json
  transcript-processor run --record /var/lib/traces")]
    Run(Box<Online<RunArgs>>),
    /// Take segments from WebSockets and requests, store and publish them, and end each call once nobody is connected to it
    ///
    /// Without --nats-url or NATS_URL segments are stored and acknowledged, and nothing is published. Exit code 0 once it was
    /// told to stop and has stored what it received; 1 where it cannot start, or a login stays refused.
    #[command(after_help = "Examples:
  transcript-processor transcriber
  transcript-processor transcriber --listen 0.0.0.0:8090 --token-key-file /etc/transcripts/key.pem
  transcript-processor transcriber --nats-url nats://nats.example:4222 --end-after-break 1m")]
    Transcriber(Box<Online<TranscriberArgs>>),
    /// Create the streams, the consumer and the indexes, and repair what keeps processors from working
    ///
    /// It says what it changed. What exists is changed only where an option or its environment variable asks for it, or where
    /// it keeps processors from working. It says where the value of an option that is not given differs from the default.
    /// Give it the settings of `run`.
    #[command(after_help = "Examples:
  transcript-processor setup
  transcript-processor setup --replicas 3 --ack-wait 10s
  transcript-processor setup --resume")]
    Setup(Box<Online<SetupArgs>>),
    /// Act as the transcriber: save and publish the segments of transcripts, then end their calls
    #[command(after_help = "Examples:
  transcript-processor play call.vtt
  transcript-processor play call.ndjson --late 2 --late-by 1s --repeat-end
  transcript-processor play captions.srt --conversation room-7 --session 2026-12-01")]
    Play(Box<Online<PlayArgs>>),
    /// Show the stored summary of a call
    #[command(after_help = "Examples:
  transcript-processor show olive-oil:2024-11-05
  transcript-processor show olive-oil 2024-11-05 --json")]
    Show(Box<Stored<ShowArgs>>),
    /// Publish an event of a recording, or watch such events; connects to NATS only
    ///
    /// Publishes {"ts", …data} to recording.EVENT and waits until the stream has it. Its place in the stream goes to stdout. Exit
    /// code 1 where it is not known to be stored; publishing it again then can store it twice.
    ///
    /// A VALUE that is JSON (a number, true, false, null, or a text in quotes, a list, an object) is taken as such. Every other
    /// one is a text, as is a whole number of more than 64 bits: 007 and 2026-12-01 are texts, and so is '"42"'. A ts takes the
    /// place of the time, in milliseconds since the Unix epoch.
    ///
    /// watch prints the events from the stream's start, and then as they come. It ends with a signal, or when nobody reads its
    /// output any more. Where NATS is away it waits and goes on.
    #[command(after_help = "Examples:
  transcript-processor recording stored recording=monday bytes=48211900
  transcript-processor recording deleted recording=tuesday reason=never-started
  transcript-processor recording watch --failures")]
    Recording(Box<OnNats<RecordingArgs>>),
    /// Serve a page on which people hold a call in the browser, to try the system out; needs a transcriber
    ///
    /// Whoever opens the printed address in two windows can type a call, and speak where the browser can. It needs no login, and
    /// so listens on loopback addresses only. It reads MongoDB, and writes nothing.
    #[command(after_help = "Examples:
  transcript-processor call-page
  transcript-processor call-page --transcriber ws://127.0.0.1:8090 --traces /var/lib/traces")]
    CallPage(Box<Stored<CallPageArgs>>),
    /// List, show, redrive or discard the calls that were given up
    ///
    /// A call that cannot be processed is kept in the stream, on transcription.dead-letter, with the reason. Nothing else is
    /// written about it: what became of it is read from the stream and from the stored summaries.
    #[command(after_help = "Examples:
  transcript-processor dead-letters list
  transcript-processor dead-letters redrive --all")]
    DeadLetters(DeadLettersArgs),
    /// Compare the stream with the store: is every call that ended summarised once and announced once?
    ///
    /// It names these problems: calls that are missing (they ended, have no summary, are not under way and were not given up);
    /// summaries that were never announced; calls that were announced more than once; summaries of fewer segments than are
    /// stored; summaries whose mark names a message that does not announce the call; dead letters that nobody took care of;
    /// ends that can never be processed and of which nothing was kept. Incomplete calls are named too, and are no problem.
    ///
    /// Exit code 0 where there is no problem, 1 where there is one or where that could not be found out. It can run at any
    /// time, beside running processors.
    #[command(after_help = "Examples:
  transcript-processor audit
  transcript-processor audit --since 24h --json
  transcript-processor audit --repair")]
    Audit(Box<Online<AuditArgs>>),
    /// List the calls that ended, with what became of each, from the stream and the store
    #[command(after_help = "Examples:
  transcript-processor calls
  transcript-processor calls --since 7d --incomplete --json
  transcript-processor calls --follow")]
    Calls(Box<Online<CallsArgs>>),
    /// Say how processors and servers stand, what is wrong, and what to do about it
    ///
    /// Exit code 0 where calls are processed, with warnings or without; 1 where something keeps them from it.
    #[command(after_help = "Examples:
  transcript-processor status
  transcript-processor status --from 127.0.0.1:9464 --watch")]
    Status(Box<Online<StatusArgs>>),
    /// Have JetStream hand out no more calls to any processor; calls in hand are finished (nats-server 2.11 and later)
    #[command(after_help = "Examples:
  transcript-processor pause --for 30m")]
    Pause(Box<Online<PauseArgs>>),
    /// End a pause
    #[command(after_help = "Examples:
  transcript-processor resume")]
    Resume(Box<Online<ResumeArgs>>),
    /// Have one processor take no more calls; it finishes those in hand, and goes on with --off
    ///
    /// It lasts until --off or until the process ends: a new one takes calls. Exit code 1 where nobody answers to the name.
    #[command(after_help = "Examples:
  transcript-processor quiet host-a-4711
  transcript-processor quiet host-a-4711 --off")]
    Quiet(Box<OnNats<QuietArgs>>),
    /// Process a call again, because somebody has corrected its transcript; the new summary is announced as a revision
    ///
    /// A processor reads the segments again, replaces the summary also where the number of segments is the same, and
    /// publishes transcript.revised, with --revise or without. A summary never goes back: where fewer segments are stored
    /// than it counts, nothing is asked for. Asking again before it is done is the same request.
    #[command(after_help = "Examples:
  transcript-processor reprocess olive-oil:2024-11-05
  transcript-processor reprocess olive-oil 2024-11-05 --json")]
    Reprocess(Box<Online<ReprocessArgs>>),
    /// A command that connects to no server.
    #[command(flatten)]
    Offline(Offline),
}

/// What to do without a server.
#[derive(Debug, Subcommand)]
pub enum Offline {
    /// Print transcripts of other formats as our own lines; connects to no server
    ///
    /// If a place of any file cannot be read, nothing is printed: exit code 1, and the message names the file and the line.
    #[command(after_help = "Examples:
  transcript-processor convert call.vtt
  transcript-processor convert captions.srt --keep-going --conversation room-7 --session 2026-12-01")]
    Convert(ConvertArgs),
    /// Feed recorded traces to the state machine again, and compare what it says; connects to no server
    ///
    /// Exit code 0: it says the same. 1: it does not, and the first difference is printed with what led to it. 2: a trace cannot
    /// be read. A last line that is cut off, as a killed process leaves one, gives a warning only.
    #[command(after_help = "Examples:
  transcript-processor replay /var/lib/traces
  transcript-processor replay call.jsonl --json")]
    Replay(ReplayArgs),
    /// Say what is in recorded traces, list calls, count, or cut one call out; connects to no server
    ///
    /// Without an option it lists the files. Exit code 1 where there is no such call, 2 where a trace cannot be read.
    #[command(after_help = "Examples:
  transcript-processor trace /var/lib/traces
  transcript-processor trace /var/lib/traces --calls --json
  transcript-processor trace /var/lib/traces --call olive-oil:2024-11-05 -o call.jsonl")]
    Trace(TraceArgs),
    /// Draw recorded traces: who said what to whom, and when; connects to no server
    ///
    /// Of a whole run those calls are drawn to which most has happened, and the drawing says what it left out. Exit code 1
    /// where there is no such call, 2 where a trace cannot be read.
    #[command(after_help = "Examples:
  transcript-processor timeline call.jsonl -o call.html
  transcript-processor timeline /var/lib/traces --call olive-oil:2024-11-05 --format text")]
    Timeline(TimelineArgs),
    /// Print the completions of a shell; connects to no server
    #[command(after_help = "Examples:
  transcript-processor completions bash
  transcript-processor completions zsh")]
    Completions(CompletionsArgs),
    /// Print a manual page, or write them all into a directory; connects to no server
    #[command(after_help = "Examples:
  transcript-processor man
  transcript-processor man dead-letters redrive
  transcript-processor man --output man1")]
    Man(ManArgs),
}

impl Cli {
    /// Reads the command line and the environment, and checks the settings one by one and against each other.
    ///
    /// # Errors
    ///
    /// Wrong usage, a setting out of its bounds, or settings that contradict each other. Asking for help or for the
    /// version is such an "error" too, as it is for clap.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, Refusal> {
        let args: Vec<OsString> = args.into_iter().collect();
        let mut definition = definition();
        let matches = match definition.try_get_matches_from_mut(&args) {
            Ok(matches) => matches,
            Err(error) => return Err(Refusal::new(&definition, &args, error)),
        };
        let read = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut definition));
        let checked = read.and_then(|cli| cli.checked(&matches, &mut definition));
        checked.map_err(|error| Refusal::new(&definition, &args, error))
    }

    fn checked(mut self, matches: &ArgMatches, definition: &mut clap::Command) -> Result<Self, clap::Error> {
        let mut given = Given::new(definition::leaf(matches));
        match self.command.any().check(&mut given) {
            Ok(()) => {
                if let Command::Transcriber(online) = &mut self.command {
                    online.nats.is_named = given.is_given("nats-url");
                }
                self.warnings = given.warnings();
                Ok(self)
            }
            Err(reason) => Err(definition::wrong_settings(definition, matches, &reason)),
        }
    }
}

impl Command {
    /// Whether it is a service: it goes on until it is told to stop.
    #[must_use]
    pub fn is_service(&self) -> bool {
        self.any().is_service()
    }

    /// What it logs, and how.
    #[must_use]
    pub fn log(&self) -> LogArgs {
        let log = self.any().log();
        if self.is_service() { log.of_a_service() } else { log }
    }

    fn any(&self) -> &dyn AnyCommand {
        match self {
            Self::Run(online) => &**online,
            Self::Transcriber(online) => &**online,
            Self::Setup(online) => &**online,
            Self::Play(online) => &**online,
            Self::Show(stored) => &**stored,
            Self::Recording(on_nats) => &**on_nats,
            Self::CallPage(stored) => &**stored,
            Self::DeadLetters(args) => args.command.any(),
            Self::Audit(online) => &**online,
            Self::Calls(online) => &**online,
            Self::Status(online) => &**online,
            Self::Pause(online) => &**online,
            Self::Resume(online) => &**online,
            Self::Quiet(on_nats) => &**on_nats,
            Self::Reprocess(online) => &**online,
            Self::Offline(offline) => offline,
        }
    }
}

impl AnyCommand for Offline {
    fn check(&self, _given: &mut Given<'_>) -> Result<(), String> {
        match self {
            Self::Convert(args) => args.source.check(),
            Self::Replay(_) | Self::Completions(_) | Self::Man(_) => Ok(()),
            Self::Trace(args) => args.check(),
            Self::Timeline(args) => args.call.wanted().and_then(|_| args.drawing()).map(drop),
        }
    }

    fn log(&self) -> LogArgs {
        LogArgs::default()
    }
}

fn both_or_none(one: (&str, bool), other: (&str, bool)) -> Result<(), String> {
    match (one, other) {
        ((given, true), (missing, false)) | ((missing, false), (given, true)) => {
            Err(format!("{given} is given without {missing}: give both or none"))
        }
        ((_, true), (_, true)) | ((_, false), (_, false)) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
