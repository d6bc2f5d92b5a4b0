//! How many words a text has.

use icu_segmenter::{WordSegmenter, WordSegmenterBorrowed, options::WordBreakInvariantOptions};

/// Counts words: word-like segments of the Unicode word boundary rules (UAX #29), by dictionary in Chinese, Japanese, Thai,
/// Lao, Khmer and Burmese, which write no spaces.
///
/// There is no short cut for ASCII: the segmenter counts some 15 million words a second, and everything around it takes
/// longer.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordCounter {
    segmenter: WordSegmenterBorrowed<'static>,
}

impl WordCounter {
    /// A counter over the dictionaries compiled in.
    pub(super) fn new() -> Self {
        Self { segmenter: WordSegmenter::new_dictionary(WordBreakInvariantOptions::default()) }
    }

    /// The words of `text`.
    pub(super) fn count(self, text: &str) -> u64 {
        let segments = self.segmenter.segment_str(text).iter_with_word_type();
        segments.fold(0, |words, (_, segment)| words + u64::from(segment.is_word_like()))
    }
}
