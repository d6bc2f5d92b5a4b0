//! Which lines of a text ask something.

use icu_properties::{
    CodePointMapData, CodePointMapDataBorrowed,
    props::{GeneralCategory, GeneralCategoryGroup, Script},
};

use super::text::{is_nothing, trim};

const CATEGORY: CodePointMapDataBorrowed<'static, GeneralCategory> = CodePointMapData::<GeneralCategory>::new();
const SCRIPT: CodePointMapDataBorrowed<'static, Script> = CodePointMapData::<Script>::new();

const CLOSING: GeneralCategoryGroup = GeneralCategoryGroup::ClosePunctuation
    .union(GeneralCategoryGroup::InitialPunctuation)
    .union(GeneralCategoryGroup::FinalPunctuation);

const ARMENIAN_QUESTION_MARK: char = '\u{55E}';

/// The lines of `text` that are questions, trimmed, in order.
pub(super) fn questions(text: &str) -> impl Iterator<Item = &str> {
    text.split(ends_line).map(trim).filter(|line| is_question(line))
}

/// Whether a trimmed line ends in a question mark, closing quotes and brackets after it aside.
///
/// Two languages ask in their own way. The Greek mark is a semicolon to every text in normal form (Unicode maps U+037E to
/// U+003B), so a semicolon asks where the line has more letters of the Greek script than of others. The Armenian mark
/// stands inside a word, over a vowel, so a line asks where its last word holds the mark.
fn is_question(line: &str) -> bool {
    let said = line.trim_end_matches(|c| is_nothing(c) || closes(c));
    match said.chars().next_back() {
        Some(c) if is_question_mark(c) => true,
        Some(';') => is_mostly_greek(line),
        Some(_) => asks_in_armenian(line),
        None => false,
    }
}

/// Where Unicode's mandatory line breaks are (UAX #14: BK, CR, LF, NL); CR LF leaves an empty line between, which asks
/// nothing.
fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\u{B}' | '\u{C}' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Every character of Unicode 17 that has QUESTION MARK or INTERROBANG in its name and ends a sentence.
///
/// Left out: the inverted marks ¿ and ⸘ and the Adlam initial mark, which open a question; the Armenian mark, which stands
/// inside a word; signs of mathematics (≟ …) and APL; the pictographs ❓ ❔ 🙹 🙺 🙻 and U+1FBC4, which decorate a heading or
/// a button as often as they end a sentence; the tag U+E003F, which is not seen.
fn is_question_mark(c: char) -> bool {
    matches!(
        c,
        '?' | '\u{37E}' // Greek
            | '\u{61F}' // Arabic
            | '\u{1367}' // Ethiopic
            | '\u{1945}' // Limbu
            | '\u{203D}' // interrobang
            | '\u{2047}'
            ..='\u{2049}' // double, and with an exclamation mark in one character
            | '\u{2CFA}' | '\u{2CFB}' // Old Nubian, direct and indirect
            | '\u{2E2E}' // reversed
            | '\u{2E54}' // medieval
            | '\u{A60F}' // Vai
            | '\u{A6F7}' // Bamum
            | '\u{FE16}' | '\u{FE56}' | '\u{FF1F}' // vertical, small, full-width
            | '\u{11143}' // Chakma
    )
}

/// Closing quotes and brackets. German closes with the “ that opens in English, Danish with «: hence initial punctuation.
fn closes(c: char) -> bool {
    match c {
        '"' | '\'' | '\u{FF02}' | '\u{FF07}' | ')' | ']' | '}' => true,
        _ => !c.is_ascii() && CLOSING.contains(CATEGORY.get(c)),
    }
}

fn is_mostly_greek(line: &str) -> bool {
    let (mut greek, mut other) = (0_usize, 0_usize);
    for c in line.chars().filter(|&c| is_letter(c)) {
        if SCRIPT.get(c) == Script::Greek {
            greek += 1;
        } else {
            other += 1;
        }
    }
    greek > other
}

fn asks_in_armenian(line: &str) -> bool {
    line.contains(ARMENIAN_QUESTION_MARK)
        && line
            .rsplit(char::is_whitespace)
            .find(|word| word.chars().any(is_letter))
            .is_some_and(|word| word.contains(ARMENIAN_QUESTION_MARK))
}

/// Whether a character is a letter to be seen: the Hangul fillers are letters that are not.
fn is_letter(c: char) -> bool {
    GeneralCategoryGroup::Letter.contains(CATEGORY.get(c)) && !is_nothing(c)
}

#[cfg(test)]
mod tests {
    use icu_properties::{CodePointSetData, props::SentenceTerminal};
    use proptest::prelude::*;

    use super::*;

    fn asked(text: &str) -> Vec<&str> {
        questions(text).collect()
    }

    #[track_caller]
    fn assert_question(line: &str) {
        assert_eq!(asked(line), [line]);
    }

    #[track_caller]
    fn assert_no_question(line: &str) {
        assert_eq!(asked(line), [""; 0]);
    }

    #[test]
    fn every_script_has_its_mark() {
        for line in [
            "Can you hear me?",
            "„Hören Sie mich?“",
            "¿Me oyes?",
            "Μ’ ακούς;",
            "Μ’ ακούς\u{37E}",
            "هل تسمعني؟",
            "聞こえますか？",
            "你听得到吗？",
            "ได้ยินไหม?",
            "តើអ្នកឮខ្ញុំទេ?",
            "ትሰማኛለህ፧",
            "אתה שומע אותי?",
            "Լսո՞ւմ ես։ Լսո՞ւմ",
            "You did what‽",
            "What\u{2048}",
            "\u{2E2E}",
        ] {
            assert_question(line);
        }
    }

    #[test]
    fn other_ends_ask_nothing() {
        for line in [
            "",
            "Yes.",
            "What?!",
            "Is it? No.",
            "¿",
            "Sí ¿",
            "what ⸘",
            "FAQ ❓",
            "a ≟",
            "i = 0;",
            "? a",
            "(",
            "\"\"",
            "? —",
        ] {
            assert_no_question(line);
        }
    }

    #[test]
    fn closing_quotes_and_brackets_after_the_mark_are_no_matter() {
        for line in [
            "(Really?)",
            "\"Why?\"",
            "'Why?'",
            "„Wirklich?“",
            "»Virkelig?«",
            "«Vraiment ? »",
            "“Is it ‘so’?”",
            "「本当ですか？」",
            "（真的吗？）",
            "＂真？＂",
            "[(“Yes?” )]",
            "«Μ’ ακούς;»",
            "“؟”",
        ] {
            assert_question(line);
            assert_eq!(asked(&format!("{line}\u{200F} \u{200B}")), [line]);
        }
        assert_no_question("Why? (");
        assert_no_question("Why? „");
    }

    #[test]
    fn every_line_of_a_segment_is_judged_and_trimmed() {
        let text =
            "One?\r\n two? \n\n3\rfour?\u{B}five?\u{C}\u{200B}six?\u{FEFF}\u{85}seven?\u{2028}eight?\u{2029}nine.";
        assert_eq!(asked(text), ["One?", "two?", "four?", "five?", "six?", "seven?", "eight?"]);
    }

    #[test]
    fn a_semicolon_asks_in_greek_only() {
        assert_question("Είδες το PDF;");
        assert_no_question("See α;");
        assert_no_question("αβγ abc;");
        assert_no_question("12;");
        assert_question("αβ\u{3164}\u{3164}a;");
        assert_no_question("Я знаю;");
    }

    #[test]
    fn the_armenian_mark_asks_inside_the_last_word() {
        assert_question("Դու գալի՞ս");
        assert_question("Դու գալի՞ս ես, ճի՞շտ»։ …");
        assert_no_question("Ո՞վ եկավ");
        assert_no_question("Այո ՞");
    }

    #[test]
    fn an_emoji_form_of_a_mark_keeps_its_selector() {
        assert_question("Seriously\u{2049}\u{FE0F}");
    }

    #[test]
    fn marks_end_sentences_to_unicode_too() {
        let terminal = CodePointSetData::new::<SentenceTerminal>();
        let marks: Vec<char> = ('\0'..=char::MAX).filter(|&c| is_question_mark(c)).collect();
        let others: Vec<char> = marks.iter().copied().filter(|&c| !terminal.contains(c)).collect();
        assert_eq!((marks.len(), others), (19, vec!['\u{37E}']));
    }

    proptest! {
        #[test]
        fn any_text_is_read_and_gives_trimmed_lines(text in any::<String>()) {
            for line in questions(&text) {
                prop_assert!(text.contains(line));
                prop_assert_eq!(trim(line), line);
                prop_assert!(!line.contains(ends_line));
            }
        }

        #[test]
        fn what_closes_and_what_is_not_seen_changes_no_answer(
            line in "[a-c?!;α։՞ ]{0,6}", end in "[)»”\"'\u{200B}\u{200F}]{0,4}",
        ) {
            let line = trim(&line);
            let closed = format!("{line}{end}");
            prop_assert_eq!(is_question(trim(&closed)), is_question(line));
        }
    }
}
