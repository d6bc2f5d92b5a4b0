//! Joins cues into sentences: captions are cut where a line is full, and a question is not over there.

use icu_segmenter::{SentenceSegmenter, options::SentenceBreakInvariantOptions};

use crate::{Segment, words};

/// A speaker who pauses for longer has ended a sentence.
const PAUSE_MS: i64 = 3000;
/// A sentence is cut at this length: not every text has marks.
const MAX_SENTENCE: usize = 4096;

/// Holds the sentence that is not over yet.
#[derive(Debug, Default)]
pub(crate) struct Joiner {
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    speaker: Option<String>,
    text: String,
    /// The cues that `text` is made of, and where each begins in it. Never empty.
    cues: Vec<Cue>,
}

#[derive(Debug, Clone, Copy)]
struct Cue {
    begins: usize,
    start_ms: Option<i64>,
    end_ms: Option<i64>,
    line: u64,
}

impl Joiner {
    /// Takes the next cue, and hands on the sentences that are over with it.
    pub(crate) fn push(&mut self, segment: &Segment, put: &mut impl FnMut(Segment)) {
        if let Some(open) = self.open.take_if(|open| !open.goes_on_with(segment)) {
            open.put_all(put);
        }
        let open = self.open.get_or_insert_with(|| Open {
            speaker: segment.speaker.clone(),
            text: String::new(),
            cues: Vec::new(),
        });
        open.append(segment);
        open.put_sentences(put);
        if open.text.is_empty() {
            self.open = None;
        }
    }

    /// The file has ended, and so has its last sentence.
    pub(crate) fn finish(self, put: &mut impl FnMut(Segment)) {
        if let Some(open) = self.open {
            open.put_all(put);
        }
    }
}

impl Open {
    fn goes_on_with(&self, segment: &Segment) -> bool {
        let pause = self.cues.last().and_then(|cue| cue.end_ms).zip(segment.start_ms).map(|(end, start)| start - end);
        self.speaker == segment.speaker
            && pause.is_none_or(|pause| pause <= PAUSE_MS)
            && self.text.len() + segment.text.len() <= MAX_SENTENCE
    }

    fn append(&mut self, segment: &Segment) {
        let mut begins = None;
        for word in segment.text.split_whitespace() {
            if words::needs_space(&self.text, word) {
                self.text.push(' ');
            }
            begins.get_or_insert(self.text.len());
            self.text.push_str(word);
        }
        let begins = begins.unwrap_or(self.text.len());
        let Segment { start_ms, end_ms, line, .. } = *segment;
        self.cues.push(Cue { begins, start_ms, end_ms, line });
    }

    /// Hands on every sentence that is followed by another, and the last one if it has a mark at its end.
    fn put_sentences(&mut self, put: &mut impl FnMut(Segment)) {
        let segmenter = SentenceSegmenter::new(SentenceBreakInvariantOptions::default());
        let ends: Vec<usize> = segmenter.segment_str(&self.text).skip(1).collect();
        let mut done = 0;
        for end in ends {
            if end < self.text.len() || words::ends_sentence(&self.text) {
                self.put(done, end, put);
                done = end;
            }
        }
        self.text.drain(..done);
        let first = self.cues.iter().rposition(|cue| cue.begins <= done).unwrap_or(0);
        self.cues.drain(..first);
        for cue in &mut self.cues {
            cue.begins = cue.begins.saturating_sub(done);
        }
    }

    fn put_all(self, put: &mut impl FnMut(Segment)) {
        self.put(0, self.text.len(), put);
    }

    /// A sentence begins with the cue that holds its first letter and ends with the one that holds its last.
    fn put(&self, from: usize, to: usize, put: &mut impl FnMut(Segment)) {
        let text = self.text.get(from..to).unwrap_or_default();
        let last = (from + text.trim_end().len()).saturating_sub(1);
        let cue_of = |at: usize| self.cues.iter().rfind(|cue| cue.begins <= at).or(self.cues.first());
        if let Some((first, last)) = cue_of(from).zip(cue_of(last))
            && !text.trim().is_empty()
        {
            put(Segment {
                call: None,
                index: 0,
                speaker: self.speaker.clone(),
                text: text.trim().to_owned(),
                start_ms: first.start_ms,
                end_ms: last.end_ms.filter(|end| first.start_ms.is_none_or(|start| *end >= start)),
                line: first.line,
            });
        }
    }
}
