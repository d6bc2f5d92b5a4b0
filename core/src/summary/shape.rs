//! What is left of a text when its words are taken out of it.

use icu_properties::{
    CodePointMapData, CodePointMapDataBorrowed,
    props::{GeneralCategory, Script},
};

use super::words::makes_a_word;

const CATEGORY: CodePointMapDataBorrowed<'static, GeneralCategory> = CodePointMapData::<GeneralCategory>::new();
const SCRIPT: CodePointMapDataBorrowed<'static, Script> = CodePointMapData::<Script>::new();

/// The text with each letter and digit replaced by one that stands for all of its kind: as long in bytes, character by
/// character, and with the same spaces, marks and punctuation.
///
/// It asks the same questions, is cut in the same places, and has the same number of words in scripts that write spaces
/// between words; in the others a dictionary finds other words in it. Letters of a case, of Greek and of Armenian, stay
/// such, because that decides what is a question.
#[must_use]
pub fn shape(text: &str) -> String {
    if text.is_ascii() {
        // Byte by byte, which is several times as fast.
        let shaped = text.bytes().map(ascii_placeholder).collect();
        return String::from_utf8(shaped).expect("ASCII is UTF-8");
    }
    text.chars().map(placeholder).collect()
}

fn ascii_placeholder(byte: u8) -> u8 {
    match byte {
        b'a'..=b'z' => b'x',
        b'A'..=b'Z' => b'X',
        b'0'..=b'9' => b'0',
        _ => byte,
    }
}

fn placeholder(c: char) -> char {
    match u8::try_from(c) {
        Ok(byte) if byte.is_ascii() => return ascii_placeholder(byte).into(),
        Ok(_) | Err(_) => {}
    }
    match c {
        // Letters to the eye, and no words: enclosed ones, braille, and those of which flags are made.
        '\u{2460}'..='\u{24FF}' => return 'Ⓧ',
        '\u{2800}'..='\u{28FF}' => return '\u{28FF}',
        '\u{1F100}'..='\u{1F1AD}' => return '\u{1F147}',
        '\u{1F1E6}'..='\u{1F1FF}' => return '\u{1F1FD}',
        _ if !makes_a_word(c) => return c,
        _ => {}
    }
    let is_digit = CATEGORY.get(c) == GeneralCategory::DecimalNumber;
    match (c.len_utf8(), SCRIPT.get(c)) {
        (2, _) if is_digit => '\u{660}',
        (3, _) if is_digit => '\u{966}',
        (4, _) if is_digit => '\u{1D7CE}',
        (2, Script::Greek) => 'α',
        (3, Script::Greek) => 'ἀ',
        (2, Script::Armenian) => 'ա',
        (3, Script::Armenian) => 'ﬓ',
        (2, Script::Hebrew | Script::Arabic) => 'ا',
        (2, Script::Latin) => 'ø',
        (2, _) => 'ж',
        (3, Script::Latin) => 'ạ',
        (3, Script::Han | Script::Hiragana | Script::Katakana) => 'あ',
        (3, Script::Hangul) => '가',
        (3, _) => 'ሀ',
        _ => '𐐨',
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::summary::{question::questions, text::trim, words::WordCounter};

    #[test]
    fn words_become_their_shape() {
        assert_eq!(shape("Well, I can't — it's 3.14!"), "Xxxx, X xxx'x — xx'x 0.00!");
        assert_eq!(shape("Τι κάνεις;"), "αα αααααα;");
        assert_eq!(shape("Ինչպե՞ս"), "աաաաա՞ա");
        assert_eq!(shape("ⓩⓔ ⠵⠑ 🇿🇪 🅉"), "ⓍⓍ \u{28FF}\u{28FF} 🇽🇽 🅇");
        assert_eq!(shape("cafe\u{301} ½ 👍🏽 ١٢"), "xxxx\u{301} ½ 👍🏽 ٠٠");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_shape_is_as_long_and_has_no_shape_but_itself(text in "\\PC{0,40}|[ -~\u{80}-\u{2FFF}\\n]{0,40}") {
            let shaped = shape(&text);
            let lengths = |text: &str| text.chars().map(char::len_utf8).collect::<Vec<_>>();
            prop_assert_eq!(lengths(&shaped), lengths(&text));
            prop_assert_eq!(shape(&shaped), shaped);
        }

        #[test]
        fn a_shape_asks_the_same_questions(text in "[a-zA-Zα-ω\u{561}-\u{587}\u{1F00}-\u{1F15}é;?؟՞'\"0-9 .\\n\u{200B}\u{3164}\u{301}]{0,40}") {
            let spans = |text: &str| questions(text).map(|line| (line.as_ptr().addr() - text.as_ptr().addr(), line.len())).collect::<Vec<_>>();
            let shaped = shape(&text);
            prop_assert_eq!(spans(&shaped), spans(&text));
            prop_assert_eq!(trim(&shaped).len(), trim(&text).len());
        }

        #[test]
        fn a_shape_has_as_many_words(text in "[a-zA-Zα-ωéñжа-я'0-9 .,\\n\u{301}-]{0,40}") {
            prop_assert_eq!(WordCounter::new().count(&shape(&text)), WordCounter::new().count(&text));
        }
    }
}
