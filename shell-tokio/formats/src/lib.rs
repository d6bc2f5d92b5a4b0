//! Reads transcripts as tools export them. Bytes go in, segments come out; there is no I/O.
//!
//! WebVTT, SRT, the JSON of Whisper, whisper.cpp, WhisperX, Deepgram, AssemblyAI and Amazon Transcribe, the JSON of the
//! Podcast namespace, and this project's own lines. The format is recognised by the content, and so is the encoding.
//!
//! The caller reads the file, pushes its bytes in pieces of any size, and takes the records that are ready:
//!
//! ```
//! use transcript_formats::{Options, Reader, Record};
//!
//! let file = b"WEBVTT\n\n00:01.000 --> 00:02.500\n<v Ann>Is it you?\n";
//! let mut reader = Reader::new(Options::default());
//! let mut said = Vec::new();
//! for piece in file.chunks(16) {
//!     reader.push(piece)?;
//!     while let Some(record) = reader.next_record() {
//!         said.push(record);
//!     }
//! }
//! reader.finish()?;
//! said.extend(std::iter::from_fn(|| reader.next_record()));
//!
//! let [Record::Segment(segment)] = said.as_slice() else { panic!("one segment") };
//! assert_eq!((segment.speaker.as_deref(), segment.text.as_str()), (Some("Ann"), "Is it you?"));
//! assert_eq!((segment.start_ms, segment.end_ms), (Some(1000), Some(2500)));
//! # Ok::<(), transcript_formats::Broken>(())
//! ```
//!
//! WebVTT, SRT and our own lines are read line by line, and a reader holds one cue or one line of them. A JSON document of an
//! engine is held whole, up to [`MAX_DOCUMENT`]: what a word means can stand behind it. What each reader does with each
//! oddity is the table in the package's README.

mod broken;
mod cue_text;
mod cues;
mod decode;
mod format;
mod json;
mod ndjson;
mod reader;
mod record;
mod sentences;
mod sink;
mod times;
mod words;

pub use self::{
    broken::{Broken, Remedy},
    format::{Format, UnknownFormat},
    reader::{Cues, Faults, Labels, MAX_DOCUMENT, MAX_LINE, Options, Reader},
    record::{Announcement, Call, Record, Segment},
};
