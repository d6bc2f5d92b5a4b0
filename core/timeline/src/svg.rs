//! The drawing.

use super::{
    Timeline,
    bands::BandCause,
    layout::{ASIDE, Drawn, GUTTER, Layout, ROW, Row, Side, TIME_BELOW},
    model::{Step, StepKind, span},
    text,
    words::{brief, shortened, units, wrapped},
    xml::Xml,
};

/// The width of a drawing that stands alone, in pixels.
const WIDTH: i32 = 960;
const MARGIN: i32 = 16;
/// What fits into a line above the drawing, in halves of a wide character.
const HEADLINE: usize = 140;
const NAMESPACE: &str = "http://www.w3.org/2000/svg";

/// The drawing's own style; a page has it too.
pub(super) const STYLE: &str = include_str!("svg.css");

/// The most ticks that stand for a row of heartbeats.
const MOST_TICKS: u64 = 12;

/// Hundredths of the width.
struct Share(f64);

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2}%", self.0)
    }
}

/// A document that stands alone.
pub(super) fn document(timeline: &Timeline) -> String {
    let layout = Layout::new(timeline);
    let lines = headlines(timeline);
    let strip = if shows_density(timeline) { 64 } else { 0 };
    let above = 44 + 16 * i32::try_from(lines.len()).unwrap_or(i32::MAX) + strip;
    let height = above + 26 + layout.height + 10;
    let mut xml = Xml::default();
    let (view, inner) = (format!("0 0 {WIDTH} {height}"), WIDTH - 2 * MARGIN);
    xml.open(
        "svg",
        &[
            ("xmlns", &NAMESPACE),
            ("viewBox", &view),
            ("width", &WIDTH),
            ("height", &height),
            ("role", &"group"),
            ("aria-labelledby", &"title desc"),
        ],
    );
    xml.element("title", &[("id", &"title")], title(timeline));
    let steps = format!("{} steps, each with its own title.", layout.rows.len());
    xml.element("desc", &[("id", &"desc")], lines.iter().chain([&steps]).cloned().collect::<Vec<_>>().join(" "));
    xml.element("style", &[], STYLE);
    xml.empty("rect", &[("class", &"paper"), ("width", &"100%"), ("height", &"100%")]);
    xml.element("text", &[("class", &"headline"), ("x", &MARGIN), ("y", &28)], shortened(&title(timeline), 100));
    for (place, line) in lines.iter().enumerate() {
        let y = 48 + 16 * i32::try_from(place).unwrap_or(0);
        xml.element("text", &[("class", &"said"), ("x", &MARGIN), ("y", &y)], line);
    }
    if strip > 0 {
        let y = above - strip;
        xml.open("svg", &[("x", &MARGIN), ("y", &y), ("width", &inner), ("height", &(strip - 8))]);
        density(&mut xml, timeline);
        xml.close("svg");
    }
    xml.open("svg", &[("x", &MARGIN), ("y", &above), ("width", &inner), ("height", &(26 + layout.height))]);
    let room = f64::from(inner) * (100.0 - GUTTER) / 100.0 / timeline.lanes.len().max(1) as f64;
    for (column, lives) in layout.columns.iter().zip(&timeline.lanes) {
        let name = brief(&lives.name, (room / 7.5) as usize);
        xml.element("text", &[("class", &"name"), ("x", &Share(column.x)), ("y", &16)], name);
    }
    xml.open("svg", &[("y", &26), ("width", &"100%"), ("height", &layout.height)]);
    body(&mut xml, timeline, &layout);
    xml.close("svg");
    xml.close("svg");
    xml.close("svg");
    xml.line();
    xml.finish()
}

/// Everything below the names of the lanes.
pub(super) fn body(xml: &mut Xml, timeline: &Timeline, layout: &Layout<'_>) {
    xml.constant(include_str!("defs.svg"));
    for column in &layout.columns {
        let x = Share(column.x);
        xml.empty("line", &[("class", &"lane"), ("x1", &x), ("x2", &x), ("y1", &column.top), ("y2", &column.bottom)]);
    }
    for row in &layout.rows {
        if let Drawn::Band { band, x, bottom } = &row.what {
            let (class, x) = (format!("band {}", class_of_band(band.what)), Share(*x));
            xml.empty("line", &[("class", &class), ("x1", &x), ("x2", &x), ("y1", &row.y), ("y2", bottom)]);
        }
    }
    for wait in &layout.breaks {
        let (x, width) = (Share(GUTTER), Share(100.0 - GUTTER));
        let y = wait.y - 4;
        xml.empty("use", &[("href", &"#zigzag"), ("x", &x), ("y", &y), ("width", &width), ("height", &8)]);
        xml.element("text", &[("class", &"wait"), ("x", &2), ("y", &(wait.y + 4))], &wait.length);
    }
    for (place, row) in layout.rows.iter().enumerate() {
        mark(xml, timeline, place, row);
    }
}

/// One step or the beginning of a band, with all that belongs to it.
fn mark(xml: &mut Xml, timeline: &Timeline, place: usize, row: &Row<'_>) {
    let (class, sentence) = match row.what {
        Drawn::Step { step, .. } => (class_of_step(step.kind), text::sentence(timeline, step)),
        Drawn::Band { band, .. } => (class_of_band(band.what), text::band_sentence(timeline, band)),
    };
    xml.line();
    xml.open(
        "g",
        &[
            ("class", &format!("step {class}")),
            ("id", &format!("step{}", place + 1)),
            ("tabindex", &0),
            ("role", &"img"),
            ("aria-label", &sentence),
        ],
    );
    xml.element("title", &[], &sentence);
    xml.empty("rect", &[("class", &"hit"), ("y", &(row.y - ROW / 2 - 3)), ("width", &"100%"), ("height", &ROW)]);
    if let Some(time) = &row.time {
        xml.element("text", &[("class", &"time"), ("x", &2), ("y", &(row.y + TIME_BELOW + 3))], time);
    }
    if let Drawn::Step { step, from, to } = row.what {
        arrow(xml, step, row.y, from, to);
    }
    let (aside, anchor) = match row.label.side {
        Side::Right => (ASIDE, "start"),
        Side::Left => (-ASIDE, "end"),
    };
    xml.element(
        "text",
        &[
            ("class", &"label"),
            ("x", &Share(row.label.x)),
            ("dx", &aside),
            ("y", &(row.y - 6)),
            ("text-anchor", &anchor),
        ],
        &row.label.text,
    );
    xml.close("g");
}

fn arrow(xml: &mut Xml, step: &Step, y: i32, from: f64, to: f64) {
    if step.from == step.to {
        xml.empty("circle", &[("class", &"point"), ("cx", &Share(from)), ("cy", &y), ("r", &4)]);
        return;
    }
    // What was lost does not arrive.
    let (to, head) = match step.kind {
        StepKind::Lost => (from + (to - from) * 0.7, "url(#cross)"),
        StepKind::Failed => (to, "url(#failed)"),
        StepKind::Heartbeat => (to, "url(#beat)"),
        StepKind::Message | StepKind::Stored | StepKind::Asked | StepKind::Answered | StepKind::Remark => {
            (to, "url(#head)")
        }
    };
    xml.empty(
        "line",
        &[("class", &"arrow"), ("x1", &Share(from)), ("x2", &Share(to)), ("y1", &y), ("y2", &y), ("marker-end", &head)],
    );
    if step.kind == StepKind::Heartbeat && step.count > 1 {
        let ticks = step.count.min(MOST_TICKS);
        for tick in 1..=ticks {
            let x = Share(from + (to - from) * tick as f64 / (ticks + 1) as f64);
            xml.empty("line", &[("class", &"tick"), ("x1", &x), ("x2", &x), ("y1", &(y - 3)), ("y2", &(y + 3))]);
        }
    }
}

/// How the whole run went, as a strip: deliveries upwards, troubles over them.
pub(super) fn density(xml: &mut Xml, timeline: &Timeline) {
    let columns = timeline.density.columns();
    let most = columns.iter().map(|counts| counts.delivered.max(counts.troubles)).max().unwrap_or(0).max(1);
    let width = 100.0 / columns.len().max(1) as f64;
    let caption = caption(timeline);
    xml.element("title", &[], &caption);
    for (place, counts) in columns.iter().enumerate() {
        // A single trouble among thousands must still be seen.
        for (class, count, least) in [("delivered", counts.delivered, 1.0), ("troubles", counts.troubles, 5.0)] {
            if count == 0 {
                continue;
            }
            let height = (32.0 * count as f64 / most as f64).max(least);
            xml.empty(
                "rect",
                &[
                    ("class", &class),
                    ("x", &Share(place as f64 * width)),
                    ("y", &format!("{:.1}", 34.0 - height)),
                    ("width", &Share(width * 0.9)),
                    ("height", &format!("{height:.1}")),
                ],
            );
        }
    }
    xml.empty("line", &[("class", &"lane"), ("x1", &0), ("x2", &"100%"), ("y1", &34), ("y2", &34)]);
    xml.element("text", &[("class", &"said"), ("x", &2), ("y", &50)], caption);
}

/// Whether there is more than what is drawn step by step.
pub(super) fn shows_density(timeline: &Timeline) -> bool {
    timeline.totals.calls > timeline.calls.len() as u64
}

fn caption(timeline: &Timeline) -> String {
    let columns = timeline.density.columns();
    let sum = |of: fn(&super::density::Counts) -> u64| super::model::grouped(columns.iter().map(of).sum());
    format!(
        "deliveries: {}; troubles: {}; done: {}; a bar is {}",
        sum(|counts| counts.delivered),
        sum(|counts| counts.troubles),
        sum(|counts| counts.acknowledged),
        span(timeline.density.width()),
    )
}

/// What the drawing is called.
pub(super) fn title(timeline: &Timeline) -> String {
    match timeline.calls.as_slice() {
        [call] => format!("Timeline of {}", call.name),
        [] => "Timeline".to_owned(),
        calls => format!("Timeline of {} calls", calls.len()),
    }
}

fn headlines(timeline: &Timeline) -> Vec<String> {
    let mut lines: Vec<String> = text::head(timeline);
    if timeline.calls.len() > 1 {
        lines.extend(text::calls(timeline));
    } else {
        lines.extend(timeline.calls.iter().filter(|call| !call.marks.is_empty()).map(|call| call.marks.join(", ")));
    }
    lines.iter().flat_map(|line| wrapped(line, HEADLINE)).filter(|line| units(line) > 0).collect()
}

fn class_of_step(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Message => "message",
        StepKind::Stored => "stored",
        StepKind::Asked => "asked",
        StepKind::Answered => "answered",
        StepKind::Failed => "failed",
        StepKind::Lost => "lost",
        StepKind::Heartbeat => "heartbeat",
        StepKind::Remark => "remark",
    }
}

fn class_of_band(what: BandCause) -> &'static str {
    match what {
        BandCause::Killed => "killed",
        BandCause::Frozen => "frozen",
        BandCause::Away => "away",
        BandCause::Missing => "missing",
    }
}
