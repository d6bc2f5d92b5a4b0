//! `cargo conformance-table`: writes the table of the model's behaviours into the README of its package.

use std::{fs, io};

use transcript_tests::conformance::table;

fn main() -> io::Result<()> {
    let behaviours = table::behaviours()?;
    let faults = table::faults(&behaviours)?;
    if !faults.is_empty() {
        return Err(io::Error::other(faults.join("\n")));
    }
    let readme = fs::read_to_string(table::readme())?;
    fs::write(table::readme(), table::with_table(&readme, &behaviours)?)
}
