//! The steps as sentences.

use super::{
    Timeline,
    bands::Band,
    layout::{Drawn, Layout},
    model::{Lane, Step, offset, span},
    xml::visible,
};

/// All that is drawn, one step a line.
pub(super) fn list(timeline: &Timeline) -> String {
    let mut text = vec![];
    for line in head(timeline).into_iter().chain(calls(timeline)) {
        text.push(visible(&line));
    }
    text.push(String::new());
    let layout = Layout::new(timeline);
    let width = timeline.lanes.iter().map(|lives| lives.name.chars().count()).max().unwrap_or(0).min(24);
    let mut breaks = layout.breaks.iter().peekable();
    for row in &layout.rows {
        if let Some(wait) = breaks.next_if(|wait| wait.y < row.y) {
            text.push(format!("{:>12}  ⋮ {}", "", wait.length));
        }
        let sentence = match row.what {
            Drawn::Step { step, .. } => {
                let (from, to) = (visible(timeline.name(step.from)), visible(timeline.name(step.to)));
                let to = if step.from == step.to { String::new() } else { format!("→ {to}") };
                let said = visible(&said(timeline, step));
                format!("{from:>width$} {to:<arrow$}  {said}", arrow = width + 2)
            }
            Drawn::Band { band, .. } => {
                format!(
                    "{:>width$} {:<arrow$}  {}",
                    visible(timeline.name(band.lane)),
                    "▒",
                    visible(&band.full()),
                    arrow = width + 2
                )
            }
        };
        text.push(format!("{:>12}  {}", row.time.as_deref().unwrap_or_default(), sentence.trim_end()));
    }
    text.join("\n") + "\n"
}

/// What is to be known first.
pub(super) fn head(timeline: &Timeline) -> Vec<String> {
    let length = span(timeline.ends.since(timeline.begins));
    let mut head = vec![format!("From {}, for {length}.", timeline.begins.absolute())];
    head.extend(timeline.abouts.iter().chain(&timeline.remarks).map(|remark| {
        let mut letters = remark.chars();
        let first = letters.next().map_or(String::new(), |first| first.to_uppercase().collect());
        format!("{first}{}.", letters.as_str().trim_end_matches('.'))
    }));
    if timeline.steps.is_empty() && timeline.bands.is_empty() {
        head.push("There is nothing to draw.".to_owned());
    }
    head
}

/// The calls, with their numbers.
pub(super) fn calls(timeline: &Timeline) -> Vec<String> {
    let described = timeline.calls.iter().enumerate().map(|(place, call)| {
        let marks = if call.marks.is_empty() { String::new() } else { format!(" ({})", call.marks.join(", ")) };
        format!("#{} {}{marks}", place + 1, call.name)
    });
    described.collect()
}

/// When a step was.
pub(super) fn when(timeline: &Timeline, step: &Step) -> String {
    offset(step.at.since(timeline.begins))
}

/// Who said it to whom.
pub(super) fn who(timeline: &Timeline, from: Lane, to: Lane) -> String {
    if from == to {
        timeline.name(from).to_owned()
    } else {
        format!("{} to {}", timeline.name(from), timeline.name(to))
    }
}

/// What it said, with its call where there are several.
pub(super) fn said(timeline: &Timeline, step: &Step) -> String {
    match step.call.filter(|_| timeline.calls.len() > 1) {
        Some(call) => format!("#{} {}", call + 1, step.text),
        None => step.text.clone(),
    }
}

/// A step in one sentence.
pub(super) fn sentence(timeline: &Timeline, step: &Step) -> String {
    let call =
        step.call.filter(|_| timeline.calls.len() > 1).and_then(|call| Some((call + 1, timeline.calls.get(call)?)));
    let of = call.map_or(String::new(), |(number, call)| format!(" (call #{number}, {})", call.name));
    format!("{}, {}: {}{of}", when(timeline, step), who(timeline, step.from, step.to), step.text)
}

/// A band in one sentence.
pub(super) fn band_sentence(timeline: &Timeline, band: &Band) -> String {
    let at = offset(band.from.since(timeline.begins));
    format!("{at}, {}: {}", timeline.name(band.lane), band.full())
}
