//! How many words a text has.

use std::sync::LazyLock;

use icu_properties::{
    CodePointMapData, CodePointMapDataBorrowed,
    props::{GeneralCategory, GeneralCategoryGroup},
};
use icu_segmenter::{WordSegmenter, WordSegmenterBorrowed, options::WordBreakInvariantOptions};

use super::text::is_nothing;

const CATEGORY: CodePointMapDataBorrowed<'static, GeneralCategory> = CodePointMapData::<GeneralCategory>::new();

/// Made once: to find the dictionaries takes as long as a tenth of a job. They are constants.
static SEGMENTER: LazyLock<WordSegmenterBorrowed<'static>> =
    LazyLock::new(|| WordSegmenter::new_dictionary(WordBreakInvariantOptions::default()));

const LETTER_OR_DIGIT: GeneralCategoryGroup =
    GeneralCategoryGroup::Letter.union(GeneralCategoryGroup::LetterNumber).union(GeneralCategoryGroup::DecimalNumber);

/// Counts words: what stands between two boundaries of the Unicode word boundary rules (UAX #29) and has a letter or a
/// digit to be seen. Chinese, Japanese, Thai, Lao, Khmer and Burmese, which write no spaces, are divided by dictionary.
///
/// The segmenter's own `word_type` is not asked: in `icu_segmenter` 2.4 it is wrong next to combining marks, joiners and
/// formatting characters (<https://github.com/unicode-org/icu4x/issues/8321>). A decomposed “café” before a space is no word
/// to it, a space before U+FEFF is one, and so is an underscore.
///
/// ASCII takes no short cut: the segmenter alone goes through more than ten million words a second.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordCounter {
    segmenter: WordSegmenterBorrowed<'static>,
}

impl WordCounter {
    /// A counter with the dictionaries compiled in.
    pub(super) fn new() -> Self {
        Self { segmenter: *SEGMENTER }
    }

    /// The words of `text`.
    pub(super) fn count(self, text: &str) -> u64 {
        let (mut words, mut start) = (0, 0);
        for end in self.segmenter.segment_str(text) {
            words += u64::from(text[start..end].chars().any(makes_a_word));
            start = end;
        }
        words
    }
}

pub(super) fn makes_a_word(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric();
    }
    LETTER_OR_DIGIT.contains(CATEGORY.get(c)) && !is_nothing(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_words(text: &str, words: u64) {
        assert_eq!(WordCounter::new().count(text), words, "{text:?}");
    }

    #[test]
    fn words_are_counted_in_scripts_with_spaces() {
        assert_words("Well, I can't — it's 3.14 or 1,000, e.g. at example.com.", 10);
        assert_words("Ich weiß nicht, ob’s geht: „Morgen?“", 6);
        assert_words("¿Qué dijo el señor Núñez?", 5);
        assert_words("Τι κάνεις; Καλά, ευχαριστώ.", 4);
        assert_words("Ինչպե՞ս ես", 2);
        assert_words("كيف حالك؟ ١٢٣", 3);
        assert_words("מה שלומך? צה״ל", 3);
        assert_words("እንዴት ነህ፧", 2);
        assert_words("안녕하세요 여러분", 2);
        assert_words("आप कैसे हैं?", 3);
    }

    #[test]
    fn words_are_found_where_no_spaces_are_written() {
        assert_words("今日はいい天気ですね。", 6);
        assert_words("我们明天开会吗？", 4);
        assert_words("สวัสดีครับ วันนี้เป็นอย่างไร", 6);
        assert_words("តើអ្នកសុខសប្បាយទេ", 4);
        assert_words("カタカナ", 1);
    }

    #[test]
    fn punctuation_symbols_and_emoji_are_no_words() {
        for text in [
            "",
            "...",
            "?!",
            "—",
            "_",
            "__",
            "„“",
            "、。",
            "👍🏽",
            "👩\u{200D}👧",
            "❤\u{FE0F}",
            "🇬🇷",
            "①½",
            "$ %",
            "՞",
            "׳",
        ] {
            assert_words(text, 0);
        }
    }

    #[test]
    fn marks_joiners_and_formatting_neither_make_nor_unmake_a_word() {
        assert_words("cafe\u{301} menu", 2);
        assert_words("a\u{200D} b\u{200D}", 2);
        assert_words("അവന\u{D4D}\u{200D} വന്നു", 2);
        assert_words("א' ב'", 2);
        assert_words(" \u{FEFF} .\u{200D} +\u{AD} \u{301}", 0);
        assert_words("co\u{AD}operate", 1);
        assert_words("\u{202B}שלום\u{202C}", 1);
        assert_words("\u{3164} \u{FFA0}", 0);
    }

    #[test]
    fn odd_texts_do_no_harm() {
        assert_words("\0", 0);
        assert_words("a\0b", 2);
        assert_words("\u{301}\u{301}", 0);
        assert_words("\u{10FFFF}\u{E000}", 0);
        assert_words(&"a ".repeat(500_000), 500_000);
        assert_words(&"a".repeat(1_000_000), 1);
        assert_words(&"我".repeat(330_000), 330_000);
    }
}
