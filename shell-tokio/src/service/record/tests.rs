use std::{
    cell::Cell,
    collections::VecDeque,
    fs,
    io::{self, Write},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    rc::Rc,
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use tempfile::TempDir;
use transcript_core::{
    Delivery, Effect, Input, Output, Page, Payload, Processor, Report, Settings, Stored, Time, WallTime, ids::JobId,
    summary::Segment,
};
use transcript_trace::{FORMAT, Header, Recorder, Servers};

use super::*;
use crate::{
    cli::{Cli, Command, Offline},
    service::record::{
        files::Place,
        tape::{TapedInput, tape},
    },
    traces,
};

const ROOMY: Bounds = Bounds { inputs: 1000, bytes: 1 << 20 };

/// A core whose servers answer within a millisecond.
struct FastWorld {
    core: Processor,
    now: Time,
    calls: u64,
}

type Happened = (Time, Option<JobId>, Input);

impl FastWorld {
    fn new() -> Self {
        Self { core: core(), now: Time::ZERO, calls: 0 }
    }

    /// Everything that the core is told about some calls that end together.
    fn calls(&mut self, many: u64) -> Vec<Happened> {
        let mut happened = vec![];
        let mut due: VecDeque<Input> = (0..many).map(|n| delivery(self.calls + n + 1)).collect();
        self.calls += many;
        while let Some(input) = due.pop_front() {
            self.now = self.now.after(Duration::from_millis(1));
            let job = self.core.handle(self.now, input.clone());
            happened.push((self.now, job, input));
            loop {
                match self.core.poll_output() {
                    Output::Perform { id, effect } => {
                        due.push_back(Input::Reported { effect: id, report: report(&effect) });
                    }
                    Output::InProgress { .. } | Output::StopDeliveries | Output::Notice(_) => {}
                    Output::Wait(wake_up) => {
                        if let (true, Some(wake_up)) = (due.is_empty() && self.core.in_flight() > 0, wake_up) {
                            self.now = self.now.max(wake_up.at);
                            due.push_back(Input::Woken);
                        }
                        break;
                    }
                    Output::Drained => break,
                }
            }
        }
        happened
    }
}

fn settings() -> Settings {
    Settings { quiet_period: Duration::from_millis(20), ..Settings::default() }
}

fn core() -> Processor {
    Processor::new(settings()).unwrap()
}

fn header() -> Header {
    Header {
        format: FORMAT,
        program: "transcript-processor 0.1.0".to_owned(),
        servers: Servers::default(),
        processor: Some("a".into()),
        started_at: WallTime::from_millis(1_795_993_057_300),
        content: Content::Redacted,
        settings: settings(),
        pull_expires: None,
        continues: None,
        session: None,
        about: None,
    }
}

fn recorder() -> Recorder<Vec<u8>> {
    Recorder::new(vec![], header(), core()).unwrap()
}

fn delivery(sequence: u64) -> Input {
    let payload = format!(r#"{{"conversationId":"c","sessionId":"s{sequence}","publishedSegments":2}}"#);
    Input::Delivered(Delivery {
        stream_sequence: sequence,
        attempt: 1,
        stored_at: WallTime::from_millis(1_795_993_057_300),
        received_at: WallTime::from_millis(1_795_993_057_301),
        reply: format!("reply.{sequence}").into(),
        redrive_of: None,
        trace_context: None,
        payload: Payload(payload.into_bytes()),
    })
}

fn page(bytes: usize) -> Page {
    let segment = |index: i64| Segment {
        id: format!("s:{index}"),
        index: Some(index),
        speaker: Some("Anna".to_owned()),
        text: "so ".repeat(bytes / 6),
        start_ms: None,
        end_ms: None,
        ..Segment::default()
    };
    Page { segments: vec![segment(0), segment(1)], ..Page::default() }
}

fn report(effect: &Effect) -> Report {
    match effect {
        Effect::Count { .. } => Report::Counted { segments: 2 },
        Effect::Load { .. } => Report::Loaded(page(40)),
        Effect::Save { .. } => Report::Saved(Stored {
            segments: 2,
            complete: true,
            notified: None,
            revision: 1,
            revised: None,
            edits: 0,
            reprocess: 0,
        }),
        Effect::Check { .. } => Report::Checked(None),
        Effect::Publish { notification, .. } => {
            Report::Published { stream_sequence: 1, segments: notification.segments, edits: 0 }
        }
        Effect::Mark { .. } => Report::Marked,
        Effect::DeadLetter { .. } => Report::DeadLettered { stream_sequence: 1 },
        Effect::Republish { .. } => Report::Republished { stream_sequence: 1 },
        Effect::Acknowledge { .. } => Report::Acknowledged,
    }
}

fn rotation(max_bytes: u64) -> Rotation {
    Rotation { max_bytes, max_age: Duration::from_secs(3600), retry: Duration::from_millis(50) }
}

fn directory(path: &Path, keep: u64) -> Directory {
    Directory::new(path.to_owned(), file_stem("a", header().started_at, 7), keep)
}

fn writer<P: Place>(place: P, max_bytes: u64) -> Writer<P> {
    Writer::start(place, rotation(max_bytes), recorder(), Time::ZERO).unwrap()
}

/// Has the writer write all that happened, and flush after each.
fn write<P: Place>(writer: &mut Writer<P>, happened: Vec<Happened>) {
    let (mut tape, played) = tape::<Processor>(ROOMY);
    for happened in happened {
        put(&mut tape, happened);
        while let Some(told) = played.at_once() {
            writer.write(told);
        }
        writer.flush();
    }
}

fn put(tape: &mut Tape, (at, job, input): Happened) -> bool {
    let copied = tape.copy(&input);
    let fits = copied.is_some();
    if let Some(copied) = copied {
        tape.put(at, job, copied);
    }
    fits
}

fn files(path: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = fs::read_dir(path).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

fn replay(path: &Path) -> traces::Answer {
    let args = ["transcript-processor".into(), "replay".into(), path.into()];
    let Command::Offline(Offline::Replay(args)) = Cli::read(args).unwrap().command else { panic!("not replay") };
    traces::replay(&args, &|warning| panic!("{warning}")).unwrap()
}

/// What replaying says, which finds no difference.
fn replays(path: &Path) -> String {
    let answer = replay(path);
    assert!(answer.is_good, "{}", answer.text);
    answer.text
}

fn text(directory: &TempDir) -> String {
    files(directory.path()).iter().map(|file| fs::read_to_string(file).unwrap()).collect()
}

#[test]
fn what_finds_the_tape_full_is_counted_and_the_rest_replays() {
    let place = TempDir::new().unwrap();
    let (mut tape, played) = tape::<Processor>(Bounds { inputs: 40, bytes: 1 << 20 });
    let mut writer = writer(directory(place.path(), 1 << 30), 1 << 20);
    let mut world = FastWorld::new();
    let put_all = |happened: Vec<Happened>, tape: &mut Tape| -> u64 {
        happened.into_iter().map(|one| u64::from(!put(tape, one))).sum()
    };
    // Nobody takes anything from the tape: it fills up in the middle of these calls.
    let lost = put_all(world.calls(10), &mut tape);
    assert!(lost > 20, "{lost}");
    let drain = |writer: &mut Writer<Directory>| {
        while let Some(told) = played.at_once() {
            writer.write(told);
        }
    };
    drain(&mut writer);
    assert_eq!(put_all(world.calls(2), &mut tape), 0, "there is room again");
    drain(&mut writer);
    let lost_last = put_all(world.calls(10), &mut tape);
    assert!(lost_last > 0);
    drop(tape);
    drain(&mut writer);
    assert!(played.next().is_none());
    writer.finish(played.lost());
    let said = replays(place.path());
    assert!(said.contains(&format!("; {} inputs are not in the trace", lost + lost_last)), "{said}");
    let trace = text(&place);
    assert!(trace.contains(&format!(r#""leftOut":{{"inputs":{lost},"jobs":["#)), "{trace}");
    assert!(trace.contains(r#""why":"the recorder could not keep up""#), "{trace}");
    assert!(trace.contains(r#"{\"conversationId\":\"c\",\"sessionId\":\"s12\""#), "what came after the gap is there");
}

#[test]
fn a_tape_that_was_full_takes_nothing_until_it_is_half_empty() {
    let (mut tape, played) = tape::<Processor>(Bounds { inputs: 4, bytes: 1 << 20 });
    let input = || (Time::ZERO, None, Input::Woken);
    assert_eq!([1, 2, 3, 4, 5].map(|_| put(&mut tape, input())), [true, true, true, true, false]);
    assert!(played.at_once().is_some());
    assert!(!put(&mut tape, input()), "three are more than half");
    assert!(played.at_once().is_some());
    assert!(put(&mut tape, input()));
    let told: Vec<TapedInput> = std::iter::from_fn(|| played.at_once()).collect();
    assert_eq!(told.iter().map(|told| told.lost_before).collect::<Vec<_>>(), [0, 0, 2]);
}

#[test]
fn a_giant_page_fills_the_tape_and_is_taken_only_when_it_is_empty() {
    let (mut tape, played) = tape::<Processor>(Bounds { inputs: 100, bytes: 10_000 });
    let FastWorld { mut core, .. } = FastWorld::new();
    core.handle(Time::ZERO, delivery(1));
    let effect = {
        let mut effect = None;
        core.handle(Time::from_micros(1_000_000), Input::Woken);
        while let Output::Perform { id, .. } = core.poll_output() {
            effect = Some(id);
        }
        effect.expect("it counts")
    };
    let giant = || (Time::ZERO, None, Input::Reported { effect, report: Report::Loaded(page(100_000)) });
    assert!(put(&mut tape, giant()), "alone");
    assert!(!put(&mut tape, (Time::ZERO, None, Input::Woken)), "there is no room beside it");
    assert!(played.at_once().is_some());
    assert!(put(&mut tape, (Time::ZERO, None, Input::Woken)));
    assert!(!put(&mut tape, giant()), "not alone");
}

#[test]
fn files_are_rotated_by_size_and_each_replays() {
    let place = TempDir::new().unwrap();
    let mut writer = writer(directory(place.path(), 1 << 30), 8_000);
    let mut world = FastWorld::new();
    for _ in 0..6 {
        write(&mut writer, world.calls(3));
    }
    writer.finish(0);
    let files = files(place.path());
    assert!(files.len() > 4, "{files:?}");
    for file in &files {
        assert!(fs::metadata(file).unwrap().len() < 12_000);
        assert!(is_trace_file(file.file_name().unwrap().to_str().unwrap()), "{file:?}");
        replays(file);
    }
    let said = replays(place.path());
    assert!(said.contains(" 18 jobs, ") && !said.contains("not given"), "{said}");
}

#[test]
fn a_difference_is_told_by_its_file_and_line() {
    let place = TempDir::new().unwrap();
    let mut writer = writer(directory(place.path(), 1 << 30), 8_000);
    let mut world = FastWorld::new();
    for _ in 0..3 {
        write(&mut writer, world.calls(3));
    }
    writer.finish(0);
    let second = files(place.path()).swap_remove(1);
    let trace = fs::read_to_string(&second).unwrap();
    let line = trace.lines().position(|line| line.contains(r#""save""#)).unwrap();
    let mut lines: Vec<String> = trace.lines().map(str::to_owned).collect();
    lines[line] = lines[line].replace(r#""complete":true"#, r#""complete":false"#);
    fs::write(&second, lines.join("\n") + "\n").unwrap();
    let answer = replay(place.path());
    let at = format!("differs from what the core says, at {}:{}: entry ", second.display(), line + 1);
    assert!(!answer.is_good && answer.text.starts_with(&at), "{}", answer.text);
    assert!(answer.text.contains("with perform.effect.save.summary.complete false"), "{}", answer.text);
    let led = format!("\n  {}:", second.display());
    assert!(answer.text.split_once("what led to it:").is_some_and(|(_, rest)| rest.contains(&led)), "{}", answer.text);
}

#[test]
fn files_are_rotated_by_age() {
    let place = TempDir::new().unwrap();
    let rotation = Rotation { max_age: Duration::from_millis(30), ..rotation(1 << 20) };
    let mut writer = Writer::start(directory(place.path(), 1 << 30), rotation, recorder(), Time::ZERO).unwrap();
    write(&mut writer, FastWorld::new().calls(5));
    writer.finish(0);
    assert!(files(place.path()).len() > 1);
    let said = replays(place.path());
    assert!(said.contains(" 5 jobs, "), "{said}");
}

#[test]
fn what_only_has_the_name_of_a_trace_is_left_alone_and_stops_nothing() {
    let place = TempDir::new().unwrap();
    let name = |processor: &str| {
        place.path().join(format!("{}-00001.jsonl", file_stem(processor, WallTime::from_millis(1), 7)))
    };
    let (pipe, folder, link, old) = (name("pipe"), name("folder"), name("link"), name("old"));
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    fs::create_dir(&folder).unwrap();
    symlink(&pipe, &link).unwrap();
    fs::write(&old, vec![b'x'; 100]).unwrap();
    fs::write(place.path().join(".transcript-processor-1"), "").unwrap();
    prepare(place.path()).unwrap();
    directory(place.path(), 50).make_room(10);
    assert_eq!([&pipe, &folder, &link, &old].map(|path| path.symlink_metadata().is_ok()), [true, true, true, false]);
    let mut taken = directory(place.path(), 50);
    fs::create_dir(place.path().join(taken.name(1))).unwrap();
    assert_eq!(taken.create(1).unwrap_err().kind(), io::ErrorKind::AlreadyExists, "the next number is taken then");
}

#[test]
fn a_trace_is_for_its_owner_only() {
    let place = TempDir::new().unwrap();
    let inner = place.path().join("traces");
    prepare(&inner).unwrap();
    let mut traces = directory(&inner, 50);
    traces.create(1).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&inner), mode(&inner.join(traces.name(1)))), (0o700, 0o600));
}

#[test]
fn the_oldest_traces_make_room_unless_a_processor_writes_to_them() {
    let place = TempDir::new().unwrap();
    let other = |n: u32| place.path().join(format!("b-20240101T000000.000Z-1-{n:05}.jsonl"));
    for n in 1..=3 {
        fs::write(other(n), vec![b'x'; 10_000]).unwrap();
        let old = std::time::UNIX_EPOCH + Duration::from_secs(u64::from(n));
        fs::File::open(other(n)).unwrap().set_modified(old).unwrap();
    }
    fs::write(place.path().join("notes.jsonl"), vec![b'x'; 50_000]).unwrap();
    let written_to = fs::File::open(other(1)).unwrap();
    written_to.try_lock().unwrap();
    let mut writer = writer(directory(place.path(), 30_000), 8_000);
    assert!(other(1).exists(), "it is written to");
    assert!(!other(2).exists(), "it is the oldest of the others");
    assert!(other(3).exists() && place.path().join("notes.jsonl").exists());
    let mut world = FastWorld::new();
    for _ in 0..10 {
        write(&mut writer, world.calls(3));
        let traces = files(place.path()).into_iter().filter(|file| !file.ends_with("notes.jsonl"));
        let bytes: u64 = traces.map(|file| fs::metadata(file).unwrap().len()).sum();
        assert!(bytes <= 34_000, "{bytes}");
    }
    assert!(other(1).exists() && !other(3).exists());
    replays(&files(place.path())[0]);
}

#[test]
fn no_file_is_written_over() {
    let place = TempDir::new().unwrap();
    let taken = place.path().join(directory(place.path(), 0).name(1));
    fs::write(&taken, "mine").unwrap();
    let mut writer = writer(directory(place.path(), 1 << 30), 1 << 20);
    write(&mut writer, FastWorld::new().calls(1));
    writer.finish(0);
    assert_eq!(fs::read_to_string(&taken).unwrap(), "mine");
    assert!(replays(&files(place.path())[1]).contains(" 1 job, "));
}

#[test]
fn a_directory_that_vanishes_costs_what_was_in_it() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("traces");
    let mut writer = writer(directory(&path, 1 << 30), 1 << 20);
    let mut world = FastWorld::new();
    let mut happened = world.calls(4);
    let rest = happened.split_off(happened.len() / 2);
    write(&mut writer, happened);
    fs::remove_dir_all(&path).unwrap();
    fs::write(&path, "a file in its place").unwrap();
    write(&mut writer, rest);
    write(&mut writer, world.calls(1));
    assert_eq!(fs::read_to_string(&path).unwrap(), "a file in its place");
    fs::remove_file(&path).unwrap();
    write(&mut writer, world.calls(10));
    writer.finish(0);
    let said = replays(&path);
    let left_out = said.split_once("; ").and_then(|(_, rest)| rest.split_once(" inputs are not in the trace"));
    assert!(left_out.is_some_and(|(inputs, _)| inputs.parse::<u64>().unwrap() > 10), "{said}");
}

/// A directory on a disk that can be full: then half of what is written is, and the rest fails.
struct Disk {
    directory: Directory,
    is_full: Rc<Cell<bool>>,
}

struct DiskFile {
    file: fs::File,
    is_full: Rc<Cell<bool>>,
}

impl Write for DiskFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match bytes.len() {
            1 if self.is_full.get() => Err(io::ErrorKind::StorageFull.into()),
            length if self.is_full.get() => self.file.write(&bytes[..length / 2]),
            _ => self.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Place for Disk {
    type File = DiskFile;

    fn create(&mut self, number: u32) -> io::Result<DiskFile> {
        Ok(DiskFile { file: self.directory.create(number)?, is_full: Rc::clone(&self.is_full) })
    }

    fn name(&self, number: u32) -> String {
        self.directory.name(number)
    }

    fn is_there(&self, file: &DiskFile) -> bool {
        self.directory.is_there(&file.file)
    }

    fn cut_back(&mut self, file: &mut DiskFile, number: u32, bytes: u64) -> io::Result<()> {
        self.directory.cut_back(&mut file.file, number, bytes)
    }

    fn make_room(&mut self, bytes: u64) {
        self.directory.make_room(bytes);
    }
}

#[test]
fn a_full_disk_costs_what_it_had_no_room_for() {
    let place = TempDir::new().unwrap();
    let is_full = Rc::new(Cell::new(false));
    let disk = Disk { directory: directory(place.path(), 1 << 30), is_full: Rc::clone(&is_full) };
    let mut writer = writer(disk, 1 << 20);
    let mut world = FastWorld::new();
    let mut happened = world.calls(4);
    let rest = happened.split_off(happened.len() / 2);
    write(&mut writer, happened);
    is_full.set(true);
    // Long enough for it to be tried again, in vain.
    let lost = rest.len();
    write(&mut writer, rest);
    let more = world.calls(30);
    let lost = lost + more.len();
    write(&mut writer, more);
    assert_eq!(files(place.path()).len(), 1, "what could not be begun is not there");
    let said = replays(place.path());
    assert!(!said.contains("not in the trace"), "whole lines are left: {said}");
    is_full.set(false);
    // By the end of these it has been tried again.
    let after = world.calls(20);
    let all = lost + after.len();
    write(&mut writer, after);
    write(&mut writer, world.calls(5));
    writer.finish(0);
    assert_eq!(files(place.path()).len(), 2);
    let said = replays(place.path());
    let left_out = said.split_once("; ").and_then(|(_, rest)| rest.split_once(" inputs are not in the trace"));
    let left_out: usize = left_out.expect("some are left out").0.parse().unwrap();
    assert!((lost..all).contains(&left_out), "{left_out} of {lost} and more");
    assert!(said.contains(" 9 jobs, "), "what came before and after is there: {said}");
    assert!(text(&place).contains("the trace could not be written: no storage space"), "{}", text(&place));
}

#[test]
fn names_are_safe_and_sort_by_time() {
    let at = WallTime::from_millis;
    assert_eq!(file_stem("host-7", at(1_795_993_057_300), 7), "host-7-20261129T225737.300Z-7");
    assert_eq!(file_stem("../a b/\u{e9}", at(0), 1), "%2Fa%20b%2F%C3%A9-19700101T000000.000Z-1");
    assert!(file_stem(&"\u{1f980}".repeat(100), at(0), 1).len() < 140);
    assert!(file_stem("a", at(999), 9) < file_stem("a", at(1_000), 8));
    for name in ["a-20261129T225737.300Z-7-00001.jsonl", "-20261129T225737.300Z-7-123456.jsonl"] {
        assert!(is_trace_file(name), "{name}");
    }
    for name in
        ["a.jsonl", "a-20261129T225737.300Z-7-00001.json", "a-b-7-00001.jsonl", "20261129T225737.300Z-7-1.jsonl"]
    {
        assert!(!is_trace_file(name), "{name}");
    }
}
