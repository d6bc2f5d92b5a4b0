//! Where everything stands: pixels downwards, and hundredths of the width across, so that one drawing fits every width.

use std::time::Duration;

use super::{
    Timeline,
    bands::Band,
    model::{Lane, Moment, Step, offset, span},
    words::{LABEL, shortened, units},
};

/// The distance of two rows.
pub(super) const ROW: i32 = 30;
/// Where the first row stands.
const TOP: i32 = 26;
/// The place that a break takes.
const BREAK: i32 = 26;
/// How far a row is moved down at most by a wait that is drawn to scale.
const STRETCH: i32 = 24;
/// From here on a wait is a break in the axis.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// How much of the width the times take, in hundredths.
pub(super) const GUTTER: f64 = 14.0;
/// How far the middle of a time is below its row, so that it is below the row's label.
pub(super) const TIME_BELOW: i32 = 4;
/// The distance of a label from its lane, in pixels.
pub(super) const ASIDE: i32 = 6;

/// Where everything stands.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    /// In pixels.
    pub(super) height: i32,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row<'a>>,
    pub(super) breaks: Vec<Break>,
}

/// Where a lane stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Column {
    pub(super) lane: Lane,
    pub(super) x: f64,
    pub(super) top: i32,
    pub(super) bottom: i32,
}

/// One step, or a band's beginning.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) y: i32,
    pub(super) what: Drawn<'a>,
    pub(super) label: Label,
    /// Where it differs from that of the row above.
    pub(super) time: Option<String>,
}

/// What a row is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Drawn<'a> {
    /// An arrow, or a point where it goes nowhere.
    Step { step: &'a Step, from: f64, to: f64 },
    /// A band down to `bottom`.
    Band { band: &'a Band, x: f64, bottom: i32 },
}

/// A few words beside a lane.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Label {
    pub(super) text: String,
    /// The lane's place.
    pub(super) x: f64,
    pub(super) side: Side,
}

/// On which side of its lane a label stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// A wait that is not drawn to scale.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Break {
    pub(super) y: i32,
    pub(super) length: String,
}

enum Item<'a> {
    Step(&'a Step),
    Band(&'a Band),
}

impl<'a> Layout<'a> {
    pub(super) fn new(timeline: &'a Timeline) -> Self {
        let width = (100.0 - GUTTER) / timeline.lanes.len().max(1) as f64;
        let xs: Vec<(Lane, f64)> = timeline
            .lanes
            .iter()
            .enumerate()
            .map(|(place, lives)| (lives.lane, GUTTER + (place as f64 + 0.5) * width))
            .collect();
        let x_of = |lane: Lane| xs.iter().find(|(known, _)| *known == lane).map_or(GUTTER, |(_, x)| *x);

        let mut rows: Vec<Row<'a>> = vec![];
        let mut at: Vec<Moment> = vec![];
        let mut breaks = vec![];
        let (mut y, mut reached) = (TOP, timeline.begins);
        for item in items(timeline) {
            let moment = item.at();
            let wait = moment.since(reached);
            if wait >= LONGEST_WAIT {
                let middle = if rows.is_empty() { y - ROW / 2 } else { y + BREAK / 2 - ROW / 2 + 4 };
                breaks.push(Break { y: middle, length: span(wait) });
                y += BREAK;
            } else if !rows.is_empty() {
                y += stretch(wait);
            }
            reached = reached.max(moment);
            let time = offset(moment.since(timeline.begins));
            let is_news = at.last().is_none_or(|last| offset(last.since(timeline.begins)) != time);
            rows.push(row(&item, y, is_news.then_some(time), timeline.calls.len() > 1, &x_of));
            at.push(moment);
            y += ROW;
        }
        let height = y + 4;
        let y_at = |moment: Moment| {
            let next = at.iter().position(|row| *row >= moment);
            next.and_then(|next| rows.get(next)).map_or(height - 6, |row| row.y - ROW / 2 + 2)
        };
        let columns = timeline.lanes.iter().map(|lives| Column {
            lane: lives.lane,
            x: x_of(lives.lane),
            top: lives.from.map_or(0, y_at),
            bottom: lives.to.map_or(height, |to| last_y(&rows, &at, to)),
        });
        let columns = columns.collect();
        let bottoms: Vec<Option<i32>> = rows.iter().map(|row| row.what.ends().map(y_at)).collect();
        for (row, end) in rows.iter_mut().zip(bottoms) {
            let y = row.y;
            if let Drawn::Band { bottom, .. } = &mut row.what {
                *bottom = end.unwrap_or(height - 6).max(y + 10);
            }
        }
        Self { height, columns, rows, breaks }
    }
}

impl Item<'_> {
    fn at(&self) -> Moment {
        match self {
            Self::Step(step) => step.at,
            Self::Band(band) => band.from,
        }
    }
}

impl Drawn<'_> {
    fn ends(&self) -> Option<Moment> {
        match self {
            Self::Step { .. } => None,
            Self::Band { band, .. } => band.to,
        }
    }
}

impl Label {
    /// Beside the lane with more room of two; on the side where there is room.
    fn beside(text: String, one: f64, other: f64) -> Self {
        let (left, right) = if one <= other { (one, other) } else { (other, one) };
        let (to_the_right, to_the_left) = (100.0 - left, right - GUTTER);
        if to_the_right >= to_the_left {
            Self { text, x: left, side: Side::Right }
        } else {
            Self { text, x: right, side: Side::Left }
        }
    }
}

/// Steps and bands, in the order of time.
fn items(timeline: &Timeline) -> Vec<Item<'_>> {
    let mut items: Vec<(Moment, u64, Item<'_>)> =
        timeline.steps.iter().map(|step| (step.at, step.order, Item::Step(step))).collect();
    items.extend(timeline.bands.iter().map(|band| (band.from, band.order, Item::Band(band))));
    items.sort_by_key(|(at, order, _)| (*at, *order));
    items.into_iter().map(|(_, _, item)| item).collect()
}

fn row<'a>(item: &Item<'a>, y: i32, time: Option<String>, tagged: bool, x_of: &impl Fn(Lane) -> f64) -> Row<'a> {
    match item {
        Item::Step(step) => {
            let (from, to) = (x_of(step.from), x_of(step.to));
            let tag = step.call.filter(|_| tagged).map_or(String::new(), |call| format!("#{} ", call + 1));
            let text = shortened(&step.label, LABEL - units(&tag));
            let label = Label::beside(tag + &text, from, to);
            Row { y, what: Drawn::Step { step, from, to }, label, time }
        }
        Item::Band(band) => {
            let x = x_of(band.lane);
            let label = Label::beside(shortened(&band.short(), LABEL), x, x);
            Row { y, what: Drawn::Band { band, x, bottom: y }, label, time }
        }
    }
}

fn stretch(wait: Duration) -> i32 {
    let share = wait.as_secs_f64() / LONGEST_WAIT.as_secs_f64();
    (share * f64::from(STRETCH)) as i32
}

/// Where the last row stands that is not later.
fn last_y(rows: &[Row<'_>], at: &[Moment], moment: Moment) -> i32 {
    let last = at.iter().rposition(|row| *row <= moment);
    last.and_then(|last| rows.get(last)).map_or(0, |row| row.y)
}

#[cfg(test)]
pub(super) mod boxes {
    //! How much room labels take, at most.

    use super::*;

    /// A box in pixels.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub(in super::super) struct Area {
        pub(in super::super) left: f64,
        pub(in super::super) right: f64,
        pub(in super::super) top: f64,
        pub(in super::super) bottom: f64,
    }

    impl Area {
        pub(in super::super) fn meets(&self, other: &Self) -> bool {
            self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
        }
    }

    /// The boxes of everything that is written, in a drawing of this width.
    pub(in super::super) fn areas(layout: &Layout<'_>, width: f64) -> Vec<(String, Area)> {
        let of_breaks = layout.breaks.iter().map(|it| (it.length.clone(), time(it.y, &it.length)));
        let of_rows = layout.rows.iter().flat_map(|row| {
            let of_time = row.time.iter().map(|text| (text.clone(), time(row.y + TIME_BELOW, text)));
            of_time.chain([(row.label.text.clone(), label(row, width))])
        });
        of_breaks.chain(of_rows).collect()
    }

    fn label(row: &Row<'_>, width: f64) -> Area {
        // A character of eleven pixels is no wider than this on the average of a label.
        let length = units(&row.label.text) as f64 * 6.4;
        let x = row.label.x / 100.0 * width;
        let (left, right) = match row.label.side {
            Side::Right => (x + f64::from(ASIDE), x + f64::from(ASIDE) + length),
            Side::Left => (x - f64::from(ASIDE) - length, x - f64::from(ASIDE)),
        };
        Area { left, right, top: f64::from(row.y) - 16.0, bottom: f64::from(row.y) - 3.0 }
    }

    fn time(y: i32, text: &str) -> Area {
        let length = text.chars().count() as f64 * 5.8;
        Area { left: 0.0, right: length, top: f64::from(y) - 6.0, bottom: f64::from(y) + 6.0 }
    }
}
