//! Makes segments of results that are single words.

use crate::{sink::Draft, times::Millis};

/// A speaker who pauses for longer begins a new segment, though no mark ends the sentence.
const PAUSE_MS: f64 = 1000.0;
/// A segment is cut at this length: not every engine writes marks.
const MAX_TEXT: usize = 4096;

/// One word, or one mark without a time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Word<'a> {
    pub text: &'a str,
    pub start: Millis,
    pub end: Millis,
    pub speaker: Option<String>,
    /// It belongs to the word before it, without a space and whoever its own label names.
    pub is_mark: bool,
    pub line: u64,
}

/// Groups words by speaker, pause and the marks that end sentences.
#[derive(Debug, Default)]
pub(crate) struct Grouper {
    open: Option<Draft>,
}

impl Grouper {
    /// Takes the next word; gives the segment that ended before it.
    pub(crate) fn push(&mut self, word: Word<'_>) -> Option<Draft> {
        if word.text.trim().is_empty() {
            return None;
        }
        if let Some(open) = &mut self.open
            && goes_on(open, &word)
        {
            if !word.is_mark && needs_space(&open.text, word.text) {
                open.text.push(' ');
            }
            open.text.push_str(word.text);
            open.start = open.start.or(word.start);
            open.end = word.end.or(word.start).or(open.end);
            return None;
        }
        let Word { text, start, end, speaker, line, .. } = word;
        let text = text.trim_start().to_owned();
        self.open.replace(Draft { speaker, text, start, end, line })
    }

    /// There are no more words.
    pub(crate) fn finish(&mut self) -> Option<Draft> {
        self.open.take()
    }
}

fn goes_on(open: &Draft, word: &Word<'_>) -> bool {
    if word.is_mark {
        return true;
    }
    let pause = open.end.value().zip(word.start.value()).map_or(0.0, |(end, start)| start - end);
    open.speaker == word.speaker
        && pause <= PAUSE_MS
        && !ends_sentence(&open.text)
        && open.text.len() + word.text.len() <= MAX_TEXT
}

/// Whether a text ends in a mark that ends sentences, closing quotes and brackets after the mark aside.
pub(crate) fn ends_sentence(text: &str) -> bool {
    let text =
        text.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '”' | '’' | '»' | ')' | ']'));
    text.ends_with(['.', '?', '!', '…', '。', '？', '！', '｡', '؟', '۔', '।', '՞', '։', '‽', '⁇', '⁈', '⁉'])
}

/// Whether a space belongs between a text and the word that follows. Chinese, Japanese, Thai and their like have none.
pub(crate) fn needs_space(text: &str, word: &str) -> bool {
    let (Some(before), Some(after)) = (text.chars().next_back(), word.chars().next()) else { return false };
    if before.is_whitespace() || after.is_whitespace() {
        return false;
    }
    !(writes_no_spaces(before) && writes_no_spaces(after))
}

fn writes_no_spaces(c: char) -> bool {
    matches!(c,
        '\u{0e00}'..='\u{0eff}'          // Thai, Lao
        | '\u{1000}'..='\u{109f}'        // Myanmar
        | '\u{1780}'..='\u{17ff}'        // Khmer
        | '\u{3000}'..='\u{30ff}'        // CJK marks, Kana
        | '\u{3400}'..='\u{9fff}'        // Han
        | '\u{f900}'..='\u{faff}'        // Han, compatibility
        | '\u{ff00}'..='\u{ffef}'        // full-width forms
        | '\u{20000}'..='\u{3ffff}') // Han, further planes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str, start: f64, speaker: &str) -> Word<'static> {
        let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
        let (start, end) = (Millis::new(start), Millis::new(start + 100.0));
        Word { text, start, end, speaker: Some(speaker.to_owned()), is_mark: false, line: 1 }
    }

    fn grouped(words: Vec<Word<'_>>) -> Vec<String> {
        let mut grouper = Grouper::default();
        let mut drafts: Vec<Draft> = words.into_iter().filter_map(|word| grouper.push(word)).collect();
        drafts.extend(grouper.finish());
        drafts.into_iter().map(|draft| draft.text).collect()
    }

    #[test]
    fn words_are_grouped_by_speaker_pause_and_marks() {
        let words = vec![
            word("Hello", 0.0, "A"),
            word("there.", 100.0, "A"),
            word("Well", 200.0, "A"),
            word("yes", 300.0, "B"),
            word("then", 2000.0, "B"),
        ];
        assert_eq!(grouped(words), ["Hello there.", "Well", "yes", "then"]);
    }

    #[test]
    fn a_mark_without_time_belongs_to_the_word_before_it() {
        let mark = Word { start: Millis::NONE, end: Millis::NONE, speaker: None, is_mark: true, ..word("?", 0.0, "A") };
        assert_eq!(grouped(vec![word("Yes", 0.0, "A"), mark, word("No", 100.0, "A")]), ["Yes?", "No"]);
    }

    #[test]
    fn scripts_without_spaces_get_none() {
        assert_eq!(grouped(vec![word("見える", 0.0, "A"), word("のは", 100.0, "A")]), ["見えるのは"]);
        assert_eq!(grouped(vec![word(" see", 0.0, "A"), word(" it", 100.0, "A")]), ["see it"]);
    }
}
