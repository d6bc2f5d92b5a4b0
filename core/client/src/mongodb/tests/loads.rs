//! Whatever the size of the pages, a call is read once and in its order.

use proptest::prelude::*;
use transcript_core::summary::Segment;

use super::*;

const DOCUMENT_BYTES: u64 = 100;

/// The segments of a call, as a server keeps them.
#[derive(Debug, Clone, Default)]
struct Server {
    documents: Vec<Document>,
    /// Whether there is an array among the indexes.
    others: bool,
}

impl Server {
    fn answer(&self, command: &Command) -> Reply {
        match command {
            Command::Page { place, numbers, limit, max_bytes, .. } => {
                Reply::Page(self.page(place, *numbers, *limit, *max_bytes))
            }
            Command::LoadSmall { calls, max_segments, max_bytes } => self.small(calls, *max_segments, *max_bytes),
            other => well(other),
        }
    }

    fn sorted(&self) -> Vec<Document> {
        let mut documents = self.documents.clone();
        documents.sort_by(order);
        documents
    }

    fn page(&self, place: &Place, numbers: IndexedNumbers, limit: u32, max_bytes: u64) -> PageRead {
        let behind = |document: &Document, after: &Option<SortKey>| {
            let Some(after) = after else { return true };
            let key = Document {
                segment: Segment {
                    index: document.segment.index,
                    start_ms: after.start,
                    id: text(&after.id),
                    ..document.segment.clone()
                },
                id: id(&after.id),
                damaged: false,
            };
            order(document, &key) == std::cmp::Ordering::Greater
        };
        let found: Vec<Document> = self
            .sorted()
            .into_iter()
            .filter(|document| match place {
                Place::After(after) => {
                    document.segment.index.is_some_and(|index| after.is_none_or(|after| index > after))
                }
                Place::Within { index, after } => document.segment.index == Some(*index) && behind(document, after),
                Place::Rest { after } => document.segment.index.is_none() && behind(document, after),
            })
            .collect();
        let bounded = usize::try_from(max_bytes / DOCUMENT_BYTES).expect("small").min(limit as usize);
        let more = found.len() > bounded;
        PageRead {
            more,
            needs: (more && DOCUMENT_BYTES > max_bytes).then_some(DOCUMENT_BYTES),
            documents: found.into_iter().take(bounded).collect(),
            others: self.others && numbers == IndexedNumbers::Numbers && !matches!(place, Place::Rest { .. }),
        }
    }

    fn small(&self, calls: &[SmallCall], max_segments: u64, max_bytes: u64) -> Reply {
        let (mut sessions, mut read) = (vec![], 0);
        for call in calls {
            let mut session = SmallRead { session_id: call.session_id.to_string(), documents: vec![], bytes: 0 };
            // In another order than that of the call.
            for document in self.documents.iter().rev() {
                if read == max_segments
                    || (read * DOCUMENT_BYTES > max_bytes && !sessions.is_empty())
                    || session.bytes > call.max_bytes
                {
                    sessions.push(session);
                    return Reply::Small { sessions, end: SmallEnd::Stopped };
                }
                read += 1;
                session.bytes += DOCUMENT_BYTES;
                if session.bytes <= call.max_bytes {
                    session.documents.push(document.clone());
                }
            }
            if session.bytes > 0 {
                sessions.push(session);
            }
        }
        Reply::Small { sessions, end: SmallEnd::All }
    }
}

fn text(id: &StoredId) -> String {
    match id {
        StoredId::Text(text) => text.clone(),
        StoredId::Bson(digits) => format!("other {digits}"),
    }
}

fn id(id: &StoredId) -> DocumentId {
    match id {
        StoredId::Text(_) => DocumentId::Text,
        StoredId::Bson(digits) => {
            let bson: Vec<u8> = digits
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits"))
                .collect();
            DocumentId::Other(Box::new(OtherId { order: bson.clone(), bson }))
        }
    }
}

/// Segments that share indexes, starts and the beginnings of ids.
fn documents() -> impl Strategy<Value = Vec<Document>> {
    let index = prop_oneof![
        Just(None),
        (0..3_i64).prop_map(Some),
        (0..3_i64).prop_map(|n| Some((1 << 53) + n)),
        Just(Some(i64::MAX)),
        Just(Some(i64::MIN)),
    ];
    let place = (index, prop::option::of(0..3_i64), any::<bool>(), any::<bool>());
    prop::collection::vec(place, 0..24).prop_map(|places| {
        let document =
            |(number, (index, start_ms, other, damaged)): (usize, (Option<i64>, Option<i64>, bool, bool))| {
                let number = u8::try_from((number * 7) % 24).expect("few");
                let bson = vec![if number % 2 == 0 { TEXT_ORDER - 1 } else { TEXT_ORDER + 1 }, number];
                Document {
                    segment: Segment {
                        id: format!("{number:02}"),
                        index,
                        speaker: None,
                        text: String::new(),
                        start_ms,
                        end_ms: None,
                    },
                    id: if other {
                        DocumentId::Other(Box::new(OtherId { order: bson.clone(), bson }))
                    } else {
                        DocumentId::Text
                    },
                    damaged,
                }
            };
        places.into_iter().enumerate().map(document).collect()
    })
}

/// Loads a call as the core does; `meanwhile` happens before each page.
fn load(
    server: &mut Server,
    limit: u32,
    max_bytes: u64,
    counted: u64,
    mut meanwhile: impl FnMut(&mut Server),
) -> (Vec<Segment>, u64) {
    let mut driven = Driven::default();
    let (mut segments, mut damaged, mut after) = (vec![], 0, None);
    let mut room = max_bytes;
    for job in 1..1_000 {
        let load = Load { session_id: "s".into(), after: after.clone(), limit, max_bytes: room, counted };
        driven.ask(job, Request::Load(load));
        driven.run(|command| server.answer(command));
        let Some(Report::Loaded(page)) = driven.reports.remove(&job) else { panic!("no page: {:?}", driven.reports) };
        assert!(page.segments.len() <= limit as usize, "{} in a page of {limit}", page.segments.len());
        segments.extend(page.segments);
        damaged += page.damaged;
        if page.next.is_none() && page.needs.is_none() {
            return (segments, damaged);
        }
        room = page.needs.unwrap_or(max_bytes);
        after = page.next.or(after);
        meanwhile(server);
    }
    panic!("it does not end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_size_of_pages_changes_nothing(
        documents in documents(), limit in 1..9_u32, documents_a_page in 0..9_u64, counted in 0..30_u64, others: bool,
    ) {
        let mut server = Server { documents, others };
        let sorted = server.sorted();
        let expected: Vec<Segment> = sorted.iter().map(|document| document.segment.clone()).collect();
        let damaged = sorted.iter().filter(|document| document.damaged).count() as u64;
        let loaded = load(&mut server, limit, documents_a_page * DOCUMENT_BYTES, counted, |_| ());
        prop_assert_eq!(loaded, (expected, damaged));
    }

    #[test]
    fn what_is_stored_meanwhile_neither_doubles_nor_drops_others(
        documents in documents(), later in documents(), limit in 1..5_u32,
    ) {
        let mut server = Server { documents: documents.clone(), others: false };
        let mut later = later.into_iter().enumerate();
        let stored = |server: &mut Server| {
            if let Some((number, mut document)) = later.next() {
                document.segment.id = format!("later {number}");
                document.id = DocumentId::Text;
                server.documents.push(document);
            }
        };
        let (loaded, _) = load(&mut server, limit, 1 << 20, 1_000, stored);
        let (first, more): (Vec<Segment>, Vec<Segment>) = loaded.into_iter().partition(|segment| !segment.id.starts_with("later"));
        let expected: Vec<Segment> = Server { documents, others: false }.sorted().into_iter().map(|document| document.segment).collect();
        prop_assert_eq!(first, expected);
        let mut ids: Vec<String> = more.into_iter().map(|segment| segment.id).collect();
        let count = ids.len();
        ids.sort();
        ids.dedup();
        prop_assert_eq!(ids.len(), count, "each once");
    }
}

#[test]
fn many_small_calls_are_read_by_one_command_and_a_larger_one_by_pages() {
    let mut driven = Driven::default();
    for job in 1..=300 {
        let counted = if job == 7 { 11 } else { 3 };
        driven.ask(
            job,
            Request::Load(Load {
                session_id: job.to_string().into(),
                after: None,
                limit: 10,
                max_bytes: 1 << 20,
                counted,
            }),
        );
    }
    let commands = driven.run(well);
    assert_eq!(commands.iter().map(members).collect::<Vec<_>>(), [299, 1]);
    assert_eq!(driven.reports.len(), 300);
}

#[test]
fn a_call_without_a_cursor_of_ours_is_refused() {
    let mut driven = Driven::default();
    let after = Some(transcript_core::Cursor("?".to_owned()));
    driven.ask(1, Request::Load(Load { session_id: "s".into(), after, limit: 1, max_bytes: 1, counted: 1 }));
    driven.run(well);
    assert!(rejected(driven.failure(1)));
}

#[test]
fn damaged_texts_are_told_with_their_call() {
    let damaged = Document {
        segment: Segment {
            id: "x".into(),
            index: Some(1),
            speaker: None,
            text: "caf\u{FFFD}".into(),
            start_ms: None,
            end_ms: None,
        },
        id: DocumentId::Text,
        damaged: true,
    };
    let server = Server { documents: vec![damaged], others: false };
    for counted in [1, 20] {
        let mut driven = Driven::default();
        driven.ask(
            1,
            Request::Load(Load { session_id: "s".into(), after: None, limit: 10, max_bytes: 1 << 20, counted }),
        );
        driven.run(|command| server.answer(command));
        assert_eq!(driven.notices.len(), 1);
        assert!(driven.notices[0].contains(r#"session "s""#), "{:?}", driven.notices);
    }
}
