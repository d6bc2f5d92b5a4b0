//! How a whole run went, however long it is.

use std::collections::BTreeMap;

use super::model::Moment;

/// The most columns that are kept.
const MOST: i64 = 120;

/// How much happened when, in columns of equal width. They grow wider with the time that they cover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Density {
    /// In microseconds.
    width: i64,
    columns: BTreeMap<i64, Counts>,
}

/// What happened in one column.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Deliveries.
    pub(super) delivered: u64,
    /// Deliveries that were the last word's: their acknowledgement was confirmed.
    pub(super) acknowledged: u64,
    /// Effects that failed, messages delivered again, and dead letters.
    pub(super) troubles: u64,
}

impl Default for Density {
    fn default() -> Self {
        Self { width: 1000, columns: BTreeMap::new() }
    }
}

impl Density {
    pub(super) fn at(&mut self, at: Moment) -> &mut Counts {
        while self.would_cover(at) > MOST {
            self.width = self.width.saturating_mul(2);
            let columns = std::mem::take(&mut self.columns);
            for (column, counts) in columns {
                let wider = self.columns.entry(column.div_euclid(2)).or_default();
                wider.delivered += counts.delivered;
                wider.acknowledged += counts.acknowledged;
                wider.troubles += counts.troubles;
            }
        }
        self.columns.entry(at.0.div_euclid(self.width)).or_default()
    }

    /// From the first column to the last, also the empty ones between.
    pub(super) fn columns(&self) -> Vec<Counts> {
        let (Some((first, _)), Some((last, _))) = (self.columns.first_key_value(), self.columns.last_key_value())
        else {
            return vec![];
        };
        (*first..=*last).map(|column| self.columns.get(&column).copied().unwrap_or_default()).collect()
    }

    /// The width of a column.
    pub(super) fn width(&self) -> std::time::Duration {
        std::time::Duration::from_micros(self.width.unsigned_abs())
    }

    fn would_cover(&self, at: Moment) -> i64 {
        let column = at.0.div_euclid(self.width);
        let first = self.columns.first_key_value().map_or(column, |(first, _)| column.min(*first));
        let last = self.columns.last_key_value().map_or(column, |(last, _)| column.max(*last));
        last.saturating_sub(first).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_grow_wider_and_nothing_is_lost() {
        let mut density = Density::default();
        for at in 0..100_000 {
            density.at(Moment(at * 700 - 5_000_000)).delivered += 1;
        }
        density.at(Moment(-9_000_000)).troubles += 1;
        let columns = density.columns();
        assert!((60..=120).contains(&columns.len()), "{}", columns.len());
        assert_eq!(columns.iter().map(|counts| counts.delivered).sum::<u64>(), 100_000);
        assert_eq!(columns[0].troubles, 1);
    }

    #[test]
    fn a_clock_that_is_far_off_makes_two_columns_of_it() {
        let mut density = Density::default();
        density.at(Moment(i64::MIN)).delivered += 1;
        density.at(Moment(0)).delivered += 1;
        density.at(Moment(i64::MAX)).delivered += 1;
        assert!(density.columns().len() <= 120);
    }
}
