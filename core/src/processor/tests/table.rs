//! The table of transitions, compared with the edges that jobs take.

use super::*;

/// Every row of the table in `job/mod.rs` is taken by some script here, and no edge is taken that has no row.
#[test]
fn the_table_of_transitions_is_the_truth() {
    let mut taken = BTreeSet::new();
    let mut keep = |bench: &Bench| taken.extend(bench.processor.edges.iter().copied());
    let settings = || Settings { revise: true, ..settings() };
    let giving_up_at_once = || Settings { retry_timeout: Duration::ZERO, ..settings() };

    let mut bench = Bench::new(settings());
    bench.deliver_payload(1, 0, b"{").report(DEAD_LETTER, DEAD_LETTERED).report(Term, Report::Acknowledged);
    bench.deliver(2, "s", 0).deliver(3, "s", 0).drain().deliver(4, "t", 0).deliver_again(5, 2, "u");
    bench.report(AT_ONCE, Report::Acknowledged).deliver_again(3, 2, "s").asked.clear();
    bench.deliver_again(3, 3, "s");
    keep(&bench);
    for fails in [false, true] {
        let mut bench = Bench::new(settings());
        bench.deliver_again(7, 2, "s").drain();
        if fails {
            bench.fail(REPUBLISH, FailureKind::Busy).wake(Timer::Retry).fail(REPUBLISH, FailureKind::Rejected);
        } else {
            bench.report(REPUBLISH, Report::Republished { stream_sequence: 9 });
        }
        keep(&bench);
    }
    // Where a drain finds a job: queued, before a count, at a count and at a page, of each kind.
    type Take = fn(&mut Bench);
    let takes: [Take; 3] = [
        |bench| {
            bench.deliver(7, "s", 2);
        },
        |bench| {
            bench.deliver_again(7, 2, "s");
        },
        |bench| {
            bench.outgrow("s");
        },
    ];
    let pages = || Report::Loaded(page(0..2, None));
    for take in takes {
        let mut bench = Bench::new(settings());
        bench.deliver(6, "s", 2);
        take(&mut bench);
        bench.drain();
        keep(&bench);
        for counts in [&[] as &[u64], &[1], &[1, 2, 2]] {
            let mut bench = Bench::new(settings());
            take(&mut bench);
            bench.settle("s", counts).drain();
            keep(&bench);
        }
        let mut bench = Bench::new(settings());
        take(&mut bench);
        bench.count().drain();
        keep(&bench);
        // What has begun to save when the grace time ends.
        let stored = Stored { notified: NOTIFIED, revision: 2, ..STORED };
        let begun = [pages(), Report::Saved(stored), Report::Published { stream_sequence: 9, segments: 2, edits: 0 }];
        for reported in 1..=begun.len() {
            let mut bench = Bench::new(settings());
            take(&mut bench);
            bench.settle("s", &[2, 2]);
            for report in begun.iter().take(reported) {
                let (effect, _) = bench.asked.pop_front().expect("an effect");
                bench.handle(Input::Reported { effect, report: report.clone() });
            }
            bench.drain().wake(Timer::Grace);
            keep(&bench);
        }
        // Every failure of every effect: once more, given up, refused.
        for (kind, settings) in [
            (FailureKind::Busy, settings()),
            (FailureKind::Busy, Settings { max_deliver: 1, ..giving_up_at_once() }),
            (FailureKind::Busy, giving_up_at_once()),
            (FailureKind::Rejected, settings()),
        ] {
            let reports = [
                Report::Counted { segments: 2 },
                Report::Counted { segments: 2 },
                Report::Loaded(page(0..2, Some("x"))),
                Report::Loaded(page(2..4, None)),
                Report::Saved(Stored { notified: NOTIFIED, revision: 2, ..STORED }),
                Report::Published { stream_sequence: 9, segments: 2, edits: 0 },
                Report::Marked,
            ];
            for reported in 0..=reports.len() {
                let mut bench = Bench::new(settings.clone());
                take(&mut bench);
                for report in reports.iter().take(reported) {
                    bench.count();
                    let (effect, _) = bench.asked.pop_front().expect("an effect");
                    bench.handle(Input::Reported { effect, report: report.clone() });
                }
                let Some((effect, what)) = bench.count().asked.pop_front() else {
                    keep(&bench);
                    continue;
                };
                bench.others_succeed_with(&what);
                let report = Report::Failed(Failure { kind, detail: "as the test wants".into() });
                bench.handle(Input::Reported { effect, report });
                keep(&bench);
            }
        }
    }
    for (kind, retry_timeout) in [
        (FailureKind::Busy, settings()),
        (FailureKind::Busy, giving_up_at_once()),
        (FailureKind::Rejected, settings()),
        (FailureKind::Missing, settings()),
    ] {
        let mut bench = Bench::saving(retry_timeout.clone());
        bench.fail(SAVE, FailureKind::Rejected).fail(DEAD_LETTER, kind);
        keep(&bench);
        let mut bench = Bench::new(retry_timeout);
        bench.exhaust(7);
        bench.fail(About(EffectKind::DeadLetter, 7), kind);
        keep(&bench);
    }
    let mut bench = Bench::saving(settings());
    bench.fail(SAVE, FailureKind::Rejected).report(DEAD_LETTER, Report::DeadLettered { stream_sequence: 9 });
    keep(&bench);
    let mut bench = Bench::new(settings());
    bench.exhaust(7);
    let (effect, _) = bench.asked.pop_front().expect("a dead letter");
    bench.handle(Input::Reported { effect, report: Report::DeadLettered { stream_sequence: 9 } });
    bench.handle(Input::Delivered(Delivery { redrive_of: Some(3), ..delivery(7, 1, b"{}") }));
    keep(&bench);
    for stored in [Stored { notified: NOTIFIED, ..STORED }, STORED] {
        for take in takes {
            let mut bench = Bench::new(settings());
            take(&mut bench);
            bench.settle("s", &[2, 2]).report(LOAD, pages()).report(SAVE, Report::Saved(stored));
            if bench.asks(Ack) {
                bench.deliver_again(7, 3, "s").report(Ack, Report::Acknowledged);
            }
            keep(&bench);
        }
    }
    let mut bench = Bench::new(settings());
    bench.deliver_payload(8, 0, asked_again("s", 1).as_bytes()).settle("s", &[2, 2]).report(LOAD, pages());
    bench.report(SAVE, Report::Saved(Stored { segments: 3, notified: NOTIFIED, ..STORED }));
    keep(&bench);
    checks(&mut keep);
    covers(&mut keep);
    #[cfg(feature = "planted-bugs")]
    for take in takes {
        let mut bench = Bench::new(settings());
        bench.processor.planted = Planted(Some(crate::Bug::SummaryPanics));
        take(&mut bench);
        let mut poisoned = page(0..1, None);
        poisoned.segments[0].text = crate::Bug::PANIC.to_owned();
        bench.settle("s", &[1, 1]).report(LOAD, Report::Loaded(poisoned));
        keep(&bench);
    }

    let mut rows = String::new();
    for (from, on, to) in &taken {
        writeln!(rows, "{from} | {on} | {to}").expect("a string takes everything");
    }
    let table: BTreeSet<String> = include_str!("../../job/mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.rsplit_once(" |")?.0.rsplit_once(" |"))
        .map(|(edge, _)| edge.to_owned())
        .filter(|edge| !edge.starts_with("from") && !edge.starts_with("--"))
        .collect();
    let taken: BTreeSet<String> = rows.lines().map(str::to_owned).collect();
    // A panic can only be planted.
    let table: BTreeSet<String> = table
        .into_iter()
        .filter(|edge| {
            cfg!(feature = "planted-bugs")
                || !["loading | loaded | dead-lettering", "loading | loaded | over"].contains(&&**edge)
        })
        .collect();
    assert!(table.len() > 60, "the table was read: {table:?}");
    let difference: Vec<_> = table.symmetric_difference(&taken).collect();
    assert!(difference.is_empty(), "in the table or taken, not both: {difference:#?}");
}

/// Where a job asks what is stored, and what comes of it.
fn checks(keep: &mut impl FnMut(&Bench)) {
    let answers = [
        Report::Checked(Some(Stored { notified: NOTIFIED, ..STORED })),
        Report::Checked(Some(STORED)),
        Report::Checked(None),
        Report::Failed(Failure { kind: FailureKind::Busy, detail: String::new() }),
        Report::Failed(Failure { kind: FailureKind::Rejected, detail: String::new() }),
    ];
    type Begin = fn() -> Bench;
    let begins: [Begin; 3] = [Bench::checking_a_repeat, Bench::checking_before_a_publish, Bench::checking_an_exhausted];
    for begin in begins {
        for answer in &answers {
            let mut bench = begin();
            bench.report(CHECK, answer.clone());
            keep(&bench);
        }
        let mut bench = begin();
        bench.drain();
        keep(&bench);
        bench.wake(Timer::Grace);
        keep(&bench);
        let mut bench = begin();
        bench.others_succeed(EffectKind::Check);
        bench.processor.settings.retry_timeout = Duration::ZERO;
        bench.fail(CHECK, FailureKind::Busy);
        keep(&bench);
    }
    let mut bench = Bench::checking_before_a_publish();
    bench.processor.settings.max_deliver = 1;
    bench.others_succeed(EffectKind::Check);
    bench.processor.settings.retry_timeout = Duration::ZERO;
    bench.fail(CHECK, FailureKind::Busy);
    keep(&bench);
    let mut bench = Bench::checking_a_repeat();
    bench.drain();
    keep(&bench);
    let mut bench = Bench::checking_an_exhausted();
    bench.check_until_dead_letter(None);
    keep(&bench);
    let mut bench = Bench::checking_an_exhausted();
    bench.report(CHECK, Report::Checked(None)).nothing_asked().drain().report(CHECK, Report::Checked(None));
    assert!(bench.asks(DEAD_LETTER), "a drain waits for nobody: {:?}", bench.asked);
    keep(&bench);
    let mut bench = Bench::new(settings());
    let key = Session::new("c", "s").expect("ids are valid").key();
    bench.processor.done.add(Digested::new(&key).digest, Time::ZERO.after(DAY));
    bench.deliver_again(7, 2, "s").drain();
    keep(&bench);
    let mut bench = Bench::checking_before_a_publish();
    bench.exhaust(7).drain().wake(Timer::Grace);
    keep(&bench);
    // A late save, whose news is old.
    let mut bench = Bench::saving(Settings { duplicate_window: Duration::ZERO, ..settings() });
    bench.now = bench.now.after(Duration::from_secs(60));
    bench.report(SAVE, Report::Saved(STORED));
    keep(&bench);
    let mut bench = Bench::without_delivery_before_a_publish();
    for answer in [Report::Checked(Some(Stored { notified: NOTIFIED, ..STORED })), Report::Checked(None)] {
        bench.report(CHECK, answer);
        keep(&bench);
        bench = Bench::without_delivery_before_a_publish();
    }
    bench.fail(CHECK, FailureKind::Rejected);
    keep(&bench);
    let mut bench = Bench::without_delivery_before_a_publish();
    bench.drain().wake(Timer::Grace);
    keep(&bench);
}

/// What an end does that waits behind another one; and calls whose deliveries are used up.
fn covers(keep: &mut impl FnMut(&Bench)) {
    let mut bench = Bench::marking(settings());
    bench.deliver(8, "s", 2).report(MARK, Report::Marked);
    keep(&bench);
    // More was stored than was announced, and is announced as a revision.
    let mut bench = Bench::publishing(Settings { revise: true, ..settings() });
    bench.report(PUBLISH, Report::Published { stream_sequence: 9, segments: 1, edits: 0 }).report(MARK, Report::Marked);
    keep(&bench);
    let revision = Settings { revise: true, ..settings() };
    let mut bench = Bench::new(revision);
    bench.outgrow("s").settle("s", &[2, 2]).report(LOAD, Report::Loaded(page(0..2, None)));
    bench.report(SAVE, Report::Saved(Stored { notified: NOTIFIED, revision: 2, ..STORED }));
    bench.report(PUBLISH, Report::Published { stream_sequence: 9, segments: 1, edits: 0 }).report(MARK, Report::Marked);
    keep(&bench);
    type Begin = fn(Settings) -> Bench;
    let begins: [Begin; 4] = [
        |settings| {
            let mut bench = Bench::new(settings);
            bench.deliver(7, "s", 2).count();
            bench
        },
        Bench::loading,
        Bench::saving,
        Bench::publishing,
    ];
    for begin in begins {
        let mut bench = begin(Settings { retry_timeout: Duration::ZERO, ..settings() });
        bench.deliver_again(7, 5, "s").exhaust(7);
        let (effect, what) = bench.asked.pop_front().expect("an effect");
        bench.others_succeed_with(&what);
        let failure = Failure { kind: FailureKind::Busy, detail: String::new() };
        bench.handle(Input::Reported { effect, report: Report::Failed(failure) });
        keep(&bench);
    }
    let mut bench = Bench::checking_before_a_publish();
    bench.exhaust(7).others_succeed(EffectKind::Check);
    bench.processor.settings.retry_timeout = Duration::ZERO;
    bench.fail(CHECK, FailureKind::Busy);
    keep(&bench);
}
