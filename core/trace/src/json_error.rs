//! What an error of reading JSON says, without what was read: that can be the words of a call.

/// What an error of reading JSON says, without the value that it is about.
#[must_use]
pub fn json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if error.classify() != serde_json::error::Category::Data || text.starts_with("missing field") {
        return text;
    }
    let place = text.rsplit_once(" at line ").map_or_else(String::new, |(_, place)| format!(" at line {place}"));
    let expected = text.rsplit_once(", expected ").map(|(_, expected)| expected.trim_end_matches(&place));
    match expected {
        Some(expected) => format!("a value is not of its type: {expected} is expected{place}"),
        None => format!("a value is not what is expected{place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_never_told() {
        let told = |json: &str| json_error(&serde_json::from_str::<Vec<u8>>(json).unwrap_err());
        let refused = "a value is not of its type: u8 is expected at line 1 column 34";
        assert_eq!(told(r#"["so much for that, expected more"]"#), refused);
        assert_eq!(told("[1"), "EOF while parsing a list at line 1 column 2");
    }
}
