//! The socket of the MongoDB client: it runs the client's commands on the simulated store.

use std::{cell::RefCell, rc::Rc};

use transcript_client::mongodb::{Client, CommandError, CommandId, Input, Output, Reply, Request};
use transcript_core::ids::EffectId;

use super::shell::Shared;
use crate::store::{Answer, Command, StoreError};

/// The client of one process.
#[derive(Default)]
pub(super) struct StoreSocket {
    client: RefCell<Client>,
}

impl StoreSocket {
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
    let own = Rc::clone(shared);
    shared.world.spawn_on(shared.processor, async move {
        let reply = reply(own.run(command, sent).await);
        #[cfg(feature = "planted-bugs")]
        let reply = misread(&own, reply);
        own.store.tell(&own, Input::Answered { id, reply });
    });
}

fn reply(answer: Result<Answer, StoreError>) -> Reply {
    match answer {
        Ok(Answer::Client(reply)) => reply,
        Ok(Answer::Written { .. } | Answer::Counts(_) | Answer::Stored(_) | Answer::Marked) => {
            Reply::Failed(CommandError::Undecodable)
        }
        Err(error) => Reply::Failed(error.into()),
    }
}

/// What the planted bugs of the client read in a reply.
#[cfg(feature = "planted-bugs")]
fn misread(shared: &Shared, reply: Reply) -> Reply {
    use crate::bug::Bug;
    match reply {
        Reply::Written(errors) if shared.world.has_bug(Bug::RefusedMemberFailsBatch) => match errors.members.first() {
            Some(error) => Reply::Failed(CommandError::Code(error.code)),
            None => Reply::Written(errors),
        },
        Reply::Written(mut errors) if shared.world.has_bug(Bug::WriteConcernErrorIgnored) => {
            errors.concern = None;
            Reply::Written(errors)
        }
        Reply::Counted(_)
        | Reply::Small { .. }
        | Reply::Page(_)
        | Reply::Written(_)
        | Reply::ReadBack(_)
        | Reply::Failed(_) => reply,
    }
}
