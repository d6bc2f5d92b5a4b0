//! In which order the segments of a call are loaded, and when they are loaded again.

use crate::{Tally, summary::Order};

use super::{bench::*, *};

/// Segments of these indexes and starts; by start they are on the session's clock.
fn page_of(by: Order, places: &[(i64, i64)], next: Option<&str>) -> Page {
    let segments = places.iter().flat_map(|(index, start)| {
        let segments = page(*index..index + 1, None).segments.into_iter();
        segments.map(|segment| Segment { start_ms: Some(*start), on_session_clock: by == Order::Start, ..segment })
    });
    Page { segments: segments.collect(), next: next.map(|next| Cursor(next.into())), ..Page::default() }
}

fn tallied(page: Page, segments: u64, without_start: u64) -> Report {
    Report::Loaded(Page { tally: Some(Tally { segments, without_start, edits: 0 }), ..page })
}

/// The order that the job asks for, from the first page on.
fn loads_again(bench: &Bench) -> Order {
    match bench.asked.front().map(|(_, effect)| effect) {
        Some(Effect::Load { order: Some(order), after: None, .. }) => *order,
        other => panic!("it does not load again: {other:?}"),
    }
}

fn saved_segments(mut bench: Bench) -> u64 {
    let segments = saved_summary(&bench).segments;
    bench.report(SAVE, Report::Saved(STORED));
    segments
}

#[test]
fn the_first_load_leaves_the_order_to_the_store_and_is_believed_where_its_segments_show_it() {
    for (by, places) in
        [(Order::Start, [(1, 5), (0, 9)]), (Order::Start, [(0, 5), (1, 5)]), (Order::Index, [(0, 9), (1, 5)])]
    {
        let mut bench = Bench::loading(settings());
        let first = bench.asked.front().expect("it loads").1.clone();
        assert!(matches!(first, Effect::Load { order: None, after: None, .. }), "{first:?}");
        bench.report(LOAD, Report::Loaded(page_of(by, &places, None)));
        assert_eq!(saved_segments(bench), 2, "{by:?}");
    }
}

#[test]
fn a_load_in_the_wrong_order_is_made_again_in_the_right_one_which_is_believed() {
    for (by, places) in [(Order::Start, [(0, 9), (1, 5)]), (Order::Index, [(1, 5), (0, 9)])] {
        let mut bench = Bench::loading(settings());
        bench.report(LOAD, Report::Loaded(page_of(by, &places[..1], Some("after one"))));
        bench.report(LOAD, Report::Loaded(page_of(by, &places[1..], None)));
        assert_eq!(loads_again(&bench), by);
        bench.report(LOAD, Report::Loaded(page_of(by, &places, None)));
        assert_eq!(saved_segments(bench), 2, "nothing of the first load is left");
    }
}

#[test]
fn a_load_by_start_that_misses_a_segment_without_a_start_is_made_again_by_index() {
    let mut bench = Bench::loading(settings());
    bench.report(LOAD, tallied(page_of(Order::Start, &[(1, 5), (0, 9)], None), 3, 1));
    assert_eq!(loads_again(&bench), Order::Index);
    let mixed = [page_of(Order::Start, &[(0, 9), (1, 5)], None).segments, page(2..3, None).segments].concat();
    bench.report(LOAD, Report::Loaded(Page { segments: mixed, ..Page::default() }));
    assert_eq!(saved_segments(bench), 3);
}

#[test]
fn a_load_by_start_with_a_segment_twice_is_made_again() {
    let mut bench = Bench::loading(settings());
    bench.report(LOAD, tallied(page_of(Order::Start, &[(1, 5), (0, 9), (1, 12)], None), 2, 0));
    assert_eq!(loads_again(&bench), Order::Start);
    bench.report(LOAD, tallied(page_of(Order::Start, &[(0, 9), (1, 12)], None), 2, 0));
    assert_eq!(saved_segments(bench), 2);
}

#[test]
fn a_load_by_start_that_misses_a_segment_is_made_again_as_often_as_a_call_settles() {
    let mut bench = Bench::loading(settings());
    let missing = || tallied(page_of(Order::Start, &[(0, 9), (1, 12)], None), 3, 0);
    for _ in 1..settings().settle_rounds {
        bench.report(LOAD, missing());
        assert_eq!(loads_again(&bench), Order::Start);
    }
    bench.report(LOAD, missing());
    assert_eq!(saved_segments(bench), 2, "what is still late makes the summary stale");
}

#[test]
fn a_call_without_segments_is_loaded_once() {
    let mut bench = Bench::loading(settings());
    bench.report(LOAD, tallied(Page::default(), 0, 0));
    assert_eq!(saved_segments(bench), 0);
}

#[test]
fn a_load_during_which_one_came_twice_and_another_one_did_not_is_made_again() {
    let tally = |segments, edits| Some(Tally { segments, without_start: 0, edits });
    let mut bench = Bench::loading(settings());
    bench.report(LOAD, Report::Loaded(page_of(Order::Start, &[(5, 2)], Some("after five"))));
    // Segment 5 starts later now, and comes again; segment 0 is late, and stands before the pages that are left.
    let rest = page_of(Order::Start, &[(2, 4), (4, 4), (5, 4)], None);
    bench.report(LOAD, Report::Loaded(Page { tally_before: tally(3, 0), tally: tally(4, 1), ..rest }));
    assert_eq!(loads_again(&bench), Order::Start, "four came, and the call has four");
    let all = page_of(Order::Start, &[(0, 2), (2, 4), (4, 4), (5, 4)], None);
    bench.report(LOAD, Report::Loaded(Page { tally_before: tally(4, 1), tally: tally(4, 1), ..all }));
    assert_eq!(saved_segments(bench), 4);
}
