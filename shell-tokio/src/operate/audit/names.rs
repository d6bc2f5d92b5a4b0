//! Lists of names that stay short however many there are.

use std::fmt;

use serde::Serialize;

use crate::terminal::harmless;

/// How many are named where nobody asks for more.
pub(super) const NAMED: usize = 1000;

/// Sessions or messages with the same problem.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Names {
    /// How many there are.
    pub total: u64,
    /// The first of them: a thousand, or all incomplete ones where those are asked for.
    pub named: Vec<Name>,
}

/// A session or a message, and what is wrong with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Name {
    /// The session's key; `None` where a message names no session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The place of the session's last end in the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
    /// The place of the dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<u64>,
    /// How often the session was announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notifications: Option<u32>,
    /// How many segments the summary counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<u64>,
    /// How many segments are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<u64>,
    /// How often segments were changed since the summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edits: Option<u64>,
    /// How many segments the end of the call announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announced: Option<u64>,
    /// The place of the message that the mark of the summary names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<u64>,
    /// The place of the message itself, where it is about a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<u64>,
    /// The subject of that message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What is wrong with it, or why it was not repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Names {
    /// One more.
    pub fn add(&mut self, name: Name) {
        self.add_within(NAMED, name);
    }

    /// One more, where at most so many are named.
    pub fn add_within(&mut self, most: usize, name: Name) {
        self.total += 1;
        if self.named.len() < most {
            self.named.push(name);
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.key, self.message) {
            (Some(key), _) => f.write_str(&harmless(key))?,
            (None, Some(message)) => write!(f, "message {message}")?,
            (None, None) => f.write_str("a message that names no call")?,
        }
        if let Some(subject) = &self.subject {
            write!(f, " ({})", harmless(subject))?;
        }
        if let Some(end) = self.end {
            write!(f, ", ended at {end}")?;
        }
        if let Some(dead_letter) = self.dead_letter {
            write!(f, ", dead letter {dead_letter}")?;
        }
        if let Some(notifications) = self.notifications {
            write!(f, ", {notifications} times")?;
        }
        if let (Some(counted), Some(stored)) = (self.counted, self.stored) {
            write!(f, ", {counted} segments of {stored}")?;
        }
        if let Some(edits) = self.edits {
            write!(f, ", {edits} edits since")?;
        }
        if let (Some(counted), Some(announced)) = (self.counted, self.announced) {
            write!(f, ", {counted} segments of {announced} announced")?;
        }
        if let Some(marked) = self.marked {
            write!(f, ", marked as announced by message {marked}")?;
        }
        if let Some(error) = &self.error {
            write!(f, ": {}", harmless(error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_are_counted_than_named() {
        let mut names = Names::default();
        (0..NAMED + 5).for_each(|_| names.add(Name::default()));
        assert_eq!((names.total, names.named.len()), (1005, NAMED));
    }

    #[test]
    fn a_name_says_what_is_known() {
        let name =
            Name { key: Some("c:\u{1b}s".into()), end: Some(7), counted: Some(2), stored: Some(3), ..Name::default() };
        assert_eq!(name.to_string(), "c:\u{fffd}s, ended at 7, 2 segments of 3");
        let edited = Name { edits: Some(4), ..name };
        assert_eq!(edited.to_string(), "c:\u{fffd}s, ended at 7, 2 segments of 3, 4 edits since");
        let dead_letter = Name { dead_letter: Some(9), ..Name::default() };
        assert_eq!(dead_letter.to_string(), "a message that names no call, dead letter 9");
        let incomplete = Name { key: Some("c:s".into()), counted: Some(2), announced: Some(5), ..Name::default() };
        assert_eq!(incomplete.to_string(), "c:s, 2 segments of 5 announced");
        let message =
            Name { message: Some(4), subject: Some("a.b".into()), error: Some("no".into()), ..Name::default() };
        assert_eq!(message.to_string(), "message 4 (a.b): no");
    }
}
