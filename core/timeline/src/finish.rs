//! Puts in order what was read, and chooses what is drawn of it.

use std::collections::BTreeSet;

use super::{
    Timeline,
    bands::{Band, BandCause},
    calls::Kept,
    model::{Call, CallName, Lane, Lives, Moment, Step, StepKind, grouped},
    part::DrawnPart,
    read::{DrawnTranscriber, Reading},
    words,
};

/// The most bands that are drawn, and the most lanes of processors on which nothing else is.
const MOST_BANDS: usize = 60;
const MOST_IDLE_LANES: usize = 4;

/// The timeline of what was read.
pub(super) fn timeline(reading: Reading<'_>) -> Timeline {
    let Reading {
        selection,
        parts,
        transcribers,
        calls,
        general,
        forgotten_general,
        bands,
        density,
        totals,
        mut remarks,
        abouts,
        ..
    } = reading;
    let forgotten_bands = bands.forgotten;
    let (calls, mut steps, cut) = steps(calls.finish());
    let mut bands = bands.finish();
    end_kills(&mut bands, &parts, &transcribers);
    let one_session = selection.session_id.is_some();
    let lanes = lanes(&steps, &general, &bands, one_session);
    let span = steps.first().zip(steps.iter().map(|step| step.until).max()).map(|(first, last)| (first.at, last));
    let is_near = |from: Moment, to: Option<Moment>| match span {
        Some((first, last)) if one_session => from <= last && to.is_none_or(|to| to >= first),
        Some(_) | None => !one_session,
    };
    steps.extend(general.into_iter().filter(|step| lanes.contains(&step.from) && is_near(step.at, Some(step.at))));
    steps.sort_by_key(|step| (step.at, step.order));
    let steps = fold(steps);
    let mut all_bands = bands.len() as u64 + forgotten_bands;
    bands.retain(|band| lanes.contains(&band.lane) && is_near(band.from, band.to));
    if one_session {
        all_bands = bands.len() as u64;
    }
    choose_bands(&mut bands);

    let begins = steps.iter().map(|step| step.at).chain(bands.iter().map(|band| band.from)).min();
    let ends = steps.iter().map(|step| step.until).chain(bands.iter().map(|band| band.to.unwrap_or(band.from))).max();
    let (begins, ends) = (begins.unwrap_or(Moment(0)), ends.unwrap_or(Moment(0)));
    let lanes = lanes.into_iter().map(|lane| lives(lane, (&parts, &transcribers), begins, ends)).collect();

    let drawn: usize = steps.iter().filter(|step| step.call.is_some()).count();
    if let Some(rest) = totals.calls.checked_sub(calls.len() as u64).filter(|rest| *rest > 0) {
        remarks.push(format!(
            "{} calls of {} steps, {} of them not drawn; the {} steps drawn are of those calls to which most has happened, \
             and of a few ordinary ones",
            grouped(totals.calls),
            grouped(totals.steps),
            grouped(rest),
            grouped(drawn as u64),
        ));
    }
    if all_bands > bands.len() as u64 {
        let rest = grouped(all_bands - bands.len() as u64);
        remarks.push(format!(
            "{rest} kills, freezes and outages are not drawn: shorter ones, and those of lanes without a step"
        ));
    }
    if forgotten_general > 0 && !one_session {
        remarks.push(format!("{} starts, ends and remarks of processors are not drawn", grouped(forgotten_general)));
    }
    for (number, dropped) in cut {
        remarks.push(format!("{} steps in the middle of call #{number} are not drawn", grouped(dropped)));
    }
    if totals.missing > 0 {
        remarks.push(format!("the trace says itself that {} inputs are missing", grouped(totals.missing)));
    }
    if totals.forgotten_notes > 0 {
        let notes = grouped(totals.forgotten_notes);
        remarks.push(format!(
            "{notes} notes of stored segments were too many to keep: where none is drawn there may be some"
        ));
    }
    Timeline { begins, ends, lanes, calls, steps, bands, density, totals, abouts, remarks }
}

/// The calls and their steps, and which of them lost how many.
fn steps(kept: Vec<(CallName, Kept)>) -> (Vec<Call>, Vec<Step>, Vec<(usize, u64)>) {
    let (mut calls, mut steps, mut cut) = (vec![], vec![], vec![]);
    for (place, (name, kept)) in kept.into_iter().enumerate() {
        calls.push(Call { name, marks: kept.marks.iter().map(|mark| mark.words()).collect() });
        let dropped = kept.steps.dropped;
        let (head, tail) = kept.steps.into_halves();
        if let (true, Some(before)) = (dropped > 0, tail.front()) {
            cut.push((place + 1, dropped));
            let dropped = grouped(dropped);
            steps.push(Step {
                kind: StepKind::Remark,
                call: Some(place),
                to: before.from,
                label: format!("{dropped} not drawn"),
                text: format!("{dropped} steps of this call are not drawn here"),
                order: before.order.saturating_sub(1),
                ..before.clone()
            });
        }
        steps.extend(head.into_iter().chain(tail).map(|step| Step { call: Some(place), ..step }));
    }
    steps.sort_by_key(|step| (step.at, step.order));
    (calls, steps, cut)
}

/// A killed process is dead until its next run.
fn end_kills(bands: &mut [Band], parts: &[DrawnPart], transcribers: &[DrawnTranscriber]) {
    for band in bands.iter_mut().filter(|band| band.what == BandCause::Killed) {
        let next: Vec<Moment> = match band.lane {
            Lane::Processor(part) => {
                let same = parts[part + 1..].iter().filter(|next| next.name == parts[part].name);
                same.map(|next| next.started).collect()
            }
            Lane::RunOfTranscriber(part) => {
                let same = transcribers[part + 1..].iter().filter(|next| next.name == transcribers[part].name);
                same.map(|next| next.started).collect()
            }
            Lane::Clients | Lane::Transcriber | Lane::Stream | Lane::Store | Lane::Subscribers => continue,
        };
        band.to = next.into_iter().filter(|started| *started >= band.from).min();
    }
}

/// The lanes that have something to show. The servers are always there.
fn lanes(steps: &[Step], general: &[Step], bands: &[Band], one_session: bool) -> BTreeSet<Lane> {
    let mut lanes = BTreeSet::from([Lane::Stream, Lane::Store]);
    lanes.extend(steps.iter().flat_map(|step| [step.from, step.to]));
    if !one_session {
        let others = bands.iter().map(|band| band.lane).chain(general.iter().map(|step| step.from));
        let idle: BTreeSet<Lane> = others.filter(|lane| !lanes.contains(lane)).collect();
        lanes.extend(idle.into_iter().take(MOST_IDLE_LANES));
    }
    lanes
}

/// Those that matter most: kills, then the longest.
fn choose_bands(bands: &mut Vec<Band>) {
    bands.sort_by_key(|band| {
        let length = band.to.map_or(u128::MAX, |to| to.since(band.from).as_micros());
        (band.what != BandCause::Killed, std::cmp::Reverse(length))
    });
    bands.truncate(MOST_BANDS);
    bands.sort_by_key(|band| (band.from, band.order));
}

/// What follows on its like is drawn as one with it.
fn fold(steps: Vec<Step>) -> Vec<Step> {
    let mut folded: Vec<Step> = vec![];
    for step in steps {
        match folded.last_mut() {
            Some(last)
                if step.kind.folds() && last.kind == step.kind && last.from == step.from && last.to == step.to =>
            {
                last.count += step.count;
                last.until = last.until.max(step.until);
                if last.job != step.job {
                    last.job = None;
                }
                if last.call != step.call {
                    last.call = None;
                }
            }
            Some(_) | None => folded.push(step),
        }
    }
    folded.iter_mut().for_each(words::fold);
    folded
}

fn lives(
    lane: Lane,
    (parts, transcribers): (&[DrawnPart], &[DrawnTranscriber]),
    begins: Moment,
    ends: Moment,
) -> Lives {
    let (name, from, to) = match lane {
        Lane::Clients => ("clients".to_owned(), None, None),
        Lane::RunOfTranscriber(part) => {
            let part = &transcribers[part];
            let to = part.is_over.then_some(part.now);
            (part.title(), Some(part.started).filter(|from| *from > begins), to.filter(|to| *to < ends))
        }
        Lane::Transcriber => ("transcriber".to_owned(), None, None),
        Lane::Stream => ("stream".to_owned(), None, None),
        Lane::Store => ("store".to_owned(), None, None),
        Lane::Subscribers => ("subscribers".to_owned(), None, None),
        Lane::Processor(part) => {
            let part = &parts[part];
            let to = part.end.map(|_| part.now);
            (part.title(), Some(part.started).filter(|from| *from > begins), to.filter(|to| *to < ends))
        }
    };
    Lives { lane, name, from, to }
}
