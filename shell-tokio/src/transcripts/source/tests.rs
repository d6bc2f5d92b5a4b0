use std::{ffi::OsString, io::Cursor};

use super::*;
use crate::{
    cli::{Cli, Command, Offline},
    transcripts::convert,
};

/// Reads `text` as the file `name`, with more arguments of `convert`.
fn read(name: &str, text: &str, arguments: &str) -> Result<Transcript, String> {
    let line = ["transcript-processor", "convert", name].into_iter().chain(arguments.split_whitespace());
    let Command::Offline(Offline::Convert(args)) = Cli::read(line.map(OsString::from)).unwrap().command else {
        panic!("not convert")
    };
    let source = Source(Box::new(Cursor::new(text.as_bytes().to_vec())));
    Transcript::read(Path::new(name), source, &args.source, args.cues.into()).map_err(|e| e.to_string())
}

fn refusal(text: &str) -> String {
    read("f", text, "").unwrap_err()
}

#[test]
fn sessions_may_be_interleaved_and_announced() {
    let text = concat!(
        r#"{"conversationId":"c","sessionId":"a","index":0,"text":"x","speaker":"A","startMs":1,"endMs":2,"more":[]}"#,
        "\n\n",
        r#"{"conversationId":"c","sessionId":"b","index":0,"text":"y"}"#,
        "\r\n",
        r#"{"conversationId":"c","sessionId":"a","index":1,"text":""}"#,
        "\n",
        r#"{"conversationId":"c","sessionId":"silent","publishedSegments":0}"#,
    );
    let transcript = read("f", text, "").unwrap();
    let sessions: Vec<_> = transcript.sessions.iter().map(|s| (&*s.session.session_id, s.announced)).collect();
    assert_eq!(sessions, [("a", None), ("b", None), ("silent", Some(0))]);
    let segments: Vec<_> = transcript.segments.iter().map(|s| (s.place, s.message.id(), s.line)).collect();
    assert_eq!(segments, [(0, "a:0".into(), 1), (1, "b:0".into(), 3), (0, "a:1".into(), 4)]);
    assert_eq!(transcript.segments[0].message.end_ms, Some(2));
}

#[test]
fn a_bad_line_is_named_with_its_reason() {
    let good = r#"{"conversationId":"c","sessionId":"s","index":0,"text":"hush"}"#;
    for (bad, reason) in [
        (r#"{"sessionId":"s","index":1,"text":"hush"}"#, "expected conversationId, found none; "),
        (r#"{"conversationId":"c","sessionId":"s","index":1}"#, "expected a segment with index and text"),
        (
            r#"{"conversationId":"d","sessionId":"s","index":0,"text":"hush"}"#,
            "index 0 of session \"s\" is on line 1 already",
        ),
        (
            r#"{"conversationId":"c","sessionId":" s","index":0,"text":"hush"}"#,
            "\" s:0\" cannot be a message id: it begins with a space or holds a control character",
        ),
        (
            r#"{"conversationId":"c","sessionId":"s","publishedSegments":9007199254740992}"#,
            "expected publishedSegments to be a whole number",
        ),
    ] {
        let told = refusal(&format!("{good}\n{bad}\n"));
        assert!(told.starts_with(&format!("f: line 2: {reason}")), "{told}");
        let kept = read("f", &format!("{good}\n{bad}\n"), "--keep-going").unwrap();
        assert_eq!((kept.segments.len(), kept.left_out.map(|(count, _)| count)), (1, Some(1)), "{bad}");
    }
    let end = r#"{"conversationId":"c","sessionId":"s","publishedSegments":1}"#;
    let told = "f: line 2: publishedSegments of session \"s\" is on line 1 already";
    assert_eq!(refusal(&format!("{end}\n{end}")), told);
    assert!(refusal("").contains("empty file"));
}

#[test]
fn a_call_without_ids_is_named_by_its_file_or_by_the_command_line() {
    let text = "WEBVTT\n\n00:01.000 --> 00:02.000\nHi\n";
    let ids = |name, arguments| {
        let transcript = read(name, text, arguments).unwrap();
        let session = &transcript.sessions[0].session;
        (session.conversation_id.to_string(), session.session_id.to_string())
    };
    assert_eq!(ids("calls/monday.en.vtt", ""), ("monday.en".into(), "monday.en".into()));
    assert_eq!(ids("-", ""), ("stdin".into(), "stdin".into()));
    assert_eq!(ids("a.vtt", "--session s --conversation c"), ("c".into(), "s".into()));
    let long = format!("{}.vtt", "n".repeat(300));
    assert!(read(&long, text, "").unwrap_err().contains("name the call with --session"));
}

#[test]
fn what_is_converted_reads_to_the_same() {
    for text in [
        "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>Hi\nyou\n",
        "WEBVTT\n",
        r#"{"results":{"channels":[],"utterances":[{"start":1,"end":2.0006,"transcript":"Hi","speaker":0}]}}"#,
        r#"{"conversationId":"c","sessionId":"a","index":3,"text":"x","speaker":7,"startMs":799.99995}"#,
    ] {
        let transcript = read("f", text, "").unwrap();
        let lines = convert::lines(&transcript).unwrap();
        let again = read("f", &lines, "").unwrap();
        assert_eq!(convert::lines(&again).unwrap(), lines);
        let messages = |transcript: &Transcript| -> Vec<_> {
            transcript.segments.iter().map(|segment| segment.message.clone()).collect()
        };
        assert_eq!(messages(&again), messages(&transcript));
    }
}
