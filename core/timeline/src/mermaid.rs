//! A `sequenceDiagram` for a chat.

use super::{
    Timeline,
    layout::{Drawn, Layout},
    model::{Lane, StepKind},
    text,
    words::shortened,
    xml::visible,
};

/// The most rows: Mermaid refuses diagrams of more than 50,000 characters (`maxTextSize` in its configuration), and long
/// before that nobody can read them.
const MOST_ROWS: usize = 200;

/// The longest text of an arrow, in halves of a wide character.
const LONGEST: usize = 48;

/// The diagram.
pub(super) fn diagram(timeline: &Timeline) -> String {
    let mut diagram = vec!["sequenceDiagram".to_owned()];
    let id = |lane: Lane| timeline.lanes.iter().position(|lives| lives.lane == lane).unwrap_or(0);
    for (place, lives) in timeline.lanes.iter().enumerate() {
        diagram.push(format!("    participant l{place} as {}", escaped(&shortened(&lives.name, LONGEST))));
    }
    let all = match timeline.lanes.len() {
        0 | 1 => "l0".to_owned(),
        lanes => format!("l0,l{}", lanes - 1),
    };
    for line in text::head(timeline) {
        diagram.push(format!("    note over {all}: {}", escaped(&line)));
    }
    for call in timeline.calls.iter().filter(|call| !call.marks.is_empty()) {
        let marks = shortened(&format!("{}: {}", call.name, call.marks.join(", ")), 4 * LONGEST);
        diagram.push(format!("    note over {all}: {}", escaped(&marks)));
    }
    let layout = Layout::new(timeline);
    let mut breaks = layout.breaks.iter().peekable();
    for row in layout.rows.iter().take(MOST_ROWS) {
        if let Some(wait) = breaks.next_if(|wait| wait.y < row.y) {
            diagram.push(format!("    note over {all}: {}", escaped(&format!("… {} …", wait.length))));
        }
        match row.what {
            Drawn::Step { step, .. } if step.from == step.to => {
                let text = shortened(&step.label, LONGEST);
                diagram.push(format!("    note over l{}: {}", id(step.from), escaped(&text)));
            }
            Drawn::Step { step, .. } => {
                let arrow = match step.kind {
                    StepKind::Message | StepKind::Stored | StepKind::Asked => "->>",
                    StepKind::Answered => "-->>",
                    StepKind::Failed | StepKind::Lost => "--x",
                    StepKind::Heartbeat => "-)",
                    StepKind::Remark => "->",
                };
                let time = row.time.as_ref().map_or(String::new(), |time| format!("{time} "));
                let text = escaped(&format!("{time}{}", row.label.text));
                diagram.push(format!("    l{}{arrow}l{}: {text}", id(step.from), id(step.to)));
            }
            Drawn::Band { band, .. } => {
                let text = shortened(&band.full(), 2 * LONGEST);
                diagram.push(format!("    note over l{}: {}", id(band.lane), escaped(&text)));
            }
        }
    }
    if layout.rows.len() > MOST_ROWS {
        let rest = format!("{} steps more are not drawn here", layout.rows.len() - MOST_ROWS);
        diagram.push(format!("    note over {all}: {rest}"));
    }
    diagram.join("\n") + "\n"
}

/// A text that Mermaid takes for one: letters, digits and some marks stay, everything else is written as `#code;`. The
/// word `end` would end a block.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    let text = visible(text);
    let mut word = String::new();
    for c in text.chars().chain(['\0']) {
        if c.is_alphanumeric() {
            word.push(c);
            continue;
        }
        if word.eq_ignore_ascii_case("end") {
            let first = word.remove(0);
            escaped.push_str(&format!("#{};", u32::from(first)));
        }
        escaped.push_str(&std::mem::take(&mut word));
        match c {
            '\0' => {}
            ' ' | '.' | ',' | '+' | '/' | '(' | ')' | '…' | '×' | '_' => escaped.push(c),
            c => escaped.push_str(&format!("#{};", u32::from(c))),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_taken_for_mermaid() {
        assert_eq!(escaped("count, 12 (of 12)"), "count, 12 (of 12)");
        assert_eq!(escaped("a;b#c\n%%d"), "a#59;b#35;c#92;u#123;a#125;#37;#37;d");
        assert_eq!(escaped("the END: end, ended, weekend"), "the #69;ND#58; #101;nd, ended, weekend");
        assert_eq!(escaped("<script>"), "#60;script#62;");
    }
}
