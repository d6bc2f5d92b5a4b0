//! The text of a cue: tags, entities, speakers, and captions that roll.

use std::borrow::Cow;

use crate::{reader::Labels, times::Timing};

/// Most speakers whose voice tags are open within one another.
const MAX_VOICES: usize = 16;
/// Most characters and words of a name before a colon.
const MAX_NAME_CHARS: usize = 40;
const MAX_NAME_WORDS: usize = 4;
/// Two captions roll where one begins at the end of the other, within this time.
const ROLL_MS: i64 = 100;
/// A caption that is shown no longer than this only repeats: nobody can read it.
const FLASH_MS: i64 = 50;

/// Reads the texts of one file's cues, in their order.
pub(crate) struct CueText {
    labels: Labels,
    /// The speaker whom the last label named.
    holder: Option<String>,
    before: Option<(Timing, Vec<Line>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    voice: Option<String>,
    text: String,
}

impl CueText {
    pub(crate) fn new(labels: Labels) -> Self {
        Self { labels, holder: None, before: None }
    }

    /// Who says what in a cue. Lines of one speaker are one text.
    pub(crate) fn read(&mut self, cue: &str, timing: Timing) -> Vec<(Option<String>, String)> {
        let lines = untagged(cue);
        let rolled = self.before.as_ref().map_or(0, |(at, before)| rolled(before, *at, &lines, timing));
        let mut said: Vec<(Option<String>, String)> = Vec::new();
        if self.labels == Labels::OneCue {
            self.holder = None;
        }
        for line in lines.get(rolled..).unwrap_or_default() {
            let (speaker, text) = self.speaker(line);
            match said.last_mut() {
                Some((last, before)) if *last == speaker => {
                    before.push('\n');
                    before.push_str(text);
                }
                Some(_) | None => said.push((speaker, text.to_owned())),
            }
        }
        said.iter_mut().for_each(|(_, text)| {
            if text.starts_with('\n') {
                text.remove(0);
            }
        });
        if !lines.is_empty() {
            self.before = Some((timing, lines));
        }
        said
    }

    fn speaker<'a>(&mut self, line: &'a Line) -> (Option<String>, &'a str) {
        if line.voice.is_some() {
            // A file that has tags says with them who speaks.
            self.holder = None;
            return (line.voice.clone(), &line.text);
        }
        if self.labels != Labels::Ignore
            && let Some((name, rest)) = label(&line.text)
        {
            self.holder = Some(name.to_owned());
            return (self.holder.clone(), rest);
        }
        (self.holder.clone(), &line.text)
    }
}

/// How many lines at the beginning of a cue only repeat the end of the one before it.
///
/// Captions that roll show a line a second time, above the next one. Speech repeats itself too: so the cues must adjoin, and the
/// repeating one must bring something new or be too short to be read.
fn rolled(before: &[Line], at: Timing, lines: &[Line], timing: Timing) -> usize {
    if (timing.start_ms - at.end_ms).abs() > ROLL_MS && !(at.start_ms..=at.end_ms).contains(&timing.start_ms) {
        return 0;
    }
    let is_flash = timing.end_ms - timing.start_ms <= FLASH_MS;
    let most = if is_flash { lines.len() } else { lines.len().saturating_sub(1) };
    (1..=most.min(before.len()))
        .rev()
        .find(|count| before.get(before.len() - count..) == lines.get(..*count))
        .unwrap_or(0)
}

/// A name before a colon, and what follows it.
///
/// `Ann Lee: yes`, `>> ANN: yes`, `- Ann: yes`, `Ann:` alone on a line, `アン：はい`. Every word of a name begins with a capital,
/// a digit, or a letter of a script that has no capitals. Nothing but white space follows the colon at once, so that `10:30` and
/// `https://…` are speech.
fn label(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start_matches(['-', '–', '—', '>', ' ']);
    let at = line.char_indices().take(MAX_NAME_CHARS + 1).find(|(_, c)| matches!(c, ':' | '：'))?.0;
    let (name, rest) = line.split_at(at);
    let rest = match rest.strip_prefix(':') {
        Some(rest) if rest.is_empty() || rest.starts_with(char::is_whitespace) => rest,
        Some(_) => return None,
        None => rest.strip_prefix('：')?,
    };
    is_name(name.trim()).then(|| (name.trim(), rest.trim_start()))
}

fn is_name(name: &str) -> bool {
    let is_particle = |word: &str| {
        matches!(word, "von" | "van" | "der" | "den" | "de" | "da" | "di" | "la" | "le" | "al" | "bin" | "of")
    };
    let is_word = |word: &str| {
        let first = word.trim_start_matches(['(', '[', '#', '"', '\'']).chars().next();
        first.is_some_and(|c| c.is_numeric() || (c.is_alphabetic() && !c.is_lowercase())) || is_particle(word)
    };
    let is_of_a_name = |c: char| {
        c.is_alphanumeric() || c.is_whitespace() || "'’._-()[]&/#@\"\u{200c}\u{200d}".contains(c) || is_mark(c)
    };
    name.chars().any(char::is_alphabetic)
        && name.chars().all(is_of_a_name)
        && !name.ends_with('.')
        && name.split_whitespace().count() <= MAX_NAME_WORDS
        && name.split_whitespace().all(is_word)
}

/// Vowel signs and accents that are characters of their own, as in Hindi, Thai or a decomposed `é`.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{900}'..='\u{dff}' | '\u{e31}'..='\u{e4e}')
}

/// The lines of a cue without tags, entities decoded, each with the voice that speaks it.
fn untagged(cue: &str) -> Vec<Line> {
    let mut voices: Vec<Option<String>> = Vec::new();
    let mut lines: Vec<Line> = Vec::new();
    let mut current = String::new();
    let mut rest = cue;
    while !rest.is_empty() {
        let special = rest.find(['<', '\n', '{']).unwrap_or(rest.len());
        let (plain, special) = rest.split_at(special);
        current.push_str(plain);
        if let Some(next) = special.strip_prefix('\n') {
            end_line(&mut current, &voices, &mut lines);
            rest = next;
        } else if let Some((tag, next)) = tag(special) {
            match tag {
                Tag::Voice(name) => {
                    end_line(&mut current, &voices, &mut lines);
                    if voices.len() < MAX_VOICES {
                        voices.push(name);
                    }
                }
                Tag::VoiceEnd => {
                    end_line(&mut current, &voices, &mut lines);
                    voices.pop();
                }
                Tag::Other => {}
            }
            rest = next;
        } else {
            let first = special.chars().next().map_or(0, char::len_utf8);
            let (text, next) = special.split_at(first);
            current.push_str(text);
            rest = next;
        }
    }
    end_line(&mut current, &voices, &mut lines);
    lines
}

fn end_line(current: &mut String, voices: &[Option<String>], lines: &mut Vec<Line>) {
    let decoded = decoded(current);
    let text = decoded.trim();
    if !text.is_empty() {
        lines.push(Line { voice: voices.last().cloned().flatten(), text: text.replace('\0', "\u{fffd}") });
    }
    current.clear();
}

enum Tag {
    Voice(Option<String>),
    VoiceEnd,
    /// Looks, not words: `<i>`, `</c>`, `<00:01.000>`, `<font color="red">`, `{\an8}`.
    Other,
}

/// The tag at the beginning of a text, and what follows it. `<` and `{` can be speech.
fn tag(text: &str) -> Option<(Tag, &str)> {
    if let Some(rest) = text.strip_prefix("{\\") {
        let end = rest.find('}')?;
        return Some((Tag::Other, rest.get(end + 1..)?));
    }
    let rest = text.strip_prefix('<')?;
    // A tag ends on its line, unless the file does.
    let end = rest.find(['>', '\n', '<']).unwrap_or(rest.len());
    let (inside, after) = rest.split_at(end);
    let is_closed = after.starts_with('>');
    let (closing, name) = inside.strip_prefix('/').map_or((false, inside), |name| (true, name));
    let name_end = name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len());
    let (kind, annotation) = name.split_at(name_end);
    let is_time = crate::times::stamp(inside).is_some();
    let is_tag = if is_closed {
        is_time || inside.is_empty() || inside == "/" || kind.starts_with(|c: char| c.is_ascii_alphabetic())
    } else {
        // What the end of the file cut. W3C's algorithm takes it for a tag, too.
        after.is_empty() && is_cut_tag(kind, annotation)
    };
    if !is_tag {
        return None;
    }
    let tag = match (kind, closing) {
        ("v" | "V", false) => Tag::Voice(voice_of(annotation)),
        ("v" | "V", true) => Tag::VoiceEnd,
        _ => Tag::Other,
    };
    Some((tag, after.strip_prefix('>').unwrap_or(after)))
}

/// Whether a tag of a known kind was cut: within its name, its classes, its time, or the annotation of those that have one.
fn is_cut_tag(kind: &str, annotation: &str) -> bool {
    const KINDS: [&str; 13] = ["b", "i", "u", "s", "c", "v", "ruby", "rt", "lang", "font", "em", "strong", "span"];
    let is_known = KINDS.iter().any(|known| known.starts_with(&kind.to_ascii_lowercase()));
    // `3 < 4` is speech; a time has two digits for the hours or the minutes.
    let is_time = kind.starts_with('0') && (kind.len() + annotation.len() > 1);
    let is_time =
        is_time && [kind, annotation].iter().all(|part| part.bytes().all(|b| b.is_ascii_digit() || b":.".contains(&b)));
    match annotation.chars().next() {
        None => is_known || is_time,
        Some('.') => is_known,
        Some(' ') => matches!(kind, "v" | "lang" | "font"),
        Some(_) => is_time,
    }
}

/// The name in `<v.loud.first Ann Lee>`: classes follow a dot, the name a space.
fn voice_of(annotation: &str) -> Option<String> {
    let (_classes, name) = annotation.split_once(char::is_whitespace)?;
    let name = decoded(name).split_whitespace().collect::<Vec<_>>().join(" ");
    (!name.is_empty()).then_some(name)
}

/// Decodes entities once: `&amp;lt;` is `&lt;`. Those of WebVTT, quotes, and numbers are known. Others, and those without a
/// semicolon, stay as they are.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        let (plain, entity) = rest.split_at(at);
        decoded.push_str(plain);
        let known = entity
            .get(1..)
            .and_then(|name| name.split_once(';'))
            .and_then(|(name, next)| Some((character(name)?, next)));
        match known {
            Some((character, next)) => {
                decoded.push(character);
                rest = next;
            }
            None => {
                decoded.push('&');
                rest = entity.get(1..).unwrap_or_default();
            }
        }
    }
    decoded.push_str(rest);
    Cow::Owned(decoded)
}

fn character(entity: &str) -> Option<char> {
    if let Some(number) = entity.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        return char::from_u32(code).filter(|c| !c.is_control());
    }
    Some(match entity {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => '\u{a0}',
        "lrm" => '\u{200e}',
        "rlm" => '\u{200f}',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(cue: &str) -> Vec<(Option<String>, String)> {
        CueText::new(Labels::Hold).read(cue, Timing { start_ms: 0, end_ms: 1000 })
    }

    fn text(cue: &str) -> String {
        said(cue).into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn tags_are_told_from_speech() {
        for (cue, expected) in [
            ("<i>so</i> <c.loud.red>it</c> <00:00:01.000>is<b>", "so it is"),
            ("<font color=\"red\">red</font> {\\an8}top", "red top"),
            ("a < b and b <c or 3<4", "a < b and b <c or 3<4"),
            ("{so} he said <- there", "{so} he said <- there"),
            ("<lang en>hi</lang> </>x", "hi x"),
            ("cut <i", "cut"),
            ("&lt;v Bob&gt; hello", "<v Bob> hello"),
            ("&amp;lt; AT&amp T &#39;x&#x27; &unknown;", "&lt; AT&amp T 'x' &unknown;"),
        ] {
            assert_eq!(text(cue), expected, "{cue}");
        }
    }

    #[test]
    fn voices_are_read_with_classes_and_end() {
        let of = |name: &str, text: &str| (Some(name.to_owned()), text.to_owned());
        assert_eq!(said("<v.first.loud Ann &amp; Bo>Hi\nthere</v>"), [of("Ann & Bo", "Hi\nthere")]);
        assert_eq!(said("<v Ann>Hi <v Bo>Ho"), [of("Ann", "Hi"), of("Bo", "Ho")]);
        assert_eq!(said("<v Ann>Hi</v> all"), [of("Ann", "Hi"), (None, "all".into())]);
        assert_eq!(said("<v>Hi"), [(None, "Hi".into())]);
    }

    #[test]
    fn a_label_is_told_from_speech() {
        for (line, expected) in [
            ("Ann Lee: yes", Some(("Ann Lee", "yes"))),
            ("ANN:", Some(("ANN", ""))),
            (">> ANN: yes", Some(("ANN", "yes"))),
            ("- Speaker 1: yes", Some(("Speaker 1", "yes"))),
            ("Ludwig van der Rohe: yes", Some(("Ludwig van der Rohe", "yes"))),
            ("O'Neil (host): yes", None),
            ("O'Neil (Host): yes", Some(("O'Neil (Host)", "yes"))),
            ("アン：はい", Some(("アン", "はい"))),
            ("علي: نعم", Some(("علي", "نعم"))),
            ("10:30 is fine", None),
            ("10: 30", None),
            ("https://example.org", None),
            ("So the thing is: no", None),
            ("Note: that one, and this: too", Some(("Note", "that one, and this: too"))),
            ("No colon", None),
        ] {
            assert_eq!(label(line), expected, "{line}");
        }
    }
}
