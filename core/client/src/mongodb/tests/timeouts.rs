//! The rule of time: an effect is reported before the core asks anew, and none is begun later. See
//! [`transcript_core::Settings::answer_timeout`].

use std::time::Duration;

use transcript_core::Settings;

use super::*;

/// Of the benches' client.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks for `request` right behind `before`, whose command is answered after `wait`. From then on each command takes as long
/// as it may. Gives the kinds of the commands that were begun for it, and when it was reported.
fn slowest(
    before: Request,
    request: Request,
    wait: Duration,
    mut server: impl FnMut(&Command) -> Reply,
) -> (Vec<CommandKind>, Option<Duration>) {
    let mut driven = Driven::default();
    driven.ask(1, before);
    driven.poll();
    driven.ask(2, request);
    driven.poll();
    let mut elapsed = wait;
    let (first, _) = driven.running.pop().expect("a command");
    let mut answered = (first, Reply::Failed(CommandError::TimedOut));
    let mut kinds = vec![];
    loop {
        let (id, reply) = answered;
        driven.client.handle(Time::ZERO.after(elapsed), Input::Answered { id, reply });
        driven.poll();
        if driven.reports.contains_key(&2) {
            return (kinds, Some(elapsed));
        }
        let Some((id, command)) = driven.running.pop() else { return (kinds, None) };
        kinds.push(command.kind());
        elapsed += REQUEST_TIMEOUT;
        answered = (id, server(&command));
    }
}

fn load(session: &str) -> Request {
    let (session_id, after) = (session.into(), None);
    Request::Load(Load { session_id, order: None, after, limit: 10, max_bytes: 100, counted: 1 })
}

/// A call that has grown: it does not fit into the page, and an array is among its indexes.
fn grown(command: &Command) -> Reply {
    match command {
        Command::LoadSmall { calls, .. } => {
            let large = |call: &SmallCall| SmallRead {
                session_id: call.session_id.to_string(),
                documents: vec![],
                bytes: call.max_bytes + 1,
            };
            Reply::Small { sessions: calls.iter().map(large).collect(), end: SmallEnd::All }
        }
        Command::Tally { .. } => Reply::Tallied(Tally { segments: 11, without_start: 1, edits: 0 }),
        Command::Page { numbers, .. } => {
            Reply::Page(PageRead { others: *numbers == IndexedNumbers::Numbers, ..PageRead::default() })
        }
        other => well(other),
    }
}

#[test]
fn an_effect_that_waits_and_needs_every_request_is_reported_in_time() {
    let settings = Settings { request_timeout: REQUEST_TIMEOUT, ..Settings::default() };
    let raced = |command: &Command| match command {
        Command::Save { missing: Missing::Insert, .. } => Reply::Written(WriteErrors {
            members: vec![WriteError { place: 0, code: error_codes::DUPLICATE_KEY, index: None }],
            concern: None,
        }),
        other => well(other),
    };
    let save = |number| Request::Save { summary: summary(number, 3) };
    let (kinds, reported) = slowest(save(1), save(2), REQUEST_TIMEOUT * 6, raced);
    assert_eq!(kinds, [CommandKind::Save, CommandKind::Save, CommandKind::ReadBack]);
    assert!(reported.is_some_and(|after| after <= settings.answer_timeout()), "{reported:?}");

    let (kinds, reported) = slowest(load("a"), load("b"), REQUEST_TIMEOUT * 5, grown);
    assert_eq!(kinds, [CommandKind::LoadSmall, CommandKind::Tally, CommandKind::Page, CommandKind::Page]);
    assert!(reported.is_some_and(|after| after <= settings.answer_timeout()), "{reported:?}");

    let by_start = |command: &Command| match command {
        Command::Tally { .. } | Command::Page { .. } => well(command),
        other => grown(other),
    };
    let (kinds, reported) = slowest(load("a"), load("b"), REQUEST_TIMEOUT * 5, by_start);
    assert_eq!(kinds, [CommandKind::LoadSmall, CommandKind::Tally, CommandKind::Page, CommandKind::Tally]);
    assert!(reported.is_some_and(|after| after <= settings.answer_timeout()), "{reported:?}");
}

/// From the queue of small calls to that of pages: the time that it has waited goes along.
#[test]
fn what_is_passed_from_one_queue_to_another_waits_no_longer_for_that() {
    let (kinds, reported) = slowest(load("a"), load("b"), REQUEST_TIMEOUT * 6, grown);
    assert_eq!((kinds, reported), (vec![CommandKind::LoadSmall], None));
}
