//! Reads a file and prints who says what, and when: `cargo run --example read -- FILE`.

use std::{
    error::Error,
    fs,
    io::{self, Write},
};

use transcript_formats::{Options, Reader, Record};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("which file?")?;
    let mut reader = Reader::new(Options::default());
    reader.push(&fs::read(path)?)?;
    reader.finish()?;
    let mut out = io::stdout().lock();
    while let Some(record) = reader.next_record() {
        match record {
            Record::Segment(segment) => {
                let speaker = segment.speaker.as_deref().unwrap_or("?");
                writeln!(out, "{:>8} ms  {speaker}: {:?}", segment.start_ms.unwrap_or_default(), segment.text)?;
            }
            Record::Announcement(end) => writeln!(out, "{} ends: {} segments", end.call.session_id, end.segments)?,
            Record::LeftOut(broken) => writeln!(out, "left out: {broken}")?,
        }
    }
    Ok(())
}
