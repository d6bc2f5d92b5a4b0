//! What goes into a command, and what a reply means to each member.

use super::*;

fn saves(jobs: std::ops::RangeInclusive<u64>) -> Driven {
    let mut driven = Driven::default();
    for job in jobs {
        driven.ask(job, Request::Save { summary: summary(job, 3) });
    }
    driven
}

fn error(place: usize, code: i32, index: Option<&str>) -> WriteError {
    WriteError { place, code, index: index.map(str::to_owned) }
}

#[test]
fn what_gathers_during_a_command_is_the_next_one() {
    let mut driven = Driven::default();
    driven.ask(1, Request::Count { session_id: "a".into() });
    driven.poll();
    for job in 2..=4 {
        driven.ask(job, Request::Count { session_id: "b".into() });
        driven.poll();
    }
    // A job that asks again keeps its place, and only its last request is carried out.
    driven.ask(2, Request::Count { session_id: "c".into() });
    let commands = driven.run(well);
    let sessions = |command: &Command| match command {
        Command::Count { sessions } => sessions.iter().map(|session| session.to_string()).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(commands.iter().map(sessions).collect::<Vec<_>>(), [vec!["a"], vec!["b", "c"]]);
    assert_eq!(driven.reports.len(), 4);
}

#[test]
fn no_command_has_more_members_than_may() {
    let mut driven = Driven::default();
    for job in 1..=1_200 {
        driven.ask(job, mark(job));
    }
    let commands = driven.run(well);
    assert_eq!(commands.iter().map(members).collect::<Vec<_>>(), [500, 500, 200]);
    assert!(driven.reports.values().all(|report| *report == Report::Marked));
}

#[test]
fn large_summaries_do_not_share_a_command() {
    let mut driven = Driven::default();
    for job in 1..=3 {
        let mut large = Summary::clone(&summary(job, 3));
        let text = "x".repeat(9 << 20);
        large.questions.push(transcript_core::summary::Question { speaker: None, text, index: None, start_ms: None });
        driven.ask(job, Request::Save { summary: Arc::new(large) });
    }
    let commands = driven.run(well);
    let saved = commands.iter().filter(|command| command.kind() == CommandKind::Save);
    assert_eq!(saved.map(members).collect::<Vec<_>>(), [1, 1, 1]);
}

#[test]
fn a_refused_member_fails_alone() {
    let mut driven = saves(1..=3);
    driven.run(|command| match command {
        Command::Save { .. } => {
            let errors = vec![error(1, error_codes::DOCUMENT_VALIDATION_FAILURE, None)];
            Reply::Written(WriteErrors { members: errors, concern: None })
        }
        other => well(other),
    });
    assert!(rejected(driven.failure(2)));
    assert!(driven.failure(2).detail.contains("DocumentValidationFailure (121)"), "{}", driven.failure(2));
    assert_eq!(
        (driven.reports.get(&1), driven.reports.get(&3)),
        (Some(&Report::Saved(stored(9))), Some(&Report::Saved(stored(9))))
    );
}

#[test]
fn a_refused_command_is_split_until_the_one_at_fault_is_alone() {
    let errors = [2, 9, 14, 10_334, 17_419, 17_420, 4_711].map(CommandError::Code);
    let unread = [CommandError::Undecodable, CommandError::TooLarge, CommandError::Unencodable];
    for error in errors.into_iter().chain(unread) {
        let mut driven = saves(1..=51);
        let commands = driven.run(|command| if writes(command, 17) { Reply::Failed(error) } else { well(command) });
        for job in (1..=51).filter(|job| *job != 17) {
            assert_eq!(driven.reports.get(&job), Some(&Report::Saved(stored(9))), "{error:?}");
        }
        let refuses = !matches!(error, CommandError::Undecodable | CommandError::Code(4_711));
        assert_eq!(rejected(driven.failure(17)), refuses, "{error:?}: {}", driven.failure(17));
        let saves = commands.iter().filter(|command| command.kind() == CommandKind::Save).count();
        assert!(saves <= 13, "{saves} commands for one in 51");
    }
}

#[test]
fn a_server_that_serves_nobody_fails_all_at_once() {
    for error in [
        CommandError::Unreachable,
        CommandError::TimedOut,
        CommandError::Denied,
        CommandError::Code(11_602),
        CommandError::Code(13),
    ] {
        let mut driven = saves(1..=51);
        let commands = driven.run(|_| Reply::Failed(error));
        assert_eq!((commands.len(), driven.reports.len()), (1, 51), "{error:?}");
        assert!((1..=51).all(|job| !rejected(driven.failure(job))), "{error:?}");
        assert_eq!(driven.notices.len(), 1, "said once: {:?}", driven.notices);
    }
}

#[test]
fn a_read_refuses_no_document() {
    for code in [2, 9, 14, 10_334] {
        let mut driven = Driven::default();
        for job in 1..=8 {
            driven.ask(job, Request::Count { session_id: format!("s{job}").into() });
        }
        let commands = driven.run(|_| Reply::Failed(CommandError::Code(code)));
        assert!((1..=8).all(|job| driven.failure(job).kind == FailureKind::Busy), "{code}");
        assert_eq!(commands.last().map(members), Some(1), "split until each is alone");
    }
}

#[test]
fn a_write_concern_error_is_a_failure_of_each_member_without_one_of_its_own() {
    for request in [|job| Request::Save { summary: summary(job, 3) }, mark] {
        let mut driven = Driven::default();
        for job in 1..=3 {
            driven.ask(job, request(job));
        }
        let commands = driven.run(|_| {
            let members = vec![error(1, error_codes::DOCUMENT_VALIDATION_FAILURE, None)];
            Reply::Written(WriteErrors { members, concern: Some(64) })
        });
        assert_eq!(commands.len(), 1, "nothing is read back");
        let kinds = [1, 2, 3].map(|job| driven.failure(job).kind);
        assert_eq!(kinds, [FailureKind::TimedOut, FailureKind::Rejected, FailureKind::TimedOut]);
        assert!(driven.failure(1).detail.contains("WriteConcernTimeout (64)"), "{}", driven.failure(1));
    }
}

#[test]
fn whoever_lost_a_race_compares_with_what_is_there() {
    for index in [None, Some("_id_")] {
        let mut driven = saves(1..=2);
        let commands = driven.run(|command| match command {
            Command::Save { missing: Missing::Insert, .. } => Reply::Written(WriteErrors {
                members: vec![error(0, error_codes::DUPLICATE_KEY, index)],
                concern: None,
            }),
            other => well(other),
        });
        let again = Command::Save { summaries: vec![summary(1, 3)], missing: Missing::Leave };
        assert!(commands.contains(&again), "{commands:?}");
        assert!(driven.reports.values().all(|report| *report == Report::Saved(stored(9))));
    }
}

#[test]
fn a_unique_index_of_somebody_else_is_named() {
    let mut driven = saves(1..=2);
    driven.run(|command| match command {
        Command::Save { .. } => Reply::Written(WriteErrors {
            members: vec![error(0, error_codes::DUPLICATE_KEY, Some("conversation_1"))],
            concern: None,
        }),
        other => well(other),
    });
    assert_eq!(driven.failure(1).kind, FailureKind::Busy, "an operator can drop the index");
    assert!(
        driven.failure(1).detail.ends_with("DuplicateKey (11000) on index conversation_1"),
        "{}",
        driven.failure(1)
    );
    assert_eq!(driven.reports.get(&2), Some(&Report::Saved(stored(9))));
    assert!(driven.notices.iter().any(|notice| notice.contains("conversation_1")), "{:?}", driven.notices);
}

#[test]
fn what_is_stored_proves_only_what_it_says() {
    for stored in [None, Some(stored(2))] {
        let mut driven = saves(1..=1);
        driven.run(|command| match command {
            Command::ReadBack { keys } => {
                let found = keys.iter().filter_map(|key| Some((key.as_str().to_owned(), stored?)));
                Reply::ReadBack(found.collect())
            }
            other => well(other),
        });
        assert_eq!(driven.failure(1).kind, FailureKind::Busy, "3 segments were written, {stored:?} is there");
    }
}

#[test]
fn a_reply_that_names_a_member_that_is_not_there_is_unreadable() {
    let mut driven = saves(1..=2);
    let reply = || Reply::Written(WriteErrors { members: vec![error(7, 112, None)], concern: None });
    driven.run(|command| if command.kind() == CommandKind::Save { reply() } else { well(command) });
    assert_eq!(driven.failure(1).kind, FailureKind::Busy);
    assert_eq!(driven.failure(2).kind, FailureKind::Busy);
}

#[test]
fn a_reply_to_nothing_is_ignored() {
    let mut driven = saves(1..=1);
    driven.poll();
    let (id, _) = driven.running.pop().expect("a command");
    driven.answer(id, Reply::Failed(CommandError::TimedOut));
    driven.answer(id, Reply::Written(WriteErrors::default()));
    driven.poll();
    assert_eq!((driven.reports.len(), driven.running.len()), (1, 0));
}

#[test]
fn pages_of_a_large_call_give_way_to_small_calls() {
    let mut driven = Driven::default();
    let load = Load {
        session_id: "large".into(),
        order: Some(Order::Index),
        after: None,
        limit: 10,
        max_bytes: 1 << 20,
        counted: 1_000,
    };
    driven.ask(1, Request::Load(load));
    for job in 2..=40 {
        driven.ask(job, Request::Count { session_id: job.to_string().into() });
        driven.poll();
    }
    let mut kinds = vec![];
    for next in 100.. {
        driven.poll();
        let Some((id, command)) = (!driven.running.is_empty()).then(|| driven.running.remove(0)) else { break };
        kinds.push(command.kind());
        // More small calls come all the time, for a while.
        if next < 130 {
            driven.ask(next, Request::Count { session_id: next.to_string().into() });
        }
        let reply = well(&command);
        driven.answer(id, reply);
    }
    let page = kinds.iter().position(|kind| *kind == CommandKind::Page).expect("it is read in the end");
    assert!((10..=18).contains(&page), "after {page} commands");
}

#[test]
fn what_waited_for_too_long_is_not_begun() {
    use std::time::Duration;
    let mut driven = saves(1..=1);
    driven.poll();
    driven.ask(2, Request::Save { summary: summary(2, 3) });
    driven.ask(3, Request::Save { summary: summary(3, 3) });
    let later = Time::ZERO.after(Duration::from_secs(61));
    // The second one was asked for again meanwhile, and the third one was not.
    driven.client.handle(later, Input::Asked { id: effect(2), request: Request::Save { summary: summary(2, 4) } });
    let (id, _) = driven.running.pop().expect("a command");
    driven.client.handle(later, Input::Answered { id, reply: Reply::Failed(CommandError::TimedOut) });
    driven.poll();
    let saved = driven.running.iter().filter_map(|(_, command)| match command {
        Command::Save { summaries, .. } => Some(summaries.iter().map(|summary| summary.segments).collect::<Vec<_>>()),
        _ => None,
    });
    assert_eq!(saved.collect::<Vec<_>>(), [vec![4]]);
}
