//! Subjects and the patterns that match them: `*` stands for one token, a last `>` for one or more.

/// Whether `pattern` matches the literal `subject`.
#[must_use]
pub fn matches(pattern: &str, subject: &str) -> bool {
    if pattern == subject {
        return true;
    }
    let mut tokens = subject.split('.');
    for wanted in pattern.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            (_, None) => return false,
            ("*", Some(_)) => {}
            (literal, Some(token)) if literal == token => {}
            (_, Some(_)) => return false,
        }
    }
    tokens.next().is_none()
}

/// Whether every subject that `pattern` matches is matched by `wider` too.
pub(super) fn covers(wider: &str, pattern: &str) -> bool {
    let mut tokens = pattern.split('.');
    for wanted in wider.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            (_, None) => return false,
            ("*", Some(token)) if token != ">" => {}
            (literal, Some(token)) if literal == token => {}
            (_, Some(_)) => return false,
        }
    }
    tokens.next().is_none()
}

/// Whether some subject is matched by both patterns.
pub(super) fn overlap(a: &str, b: &str) -> bool {
    let (mut left, mut right) = (a.split('.'), b.split('.'));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(x), Some(y)) if x == y || x == "*" || y == "*" => {}
            (Some(_), Some(_) | None) | (None, Some(_)) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_tokens() {
        for (pattern, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            ("*.b", "a.b", true),
            ("a.*.c", "a.b.d", false),
        ] {
            assert_eq!(matches(pattern, subject), expected, "{pattern} {subject}");
        }
    }

    #[test]
    fn patterns_cover_and_overlap() {
        assert!(covers("a.>", "a.*.c") && covers("a.*", "a.b") && !covers("a.*", "a.>") && !covers("a.b", "a.*"));
        assert!(overlap("a.*", "*.b") && overlap("a.>", "a.b.c") && !overlap("a.b", "a.c") && !overlap("a", "a.>"));
    }
}
