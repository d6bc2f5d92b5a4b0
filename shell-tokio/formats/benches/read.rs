//! How fast files are read, in bytes a second, beside another parser on the same file: `cargo bench -p transcript-formats`.

use std::fmt::Write;

use divan::{Bencher, black_box, counter::BytesCount};
use transcript_formats::{Options, Reader};

fn main() {
    divan::main();
}

/// Cues and segments of a file: a call of some three hours.
const SEGMENTS: u64 = 3000;

const WORDS: &str = "should have a podcast trailer. And if so, what should you include";

fn srt() -> String {
    (0..SEGMENTS).fold(String::new(), |mut file, n| {
        let (minute, second) = (n / 15, n * 4 % 60);
        let at = |second| format!("{:02}:{:02}:{second:02},500", minute / 60, minute % 60);
        let speaker = if n % 9 == 0 { "Ann: " } else { "" };
        write!(file, "{}\n{} --> {}\n{speaker}{WORDS}\n\n", n + 1, at(second), at(second + 3)).expect("it is a text");
        file
    })
}

fn vtt() -> String {
    format!("WEBVTT\n\n{}", srt().replace(",500", ".500").replace("Ann: ", "<v Ann>"))
}

fn lines() -> String {
    (0..SEGMENTS).fold(String::new(), |mut file, n| {
        let (start, end) = (n * 4000, n * 4000 + 3000);
        let ids = r#""conversationId":"c","sessionId":"s","speaker":"Ann""#;
        let line = format!(r#"{{{ids},"index":{n},"text":"{WORDS}","startMs":{start},"endMs":{end}}}"#);
        file.push_str(&line);
        file.push('\n');
        file
    })
}

/// Segments with a time for each word.
fn whisper() -> String {
    let segments: Vec<String> = (0..SEGMENTS)
        .map(|n| {
            let word = |word: &str| format!(r#"{{"word":" {word}","start":{n}.5,"end":{n}.75,"probability":0.9}}"#);
            let words: Vec<String> = WORDS.split(' ').map(word).collect();
            let words = words.join(",");
            format!(r#"{{"id":{n},"start":{n}.5,"end":{n}.9,"text":" {WORDS}","words":[{words}]}}"#)
        })
        .collect();
    format!(r#"{{"segments":[{}],"language":"en"}}"#, segments.join(","))
}

fn read(file: &str) -> usize {
    let mut reader = Reader::new(Options::default());
    reader.push(file.as_bytes()).expect("the file is good");
    reader.finish().expect("the file is good");
    std::iter::from_fn(|| reader.next_record()).count()
}

fn measure(bencher: Bencher<'_, '_>, file: &str, read: impl Fn(&str) -> usize + Sync) {
    assert_eq!(read(file), usize::try_from(SEGMENTS).expect("it is small"));
    bencher.counter(BytesCount::of_str(file)).bench(|| read(black_box(file)));
}

#[divan::bench]
fn srt_ours(bencher: Bencher<'_, '_>) {
    measure(bencher, &srt(), read);
}

#[divan::bench]
fn srt_subtp(bencher: Bencher<'_, '_>) {
    measure(bencher, &srt(), |file| subtp::srt::SubRip::parse(file).expect("the file is good").subtitles.len());
}

#[divan::bench]
fn webvtt_ours(bencher: Bencher<'_, '_>) {
    measure(bencher, &vtt(), read);
}

#[divan::bench]
fn webvtt_subtp(bencher: Bencher<'_, '_>) {
    measure(bencher, &vtt(), |file| {
        let blocks = subtp::vtt::WebVtt::parse(file).expect("the file is good").blocks;
        blocks.iter().filter(|block| matches!(block, subtp::vtt::VttBlock::Que(_))).count()
    });
}

#[divan::bench]
fn own_lines(bencher: Bencher<'_, '_>) {
    measure(bencher, &lines(), read);
}

#[divan::bench]
fn own_lines_as_values_of_serde_json(bencher: Bencher<'_, '_>) {
    let value = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("the line is good");
    measure(bencher, &lines(), |file| file.lines().map(value).map(black_box).count());
}

#[divan::bench]
fn whisper_ours(bencher: Bencher<'_, '_>) {
    measure(bencher, &whisper(), read);
}

#[divan::bench]
fn whisper_as_values_of_serde_json(bencher: Bencher<'_, '_>) {
    measure(bencher, &whisper(), |file| {
        let value: serde_json::Value = serde_json::from_str(file).expect("the file is good");
        value["segments"].as_array().map_or(0, Vec::len)
    });
}
