//! The README of the model lists what the model does, with source and case: no more and no less.

use std::fs;

use transcript_tests::conformance::table;

#[test]
fn the_readme_lists_every_behaviour_and_every_case() {
    let behaviours = table::behaviours().expect("the behaviours");
    assert_eq!(table::faults(&behaviours).expect("the cases"), Vec::<String>::new());
    let readme = fs::read_to_string(table::readme()).expect("the README");
    let written = table::with_table(&readme, &behaviours).expect("a place for the table");
    assert!(readme == written, "the table is not up to date: run `cargo conformance-table`");
}
