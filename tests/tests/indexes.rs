//! Segments whose index is anything that MongoDB can store: each is in the summary exactly once, and in the order of the call.

use std::time::Duration;

use mongodb::bson::{
    self, Bson, DateTime, DbPointer, Decimal128, Document, JavaScriptCodeWithScope, Regex, Timestamp, doc,
    oid::ObjectId, spec::BinarySubtype,
};
use transcript_core::ids::Session;
use transcript_tests::{wait::wait_until, world::TestWorld};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Segments of a call, which makes some pages.
const SEGMENTS: i32 = 12;
/// 2^53: as doubles the whole numbers from here on are not all different.
const LARGE: i64 = 1 << 53;

/// An index, or none, by its name.
type Index = (&'static str, Option<Bson>);

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_with_any_index_but_an_array_is_summed_up_once() -> Outcome {
    each_is_summed_up_once(&singles()?).await
}

/// One array makes MongoDB's index another one, for every call.
#[tokio::test(flavor = "multi_thread")]
async fn a_segment_with_any_array_for_an_index_is_summed_up_once() -> Outcome {
    let arrays: [(&str, Vec<Bson>); 11] = [
        ("an empty array", vec![]),
        ("of a number", vec![3.into()]),
        ("of numbers", vec![2.into(), 5.into()]),
        ("of numbers on both sides", vec![Bson::Double(-1e300), Bson::Double(1e300)]),
        ("of numbers outside", vec![Bson::Double(1e300), Bson::Int64(LARGE)]),
        ("of texts", vec!["3".into(), "4".into()]),
        ("of a text and a number", vec!["3".into(), 4.into()]),
        ("of null", vec![Bson::Null]),
        ("of null and numbers", vec![Bson::Null, 1.into(), 11.into()]),
        ("of arrays", vec![Bson::Array(vec![3.into()]), Bson::Array(vec![])]),
        ("of documents", vec![doc! { "a": 1 }.into()]),
    ];
    let arrays = arrays.map(|(name, array)| (name, Some(Bson::Array(array))));
    let others = [("null", Some(Bson::Null)), ("none", None), ("a text", Some("7".into()))];
    each_is_summed_up_once(&arrays.into_iter().chain(others).collect::<Vec<_>>()).await
}

/// One of each type, and numbers at the bounds.
fn singles() -> Result<Vec<Index>, Box<dyn std::error::Error>> {
    let decimal = |number: &str| number.parse::<Decimal128>().map(Bson::Decimal128);
    let pointer = doc! { "$dbPointer": { "$ref": "a.b", "$id": { "$oid": "000000000000000000000001" } } };
    let pointer: DbPointer =
        bson::deserialize_from_document(doc! { "pointer": pointer }).map(|Pointer { pointer }| pointer)?;
    let values: Vec<(&str, Bson)> = vec![
        ("null", Bson::Null),
        ("undefined", Bson::Undefined),
        ("a text", "3".into()),
        ("a symbol", Bson::Symbol("3".into())),
        ("a document", doc! { "index": 3 }.into()),
        ("an empty document", doc! {}.into()),
        ("bytes", Bson::Binary(bson::Binary { subtype: BinarySubtype::Generic, bytes: vec![3] })),
        ("an object id", ObjectId::from_bytes([3; 12]).into()),
        ("true", true.into()),
        ("a date", DateTime::from_millis(3).into()),
        ("a timestamp", Timestamp { time: 3, increment: 1 }.into()),
        ("a pattern", Bson::RegularExpression(Regex { pattern: "3".try_into()?, options: "".try_into()? })),
        ("a pointer", Bson::DbPointer(pointer)),
        ("code", Bson::JavaScriptCode("3".into())),
        ("code with scope", JavaScriptCodeWithScope { code: "3".into(), scope: doc! {} }.into()),
        ("the least key", Bson::MinKey),
        ("the greatest key", Bson::MaxKey),
        ("no number", Bson::Double(f64::NAN)),
        ("infinity", Bson::Double(f64::INFINITY)),
        ("minus infinity", Bson::Double(f64::NEG_INFINITY)),
        ("2^53", Bson::Int64(LARGE)),
        ("2^53 + 1", Bson::Int64(LARGE + 1)),
        ("-2^53 - 1", Bson::Int64(-LARGE - 1)),
        ("a fraction", Bson::Double(2.7)),
        ("a smaller fraction", Bson::Double(2.5)),
        ("a negative fraction", Bson::Double(-0.5)),
        ("2^53 + 2 as a double", Bson::Double(9_007_199_254_740_994.0)),
        ("1e300", Bson::Double(1e300)),
        ("-1e300", Bson::Double(-1e300)),
        ("the largest whole number", Bson::Int64(i64::MAX)),
        ("the smallest whole number", Bson::Int64(i64::MIN)),
        ("a decimal", decimal("3")?),
        ("a decimal fraction", decimal("3.5")?),
        ("a huge decimal", decimal("1E+400")?),
        ("a tiny decimal", decimal("-1E+400")?),
        ("no decimal number", decimal("NaN")?),
        ("decimal infinity", decimal("Infinity")?),
    ];
    Ok(values.into_iter().map(|(name, index)| (name, Some(index))).chain([("none", None)]).collect())
}

#[derive(serde::Deserialize)]
struct Pointer {
    pointer: DbPointer,
}

/// A call with one such index, a call of almost nothing else, and a call with all of them, each of several pages.
async fn each_is_summed_up_once(odd: &[Index]) -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    let mut calls = vec![];
    for (name, index) in odd {
        calls.push((format!("one: {name}"), vec![index.clone()]));
        calls.push((format!("many: {name}"), vec![index.clone(); 9]));
    }
    calls.push(("all".to_owned(), odd.iter().map(|(_, index)| index.clone()).collect()));
    for (session, odd) in &calls {
        world.segments().insert_many(segments(session, odd)).await?;
        world.publish_session_end(&Session::new("c", session)?, u64::try_from(expected(odd).len())?).await?;
    }
    let settings = ["--quiet-period=0s", "--page-size=4"];
    let processor = world.processor("run").arguments(settings).start().await?;
    wait_until("all are announced", LONG, || async {
        let announced = world.notifications().await.map_err(|error| error.to_string())?.len();
        if announced == calls.len() {
            Ok(())
        } else {
            Err(format!("{announced} of {}: {}", calls.len(), processor.logs()))
        }
    })
    .await?;
    processor.terminate().await?;
    for (session, odd) in &calls {
        let summary = world.summary(&Session::new("c", session)?.key()).await?.ok_or("a summary")?;
        let speakers = summary.get_array("speakers")?.iter().filter_map(Bson::as_document);
        let told: Vec<(&str, &Bson)> =
            speakers.filter_map(|speaker| Some((speaker.get_str("speaker").ok()?, speaker.get("words")?))).collect();
        let expected = expected(odd);
        let two = Bson::Int64(2);
        let expected: Vec<(&str, &Bson)> = expected.iter().map(|speaker| (speaker.as_str(), &two)).collect();
        assert_eq!(told, expected, "{session}: each once, by index, start and id");
        assert_eq!(summary.get("segments"), Some(&Bson::Int64(i64::try_from(expected.len())?)), "{session}");
    }
    Ok(())
}

/// Numbered segments around odd ones, stored in another order than that of the call; each has a speaker of its own.
fn segments(session: &str, odd: &[Option<Bson>]) -> Vec<Document> {
    let odd = odd.iter().enumerate().map(|(number, index)| {
        let mut segment = segment(session, &format!("odd {number}"));
        segment.insert("startMs", i64::try_from(number).unwrap_or(i64::MAX));
        if let Some(index) = index {
            segment.insert("index", index.clone());
        }
        segment
    });
    let numbered = (0..SEGMENTS).rev().map(|number| {
        let mut segment = segment(session, &format!("numbered {number}"));
        segment.insert("index", number - 1);
        segment
    });
    odd.chain(numbered).collect()
}

fn segment(session: &str, speaker: &str) -> Document {
    doc! { "_id": format!("{session}/{speaker}"), "sessionId": session, "speaker": speaker, "text": "a word" }
}

/// The speakers of the call in the order in which they speak: by index, start and `_id`, a missing one last.
fn expected(odd: &[Option<Bson>]) -> Vec<String> {
    let numbered = (0..SEGMENTS).map(|number| (Some(i64::from(number) - 1), None, format!("numbered {number}")));
    let odd =
        odd.iter().enumerate().map(|(number, index)| (whole(index.as_ref()), Some(number), format!("odd {number}")));
    let mut all: Vec<(Option<i64>, Option<usize>, String)> = numbered.chain(odd).collect();
    all.sort_by_key(|(index, start, speaker)| (index.is_none(), *index, start.is_none(), *start, speaker.clone()));
    all.into_iter().map(|(_, _, speaker)| speaker).collect()
}

/// What counts as an index: a whole number, or the whole part of a double, of 64 bits.
fn whole(index: Option<&Bson>) -> Option<i64> {
    match index {
        Some(Bson::Int32(number)) => Some(i64::from(*number)),
        Some(Bson::Int64(number)) => Some(*number),
        Some(Bson::Double(number)) if number.abs() < 1e18 => Some(number.floor() as i64),
        _ => None,
    }
}
