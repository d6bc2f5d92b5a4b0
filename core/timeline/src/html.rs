//! The page. It is XML too, so that a strict reader can check that nothing in a trace has become markup.

use super::{
    Timeline,
    layout::{Drawn, GUTTER, Layout},
    svg, text,
    words::brief,
    xml::Xml,
};

/// From here on lanes are so narrow on a phone that the drawing is scrolled sideways instead.
const MANY_LANES: usize = 8;
/// And from here on their names are set smaller there.
const SOME_LANES: usize = 6;

/// The longest name of a lane, which has two lines, in halves of a wide character.
const NAME: usize = 14;

/// The page.
pub(super) fn page(timeline: &Timeline) -> String {
    let layout = Layout::new(timeline);
    let mut xml = Xml::default();
    xml.constant("<!DOCTYPE html>\n");
    xml.open("html", &[("lang", &"en")]);
    head(&mut xml, timeline);
    xml.open("body", &[]);
    summary(&mut xml, timeline);
    xml.open("main", &[]);
    picture(&mut xml, timeline, &layout);
    xml.open("aside", &[("class", &"details"), ("aria-label", &"Details")]);
    xml.open("p", &[("id", &"details-text"), ("dir", &"auto")]);
    xml.element("span", &[], "Choose a step: what it says stands here.");
    xml.element("span", &[("class", &"with-keys")], " Tab reaches the drawing, and the arrow keys move in it.");
    xml.close("p");
    xml.close("aside");
    list(&mut xml, timeline, &layout);
    xml.close("main");
    xml.open("script", &[]);
    xml.constant(include_str!("page.js"));
    xml.close("script");
    xml.close("body");
    xml.close("html");
    xml.line();
    xml.finish()
}

fn head(xml: &mut Xml, timeline: &Timeline) {
    xml.open("head", &[]);
    xml.empty("meta", &[("charset", &"utf-8")]);
    xml.empty("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]);
    // Nothing is fetched, whatever is in the trace.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
    xml.empty("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &policy)]);
    xml.empty("link", &[("rel", &"icon"), ("href", &"data:,")]);
    xml.element("title", &[], svg::title(timeline));
    xml.open("style", &[]);
    xml.constant(include_str!("page.css"));
    xml.constant(svg::STYLE);
    xml.close("style");
    xml.close("head");
}

/// What is to be known before the drawing.
fn summary(xml: &mut Xml, timeline: &Timeline) {
    xml.open("header", &[]);
    xml.element("h1", &[], svg::title(timeline));
    for line in text::head(timeline) {
        xml.element("p", &[], line);
    }
    if timeline.calls.iter().any(|call| timeline.calls.len() > 1 || !call.marks.is_empty()) {
        xml.open("ul", &[("class", &"calls"), ("aria-label", &"Calls")]);
        for (place, call) in timeline.calls.iter().enumerate() {
            xml.open("li", &[]);
            if timeline.calls.len() > 1 {
                xml.element("b", &[], format_args!("#{}", place + 1));
            }
            xml.element("bdi", &[], &call.name);
            if !call.marks.is_empty() {
                xml.element("span", &[("class", &"marks")], format_args!(" {}", call.marks.join(", ")));
            }
            xml.close("li");
        }
        xml.close("ul");
    }
    if svg::shows_density(timeline) {
        xml.open("svg", &[("class", &"strip"), ("role", &"img"), ("aria-label", &"How the whole run went")]);
        svg::density(xml, timeline);
        xml.close("svg");
    }
    xml.close("header");
}

fn picture(xml: &mut Xml, timeline: &Timeline, layout: &Layout<'_>) {
    let lanes = timeline.lanes.len();
    let (class, least) = match lanes {
        0..SOME_LANES => ("picture", 0),
        SOME_LANES..MANY_LANES => ("picture tight", 0),
        MANY_LANES.. => ("picture many", lanes * 56 + 64),
    };
    xml.open("div", &[("class", &class)]);
    xml.open("div", &[("class", &"heads"), ("aria-hidden", &"true"), ("style", &format_args!("min-width:{least}px"))]);
    let width = (100.0 - GUTTER) / lanes.max(1) as f64;
    for (column, lives) in layout.columns.iter().zip(&timeline.lanes) {
        let place = format!("left:{:.2}%;width:{width:.2}%", column.x);
        xml.element("span", &[("style", &place), ("title", &lives.name)], hyphenated(&brief(&lives.name, NAME)));
    }
    xml.close("div");
    let style = format!("min-width:{least}px");
    xml.open(
        "svg",
        &[
            ("class", &"drawing"),
            ("height", &layout.height),
            ("style", &style),
            ("role", &"group"),
            ("aria-label", &"The steps in the order of time; move with the arrow keys"),
        ],
    );
    svg::body(xml, timeline, layout);
    xml.close("svg");
    xml.close("div");
}

/// With the places where a narrow column may break it.
fn hyphenated(name: &str) -> &str {
    match name {
        "transcriber" => "tran\u{AD}scriber",
        "subscribers" => "sub\u{AD}scribers",
        name => name,
    }
}

fn list(xml: &mut Xml, timeline: &Timeline, layout: &Layout<'_>) {
    xml.open("section", &[("class", &"list"), ("aria-labelledby", &"in-words")]);
    xml.element("h2", &[("id", &"in-words")], "The same in words");
    xml.open("ol", &[]);
    for row in &layout.rows {
        let sentence = match row.what {
            Drawn::Step { step, .. } => text::sentence(timeline, step),
            Drawn::Band { band, .. } => text::band_sentence(timeline, band),
        };
        xml.line();
        xml.element("li", &[("dir", &"auto")], sentence);
    }
    xml.close("ol");
    xml.close("section");
}
