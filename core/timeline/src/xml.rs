//! Writes markup in which no text can become an element.

use std::fmt::Display;

/// A document under way. Whatever is put into it from outside is escaped on the way; what is not, is a constant of this
/// crate.
#[derive(Debug, Default)]
pub(super) struct Xml(String);

/// An attribute's name and value.
pub(super) type Attribute<'a> = (&'static str, &'a dyn Display);

impl Xml {
    /// Begins an element.
    pub(super) fn open(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.tag(name, attributes);
        self.0.push('>');
    }

    /// Ends an element.
    pub(super) fn close(&mut self, name: &'static str) {
        self.0.push_str(&format!("</{name}>"));
    }

    /// An element without content: of SVG, or one of those that HTML writes without an end.
    pub(super) fn empty(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.tag(name, attributes);
        self.0.push_str("/>");
    }

    /// An element that holds a text.
    pub(super) fn element(&mut self, name: &'static str, attributes: &[Attribute<'_>], text: impl Display) {
        self.open(name, attributes);
        self.text(text);
        self.close(name);
    }

    /// A text.
    pub(super) fn text(&mut self, text: impl Display) {
        escape_into(&mut self.0, &text.to_string());
    }

    /// Markup, as it is.
    pub(super) fn constant(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    /// A line's end, for people who read the source.
    pub(super) fn line(&mut self) {
        self.0.push('\n');
    }

    /// The document.
    pub(super) fn finish(self) -> String {
        self.0
    }

    fn tag(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.0.push_str(&format!("<{name}"));
        for (name, value) in attributes {
            self.0.push_str(&format!(" {name}=\""));
            escape_into(&mut self.0, &value.to_string());
            self.0.push('"');
        }
    }
}

fn escape_into(to: &mut String, text: &str) {
    for c in visible(text).chars() {
        match c {
            '&' => to.push_str("&amp;"),
            '<' => to.push_str("&lt;"),
            '>' => to.push_str("&gt;"),
            '"' => to.push_str("&quot;"),
            '\'' => to.push_str("&#39;"),
            c => to.push(c),
        }
    }
}

/// The text with everything spelt out that cannot be seen, that XML cannot hold, or that changes the direction of what
/// stands beside it.
pub(super) fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        if hides(c) {
            visible.extend(c.escape_unicode());
        } else {
            visible.push(c);
        }
    }
    visible
}

fn hides(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61C}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}'
            | '\u{FFFE}' | '\u{FFFF}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_hostile_is_harmless() {
        let mut xml = Xml::default();
        xml.element("a", &[("b", &"\"'<&>")], "</a><script>\u{0}\u{202E}");
        assert_eq!(xml.finish(), "<a b=\"&quot;&#39;&lt;&amp;&gt;\">&lt;/a&gt;&lt;script&gt;\\u{0}\\u{202e}</a>");
    }

    proptest! {
        #[test]
        fn any_text_comes_out_as_one_text(text in any::<String>()) {
            let mut xml = Xml::default();
            xml.element("a", &[("b", &text)], &text);
            let xml = xml.finish();
            let read = roxmltree::Document::parse(&xml).expect("it is XML");
            let root = read.root_element();
            prop_assert_eq!(root.text().unwrap_or_default(), visible(&text));
            prop_assert_eq!(root.attribute("b").unwrap_or_default(), visible(&text));
            prop_assert!(root.children().all(|child| child.is_text()));
        }
    }
}
