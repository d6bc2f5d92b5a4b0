//! A trace as a picture: who said what to whom, and when. [`Timeline`] reads a trace and draws it as SVG, HTML, Mermaid or text.
//!
//! ```text
//! lines ──► Reading ──► Timeline ──► Layout ──► svg, html, mermaid, text
//!         (calls kept) (steps, bands) (rows, breaks)
//! ```
//!
//! A [`Timeline`] is a list of steps between lanes, in the order of time, and of bands in which somebody was dead, stood
//! still, or was away. Time runs downwards and each step has a row of its own, as in a sequence diagram: so no two labels
//! can meet, and the same drawing serves a phone and a desk. Where nothing happens the axis is broken, and the break says
//! how long it is.
//!
//! # What is drawn
//!
//! Of one session everything is drawn, as far as [`Selection::max_steps`] goes. Of a whole run a picture could hold
//! everything and show nothing, so those calls are drawn to which most has happened (kills, dead letters, redeliveries,
//! failures), and a few of the ordinary ones; the drawing says what it left out, and a strip shows how the rest went. While
//! it is read no more is kept than the calls under way, the most telling of those that are over, and eight bytes for each
//! other call, by which they are counted.

mod bands;
mod calls;
mod density;
mod finish;
mod html;
mod layout;
mod mermaid;
mod model;
mod part;
mod read;
mod svg;
mod text;
mod words;
mod xml;

use transcript_trace::{Line, Processes, ReadError};

use self::{
    bands::Band,
    density::Density,
    model::{Call, Lane, Lives, Moment, Step, Totals},
};

/// A trace, ready to be drawn.
#[derive(Debug)]
pub struct Timeline {
    /// When the drawing begins.
    begins: Moment,
    /// When it ends.
    ends: Moment,
    /// The lanes that have something to show, from left to right.
    lanes: Vec<Lives>,
    /// The calls that are drawn, in the order of their first steps.
    calls: Vec<Call>,
    /// In the order of time.
    steps: Vec<Step>,
    /// In the order of their beginnings.
    bands: Vec<Band>,
    density: Density,
    totals: Totals,
    /// What the trace says that it shows.
    abouts: Vec<String>,
    /// What must be known about the drawing: what it left out, and why.
    remarks: Vec<String>,
}

/// What to draw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Only this session's calls; `None` for a whole run.
    pub session_id: Option<String>,
    /// Only those of this conversation.
    pub conversation_id: Option<String>,
    /// The most calls to draw.
    pub max_calls: usize,
    /// The most steps to draw, of all calls together. A call of more is drawn without its middle.
    pub max_steps: usize,
}

impl Default for Selection {
    /// A whole run, of twelve calls at most: as many as can still be told apart.
    fn default() -> Self {
        Self { session_id: None, conversation_id: None, max_calls: 12, max_steps: 400 }
    }
}

impl Timeline {
    /// Reads a trace. A last line that is cut off is no error: what a killed process leaves behind ends like that, and the
    /// drawing says so.
    ///
    /// # Errors
    ///
    /// A trace that cannot be read to its end.
    pub fn read(
        lines: impl IntoIterator<Item = Result<Line, ReadError>>,
        selection: &Selection,
    ) -> Result<Self, ReadError> {
        let mut reading = read::Reading::new(selection);
        for line in Processes::of(lines.into_iter()) {
            match line {
                Ok(line) => reading.line(line),
                Err(error @ ReadError::CutOff { .. }) => reading.remark(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(reading.finish())
    }

    /// One self-contained page: the drawing, a panel for the details of a step, and the same as a list of sentences.
    #[must_use]
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// A drawing that stands alone, dark where its reader prefers that.
    #[must_use]
    pub fn svg(&self) -> String {
        svg::document(self)
    }

    /// A `sequenceDiagram` of Mermaid.
    #[must_use]
    pub fn mermaid(&self) -> String {
        mermaid::diagram(self)
    }

    /// The steps as sentences, one a line.
    #[must_use]
    pub fn text(&self) -> String {
        text::list(self)
    }

    /// The name of a lane.
    fn name(&self, lane: Lane) -> &str {
        self.lanes.iter().find(|lives| lives.lane == lane).map_or("?", |lives| &lives.name)
    }
}

#[cfg(test)]
mod tests;
