//! The socket of the MongoDB client: it runs the client's commands on the simulated store.

use std::{cell::RefCell, rc::Rc, time::Duration};

use transcript_client::mongodb::{Client, CommandError, CommandId, Input, Output, Reply, Request};
use transcript_core::ids::EffectId;

#[cfg(feature = "planted-bugs")]
use transcript_client::mongodb::WriteError;
#[cfg(feature = "planted-bugs")]
use transcript_core::Tally;

use super::shell::Shared;
#[cfg(feature = "planted-bugs")]
use crate::store::written_keys;
use crate::store::{Answer, Command, StoreError};

/// The client of one process.
pub(super) struct StoreSocket {
    client: RefCell<Client>,
}

impl StoreSocket {
    pub(super) fn new(request_timeout: Duration) -> Self {
        Self { client: RefCell::new(Client::new(request_timeout)) }
    }

    /// Asks for an effect; where a command begins with it, its first message leaves at once.
    pub(super) fn ask(&self, shared: &Rc<Shared>, id: EffectId, request: Request) {
        self.tell(shared, Input::Asked { id, request });
    }

    fn tell(&self, shared: &Rc<Shared>, input: Input) {
        let mut client = self.client.borrow_mut();
        client.handle(shared.time(), input);
        while let Some(output) = client.poll_output() {
            match output {
                Output::Run { id, command } => run(shared, id, Command::Client(command)),
                Output::Report { effect, report } => shared.report(effect, report),
                // Nobody reads logs here.
                Output::Notice(_) => {}
            }
        }
    }
}

fn run(shared: &Rc<Shared>, id: CommandId, command: Command) {
    let sent = shared.mongo.try_send(&command);
    #[cfg(feature = "planted-bugs")]
    let members = members(&command);
    let own = Rc::clone(shared);
    shared.world.spawn_on(shared.processor, async move {
        let reply = reply(own.run(command, sent).await);
        #[cfg(feature = "planted-bugs")]
        let reply = misread(&own, members, reply);
        own.store.tell(&own, Input::Answered { id, reply });
    });
}

fn reply(answer: Result<Answer, StoreError>) -> Reply {
    match answer {
        Ok(Answer::Client(reply)) => reply,
        Ok(Answer::Written { .. } | Answer::Versions(_) | Answer::Stored(_) | Answer::Marked) => {
            Reply::Failed(CommandError::Undecodable)
        }
        Err(error) => Reply::Failed(error.into()),
    }
}

/// How many writes a command has.
#[cfg(feature = "planted-bugs")]
fn members(command: &Command) -> usize {
    match command {
        Command::Client(command) => written_keys(command).values().map(|(places, _)| places.len()).sum(),
        Command::WriteSegments { .. }
        | Command::Count { .. }
        | Command::Save { .. }
        | Command::Mark { .. }
        | Command::Read { .. } => 0,
    }
}

/// What the planted bugs of the client read in a reply.
#[cfg(feature = "planted-bugs")]
fn misread(shared: &Shared, members: usize, reply: Reply) -> Reply {
    use crate::bug::Bug;
    match reply {
        Reply::Written(mut errors) if shared.world.has_bug(Bug::RefusedMemberFailsBatch) => {
            if let Some(error) = errors.members.first().cloned() {
                errors.members = (0..members).map(|place| WriteError { place, ..error.clone() }).collect();
            }
            Reply::Written(errors)
        }
        Reply::Written(mut errors) if shared.world.has_bug(Bug::WriteConcernErrorIgnored) => {
            errors.concern = None;
            Reply::Written(errors)
        }
        Reply::Tallied(tally) if shared.world.has_bug(Bug::OneMarkIsEnough) => {
            Reply::Tallied(Tally { without_start: 0, ..tally })
        }
        Reply::Tallied(tally) if shared.world.has_bug(Bug::MarksNotRead) => {
            Reply::Tallied(Tally { without_start: tally.segments, ..tally })
        }
        Reply::Page(mut page) if shared.world.has_bug(Bug::MarksNotRead) => {
            page.documents.iter_mut().for_each(|document| document.segment.on_session_clock = false);
            Reply::Page(page)
        }
        Reply::Counted(_)
        | Reply::Tallied(_)
        | Reply::Small { .. }
        | Reply::Page(_)
        | Reply::Written(_)
        | Reply::ReadBack(_)
        | Reply::Failed(_) => reply,
    }
}
