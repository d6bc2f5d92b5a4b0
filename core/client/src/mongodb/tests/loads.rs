//! Whatever the size of the pages, a call is read once and in its order.

use proptest::prelude::*;
use transcript_core::{
    Tally,
    summary::{Order, Segment},
};

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
            Command::Page { order, place, numbers, limit, max_bytes, .. } => {
                Reply::Page(self.page(*order, place, *numbers, *limit, *max_bytes))
            }
            Command::Tally { .. } => Reply::Tallied(self.tally()),
            Command::LoadSmall { calls, max_segments, max_bytes } => self.small(calls, *max_segments, *max_bytes),
            other => well(other),
        }
    }

    fn tally(&self) -> Tally {
        let without_start = self.documents.iter().filter(|document| document.segment.session_start().is_none()).count();
        Tally { segments: self.documents.len() as u64, without_start: without_start as u64, edits: 0 }
    }

    /// In the order of the call.
    fn sorted(&self) -> Vec<Document> {
        self.sorted_by(Order::of(self.documents.iter().map(|document| &document.segment)))
    }

    fn sorted_by(&self, by: Order) -> Vec<Document> {
        let mut documents = self.documents.clone();
        documents.sort_by(|a, b| order(by, a, b));
        documents
    }

    fn page(&self, by: Order, place: &Place, numbers: IndexedNumbers, limit: u32, max_bytes: u64) -> PageRead {
        let number = |document: &Document| match by {
            Order::Index => document.segment.index,
            Order::Start => document.segment.session_start(),
        };
        let behind = |document: &Document, after: &Option<SortKey>| {
            let Some(after) = after else { return true };
            let segment = match by {
                Order::Index => Segment { start_ms: after.second, ..document.segment.clone() },
                Order::Start => Segment { index: after.second, ..document.segment.clone() },
            };
            let segment = Segment { id: text(&after.id), ..segment };
            let key = Document { segment, id: id(&after.id), damaged: false };
            order(by, document, &key) == std::cmp::Ordering::Greater
        };
        let found: Vec<Document> = self
            .sorted_by(by)
            .into_iter()
            .filter(|document| match place {
                Place::After(after) => number(document).is_some_and(|it| after.is_none_or(|after| it > after)),
                Place::Within { number: of, after } => number(document) == Some(*of) && behind(document, after),
                Place::Rest { after } => number(document).is_none() && behind(document, after),
            })
            .collect();
        let bounded = usize::try_from(max_bytes / DOCUMENT_BYTES).expect("small").min(limit as usize);
        let more = found.len() > bounded;
        let may_meet_others = by == Order::Index && !matches!(place, Place::Rest { .. });
        PageRead {
            more,
            needs: (more && DOCUMENT_BYTES > max_bytes).then_some(DOCUMENT_BYTES),
            documents: found.into_iter().take(bounded).collect(),
            others: self.others && numbers == IndexedNumbers::Numbers && may_meet_others,
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

/// Segments that share indexes, starts and the beginnings of ids; in every other call all starts are on the session's clock.
fn documents() -> impl Strategy<Value = Vec<Document>> {
    let number = || prop_oneof![(0..3_i64), (0..3_i64).prop_map(|n| (1 << 53) + n), Just(i64::MAX), Just(i64::MIN),];
    let place = (prop::option::of(number()), prop::option::of(number()), number(), any::<[bool; 3]>());
    (prop::collection::vec(place, 0..24), any::<bool>()).prop_map(|(places, all_marked)| {
        let places = places.into_iter().enumerate();
        let document = |(number, place): (usize, (_, _, _, [bool; 3]))| {
            let (index, start, start_of_marked, [other, damaged, marked]) = place;
            let number = u8::try_from((number * 7) % 24).expect("few");
            let bson = vec![if number % 2 == 0 { TEXT_ORDER - 1 } else { TEXT_ORDER + 1 }, number];
            Document {
                segment: Segment {
                    id: format!("{number:02}"),
                    index,
                    start_ms: if all_marked { Some(start_of_marked) } else { start },
                    on_session_clock: all_marked || marked,
                    ..Segment::default()
                },
                id: if other {
                    DocumentId::Other(Box::new(OtherId { order: bson.clone(), bson }))
                } else {
                    DocumentId::Text
                },
                damaged,
            }
        };
        places.map(document).collect()
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
    let (mut segments, mut damaged, mut after, mut order) = (vec![], 0, None, None);
    let mut room = max_bytes;
    for job in 1..1_000 {
        let load = Load { session_id: "s".into(), order, after: after.clone(), limit, max_bytes: room, counted };
        driven.ask(job, Request::Load(load));
        driven.run(|command| server.answer(command));
        let Some(Report::Loaded(page)) = driven.reports.remove(&job) else { panic!("no page: {:?}", driven.reports) };
        assert!(page.segments.len() <= limit as usize, "{} in a page of {limit}", page.segments.len());
        segments.extend(page.segments);
        damaged += page.damaged;
        if page.next.is_none() && page.needs.is_none() {
            match page.tally {
                Some(tally) if tally.without_start > 0 => order = Some(Order::Index),
                Some(tally) if segments.len() as u64 != tally.segments => order = Some(Order::Start),
                Some(_) | None => return (segments, damaged),
            }
            (segments, damaged, after, room) = (vec![], 0, None, max_bytes);
            continue;
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
        // A mark more or less would make the order another one; that has a test of its own.
        let by = Order::of(documents.iter().map(|document| &document.segment));
        let stored = |server: &mut Server| {
            if let Some((number, mut document)) = later.next() {
                document.segment.id = format!("later {number}");
                document.id = DocumentId::Text;
                document.segment.on_session_clock = by == Order::Start && document.segment.start_ms.is_some();
                if by == Order::Index || document.segment.on_session_clock {
                    server.documents.push(document);
                }
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

fn marked(id: &str, index: i64, start_ms: i64) -> Document {
    let segment =
        Segment { index: Some(index), start_ms: Some(start_ms), on_session_clock: true, ..Segment::default() };
    Document { segment: Segment { id: id.into(), ..segment }, id: DocumentId::Text, damaged: false }
}

/// The ids of a call of three segments that is read in pages of one, where `change` is made before the page of this number.
fn ids_after(change_before: usize, change: impl Fn(&mut Server)) -> Vec<String> {
    let documents = vec![marked("late", 0, 9), marked("early", 1, 5), marked("last", 2, 20)];
    let (mut server, mut pages) = (Server { documents, others: false }, 0);
    let (segments, _) = load(&mut server, 1, 1 << 20, 3, |server| {
        pages += 1;
        if pages == change_before {
            change(server);
        }
    });
    assert!(pages >= change_before, "the change was never made");
    segments.into_iter().map(|segment| segment.id).collect()
}

#[test]
fn a_segment_without_a_start_that_comes_between_the_pages_puts_the_call_in_the_order_of_indexes() {
    assert_eq!(ids_after(1, |_| ()), ["early", "late", "last"]);
    let unmarked = |server: &mut Server| {
        let mut document = marked("unmarked", 3, 0);
        document.segment.on_session_clock = false;
        server.documents.push(document);
    };
    assert_eq!(ids_after(1, unmarked), ["late", "early", "last", "unmarked"]);
    let loses_its_mark = |server: &mut Server| server.documents[0].segment.on_session_clock = false;
    assert_eq!(ids_after(2, loses_its_mark), ["late", "early", "last"]);
}

#[test]
fn a_segment_whose_start_changes_between_the_pages_comes_once() {
    let moves_on = |server: &mut Server| server.documents[1].segment.start_ms = Some(30);
    assert_eq!(ids_after(2, moves_on), ["late", "last", "early"]);
    let moves_back = |server: &mut Server| server.documents[2].segment.start_ms = Some(1);
    assert_eq!(ids_after(2, moves_back), ["last", "early", "late"]);
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
                order: None,
                after: None,
                limit: 10,
                max_bytes: 1 << 20,
                counted,
            }),
        );
    }
    let commands = driven.run(well);
    let kinds: Vec<CommandKind> = commands.iter().map(Command::kind).collect();
    let pages = [CommandKind::Tally, CommandKind::Page, CommandKind::Tally];
    assert_eq!(kinds, [[CommandKind::LoadSmall].as_slice(), &pages].concat());
    assert_eq!(members(&commands[0]), 299);
    assert_eq!(driven.reports.len(), 300);
}

#[test]
fn a_call_without_a_cursor_of_ours_is_refused() {
    let mut driven = Driven::default();
    let after = Some(transcript_core::Cursor("?".to_owned()));
    driven
        .ask(1, Request::Load(Load { session_id: "s".into(), order: None, after, limit: 1, max_bytes: 1, counted: 1 }));
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
            ..Segment::default()
        },
        id: DocumentId::Text,
        damaged: true,
    };
    let server = Server { documents: vec![damaged], others: false };
    for counted in [1, 20] {
        let mut driven = Driven::default();
        driven.ask(
            1,
            Request::Load(Load {
                session_id: "s".into(),
                order: None,
                after: None,
                limit: 10,
                max_bytes: 1 << 20,
                counted,
            }),
        );
        driven.run(|command| server.answer(command));
        assert_eq!(driven.notices.len(), 1);
        assert!(driven.notices[0].contains(r#"session "s""#), "{:?}", driven.notices);
    }
}
