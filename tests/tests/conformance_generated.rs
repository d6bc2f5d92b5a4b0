//! The simulated broker does what nats-server does: scripts drawn at random, and those that once disagreed.
//!
//! CI draws the same scripts every time. A search draws others: `CONFORMANCE_SEED=7 CONFORMANCE_SCRIPTS=500 cargo test
//! -p transcript-tests --test conformance_generated`. A script on which the two disagree is shrunk and written to
//! `fixtures/conformance/found/`, which is replayed from then on.

use std::{env, fs};

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use transcript_tests::{
    conformance::{
        Action, ConsumerPlan, Script, Step, Stop,
        compare::{compare, compare_all},
        fixtures, model,
        steps::{ack, info, publish, publish_id, pull, restart, wait},
    },
    servers::NatsServer,
};

/// How many scripts CI draws for one server, and how many with a server of their own.
const SHARED: usize = 48;
const RESTARTING: usize = 12;
/// The longest script, in milliseconds.
const LONGEST_MS: u64 = 6_500;
/// How many smaller scripts are tried to shrink one that disagrees; each takes some seconds.
const SHRINKS: u64 = 25;

fn plan() -> impl Strategy<Value = ConsumerPlan> {
    let backoff_ms = prop_oneof![4 => Just(vec![]), 1 => Just(vec![500, 1_200])];
    let max_deliver = prop_oneof![Just(None), Just(Some(1)), Just(Some(2)), Just(Some(3))];
    let max_ack_pending = prop_oneof![3 => Just(Some(1_000)), 1 => Just(Some(2)), 1 => Just(Some(1))];
    let filter = prop_oneof![3 => Just(None), 1 => Just(Some("a".to_owned()))];
    (prop_oneof![Just(800), Just(1_300)], backoff_ms, max_deliver, max_ack_pending, filter).prop_map(
        |(ack_wait_ms, backoff_ms, max_deliver, max_ack_pending, filter)| ConsumerPlan {
            ack_wait_ms,
            max_deliver: max_deliver.map(|most: u64| most.max(u64::try_from(backoff_ms.len()).unwrap_or(0))),
            backoff_ms,
            max_ack_pending,
            filter,
            ..ConsumerPlan::default()
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let subject = || prop_oneof![3 => Just("a"), 1 => Just("b")];
    let body = prop_oneof![
        3 => Just("+ACK"), 2 => Just("-NAK"), 2 => Just("-NAK 400ms"), 2 => Just("+WPI"), 1 => Just("+TERM done"),
        1 => Just("-NAK {\"delay\": 1900000000}"), 1 => Just("what"),
    ];
    let expires = prop_oneof![3 => Just(20_000_u64), 1 => Just(700), 1 => Just(0)];
    let pull =
        (1..=2_u64, 1..=4_u64, expires, prop::bool::weighted(0.2), prop_oneof![3 => Just(0_u64), 1 => Just(330)]);
    prop_oneof![
        5 => subject().prop_map(publish),
        2 => (subject(), "[xy]").prop_map(|(subject, id)| publish_id(subject, &id)),
        5 => pull.prop_map(|(client, batch, expires_ms, no_wait, heartbeat_ms)| {
            let heartbeat_ms = if expires_ms >= 700 { heartbeat_ms } else { 0 };
            Step::Pull { client, batch, expires_ms, no_wait, heartbeat_ms, max_bytes: 0 }
        }),
        6 => (1..=4_u64, 1..=3_usize, body).prop_map(|(sequence, delivery, body)| ack(sequence, delivery, body)),
        1 => (1..=4_u64).prop_map(|sequence| Step::DeleteMessage { sequence }),
        1 => prop::option::of(subject().prop_map(str::to_owned)).prop_map(|subject| Step::Purge { subject }),
        1 => prop_oneof![Just(300), Just(900), Just(5_000)].prop_map(|ms| Step::SetWindow { ms }),
        1 => plan().prop_map(|plan| Step::Consumer { action: Action::Either, plan }),
        1 => (1..=2_u64).prop_map(|client| Step::Unsubscribe { client }),
        1 => Just(info()),
        5 => prop_oneof![Just(150), Just(450), Just(1_100)].prop_map(wait),
    ]
}

fn script() -> impl Strategy<Value = Script> {
    let window = prop_oneof![Just(900_u64), Just(5_000)];
    (window, plan(), prop::collection::vec(step(), 4..22)).prop_map(|(window_ms, consumer, mut steps)| {
        steps.insert(0, publish("a"));
        steps.insert(1, pull(1, 2, 20_000));
        steps.extend([wait(900), info()]);
        Script { name: "drawn".to_owned(), window_ms, consumer, steps, watch_ms: 300 }
    })
}

fn restarting() -> impl Strategy<Value = Script> {
    let stop = prop_oneof![Just(Stop::Terminate), Just(Stop::Kill)];
    (script(), stop, 0..20_usize).prop_map(|(mut script, stop, place)| {
        // A stop takes a while, in which heartbeats are still sent.
        for step in &mut script.steps {
            if let Step::Pull { heartbeat_ms, .. } = step {
                *heartbeat_ms = 0;
            }
        }
        let place = place.clamp(2, script.steps.len().saturating_sub(2));
        script.steps.splice(place..place, [wait(250), restart(stop, 100), wait(250), pull(2, 3, 20_000)]);
        script
    })
}

fn is_fair(script: &Script) -> bool {
    script.schedule().1 <= LONGEST_MS && model::is_robust(script)
}

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn runner(stream: u8) -> TestRunner {
    let mut seed = [stream; 32];
    seed[..8].copy_from_slice(&number("CONFORMANCE_SEED", 1).to_le_bytes());
    let config = Config { max_local_rejects: 1_000_000, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Draws scripts, compares them all at once, and shrinks one that disagrees.
#[expect(clippy::print_stdout, reason = "what disagrees is told before it is shrunk, which takes a while")]
async fn draw(strategy: impl Strategy<Value = Script>, stream: u8, count: usize) {
    let mut runner = runner(stream);
    let strategy = strategy.prop_filter("a step is too close to something", is_fair);
    let mut trees = vec![];
    for _ in 0..count {
        trees.push(strategy.new_tree(&mut runner).expect("one of many is fair"));
    }
    let mut scripts: Vec<Script> = trees.iter().map(ValueTree::current).collect();
    for (number, script) in scripts.iter_mut().enumerate() {
        script.name = format!("drawn {stream}-{number:03}");
    }
    let disagreeing = compare_all(&scripts).await;
    let Some(first) = disagreeing.first() else {
        return;
    };
    let all: Vec<&str> = disagreeing.iter().map(|(_, how)| how.as_str()).collect();
    println!("{} of {count} disagree\n\n{}", all.len(), all.join("\n"));
    let place = scripts.iter().position(|script| script.name == first.0).expect("it was drawn");
    let smallest = shrink(&mut trees[place]).await;
    let kept = fixtures::directory("found").join(format!("{}.json", smallest.name.replace(' ', "-")));
    fs::create_dir_all(fixtures::directory("found")).expect("the directory of fixtures");
    fs::write(&kept, serde_json::to_string_pretty(&smallest).expect("JSON")).expect("a fixture");
    panic!("{} of {count} disagree; the first, shrunk, is in {}", all.len(), kept.display());
}

async fn shrink<T: ValueTree<Value = Script>>(tree: &mut T) -> Script {
    let server = NatsServer::start().await.expect("a server");
    let mut smallest = tree.current();
    let mut more = tree.simplify();
    for _ in 0..number("CONFORMANCE_SHRINKS", SHRINKS) {
        if !more {
            break;
        }
        let script = tree.current();
        let host = if script.restarts() { None } else { Some(&server) };
        let disagrees = is_fair(&script) && compare(&script, host).await.disagreement.is_some();
        more = if disagrees {
            smallest = script;
            tree.simplify()
        } else {
            tree.complicate()
        };
    }
    smallest.name = format!("shrunk seed {} of {} steps", number("CONFORMANCE_SEED", 1), smallest.steps.len());
    smallest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drawn_scripts_agree() {
    let count = usize::try_from(number("CONFORMANCE_SCRIPTS", SHARED as u64)).expect("a count");
    draw(script(), 1, count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drawn_scripts_with_a_restart_agree() {
    let count = usize::try_from(number("CONFORMANCE_SCRIPTS", RESTARTING as u64)).expect("a count");
    draw(restarting(), 2, count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_once_disagreed_agrees() {
    let scripts: Vec<Script> = fixtures::read("found");
    let disagreeing = compare_all(&scripts).await;
    assert!(disagreeing.is_empty(), "{disagreeing:#?}");
}
