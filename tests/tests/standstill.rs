//! A loop that something blocks: the process lives, and the thread that decides does not go on.

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        ptrace,
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use transcript_core::contract::SESSION_ENDED_SUBJECT;
use transcript_tests::{
    numbered::{announced, end},
    process_guard::Exit,
    raw_nats,
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// A debugger that has stopped one thread of a process; the thread goes on when this is dropped.
struct Stopped {
    _goes_on_with: Sender<()>,
}

impl Stopped {
    /// Stops the main thread, in which the loop runs. The others go on. `None` where this machine lets nobody debug.
    fn main_thread_of(pid: u32) -> Result<Option<Self>, Box<dyn std::error::Error>> {
        let thread_id = Pid::from_raw(i32::try_from(pid)?);
        let (sender, goes_on) = channel();
        let (stopped, is_stopped) = channel();
        // What traces a thread must be one thread, until its end.
        thread::spawn(move || stopped.send(trace(thread_id)).map(|()| detach(thread_id, &goes_on)));
        match is_stopped.recv()? {
            Ok(()) => Ok(Some(Self { _goes_on_with: sender })),
            Err(Errno::EPERM) => {
                eprintln!("not tested: this machine lets no process debug another (ptrace)");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn trace(thread_id: Pid) -> nix::Result<()> {
    ptrace::seize(thread_id, ptrace::Options::empty())?;
    ptrace::interrupt(thread_id)?;
    waitpid(thread_id, Some(WaitPidFlag::__WALL)).map(drop)
}

fn detach(thread_id: Pid, goes_on: &Receiver<()>) {
    // It ends with an error, when the sender is dropped.
    goes_on.recv().ok();
    // The process may be gone.
    ptrace::detach(thread_id, None).ok();
}

async fn in_hand(world: &TestWorld, calls: usize) -> Outcome {
    wait_until(format!("{calls} calls are in hand"), LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        if consumer.num_ack_pending == calls { Ok(()) } else { Err(format!("{consumer:?}")) }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_loop_pulls_nothing_is_reported_and_ends_when_it_is_told_to() -> Outcome {
    const IN_HAND: usize = 20;
    const LATER: usize = 100;
    let world = TestWorld::start().await?;
    let settings = ["--quiet-period", "1s", "--ack-wait", "3s", "--max-deliver", "2"];
    let blocked = world.processor("run").arguments(settings).start_ready(LONG).await?;
    for number in 0..IN_HAND {
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    in_hand(&world, IN_HAND).await?;
    let Some(stopped) = Stopped::main_thread_of(blocked.pid())? else { return Ok(()) };
    wait_until("its request for messages has expired", LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        if consumer.num_waiting == 0 { Ok(()) } else { Err(format!("{consumer:?}")) }
    })
    .await?;
    let healthy = world.processor("run").arguments(settings).start_ready(LONG).await?;
    for number in IN_HAND..IN_HAND + LATER {
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    announced(&world, &healthy, IN_HAND + LATER, LONG).await?;
    let delivered = world.consumer().await?.delivered.consumer_sequence;
    assert_eq!(delivered, u64::try_from(2 * IN_HAND + LATER)?, "what was in hand came again, and nothing else");
    blocked.logged("the processor has stood still for", LONG).await?;
    // The second signal ends it, and needs no loop for that. Its end is seen once the debugger lets it go.
    let pid = Pid::from_raw(i32::try_from(blocked.pid())?);
    kill(pid, Signal::SIGTERM)?;
    blocked.logged("told to stop", LONG).await?;
    kill(pid, Signal::SIGTERM)?;
    blocked.logged("stopped at once by a second signal", LONG).await?;
    drop(stopped);
    assert_eq!(blocked.wait(LONG).await?, Exit::Code(1), "{}", blocked.logs());
    healthy.terminate().await?;
    assert_eq!(raw_nats::dead_letters(&world).await?, []);
    Ok(())
}

/// The loop goes on with what it knew: its calls are done by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_loop_that_goes_on_does_nothing_twice() -> Outcome {
    const CALLS: usize = 20;
    let world = TestWorld::start().await?;
    let settings = ["--quiet-period", "1s", "--ack-wait", "2s", "--max-deliver", "2"];
    let blocked = world.processor("run").arguments(settings).start_ready(LONG).await?;
    for number in 0..CALLS {
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    in_hand(&world, CALLS).await?;
    let Some(stopped) = Stopped::main_thread_of(blocked.pid())? else { return Ok(()) };
    let healthy = world.processor("run").arguments(settings).start_ready(LONG).await?;
    announced(&world, &healthy, CALLS, LONG).await?;
    blocked.logged("the processor has stood still for", LONG).await?;
    drop(stopped);
    blocked.logged("the processor goes on", LONG).await?;
    blocked.terminate().await?;
    healthy.terminate().await?;
    announced(&world, &blocked, CALLS, LONG).await?;
    assert_eq!(raw_nats::dead_letters(&world).await?, []);
    Ok(())
}
