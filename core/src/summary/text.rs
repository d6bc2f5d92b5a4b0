//! What is left of a text: its edges trimmed, and cut to a length.

use icu_properties::{
    CodePointSetData, CodePointSetDataBorrowed,
    props::{DefaultIgnorableCodePoint, GraphemeExtend},
};

const IGNORABLE: CodePointSetDataBorrowed<'static> = CodePointSetData::new::<DefaultIgnorableCodePoint>();
const EXTENDER: CodePointSetDataBorrowed<'static> = CodePointSetData::new::<GraphemeExtend>();

const ZERO_WIDTH_JOINER: char = '\u{200D}';

/// The text without the whitespace and default-ignorable characters at both ends; empty where the text is blank.
///
/// An ignorable character that shapes the last visible one stays with it: without the variation selector at its end ❤️
/// turns into ❤, without its tags 🏴󠁧󠁢󠁷󠁬󠁳󠁿 into 🏴, and Malayalam chillus written with a joiner are misspelt.
pub(super) fn trim(text: &str) -> &str {
    let text = text.trim_start_matches(is_nothing);
    let end = text.trim_end_matches(is_nothing).len();
    let shaping: usize = text[end..].chars().take_while(|&c| shapes_the_one_before(c)).map(char::len_utf8).sum();
    &text[..end + shaping]
}

/// Whether a character leaves nothing to see: whitespace, or one that a display ignores by default.
pub(super) fn is_nothing(c: char) -> bool {
    c.is_whitespace() || (!c.is_ascii() && IGNORABLE.contains(c))
}

/// The longest start of `text` that has at most `bytes` bytes and ends on a character boundary.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let end = (0..=bytes).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

/// A text that grows piece by piece up to a length, and from the first character that does not fit takes nothing more.
#[derive(Debug, Clone, Default)]
pub(super) struct Bounded {
    text: String,
    is_cut: bool,
}

impl Bounded {
    /// Adds as much of `piece` as fits into `bytes` bytes together with what is there.
    pub(super) fn push(&mut self, piece: &str, bytes: usize) {
        if self.is_cut {
            return;
        }
        let fits = cut(piece, bytes.saturating_sub(self.text.len()));
        self.text.push_str(fits);
        self.is_cut = fits.len() < piece.len();
    }

    /// Whether nothing was added so far, or nothing fitted.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// How many bytes fitted.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether something did not fit.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// What fitted.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}

fn shapes_the_one_before(c: char) -> bool {
    !c.is_whitespace() && (c == ZERO_WIDTH_JOINER || EXTENDER.contains(c))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whitespace_and_ignorables_are_trimmed_at_both_ends() {
        assert_eq!(trim(" \t\u{FEFF}\u{3000}a \u{200B} b\u{2028}\u{00AD}\u{200F}\u{0085}"), "a \u{200B} b");
        assert_eq!(trim("\u{202B}שלום\u{202C}"), "שלום");
    }

    #[test]
    fn blank_texts_have_nothing_left() {
        for blank in ["", " \r\n", "\u{200B}", "\u{FEFF}\u{2060}", "\u{3164}", "\u{115F}\u{1160}", "\u{FE0F}\u{200D} "]
        {
            assert_eq!(trim(blank), "", "{blank:?}");
        }
    }

    #[test]
    fn odd_texts_that_are_not_blank_stay() {
        for text in ["\0", "\u{301}", "\u{2800}", "...", "\u{1F}"] {
            assert_eq!(trim(text), text, "{text:?}");
        }
    }

    #[test]
    fn what_shapes_the_last_character_stays_with_it() {
        let wales = "\u{1F3F4}\u{E0067}\u{E0062}\u{E0077}\u{E006C}\u{E0073}\u{E007F}";
        for text in ["I ❤\u{FE0F}", "അവന\u{D4D}\u{200D}", "葛\u{E0100}", wales] {
            assert_eq!(trim(&format!("\u{200B}{text}\u{200B} \n")), text);
        }
        assert_eq!(trim("a \u{FE0F}"), "a", "a selector after a space shapes nothing");
    }

    #[test]
    fn cuts_fall_on_character_boundaries() {
        assert_eq!(cut("añb", 0), "");
        assert_eq!(cut("añb", 2), "a");
        assert_eq!(cut("añb", 3), "añ");
        assert_eq!(cut("añb", 4), "añb");
        assert_eq!(cut("🦀", 3), "");
    }

    #[test]
    fn after_a_cut_nothing_more_is_taken() {
        let mut text = Bounded::default();
        text.push("ab", 4);
        assert!(!text.is_cut());
        text.push("🦀", 4);
        text.push("c", 4);
        assert!(text.is_cut());
        assert_eq!(text.into_text(), "ab");
    }

    proptest! {
        #[test]
        fn trimming_twice_changes_nothing_more(text in "[ a\u{200B}\u{200D}\u{FE0F}\u{AD}\u{301}❤\u{E0067}]{0,8}") {
            let once = trim(&text);
            prop_assert_eq!(trim(once), once);
            prop_assert_eq!(once.is_empty(), text.chars().all(is_nothing));
        }

        #[test]
        fn pieces_are_cut_like_the_whole(pieces in proptest::collection::vec("\\PC{0,4}", 0..6), bytes in 0_usize..24) {
            let mut text = Bounded::default();
            for piece in &pieces {
                text.push(piece, bytes);
            }
            let whole = pieces.concat();
            prop_assert_eq!(text.is_cut(), whole.len() > bytes);
            prop_assert_eq!(text.into_text(), cut(&whole, bytes));
        }
    }
}
