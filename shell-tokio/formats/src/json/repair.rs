//! Makes JSON of what nearly is.

/// Python writes numbers that are none as `NaN`, `Infinity` and `-Infinity`. They become empty texts, which are no times, of the
/// same length, so that every place stays where it is.
pub(crate) fn without_nan(text: &str) -> String {
    let mut repaired = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['"', 'N', 'I', '-']) {
        let (before, from) = rest.split_at(at);
        repaired.push_str(before);
        let length = match from.as_bytes() {
            [b'"', ..] => text_length(from),
            _ => match ["NaN", "Infinity", "-Infinity", "-NaN"].iter().find(|name| from.starts_with(**name)) {
                Some(name) => {
                    repaired.push_str("\"\"");
                    repaired.extend(std::iter::repeat_n(' ', name.len() - 2));
                    rest = from.get(name.len()..).unwrap_or_default();
                    continue;
                }
                None => 1,
            },
        };
        let (kept, after) = from.split_at(length);
        repaired.push_str(kept);
        rest = after;
    }
    repaired.push_str(rest);
    repaired
}

/// Closes a document before its first fault: all whole elements before that stay.
pub(super) fn up_to_the_fault(text: &str, fault: usize) -> String {
    let fault = (0..=fault.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let text = text.get(..fault).unwrap_or_default();
    // Where the last whole element ends, and how many lists and objects are open there.
    let mut whole = 0;
    let mut open: Vec<u8> = Vec::new();
    let mut open_then: Vec<u8> = Vec::new();
    scan(text, |at, byte| {
        match byte {
            b'{' => open.push(b'}'),
            b'[' => open.push(b']'),
            b'}' | b']' => {
                open.pop();
            }
            _ => {}
        }
        let end = if byte == b',' { at } else { at + 1 };
        if byte != b'{' || open.len() == 1 {
            whole = end;
            // What was open before and is still open need not be copied: lists grow and shrink at their end only.
            open_then.truncate(open.len());
            let common = open_then.iter().zip(&open).take_while(|(then, now)| then == now).count();
            open_then.truncate(common);
            open_then.extend_from_slice(open.get(common..).unwrap_or_default());
        }
    });
    let mut repaired = text.get(..whole).unwrap_or_default().to_owned();
    repaired.extend(open_then.iter().rev().map(|byte| char::from(*byte)));
    repaired
}

/// Visits every bracket and comma that stands outside a text.
fn scan(text: &str, mut visit: impl FnMut(usize, u8)) {
    let mut at = 0;
    while let Some(next) = text.get(at..).and_then(|rest| rest.find(['"', '{', '}', '[', ']', ','])) {
        at += next;
        let rest = text.get(at..).unwrap_or_default();
        match rest.as_bytes().first() {
            Some(b'"') => at += text_length(rest),
            Some(byte) => {
                visit(at, *byte);
                at += 1;
            }
            None => return,
        }
    }
}

/// The length of the text in quotes at the beginning, or of all that is there where it does not end.
fn text_length(from: &str) -> usize {
    let bytes = from.as_bytes();
    let mut at = 1;
    while let Some(next) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += next;
        if bytes.get(at) == Some(&b'"') {
            return at + 1;
        }
        // Whatever is escaped has one byte at least, and no byte of a longer character is a quote.
        at += 2;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_become_empty() {
        let text = r#"{"a": NaN, "NaN \" NaN": [-Infinity,Infinity], "b": -1}"#;
        let repaired = without_nan(text);
        assert_eq!(repaired, r#"{"a": "" , "NaN \" NaN": [""       ,""      ], "b": -1}"#);
        assert_eq!(repaired.len(), text.len());
    }

    #[test]
    fn a_document_is_closed_before_its_fault() {
        for (text, expected) in [
            (r#"{"s":[{"t":"a"},{"t":"b","#, r#"{"s":[{"t":"a"},{"t":"b"}]}"#),
            (r#"{"s":[{"t":"a"},{"t":"b"#, r#"{"s":[{"t":"a"}]}"#),
            (r#"{"s":[{"t":"a"}"#, r#"{"s":[{"t":"a"}]}"#),
            (r#"{"s":["#, r#"{"s":[]}"#),
            (r#"{"s"#, "{}"),
            (r#"[{"t":"\"},"#, "[]"),
        ] {
            assert_eq!(up_to_the_fault(text, text.len()), expected, "{text}");
        }
    }
}
