//! What happens in a world of transcribers, as data: printable, kept in files, drawn from a seed.

use std::fmt;

use serde::{Deserialize, Serialize};
use transcript_transcriber::EffectKind;

use super::bug::Bug;
use crate::rng::Rng;

/// A world of transcribers. The same plan gives the same run, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// What is drawn while the world runs: latencies.
    pub seed: u64,
    /// How many transcribers run.
    pub instances: usize,
    /// Whether there is a stream.
    pub has_stream: bool,
    /// Whether all bounds are tiny.
    pub is_tiny: bool,
    /// How many sessions there are; each client names one of them.
    pub sessions: usize,
    /// Segments that another program stored before, at indexes from 0, in each session.
    pub foreign: u64,
    /// The clients.
    pub clients: Vec<Client>,
    /// What goes wrong, and when.
    pub faults: Vec<Fault>,
    /// When everything is whole again, in milliseconds.
    pub heals_at_ms: u64,
    /// A fault of the transcriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bug: Option<Bug>,
}

/// One client: a participant, an engine, or a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Client {
    /// Its session, from 0.
    pub session: usize,
    /// Whether it sends requests, and not by a socket.
    pub posts: bool,
    /// Whether it names itself and its epoch, so that its ids go on after a reconnect.
    pub is_named: bool,
    /// Whether its segments have ids.
    pub has_ids: bool,
    /// Whether it sends nothing before it is told that it may.
    pub waits_for_ready: bool,
    /// The transcriber that it tries first.
    pub tries_first: usize,
    /// What it does, in the order of time.
    pub acts: Vec<Act>,
}

/// Something that a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Act {
    /// When, in milliseconds.
    pub at_ms: u64,
    /// What.
    pub what: What,
}

/// What a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum What {
    /// It delivers a segment.
    Say,
    /// It delivers another text of an earlier segment, counted back from the last.
    Edit {
        /// How far back.
        back: usize,
    },
    /// It delivers an interim text.
    Interim,
    /// Its connection breaks, and it connects again, perhaps elsewhere.
    Break {
        /// How long it takes to connect again.
        away_ms: u64,
        /// How long the transcriber takes to notice.
        unnoticed_ms: u64,
        /// The transcriber that it tries then.
        next: usize,
    },
    /// It is done: it says so, and waits until everything is stored. A service asks for the end.
    Finish,
    /// It goes away at once. What is not acknowledged is lost.
    Vanish,
}

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// When.
    pub when: When,
    /// What.
    pub what: Trouble,
}

/// When something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum When {
    /// At a time.
    At {
        /// In milliseconds.
        ms: u64,
    },
    /// At an effect.
    Effect {
        /// Of this transcriber.
        instance: usize,
        /// Of this kind.
        kind: EffectKind,
        /// The first one, the second one, …
        nth: u32,
        /// Where it is then.
        moment: Moment,
    },
}

/// Where an effect is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Moment {
    /// It was asked for, and has not left.
    Asked,
    /// It has come to the server, and is not done.
    Before,
    /// It is done, and nobody was told.
    After,
    /// It was reported.
    Reported,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Trouble {
    /// A transcriber is killed, and started again.
    Kill {
        /// Which.
        instance: usize,
        /// After how long.
        outage_ms: u64,
    },
    /// A transcriber is told to come to an end, and started again.
    Restart {
        /// Which.
        instance: usize,
        /// How long after it has stopped.
        outage_ms: u64,
    },
    /// A transcriber stands still.
    Freeze {
        /// Which.
        instance: usize,
        /// For how long.
        span_ms: u64,
    },
    /// The effect is lost on its way, and its client gives it up.
    LoseRequest,
    /// The effect is done, and its answer is lost.
    LoseAnswer,
    /// The client gives the effect up, and it is done later.
    Delay {
        /// How much later.
        late_ms: u64,
    },
    /// The store has an election, or is killed.
    StoreAway {
        /// For how long.
        span_ms: u64,
    },
    /// The stream cannot be reached.
    StreamAway {
        /// For how long.
        span_ms: u64,
    },
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::split(seed, 1);
        let instances = usize::try_from(rng.between(1, 3)).unwrap_or(1);
        let sessions = usize::try_from(rng.between(1, 3)).unwrap_or(1);
        let talk_ms = rng.pick(&[2_000, 10_000, 40_000]);
        let mut clients = vec![];
        for session in 0..sessions {
            for _ in 0..rng.between(1, 3) {
                clients.push(client(&mut rng, session, instances, talk_ms));
            }
        }
        let heals_at_ms = talk_ms + 60_000;
        let faults = (0..rng.pick(&[0, 1, 1, 2, 3, 6])).map(|_| fault(&mut rng, instances, heals_at_ms)).collect();
        let foreign = if rng.chance(10) { rng.between(1, 4) } else { 0 };
        Self {
            seed,
            instances,
            has_stream: !rng.chance(10),
            is_tiny: rng.chance(30),
            sessions,
            foreign,
            clients,
            faults,
            heals_at_ms,
            bug: None,
        }
    }

    /// Two transcribers and one session: clients that break and come back, one of them elsewhere, and a service.
    #[must_use]
    pub fn small() -> Self {
        let act = |at_ms, what| Act { at_ms, what };
        let socket = |tries_first, acts| Client {
            session: 0,
            posts: false,
            is_named: true,
            has_ids: true,
            waits_for_ready: true,
            tries_first,
            acts,
        };
        let returns = What::Break { away_ms: 200, unnoticed_ms: 500, next: 1 };
        Self {
            seed: 7,
            instances: 2,
            has_stream: true,
            is_tiny: false,
            sessions: 1,
            foreign: 0,
            clients: vec![
                socket(
                    0,
                    vec![
                        act(100, What::Say),
                        act(300, What::Say),
                        act(500, returns),
                        act(1_500, What::Edit { back: 0 }),
                        act(2_000, What::Finish),
                    ],
                ),
                Client {
                    has_ids: false,
                    is_named: false,
                    ..socket(
                        1,
                        vec![
                            act(150, What::Say),
                            act(320, What::Interim),
                            act(900, What::Say),
                            act(2_500, What::Finish),
                        ],
                    )
                },
            ],
            faults: vec![],
            heals_at_ms: 90_000,
            bug: None,
        }
    }

    /// The most bytes that a transcriber may hold: its bound, and what was read before it was reached.
    pub(super) fn most_bytes(&self) -> usize {
        if self.is_tiny { 1_500 + 1_000 * self.clients.len() * 16 } else { 256 << 20 }
    }

    /// How much of it there is to shrink: faults, clients and their acts.
    #[must_use]
    pub fn size(&self) -> usize {
        self.faults.len() + self.clients.iter().map(|client| 1 + client.acts.len()).sum::<usize>()
    }
}

fn client(rng: &mut Rng, session: usize, instances: usize, talk_ms: u64) -> Client {
    let posts = rng.chance(15);
    let is_named = rng.chance(50);
    let has_ids = rng.chance(60);
    let any = |rng: &mut Rng| usize::try_from(rng.between(0, instances as u64 - 1)).unwrap_or(0);
    let mut acts = vec![];
    for _ in 0..rng.between(0, 8) {
        let what = match rng.between(0, 9) {
            0 if has_ids => What::Edit { back: usize::try_from(rng.between(0, 2)).unwrap_or(0) },
            1 => What::Interim,
            2 if !posts => What::Break {
                away_ms: rng.pick(&[0, 50, 1_000, 4_000, 12_000]),
                unnoticed_ms: rng.pick(&[5, 100, 2_000]),
                next: any(rng),
            },
            _ => What::Say,
        };
        // Engines send many finals at once.
        for _ in 0..if rng.chance(10) { 12 } else { 1 } {
            acts.push(Act { at_ms: rng.between(0, talk_ms), what });
        }
    }
    acts.sort_by_key(|act| act.at_ms);
    let last = acts.last().map_or(0, |act| act.at_ms);
    let what = if !posts && rng.chance(20) { What::Vanish } else { What::Finish };
    acts.push(Act { at_ms: last + rng.pick(&[0, 10, 3_000]), what });
    Client { session, posts, is_named, has_ids, waits_for_ready: rng.chance(50), tries_first: any(rng), acts }
}

fn fault(rng: &mut Rng, instances: usize, heals_at_ms: u64) -> Fault {
    let instance = usize::try_from(rng.between(0, instances as u64 - 1)).unwrap_or(0);
    let kind = rng.pick(&EffectKind::ALL);
    let nth = u32::try_from(rng.pick(&[1, 1, 1, 2, 3])).unwrap_or(1);
    let moment = rng.pick(&[Moment::Asked, Moment::Before, Moment::After, Moment::Reported]);
    let at = When::At { ms: rng.between(0, heals_at_ms / 2) };
    let effect = When::Effect { instance, kind, nth, moment };
    let outage_ms = rng.pick(&[10, 1_000, 15_000, 40_000]);
    let any = if rng.chance(60) { effect } else { at };
    match rng.between(0, 9) {
        0..=2 => Fault { when: any, what: Trouble::Kill { instance, outage_ms } },
        3 => Fault { when: any, what: Trouble::Restart { instance, outage_ms } },
        4 | 5 => {
            Fault { when: any, what: Trouble::Freeze { instance, span_ms: rng.pick(&[500, 5_000, 15_000, 30_000]) } }
        }
        6 => Fault { when: effect, what: Trouble::LoseRequest },
        7 => Fault { when: effect, what: rng.pick(&[Trouble::LoseAnswer, Trouble::Delay { late_ms: 7_000 }]) },
        8 => Fault { when: any, what: Trouble::StoreAway { span_ms: rng.pick(&[200, 3_000, 15_000]) } },
        _ => Fault { when: any, what: Trouble::StreamAway { span_ms: rng.pick(&[200, 3_000, 15_000]) } },
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, instances, has_stream, is_tiny, sessions, foreign, clients, faults, heals_at_ms, bug } = self;
        writeln!(
            f,
            "seed {seed}: {instances} transcribers, {sessions} sessions, stream: {has_stream}, tiny bounds: {is_tiny}, \
             {foreign} foreign segments, whole again at {heals_at_ms} ms"
        )?;
        if let Some(bug) = bug {
            writeln!(f, "planted: {bug}")?;
        }
        for (number, client) in clients.iter().enumerate() {
            let Client { session, posts, is_named, has_ids, waits_for_ready, tries_first, acts } = client;
            writeln!(
                f,
                "client {number}: session {session}, posts: {posts}, named: {is_named}, ids: {has_ids}, waits for ready: \
                 {waits_for_ready}, at {tries_first} first"
            )?;
            for act in acts {
                writeln!(f, "  at {:>6} ms {:?}", act.at_ms, act.what)?;
            }
        }
        for Fault { when, what } in faults {
            writeln!(f, "fault: {what:?} when {when:?}")?;
        }
        Ok(())
    }
}
