//! Tests a small worker for lost and repeated work.
//!
//! The worker is the loop that everybody writes first: pull a job, do it, acknowledge it. Two of them share a consumer. Each
//! world has one fault, at another moment in each run; the model's clock jumps, so that hundreds of worlds take no time.

#![expect(clippy::print_stdout, reason = "it prints what it found")]

use std::{collections::BTreeMap, time::Duration};

use jetstream_model::{
    AckBody, AckSubject, ApiCall, Broker, ClientId, ConsumerAction, ConsumerConfig, Event, Headers, Inbox, Input,
    Message, Pull, Request, StreamConfig, Tuning,
};

const JOBS: u64 = 3;
const ACK_WAIT: Duration = Duration::from_secs(1);
const END: Duration = Duration::from_secs(60);
/// How long a dead worker is away.
const OUTAGE: Duration = Duration::from_millis(500);
/// The time between the end of the work and the acknowledgement.
const BEFORE_ACK: Duration = Duration::from_millis(20);
/// Kills come at every 10 ms of the first two seconds.
const KILLS: std::ops::Range<u64> = 0..200;

/// When the worker acknowledges a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acknowledges {
    AfterWork,
    BeforeWork,
    AfterWorkWithProgress,
}

/// What one job's work is.
#[derive(Debug, Clone, Copy)]
struct Plan {
    acknowledges: Acknowledges,
    work: Duration,
    kill_at: Option<Duration>,
}

/// What all runs of a plan found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    runs: u64,
    lost: u64,
    repeated: u64,
}

/// One worker: what it holds and what it does next.
#[derive(Debug)]
struct Worker {
    client: ClientId,
    job: Option<Job>,
    /// When it starts again.
    away_until: Option<Duration>,
    pulls: u64,
}

#[derive(Debug)]
struct Job {
    reply: AckSubject,
    done_at: Duration,
    /// Whether the work is done and only the acknowledgement is missing.
    is_done: bool,
    report_at: Option<Duration>,
}

struct World {
    plan: Plan,
    broker: Broker,
    now: Duration,
    workers: Vec<Worker>,
    kill_at: Option<Duration>,
    /// How often each job was done.
    done: BTreeMap<u64, u64>,
}

impl World {
    fn new(plan: Plan) -> Self {
        let broker = Broker::new(1_700_000_000_000, Tuning::default());
        let workers = (1..=2).map(|id| Worker { client: ClientId(id), job: None, away_until: None, pulls: 0 });
        let kill_at = plan.kill_at;
        let mut world =
            Self { plan, broker, now: Duration::ZERO, workers: workers.collect(), kill_at, done: BTreeMap::new() };
        let reply = Inbox { client: ClientId(0), token: 0 };
        let config = ConsumerConfig { ack_wait: ACK_WAIT, ..ConsumerConfig::durable("worker") };
        for call in [
            ApiCall::CreateStream(StreamConfig::new("JOBS", &["jobs.>"])),
            ApiCall::CreateConsumer { stream: "JOBS".into(), config, action: ConsumerAction::Create },
        ] {
            world.handle(Input::Request(Request::Api { reply, call: Box::new(call) }));
        }
        for job in 1..=JOBS {
            let (subject, headers) = (format!("jobs.{job}").into(), Headers::id(job.to_string()));
            world.handle(Input::Request(Request::Publish { reply: None, subject, headers, payload: b"{}"[..].into() }));
        }
        for place in 0..world.workers.len() {
            world.start(place);
        }
        world
    }

    fn run(mut self) -> (u64, u64) {
        while self.now < END {
            self.act();
            let next =
                self.workers.iter().filter_map(Worker::next).chain(self.broker.next_deadline()).chain(self.kill_at);
            match next.min() {
                Some(next) => self.now = next.max(self.now),
                None => break,
            }
            self.deliver();
        }
        let times = |job: u64| self.done.get(&job).copied().unwrap_or(0);
        let (lost, repeated) = (1..=JOBS).fold((0, 0), |(lost, repeated), job| {
            (lost + u64::from(times(job) == 0), repeated + u64::from(times(job) > 1))
        });
        (lost, repeated)
    }

    fn handle(&mut self, input: Input) {
        self.broker.handle(self.now, input);
        self.deliver();
    }

    /// Takes what the broker has to say.
    fn deliver(&mut self) {
        while let Some(event) = self.broker.poll(self.now) {
            let Event::Send { to, message: Message::Delivery(delivery) } = event else { continue };
            let Some(place) = self.workers.iter().position(|worker| worker.client == to.client) else { continue };
            let acknowledges = self.plan.acknowledges;
            let report_at = (acknowledges == Acknowledges::AfterWorkWithProgress).then(|| self.now + ACK_WAIT / 3);
            let reply = delivery.reply;
            if acknowledges == Acknowledges::BeforeWork {
                let subject = reply.clone();
                self.broker.handle(self.now, Input::Request(Request::Ack { subject, body: AckBody::Ack, reply: None }));
            }
            let done_at = self.now + self.plan.work;
            self.workers[place].job = Some(Job { reply, done_at, is_done: false, report_at });
        }
    }

    /// Does everything that is due.
    fn act(&mut self) {
        if self.kill_at.is_some_and(|at| at <= self.now) {
            self.kill_at = None;
            self.kill(0);
        }
        for place in 0..self.workers.len() {
            if self.workers[place].away_until.is_some_and(|until| until <= self.now) {
                self.start(place);
            }
            self.work(place);
        }
    }

    fn work(&mut self, place: usize) {
        let now = self.now;
        let Some(job) = &mut self.workers[place].job else { return };
        if job.report_at.is_some_and(|at| at <= now) {
            job.report_at = Some(now + ACK_WAIT / 3);
            let subject = job.reply.clone();
            self.handle(Input::Request(Request::Ack { subject, body: AckBody::Progress, reply: None }));
            return self.work(place);
        }
        if job.done_at > now {
            return;
        }
        if !job.is_done {
            (job.is_done, job.done_at) = (true, now + BEFORE_ACK);
            *self.done.entry(job.reply.stream_seq).or_default() += 1;
            return;
        }
        let subject = job.reply.clone();
        self.workers[place].job = None;
        if self.plan.acknowledges != Acknowledges::BeforeWork {
            self.handle(Input::Request(Request::Ack { subject, body: AckBody::Ack, reply: None }));
        }
        self.pull(place);
    }

    fn start(&mut self, place: usize) {
        self.workers[place].away_until = None;
        let client = self.workers[place].client;
        self.handle(Input::Connect(client));
        self.pull(place);
    }

    fn pull(&mut self, place: usize) {
        let worker = &mut self.workers[place];
        worker.pulls += 1;
        let reply = Inbox { client: worker.client, token: worker.pulls };
        let (stream, consumer) = ("JOBS".into(), "worker".into());
        self.handle(Input::Request(Request::Pull { stream, consumer, reply, pull: Pull::waiting(1, END) }));
    }

    fn kill(&mut self, place: usize) {
        let worker = &mut self.workers[place];
        (worker.job, worker.away_until) = (None, Some(self.now + OUTAGE));
        let client = worker.client;
        self.handle(Input::Disconnect(client));
    }
}

impl Worker {
    /// When it does something by itself.
    fn next(&self) -> Option<Duration> {
        let job = self.job.iter().flat_map(|job| [Some(job.done_at), job.report_at]).flatten();
        job.chain(self.away_until).min()
    }
}

fn explore(acknowledges: Acknowledges, work: Duration, kills: bool) -> Findings {
    let moments = if kills { KILLS } else { 0..1 };
    moments.fold(Findings::default(), |mut findings, moment| {
        let kill_at = kills.then(|| Duration::from_millis(moment * 10));
        let (lost, repeated) = World::new(Plan { acknowledges, work, kill_at }).run();
        findings.runs += 1;
        findings.lost += u64::from(lost > 0);
        findings.repeated += u64::from(repeated > 0);
        findings
    })
}

const QUICK: Duration = Duration::from_millis(300);
const SLOW: Duration = Duration::from_millis(1_500);

/// The rows of the table: acknowledges, work, whether a worker is killed.
const ROWS: [(Acknowledges, Duration, bool); 6] = [
    (Acknowledges::AfterWork, QUICK, false),
    (Acknowledges::AfterWork, QUICK, true),
    (Acknowledges::BeforeWork, QUICK, true),
    (Acknowledges::AfterWork, SLOW, false),
    (Acknowledges::AfterWorkWithProgress, SLOW, false),
    (Acknowledges::AfterWorkWithProgress, SLOW, true),
];

fn main() {
    println!(
        "{:<30} {:>8} {:>7} {:>5} {:>10} {:>14}",
        "acknowledges", "work ms", "killed", "runs", "lost work", "repeated work"
    );
    for (acknowledges, work, kills) in ROWS {
        let Findings { runs, lost, repeated } = explore(acknowledges, work, kills);
        let acknowledges = format!("{acknowledges:?}");
        println!("{acknowledges:<30} {:>8} {kills:>7} {runs:>5} {lost:>10} {repeated:>14}", work.as_millis());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_naive_loop_loses_nothing_and_repeats_after_a_kill_or_where_work_is_slow() {
        let found: Vec<(bool, bool)> = ROWS
            .into_iter()
            .map(|(acknowledges, work, kills)| explore(acknowledges, work, kills))
            .map(|findings| (findings.lost > 0, findings.repeated > 0))
            .collect();
        let (safe, repeats, loses) = ((false, false), (false, true), (true, false));
        assert_eq!(found, [safe, repeats, loses, repeats, safe, repeats]);
    }
}
