//! What a summary is, written down a second time without folding, and the fold held against it; and the size of the
//! document, held against MongoDB's bound.

use std::collections::BTreeSet;

use icu_properties::{
    CodePointMapData, CodePointSetData,
    props::{DefaultIgnorableCodePoint, GeneralCategory as Gc, Script},
};
use icu_segmenter::{WordSegmenter, options::WordBreakInvariantOptions};
use proptest::{collection::vec, option, prelude::*};

use super::*;

/// Has the whole call before it, goes over it once for every part of the summary, and keeps everything until the end.
fn model(limits: Limits, call: &[Segment], session: &Session, published: u64, updated_at: WallTime) -> Summary {
    let spoken: Vec<Spoken> = call.iter().filter_map(|segment| Spoken::new(limits, segment)).collect();
    let turns = turns(&spoken);
    let listed = listed_speakers(limits, &spoken);
    let questions: Vec<(&Spoken, String)> =
        spoken.iter().flat_map(|spoken| spoken.questions.iter().map(move |line| (spoken, line.clone()))).collect();
    let listed_questions = listed_questions(limits, &questions);

    let mut speakers: Vec<Speaker> = listed
        .iter()
        .map(|label| Speaker {
            speaker: label.clone(),
            words: spoken.iter().filter(|spoken| spoken.label == *label).map(|spoken| spoken.words).sum(),
            turns: turns.iter().filter(|turn| turn.speaker == *label).count() as u64,
            questions: questions.iter().filter(|(spoken, _)| spoken.label == *label).count() as u64,
        })
        .collect();
    speakers.sort_by_key(|speaker| std::cmp::Reverse(speaker.words));

    let mut longest: Vec<Turn> = turns.into_iter().filter(|turn| turn.words > 0).collect();
    longest.sort_by_key(|turn| std::cmp::Reverse(turn.words));
    longest.truncate(3);

    let cut = Cut {
        labels: spoken.iter().filter(|spoken| spoken.label != spoken.segment.speaker).count() as u64,
        speakers: spoken.iter().filter(|spoken| !listed.contains(&spoken.label)).count() as u64,
        turns: longest.iter().filter(|turn| turn.text.len() > limits.turn_bytes).count() as u64,
        question_texts: listed_questions
            .iter()
            .zip(&questions)
            .filter(|(listed, (_, whole))| listed.text != *whole)
            .count() as u64,
        questions: (questions.len() - listed_questions.len()) as u64,
    };
    for turn in &mut longest {
        turn.text = prefix(&turn.text, limits.turn_bytes);
    }
    Summary {
        key: session.key(),
        session: session.clone(),
        segments: call.len() as u64,
        published_segments: published,
        reprocess: 0,
        complete: call.len() as u64 >= published,
        edits: call.iter().map(|segment| segment.edits).sum(),
        words: spoken.iter().map(|spoken| spoken.words).sum(),
        damaged: 0,
        speakers,
        longest_turns: longest,
        questions: listed_questions,
        cut: if cut == Cut::default() { None } else { Some(cut) },
        updated_at,
    }
}

/// A segment that is not blank.
struct Spoken<'a> {
    segment: &'a Segment,
    label: Option<String>,
    text: String,
    words: u64,
    questions: Vec<String>,
}

impl<'a> Spoken<'a> {
    fn new(limits: Limits, segment: &'a Segment) -> Option<Self> {
        let text = trimmed(&segment.text);
        let lines = segment.text.split(&['\n', '\r', '\u{B}', '\u{C}', '\u{85}', '\u{2028}', '\u{2029}'][..]);
        (!text.is_empty()).then(|| Self {
            segment,
            label: segment.speaker.as_deref().map(|label| prefix(label, limits.label_bytes)),
            words: words(&segment.text),
            questions: lines.map(trimmed).filter(|line| asks(line)).collect(),
            text,
        })
    }
}

fn turns(spoken: &[Spoken<'_>]) -> Vec<Turn> {
    spoken
        .chunk_by(|a, b| a.label.is_some() && a.label == b.label)
        .map(|turn| Turn {
            speaker: turn[0].label.clone(),
            words: turn.iter().map(|spoken| spoken.words).sum(),
            text: turn.iter().map(|spoken| spoken.text.as_str()).collect::<Vec<_>>().join(" "),
            index: turn[0].segment.index,
            start_ms: turn[0].segment.start_ms,
            end_ms: turn[turn.len() - 1].segment.end_ms,
        })
        .collect()
}

fn listed_speakers(limits: Limits, spoken: &[Spoken<'_>]) -> Vec<Option<String>> {
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    let firsts = spoken.iter().filter(|spoken| seen.insert(spoken.label.clone()));
    firsts
        .map(|spoken| spoken.label.clone())
        .take(limits.speakers)
        .take_while(|label| {
            bytes += label.as_ref().map_or(0, String::len);
            bytes <= limits.speakers_bytes
        })
        .collect()
}

fn listed_questions(limits: Limits, questions: &[(&Spoken<'_>, String)]) -> Vec<Question> {
    let mut bytes = 0;
    questions
        .iter()
        .map(|(spoken, line)| Question {
            speaker: spoken.label.clone(),
            text: prefix(line, limits.question_bytes),
            index: spoken.segment.index,
            start_ms: spoken.segment.start_ms,
        })
        .take(limits.questions)
        .take_while(|question| {
            bytes += question.text.len() + question.speaker.as_ref().map_or(0, String::len);
            bytes <= limits.questions_bytes
        })
        .collect()
}

fn words(text: &str) -> u64 {
    let ends: Vec<usize> =
        WordSegmenter::new_dictionary(WordBreakInvariantOptions::default()).segment_str(text).collect();
    let visible = |c: char| {
        matches!(
            category(c),
            Gc::UppercaseLetter
                | Gc::LowercaseLetter
                | Gc::TitlecaseLetter
                | Gc::ModifierLetter
                | Gc::OtherLetter
                | Gc::LetterNumber
                | Gc::DecimalNumber
        ) && !nothing(c)
    };
    ends.windows(2).filter(|ends| text[ends[0]..ends[1]].chars().any(visible)).count() as u64
}

fn trimmed(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let Some(first) = chars.iter().position(|&c| !nothing(c)) else { return String::new() };
    let last = chars.iter().rposition(|&c| !nothing(c)).unwrap_or(first);
    let shaping = |c: char| {
        !c.is_whitespace() && (matches!(category(c), Gc::NonspacingMark) || matches!(c, '\u{200C}' | '\u{200D}'))
            || ('\u{E0020}'..='\u{E007F}').contains(&c)
    };
    let shapers = chars[last + 1..].iter().take_while(|&&c| shaping(c)).count();
    chars[first..=last + shapers].iter().collect()
}

fn asks(line: &str) -> bool {
    let mut said: Vec<char> = line.chars().filter(|&c| !nothing(c)).collect();
    let closing = [Gc::ClosePunctuation, Gc::InitialPunctuation, Gc::FinalPunctuation];
    while said.last().is_some_and(|&c| closing.contains(&category(c)) || "\"'＂＇".contains(c)) {
        said.pop();
    }
    let letters: Vec<char> = said.iter().copied().filter(|&c| letter(c)).collect();
    let greek = letters.iter().filter(|&&c| CodePointMapData::<Script>::new().get(c) == Script::Greek).count();
    let last_word = line.split_whitespace().rfind(|word| word.chars().any(letter)).unwrap_or_default();
    match said.last() {
        Some(';') => greek * 2 > letters.len(),
        Some(c) => "?\u{37E}؟፧᥅‽⁇⁈⁉⳺⳻⸮⹔꘏꛷︖﹖？𑅃".contains(*c) || last_word.contains('՞'),
        None => false,
    }
}

fn prefix(text: &str, bytes: usize) -> String {
    let mut short = String::new();
    for c in text.chars() {
        if short.len() + c.len_utf8() > bytes {
            break;
        }
        short.push(c);
    }
    short
}

fn nothing(c: char) -> bool {
    c.is_whitespace() || CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
}

fn letter(c: char) -> bool {
    matches!(
        category(c),
        Gc::UppercaseLetter | Gc::LowercaseLetter | Gc::TitlecaseLetter | Gc::ModifierLetter | Gc::OtherLetter
    ) && !nothing(c)
}

fn category(c: char) -> Gc {
    CodePointMapData::<Gc>::new().get(c)
}

fn fold(limits: Limits, call: &[Segment], session: &Session, published: u64, updated_at: WallTime) -> Summary {
    let mut summarizer = Summarizer::new(limits);
    call.iter().for_each(|segment| summarizer.push(segment));
    summarizer.finish(session, published, updated_at)
}

fn session() -> Session {
    Session::new("c", "s").expect("the ids are valid")
}

fn texts() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "Why",
        "1",
        "don't",
        " ",
        "\n",
        "\r\n",
        "\u{2028}",
        "?",
        "?",
        "!",
        ";",
        "؟",
        "？",
        "՞",
        "։",
        "\"",
        "“",
        "”",
        "«",
        ")",
        "(",
        ".",
        "_",
        "αβ",
        "да",
        "ինչ",
        "שלום",
        "你好",
        "今日は",
        "สวัสดี",
        "សួស្តី",
        "\u{301}",
        "\u{200B}",
        "\u{200D}",
        "\u{200F}",
        "\u{FE0F}",
        "\u{FEFF}",
        "\u{3164}",
        "\u{AD}",
        "❤",
        "👩",
        "\0",
        "\u{37E}",
        "፧",
        "\u{E0067}",
    ]);
    prop_oneof![
        6 => vec(piece, 0..8).prop_map(|pieces| pieces.concat()),
        1 => any::<String>(),
        1 => Just("\u{200B} ".to_owned()),
    ]
}

fn calls() -> impl Strategy<Value = Vec<Segment>> {
    let label = prop::sample::select(vec!["", "a", "a.b", "$set", "ab", "abc", "ä", "äö", "äöü", "🦀"]);
    let segment =
        (option::weighted(0.8, label), texts(), option::of(-2_i64..9), option::of(0_i64..9), option::of(0_i64..9));
    vec(segment, 0..24).prop_map(|segments| {
        let segments = segments.into_iter().enumerate();
        segments
            .map(|(place, (speaker, text, index, start_ms, end_ms))| Segment {
                id: format!("s:{place}"),
                index,
                speaker: speaker.map(str::to_owned),
                text,
                start_ms,
                end_ms,
                ..Segment::default()
            })
            .collect()
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let tight = (0_usize..8, 0_usize..6, 0_usize..16, 0_usize..48, 0_usize..24, 0_usize..6, 0_usize..48).prop_map(
        |(label_bytes, speakers, speakers_bytes, turn_bytes, question_bytes, questions, questions_bytes)| Limits {
            label_bytes,
            speakers,
            speakers_bytes,
            turn_bytes,
            question_bytes,
            questions,
            questions_bytes,
        },
    );
    prop_oneof![Just(Limits::default()), tight]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_fold_gives_what_the_model_says(call in calls(), limits in limits(), published in 0_u64..32, at in any::<i64>()) {
        let at = WallTime::from_millis(at);
        let summary = fold(limits, &call, &session(), published, at);
        prop_assert_eq!(&summary, &model(limits, &call, &session(), published, at));
        let json = serde_json::to_string(&summary).expect("a summary is JSON");
        prop_assert_eq!(serde_json::from_str::<Summary>(&json).expect("and is read back"), summary);
    }

    #[test]
    fn pages_make_no_difference(call in calls(), limits in limits(), page in 1_usize..6) {
        let at = WallTime::from_millis(0);
        let mut summarizer = Summarizer::new(limits);
        for segments in call.chunks(page) {
            let mut resumed = summarizer.clone();
            segments.to_vec().iter().for_each(|segment| resumed.push(segment));
            summarizer = resumed;
        }
        prop_assert_eq!(summarizer.segments(), call.len() as u64);
        prop_assert_eq!(summarizer.finish(&session(), 0, at), fold(limits, &call, &session(), 0, at));
    }

    #[test]
    fn blank_segments_change_nothing_but_the_number_of_segments(call in calls(), place in any::<prop::sample::Index>()) {
        let at = WallTime::from_millis(0);
        let plain = fold(Limits::default(), &call, &session(), 0, at);
        let mut with_blank = call.clone();
        let blank = Segment {
            id: "s:-1".into(), index: None, speaker: Some("nobody".into()), text: "\u{FEFF}\r\n\u{3164}".into(), start_ms: None, end_ms: None,
            ..Segment::default()
        };
        with_blank.insert(place.index(call.len() + 1), blank);
        let summary = fold(Limits::default(), &with_blank, &session(), 0, at);
        prop_assert_eq!(summary, Summary { segments: plain.segments + 1, ..plain });
    }
}

mod size {
    use serde_json::Value;

    use super::*;

    /// MongoDB's bound of a document, in bytes (`maxBsonObjectSize` in the answer to `hello`).
    const MONGODB_BYTES: usize = 16 * 1024 * 1024;

    /// Bytes of a value in BSON (<https://bsonspec.org/spec.html>): type, key and NUL of a field, then the value; strings
    /// carry a length and a NUL, documents and arrays too, and arrays are documents keyed by decimal numbers.
    fn bson_bytes(value: &Value) -> usize {
        match value {
            Value::Null => 0,
            Value::Bool(_) => 1,
            Value::Number(_) => 8,
            Value::String(text) => 4 + text.len() + 1,
            Value::Array(items) => {
                let fields = items.iter().enumerate();
                5 + fields.map(|(key, item)| 2 + key.to_string().len() + bson_bytes(item)).sum::<usize>()
            }
            Value::Object(fields) => {
                5 + fields.iter().map(|(key, item)| 2 + key.len() + bson_bytes(item)).sum::<usize>()
            }
        }
    }

    fn stored_bytes(summary: &Summary) -> usize {
        bson_bytes(&serde_json::to_value(summary).expect("a summary is JSON"))
    }

    /// What no summary within `limits` exceeds. An entry's fields, without its texts, take less than 128 bytes, the
    /// document's own fields less than 4 KiB: its ids have at most 256 bytes each, and its key three times both.
    fn most_bytes(limits: Limits) -> usize {
        const ENTRY_BYTES: usize = 128;
        4 * 1024
            + limits.speakers_bytes
            + limits.speakers * ENTRY_BYTES
            + 3 * (limits.turn_bytes + limits.label_bytes + ENTRY_BYTES)
            + limits.questions_bytes
            + limits.questions * ENTRY_BYTES
    }

    fn said(index: usize, speaker: String, text: String) -> Segment {
        let millis = i64::MAX - i64::try_from(index).expect("calls are shorter");
        Segment {
            id: format!("s:{index}"),
            index: Some(millis),
            speaker: Some(speaker),
            text,
            start_ms: Some(millis),
            end_ms: Some(millis),
            ..Segment::default()
        }
    }

    /// A label of exactly `bytes` bytes, a different one for each number.
    fn label(number: usize, bytes: usize) -> String {
        let mut label = format!("{number:08}");
        label.extend(std::iter::repeat_n('🦀', (bytes - 8) / 4));
        label
    }

    fn longest_session() -> Session {
        Session::new(&":".repeat(256), &"\0".repeat(256)).expect("the ids are as long as they may be")
    }

    fn summary_of(call: impl Iterator<Item = Segment>) -> Summary {
        let mut summarizer = Summarizer::new(Limits::default());
        call.for_each(|segment| summarizer.push(&segment));
        summarizer.finish(&longest_session(), u64::MAX, WallTime::from_millis(i64::MAX))
    }

    #[test]
    fn the_bounds_leave_room_to_mongodbs() {
        assert!(most_bytes(Limits::default()) < MONGODB_BYTES * 3 / 4);
    }

    #[test]
    fn the_worst_call_stays_within_the_bounds() {
        let limits = Limits::default();
        // Every list as full in number as in bytes, and then turns and labels longer than they may be.
        let label_bytes = limits.speakers_bytes / limits.speakers;
        let speakers = (0..limits.speakers).map(|number| said(number, label(number, label_bytes), "a".into()));
        let question = format!("{:\"<1$}?", "🦀".repeat(150), limits.questions_bytes / limits.questions - 452);
        let questions = (0..100_000).map(|number| said(number, "q".into(), question.clone()));
        let turns = (0..4).map(|number| said(number, label(number, 99_000), "🦀 a ".repeat(100_000)));
        let summary = summary_of(speakers.chain(questions).chain(turns));
        let lengths = (summary.speakers.len(), summary.longest_turns.len(), summary.questions.len());
        assert_eq!(lengths, (limits.speakers, 3, limits.questions));
        let bytes = stored_bytes(&summary);
        assert!(bytes > 10 * 1024 * 1024, "{bytes} bytes are not the worst");
        assert!(bytes <= most_bytes(limits), "{bytes} bytes");
    }

    proptest! {
        #[test]
        fn no_summary_exceeds_what_its_limits_allow(call in calls(), limits in limits()) {
            let summary = fold(limits, &call, &longest_session(), u64::MAX, WallTime::from_millis(i64::MAX));
            prop_assert!(stored_bytes(&summary) <= most_bytes(limits));
        }
    }
}
